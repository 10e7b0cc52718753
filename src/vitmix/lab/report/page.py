"""The page of a report: sections from top to bottom, each a function of the groups of runs."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from vitmix import __version__
from vitmix.lab.evaluation.text import top5_tells
from vitmix.lab.plotting.canvas import OWN, PARTNER
from vitmix.lab.training.checkpoints import write_file
from vitmix.lab.training.progress import duration

from . import html, svg
from .analyses import analyses_section
from .drawn import drawn_section
from .html import COUNT, GIGA, LOSS, PERCENT, TIME, number, section, spread, table
from .losses import different_losses
from .mistakes import calibration_section, classes_section, confusions_section
from .pictures import Pictures, draw_pictures, gallery_section, pictures_section
from .robustness import robustness_section
from .runs import Group, Run, add_evaluations, deciding, defaults, find_runs, group_runs, plain

CURVES = {  # column of metrics.jsonl → title and how its values read
    "accuracy": ("Accuracy", lambda value: f"{100 * value:.3g} %"),
    "ema_accuracy": ("Accuracy of the averaged weights", lambda value: f"{100 * value:.3g} %"),
    "eval_loss": ("Evaluation loss", lambda value: f"{value:.3g}"),
    "loss": ("Training loss", lambda value: f"{value:.3g}"),
    "lr": ("Learning rate", lambda value: f"{value:.2g}"),
    "images/s": ("Images per second, training", lambda value: f"{value:,.0f}"),
}
TOP5 = "metrics.jsonl:best.accuracy5"
SHARES = ("accuracy", "ema_accuracy")  # of the curves: what is never above one


def write_report(
    places: Sequence[Path],
    output: Path,
    *,
    examples: int = 5,
    compute: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Writes the page of these runs, or of those in these folders; returns its size in bytes.

    Args:
        examples: mixed images for each method that a run switches between; 0 for no pictures at all.
        compute: evaluates runs that have no stored evaluation; otherwise the page says that there is none.
    """
    if output.is_dir() or not output.parent.is_dir():
        raise ValueError(f"cannot write the page to {output}; name a file in a folder that exists")
    runs, left_out = find_runs(places)
    for sentence in left_out:
        say(sentence)
    add_evaluations(runs, compute=compute, say=say)
    groups = group_runs(runs)
    page = render(groups, draw_pictures(groups, examples, say), notes=left_out)
    content = page.encode(errors="replace")  # JSON can hold halves of characters
    write_file(output, content)
    return len(content)


Section = tuple[str, str, str]  # anchor, heading, content


def render(
    groups: Sequence[Group],
    pictures: Pictures,
    *,
    heading: str | None = None,
    first: Sequence[Section] = (),
    notes: Sequence[str] = (),
) -> str:
    """The whole page as text: `notes` at the top, then sections of somebody else's if there are `first` ones."""
    runs = [run for group in groups for run in group.runs]
    sections = [
        *first,
        ("results", "Results", _results(groups)),
        ("curves", "Curves", _curves(groups)),
        ("examples", "What the model saw", pictures_section(pictures)),
        ("gallery", "Where the model looks", gallery_section(pictures)),
        ("drawn", "Pictures", drawn_section(groups)),
        ("classes", "Accuracy of each class", classes_section(groups)),
        ("calibration", "Calibration", calibration_section(groups)),
        ("confusions", "Most frequent mistakes", confusions_section(groups)),
        ("robustness", "Robustness", robustness_section(groups)),
        ("analyses", "Studies of mixing", analyses_section(groups)),
        ("cost", "Speed and cost", _cost(groups)),
        ("runs", "Runs", _runs(runs)),
        ("settings", "Configuration", _settings(groups)),
    ]
    sections = [each for each in sections if each[2]]
    menu = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    style = f":root {{ --own: {OWN}; --partner: {PARTNER}; }}\n"
    style += resources.files("vitmix.lab.report").joinpath("style.css").read_text(encoding="utf-8")
    title = escape(heading or (groups[0].name if len(groups) == 1 else f"{len(groups)} configurations compared"))
    what = f"{len(runs)} run{'s' * (len(runs) > 1)} · {escape(', '.join(sorted({run.config.data for run in runs})))}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{title} – vitmix</title><style>{style}</style></head><body>"
        f'<header><h1>{title}</h1><p class="soft">{what}</p><nav>{menu}</nav></header><main>'
        + "".join(map(html.note, notes))
        + "".join(section(name, heading, content) for name, heading, content in sections)
        + f'</main><footer><p class="soft">Written by vitmix {__version__}.</p></footer></body></html>\n'
    )


def _results(groups: Sequence[Group]) -> str:
    columns = [
        ("top-1, best epoch", "metrics.jsonl:best.accuracy", PERCENT),
        ("top-1, last epoch", "metrics.jsonl:last.accuracy", PERCENT),
        ("top-5, best epoch", TOP5, PERCENT),
        ("loss, best epoch", "metrics.jsonl:best.eval_loss", LOSS),
        ("calibration error", "evaluation.json:ece", PERCENT),
    ]
    runs = [run for group in groups for run in group.runs]
    if not any(map(_five_can_miss, runs)):
        columns = [each for each in columns if each[1] != TOP5]
    notes = "".join(map(html.note, _reservations(groups)))
    chosen = f"The best epoch is that of the best {' or '.join(dict.fromkeys(run.config.best for run in runs))}"
    data = {run.evaluation["data"] for run in runs if run.evaluation}
    # The split that a configuration asks for is not always there, so only an evaluation knows which one it was.
    chosen += f" on {escape(data.pop())}." if len(data) == 1 else " on the images of its evaluation."
    if len(runs) == 1:
        cards = "".join(
            f'<div class="card">{name}<b>{number(runs[0], where, how)}</b></div>' for name, where, how in columns
        )
        return f'{notes}<div class="cards">{cards}</div><p class="soft">{chosen}</p>'
    rows = [
        [
            html.key(group),
            str(len(group.runs)),
            *(spread(_telling(group) if where == TOP5 else group, where, how) for _, where, how in columns),
        ]
        for group in groups
    ]
    caption = f"Mean ± sample standard deviation over the runs. {chosen}"
    return notes + table(["", "runs", *(name for name, _, _ in columns)], rows, caption=caption)


def _telling(group: Group) -> Group:
    return group.only([run for run in group.runs if _five_can_miss(run)])


def _five_can_miss(run: Run) -> bool:
    return run.evaluation is None or top5_tells(run.evaluation)


def _reservations(groups: Sequence[Group]) -> list[str]:
    """What a reader of the results must know before comparing them."""
    runs = [run for group in groups for run in group.runs]
    found = []
    early = [
        f"{run.folder} ({run.rows[-1]['epoch']} of {run.config.total_epochs} epochs)"
        for run in runs
        if not run.finished
    ]
    if early:
        found.append(f"Not finished, and counted as far as it is: {', '.join(early)}")
    sets: dict[str, list[str]] = {}
    described = all(run.evaluation for run in runs)
    for run in runs:
        asked = f"{run.config.data}, {run.config.eval_split}"  # all there is without an evaluation
        sets.setdefault(run.evaluation["data"] if described and run.evaluation else asked, []).append(str(run.folder))
    if len(sets) > 1:
        listed = "; ".join(f"{data}: {', '.join(folders)}" for data, folders in sets.items())
        found.append(f"Evaluated on different images, so these results do not compare. {listed}")
    for group in groups:
        seeds = Counter(run.config.seed for run in group.runs)
        twice = [f"seed {seed} {count} times" for seed, count in seeds.items() if count > 1]
        if twice:
            found.append(f"{group.name} has {', '.join(twice)}: such runs are alike, so the spread comes out too small")
    return found


def _curves(groups: Sequence[Group]) -> str:
    names = [
        name for name in CURVES if any(row.get(name) is not None for g in groups for r in g.runs for row in r.rows)
    ]
    charts = []
    for name in names:
        title, shown = CURVES[name]
        lines: list[svg.Line] = []
        bands: list[svg.Band] = []
        for group in groups:
            courses = [
                [(row["epoch"], row[name]) for row in run.rows if math.isfinite(row.get(name, math.nan))]
                for run in group.runs
            ]
            labels = [f"{group.name}, seed {run.config.seed}" for run in group.runs]
            if len(courses) == 1:
                lines.append(svg.Line(group.number, courses[0], labels[0]))
                continue
            lines += [svg.Line(group.number, c, label, "seed") for c, label in zip(courses, labels, strict=True) if c]
            mean, low, high = _mean_course(courses, most=1.0 if name in SHARES else math.inf)
            if mean:
                lines.append(svg.Line(group.number, mean, f"{group.name}, mean"))
                bands.append(svg.Band(group.number, low, high))
        lines = [line for line in lines if line.points]
        if not lines:
            continue
        chart = svg.line_chart(title, lines, bands, shown=shown, x_name="epoch", percent=name in SHARES)
        said = different_losses(groups) if name == "loss" else ""
        below = f"<figcaption>{escape(said)}</figcaption>" if said else ""
        charts.append(f'<figure data-curve="{name}"><h3>{title}</h3>{chart}{below}</figure>')
    many = any(len(group.runs) > 1 for group in groups)
    said = "Thick: mean over the runs; shaded: ± one standard deviation; thin: each run." if many else ""
    return f'{html.legend(groups)}<p class="soft">{said}</p><div class="charts">{"".join(charts)}</div>'


Course = list[tuple[float, float]]


def _mean_course(courses: Sequence[Course], most: float) -> tuple[Course, Course, Course]:
    """Mean, mean - deviation and mean + deviation (`most` at most) at the epochs that all runs reached."""
    tables = [dict(course) for course in courses]
    shared = sorted(set.intersection(*(set(each) for each in tables)))
    mean, low, high = [], [], []
    for epoch in shared:
        values = [each[epoch] for each in tables]
        middle, deviation = statistics.fmean(values), statistics.stdev(values)
        mean.append((epoch, middle))
        # Accuracies, losses and speeds are never below zero, whatever their spread.
        low.append((epoch, max(middle - deviation, min(0.0, *values))))
        high.append((epoch, min(middle + deviation, most)))
    return mean, low, high


def _cost(groups: Sequence[Group]) -> str:
    same = [("parameters", "evaluation.json:parameters", COUNT), ("FLOPs an image", "evaluation.json:flops", GIGA)]
    columns = [
        ("training, images/s", "metrics.jsonl:median.images/s", COUNT),
        ("inference, images/s", "evaluation.json:images_per_second", COUNT),
        ("time of an epoch, s", "metrics.jsonl:median.seconds", lambda value: f"{value:.1f}"),
        ("whole training", "summary.json:seconds", TIME),
        ("memory, GiB", "summary.json:peak_memory", lambda value: f"{value / 2**30:.2f}"),
    ]
    rows = []
    for group in groups:
        one = next((run for run in group.runs if run.evaluation), group.runs[0])  # one model, whatever the seed
        fixed = [number(one, where, how) for _, where, how in same]
        rows.append([html.key(group), *fixed, *(spread(group, where, how) for _, where, how in columns)])
    places = {
        f"{e['device']}, {e['precision']}, batch {e['batch']}"
        for group in groups
        for run in group.runs
        if (e := run.evaluation) is not None
    }
    said = "Training speed and epoch time: median over the epochs. FLOPs: two for each multiply-add. "
    said += "Memory: what tensors on a GPU took at most."
    said += f" Inference: model alone on {'; '.join(map(escape, sorted(places)))}." if places else ""
    return table(["", *(name for name, _, _ in [*same, *columns])], rows, caption=said)


def _runs(runs: Sequence[Run]) -> str:
    head = ["folder", "seed", "epochs", "best epoch", "top-1, best", "top-1, last", "time", "unread images"]
    rows = []
    for run in runs:
        epochs = number(run, "metrics.jsonl:last.epoch", COUNT)
        left = "" if run.finished else f' <span class="soft">of {run.config.total_epochs}, not finished</span>'
        broken = "" if run.summary is None else str(len(run.summary["broken_images"]))
        time = number(run, "summary.json:seconds", duration)
        best, last = (number(run, f"metrics.jsonl:{which}.accuracy", PERCENT) for which in ("best", "last"))
        row = [f"<code>{escape(str(run.folder))}</code>", str(run.config.seed), epochs + left]
        rows.append([*row, number(run, "metrics.jsonl:best.epoch", COUNT), best, last, time, broken])
    return table(head, rows)


def _settings(groups: Sequence[Group]) -> str:
    usual = defaults()
    every = [deciding(group.runs[0].config) for group in groups]
    differing = [name for name in every[0] if len({repr(each[name]) for each in every}) > 1]
    changed = [n for n in every[0] if n not in differing and every[0][n] != usual[n]]
    rest = [name for name in every[0] if name not in differing and name not in changed]
    head = ["setting", *(html.key(group) for group in groups)]

    def rows(names: Sequence[str]) -> str:
        values = [[each[name] for each in every] if name in differing else [every[0][name]] for name in names]
        cells = [[f"<code>{escape(plain(value))}</code>" for value in row] for row in values]
        found = [[escape(name), *row] for name, row in zip(names, cells, strict=True)]
        return table(head, found, kind="words", marked=[name in differing for name in names])

    said = "Marked rows tell the configurations apart. " if differing else ""
    said += "Shown are the settings that differ from the defaults; the seeds are listed above."
    rest_of_it = f"<details><summary>Settings left at their defaults</summary>{rows(rest)}</details>"
    return f'<p class="soft">{said}</p>{rows([*differing, *changed])}{rest_of_it}'
