"""Panels over the seeds: mean and deviation of every number, differences to the baseline, as JSON and as Markdown."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from .measured import MEAN, Measure, Panel
from .results import Comparison, Entry, several, warning
from .statistics import Paired, paired_difference

UNLIKE = "Not all runs were measured on the same images in the same way: such rows do not compare, and are not tested."


class Difference(NamedTuple):
    """A row's distance from the baseline in what a panel tests."""

    entry: Entry
    of: str
    found: Paired


def by_seed(entry: Entry, measure: Measure) -> dict[int, float]:
    return {seed: value for seed, run in entry.runs.items() if (value := measure(run)) is not None}


def differences(comparison: Comparison, panels: Sequence[Panel]) -> list[Difference]:
    """Every row against the baseline, paired by the seeds that both have been measured with, and measured alike."""
    found = []
    for entry in comparison.entries:
        reference = comparison.beside(entry)
        for panel in panels:
            if reference is None or panel.tested is None or MEAN not in panel.columns:
                continue
            own, other = (by_seed(each, panel.columns[MEAN]) for each in (entry, reference))
            alike = [
                seed
                for seed in own
                if seed in other and panel.conditions(entry.runs[seed]) == panel.conditions(reference.runs[seed])
            ]
            if alike:
                paired = paired_difference([own[seed] for seed in alike], [other[seed] for seed in alike])
                found.append(Difference(entry, panel.tested, paired))
    return found


def count_tests(found: Sequence[Difference]) -> int:
    return sum(each.found.p is not None for each in found)


# JSON


def plain_panels(comparison: Comparison, panels: Sequence[Panel]) -> dict[str, Any]:
    """As JSON holds it, unscaled."""
    found = differences(comparison, panels)
    return {
        "tables": [
            {"title": panel.title, "rows": [_plain_row(panel, entry) for entry in _shown(panel, comparison)]}
            for panel in panels
        ],
        "tests": count_tests(found),
        "differences": [
            {**_names(each.entry), "of": each.of, **each.found._asdict(), "verdict": each.found.verdict}
            for each in found
        ],
    }


def _plain_row(panel: Panel, entry: Entry) -> dict[str, Any]:
    values = {column: by_seed(entry, measure) for column, measure in panel.columns.items()}
    columns = {
        column: {"mean": statistics.fmean(own.values()), "std": _std(own), "seeds": own}
        for column, own in values.items()
        if own
    }
    return {**_names(entry), "images": _images(panel, [entry]), "columns": columns}


def _names(entry: Entry) -> dict[str, str]:
    return {"row": entry.row, "model": entry.model, "data": entry.data}


def _std(own: dict[int, float]) -> float | None:
    return statistics.stdev(own.values()) if len(own) > 1 else None


def _shown(panel: Panel, comparison: Comparison) -> list[Entry]:
    """The entries that a panel has numbers of."""
    return [entry for entry in comparison.entries if any(map(panel.conditions, entry.runs.values()))]


def _images(panel: Panel, entries: Sequence[Entry]) -> list[int]:
    """On how many images was measured; one number where all are the same."""
    found = [panel.conditions(run) for entry in entries for run in entry.runs.values()]
    return sorted({each.images for each in found if each is not None})


# Markdown


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def sections(comparison: Comparison, panels: Sequence[Panel]) -> list[str]:
    """The panels as paragraphs of a README; nothing where there is no panel."""
    if not panels:
        return []
    parts = [
        "## Besides accuracy",
        "Mean ± sample standard deviation over the seeds, with the weights of each run's best epoch, which is chosen "
        "on the images that the run is evaluated on. *Seeds* counts the runs that were measured.",
    ]
    for panel in panels:
        parts += _section(panel, comparison)
    found = differences(comparison, panels)
    return [*parts, *_difference_section(found, comparison)] if found else parts


def _section(panel: Panel, comparison: Comparison) -> list[str]:
    entries, axes = _shown(panel, comparison), several(comparison)
    rows = []
    for entry in entries:
        measured = sum(panel.conditions(run) is not None for run in entry.runs.values())
        cells = [_cell(panel, by_seed(entry, measure)) for measure in panel.columns.values()]
        rows.append([entry.row, *(getattr(entry, axis) for axis in axes), measured, *cells])
    images = " or ".join(f"{count:,}" for count in _images(panel, entries))
    said = f"{panel.note} {images} images."
    conditions: dict[tuple[str, str], set[Any]] = {}
    for entry in entries:
        conditions.setdefault(entry.column, set()).update(map(panel.conditions, entry.runs.values()))
    if any(len(each - {None}) > 1 for each in conditions.values()):
        said += f" {UNLIKE}"
    return [f"### {panel.title}", markdown_table(["", *axes, "seeds", *panel.columns], rows), said]


def _cell(panel: Panel, own: dict[int, float]) -> str:
    if not own:
        return "-"
    std = _std(own)
    shown = f"{panel.scale * statistics.fmean(own.values()):{panel.form}}"
    return shown if std is None else f"{shown} ± {panel.scale * std:{panel.form}}"


def _difference_section(found: Sequence[Difference], comparison: Comparison) -> list[str]:
    """All that is tested is an accuracy, so differences are in points of a hundred."""
    axes, measures = several(comparison), list(dict.fromkeys(each.of for each in found))
    rows = []
    for entry in comparison.entries:
        own = {each.of: each.found for each in found if each.entry is entry}
        if own:
            seeds = " or ".join(map(str, sorted({each.n for each in own.values()})))
            names = [entry.row, *(getattr(entry, axis) for axis in axes), seeds]
            rows.append([*names, *(_difference(own.get(measure)) for measure in measures)])
    said = "Of the column *mean* of each table above, in points, paired by seed. "
    tests = count_tests(found)
    if tests:
        said += (
            "In brackets: 95 % interval of the paired t-test; **better** and **worse** only where it leaves zero out. "
            f"{warning(tests)}"
        )
    else:
        said += "Without two seeds that differ there is no test."
    return [f"### Differences to {comparison.reference}", markdown_table(["", *axes, "seeds", *measures], rows), said]


def _difference(found: Paired | None) -> str:
    if found is None:
        return "-"
    shown = f"{100 * found.mean:+.2f}"
    if found.low is None or found.high is None:
        return shown
    verdict = f" **{found.verdict}**" if found.verdict in ("better", "worse") else ""
    return f"{shown} ({100 * found.low:+.2f} to {100 * found.high:+.2f}){verdict}"
