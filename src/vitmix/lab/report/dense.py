"""The sections of transfer runs: scores with intervals, predictions, scores of each class."""

from collections.abc import Sequence

from vitmix.lab.dense.colors import class_color
from vitmix.lab.runs import ClassScores, Estimate, Run
from vitmix.lab.runs.folder import DENSE, EXAMPLES

from .groups import Group, advice, every_run, having, several
from .html import NONE, Html, html
from .quantities import COUNT, PERCENT, Quantity, Shown, part_of, titled, with_interval
from .summaries import best_epoch_text, reservations

MOST_CLASSES, MOST_GROUPS = 40, 6


def _shown(name: str) -> Shown:
    return (lambda value: f"{value:.4f}") if name.endswith("loss") else PERCENT


def score(name: str, part: str = "value") -> Quantity:
    """A score of the best weights: its `value`, `low` or `high`."""

    def read(run: Run) -> float | None:
        found: Estimate | None = None if run.dense is None else run.dense.scores.values.get(name)
        return None if found is None else part_of(found, part)

    return Quantity(f"{DENSE}:{part}.{name}", read, _shown(name))


def class_score(number: int, name: str) -> Quantity:
    """A score of a class."""

    def read(run: Run) -> float | None:
        return None if run.dense is None else run.dense.scores.by_class[number].values.get(name)

    return Quantity(f"{DENSE}:{number}.{name}", read, COUNT if name in ("pixels", "objects") else PERCENT)


PARAMETERS = Quantity(f"{DENSE}:parameters", lambda run: run.dense and run.dense.parameters, COUNT)


def _measured(groups: Sequence[Group]) -> list[Group]:
    return having(groups, lambda run: run.dense is not None)


def results(groups: Sequence[Group]) -> list[Html]:
    """What keeps runs from being compared, then the scores."""
    absent = [
        html.note(f"{run.path} is not evaluated: {run.problems[DENSE]}{advice(run, 'eval {}')}")
        for run in every_run(groups)
        if run.dense is None
    ]
    best = html.paragraph(best_epoch_text(every_run(groups)))
    return [*map(html.note, reservations(groups)), *absent, *scores(groups), best]


def scores(groups: Sequence[Group]) -> list[Html]:
    """Each score of the best weights, with its interval if a configuration has one run."""
    seen = _measured(groups)
    runs = [run.dense for run in every_run(seen) if run.dense is not None]
    names = list(dict.fromkeys(name for each in runs for name in each.scores.values))
    rows = [
        [
            group.key,
            str(len(group.runs)),
            *(with_interval(group, lambda part, n=name: score(n, part)) for name in names),
        ]
        for group in seen
    ]
    if not rows:
        return []
    intervals = "; ".join(sorted({each.scores.interval for each in runs} - {""}))
    said = f"Best weights on {'; '.join(sorted({each.data for each in runs}))}."
    said += " Mean ± sample standard deviation over the runs." if several(seen) else ""
    said += f" In brackets: {intervals}." if intervals and any(len(group.runs) == 1 for group in seen) else ""
    notes = dict.fromkeys(note for each in runs for note in each.scores.notes)
    table = html.table(["", "runs", *(titled(name) for name in names)], rows, said)
    return [table, *(html.note(f"{note[0].upper()}{note[1:]}") for note in notes)]


def predictions(groups: Sequence[Group], count: int) -> list[Html]:
    """Image, truth, prediction and errors of the same images, for each configuration."""
    parts: list[Html] = []
    for group in groups[: MOST_GROUPS if count else 0]:
        found = group.first.examples
        if found is None:
            repair = advice(group.first, "eval {}", "draws them")
            parts.append(html.note(f"{group.name}: {group.first.problems[EXAMPLES]}{repair}"))
        elif found.strips:
            parts += [html.heading(group.key), *map(html.strips, found.strips)]
    return [*_legend(groups), *parts] if parts else []


def _legend(groups: Sequence[Group]) -> list[Html]:
    """The color of each class in label maps."""
    run = next((run for run in every_run(groups) if run.dense is not None and run.dense.task == "segment"), None)
    if run is None or run.dense is None:
        return []
    classes = run.dense.classes[:MOST_CLASSES]
    keys = [html.swatch("#{:02x}{:02x}{:02x}".format(*class_color(n)), name) for n, name in enumerate(classes)]
    return [html.legend(keys)]


def classes(groups: Sequence[Group]) -> list[Html]:
    """The scores of each class: all of them for one configuration, else the first one for each."""
    seen = _measured(groups)
    if not seen or seen[0].first.dense is None:
        return []
    every: tuple[ClassScores, ...] = seen[0].first.dense.scores.by_class
    columns = list(dict.fromkeys(name for each in every for name in each.values))
    if not columns:
        return []
    alike = having(seen, lambda run: run.dense is not None and run.dense.classes == tuple(each.name for each in every))
    shown = [(group, name) for group in alike for name in (columns if len(alike) == 1 else columns[:1])]
    head = [titled(name) if len(alike) == 1 else group.key for group, name in shown]
    order = sorted(range(len(every)), key=lambda number: every[number].values.get(columns[0], -1.0))[:MOST_CLASSES]
    rows = [
        [every[number].name, *(class_score(number, name).spread(group) or NONE for group, name in shown)]
        for number in order
    ]
    said = f"The lowest {MOST_CLASSES} of {len(every)} classes." if len(every) > MOST_CLASSES else "Lowest first."
    first = titled(columns[0])
    return [html.table(["class", *head], rows, said if len(alike) == 1 else f"{first} of each class. {said}")]
