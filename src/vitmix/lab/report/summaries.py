"""Tables of configurations and runs: results and how to compare them; cost; settings."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from vitmix.lab.runs import Run

from .groups import Group, deciding_settings, defaults, differing, every_run, setting_text
from .html import Html, html, joined
from .quantities import (
    BEST_EPOCH,
    COUNT,
    EPOCHS,
    MEMORY,
    SPEED,
    TOP5,
    WHOLE_TIME,
    Quantity,
    best,
    evaluated,
    last,
    median,
    titled,
)

RESULTS = {
    "top-1, best epoch": best("accuracy"),
    "top-1, last epoch": last("accuracy"),
    "top-5, best epoch": TOP5,
    "loss, best epoch": best("eval_loss", lambda value: f"{value:.4f}"),
    "calibration error": evaluated("ece"),
}
FIXED = {
    "parameters": evaluated("parameters", COUNT),
    "FLOPs an image": evaluated("flops", lambda value: f"{value / 1e9:.4g} G"),
}
MEASURED = {
    "training, images/s": SPEED,
    "inference, images/s": evaluated("images_per_second", COUNT),
    "time of an epoch, s": median("seconds", lambda value: f"{value:.1f}"),
    "whole training": WHOLE_TIME,
    "memory, GiB": MEMORY,
}
PER_RUN = {"best epoch": BEST_EPOCH, "top-1, best": best("accuracy"), "top-1, last": last("accuracy")}


def results(groups: Sequence[Group]) -> list[Html]:
    runs = every_run(groups)
    columns = {name: each for name, each in RESULTS.items() if any(each.of(group) for group in groups)}
    notes: list[Html] = [*map(html.note, reservations(groups))]
    if len(runs) == 1:
        cards = [(name, quantity.number(0, runs[0])) for name, quantity in columns.items()]
        return [*notes, html.cards(cards), html.paragraph(best_epoch_text(runs))]
    rows = [[group.key, str(len(group.runs)), *(each.spread(group) for each in columns.values())] for group in groups]
    caption = f"Mean ± sample standard deviation over the runs. {best_epoch_text(runs)}"
    return [*notes, html.table(["", "runs", *columns], rows, caption)]


def best_epoch_text(runs: Sequence[Run]) -> str:
    scores = " or ".join(
        dict.fromkeys(run.config.best if run.dense is None else titled(run.config.best) for run in runs)
    )
    # The configured split does not always exist, so only an evaluation knows which one was used.
    data = {found.data for run in runs if (found := run.evaluation or run.dense)}
    where = data.pop() if len(data) == 1 else "the images of its evaluation"
    return f"The best epoch is that of the best {scores} on {where}."


def reservations(groups: Sequence[Group]) -> Iterator[str]:
    runs = every_run(groups)
    early = [(run.path, run.epochs[-1].number, run.config.total_epochs) for run in runs if run.summary is None]
    if early:
        listed = ", ".join(f"{path} ({done} of {total} epochs)" for path, done, total in early)
        yield f"Not finished; results so far: {listed}"
    described = all(run.evaluation for run in runs)
    sets: dict[str, list[str]] = {}
    for run in runs:
        asked = f"{run.config.data}, {run.config.eval_split}"  # all that is known without an evaluation
        sets.setdefault(run.evaluation.data if described and run.evaluation else asked, []).append(str(run.path))
    if len(sets) > 1:
        listed = "; ".join(f"{data}: {', '.join(folders)}" for data, folders in sets.items())
        yield f"Evaluated on different images, so these results cannot be compared. {listed}"
    for group in groups:
        seeds = Counter(run.config.seed for run in group.runs.values())
        twice = [f"{count} runs with seed {seed}" for seed, count in seeds.items() if count > 1]
        if twice:
            yield f"{group.name} has {', '.join(twice)}, so its standard deviation is too small"


def cost(groups: Sequence[Group], fixed: Mapping[str, Quantity] = FIXED) -> list[Html]:
    rows = []
    for group in groups:
        # The model is the same for every seed.
        one = next((number for number, run in group.runs.items() if run.evaluation), next(iter(group.runs)))
        numbers = [quantity.number(one, group.runs[one]) for quantity in fixed.values()]
        rows.append([group.key, *numbers, *(quantity.spread(group) for quantity in MEASURED.values())])
    evaluations = [run.evaluation for run in every_run(groups) if run.evaluation]
    places = {f"{each.device}, {each.precision}, batch {each.batch}" for each in evaluations}
    said = "Training speed and epoch time: median over the epochs. FLOPs: two per multiply-add. "
    said += "Memory: peak of tensors on the GPU."
    said = said if fixed is FIXED else said.replace(" FLOPs: two per multiply-add.", "")
    said += f" Inference: model alone on {'; '.join(sorted(places))}." if places else ""
    return [html.table(["", *fixed, *MEASURED], rows, said)]


def runs(groups: Sequence[Group]) -> list[Html]:
    rows = []
    headline = groups[0].first.config.headline
    columns = PER_RUN
    if headline != "accuracy":
        columns = {"best epoch": BEST_EPOCH, f"{headline}, best": best(headline), f"{headline}, last": last(headline)}
    for number, run in (each for group in groups for each in group.runs.items()):
        left = "" if run.summary else html.span("soft", f" of {run.config.total_epochs}, not finished")
        numbers = [quantity.number(number, run) for quantity in (*columns.values(), WHOLE_TIME)]
        unread = str(len(run.summary.broken_images)) if run.summary else ""
        epochs = joined(EPOCHS.number(number, run), left)
        rows.append([html.code(str(run.path)), str(run.config.seed), epochs, *numbers, unread])
    return [html.table(["folder", "seed", "epochs", *columns, "time", "unread images"], rows)]


def settings(groups: Sequence[Group]) -> list[Html]:
    usual = defaults(groups[0].first.config)
    every = [deciding_settings(group.first.config) for group in groups]
    different = differing(every)
    changed = [name for name in every[0] if name not in different and every[0][name] != usual[name]]
    rest = [name for name in every[0] if name not in different and name not in changed]

    def table(names: Sequence[str]) -> Html:
        values = {name: [each[name] for each in every] if name in different else [every[0][name]] for name in names}
        rows = [[name, *(html.code(setting_text(value)) for value in own)] for name, own in values.items()]
        head = ["setting", *(group.key for group in groups)]
        return html.table(head, rows, kind="words", marked=[name in different for name in names])

    said = "Marked rows distinguish the configurations. " if different else ""
    said += "Shown are the settings that differ from the defaults; the seeds are listed above."
    folded = html.details("Settings left at their defaults", table(rest))
    return [html.paragraph(said), table([*different, *changed]), folded]
