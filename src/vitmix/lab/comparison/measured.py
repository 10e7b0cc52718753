"""What was measured of finished runs besides their accuracy, as tables that a row of the matrix is a row of.

From the runs' own files: robustness.json of `vitmix eval --suite`, and the studies of `vitmix analyze`. What no run has
makes no table.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitmix.lab.evaluation.occlusion import ORDERS
from vitmix.lab.evaluation.results import FILE
from vitmix.lab.report.analyses import measured_how, read_analyses
from vitmix.lab.report.runs import Group, Run
from vitmix.lab.studies.fluctuation import ALIGNED, AREA, TRANSMIX
from vitmix.lab.studies.regions import PAIRS

from .results import Comparison

Measure = Callable[[Run], float | None]
Study = dict[str, Any]  # the content of a study's file
MEAN = "mean"


class Conditions(NamedTuple):
    """On how many images a run was measured, and how: numbers compare where both are the same."""

    images: int
    how: str


@dataclass(frozen=True)
class Panel:
    """A table: numbers of a run by column, shown multiplied by `scale`.

    `tested` names what the column `MEAN` is the mean of; by it, if it is there, rows are tested against the baseline.
    """

    title: str
    note: str
    columns: Mapping[str, Measure]
    conditions: Callable[[Run], Conditions | None]
    tested: str | None = None
    scale: float = 100
    form: str = ".2f"


def read_panels(comparison: Comparison) -> tuple[list[Panel], list[str]]:
    """The tables of everything that at least one run has, and a sentence for each study that cannot be shown."""
    runs = [run for entry in comparison.entries for run in entry.runs.values()]
    studies: dict[str, dict[Path, Study]] = {}
    analyses, notes = read_analyses([Group(runs)])
    for found in analyses:
        studies.setdefault(found.content["study"], {})[found.run.folder] = found.content
    panels = [_noise(runs), *(_occlusion(runs, order) for order in ORDERS)]
    panels += [_mixed(studies.get("accuracy", {}), top) for top in ("top-1", "top-2")]
    panels += [_regions(studies.get("regions", {})), _fluctuation(studies.get("fluctuation", {}))]
    panels += _labels(studies.get("labels", {}))
    return [panel for panel in panels if panel is not None], notes


# Changed images


def _noise(runs: Sequence[Run]) -> Panel | None:
    names = {row["of"]["sigma"]: name for name, row in _rows(runs, "noise").items()}
    if not names:
        return None
    note = f"Top-1 in % under noise of this standard deviation on pixels in 0..1. {MEAN.capitalize()}: without σ = 0."
    columns = {f"σ = {sigma:g}": _measurement(names[sigma]) for sigma in sorted(names)}
    tested = [_measurement(names[sigma]) for sigma in sorted(names) if sigma > 0]
    return Panel("Gaussian noise", note, _with_mean(columns, tested), _changed("noise", names.values()), "noise")


def _occlusion(runs: Sequence[Run], order: str) -> Panel | None:
    found = {name: row["of"] for name, row in _rows(runs, "occlusion").items() if row["of"]["order"] == order}
    names = {of["share"]: name for name, of in found.items()}
    if not names:
        return None
    which = {"random": "at random", "salient-first": "the most salient first", "salient-last": "the most salient last"}
    note = f"Top-1 in % without this part of the patches, dropped {which[order]}. {MEAN.capitalize()}: without 0 %."
    columns = {f"{100 * share:g} %": _measurement(names[share]) for share in sorted(names)}
    tested = [_measurement(names[share]) for share in sorted(names) if share > 0]
    title, conditions = f"Occlusion, {order}", _changed("occlusion", names.values())
    return Panel(title, note, _with_mean(columns, tested), conditions, f"occlusion, {order}")


def _rows(runs: Sequence[Run], part: str) -> dict[str, dict[str, Any]]:
    """The measurements of a part by name, whichever run has them."""
    return {name: row for run in runs for name, row in run.measured.items() if row["of"]["part"] == part}


def _measurement(name: str) -> Measure:
    return lambda run: run.value(f"{FILE}:value.{name}")


def _changed(part: str, names: Iterable[str]) -> Callable[[Run], Conditions | None]:
    names = list(names)

    def conditions(run: Run) -> Conditions | None:
        own = [run.measured[name] for name in names if name in run.measured]
        if not own:
            return None
        facts = (run.robustness or {})["parts"][part]
        settings = {name: facts["settings"].get(name) for name in ("limit", "seed")}
        return Conditions(own[0]["n"], json.dumps([facts["data"], settings, own[0]["of"].get("grid")]))

    return conditions


def _with_mean(columns: Mapping[str, Measure], parts: Sequence[Measure]) -> dict[str, Measure]:
    """With their mean, which a run has if it has them all."""

    def mean(run: Run) -> float | None:
        values = [value for part in parts if (value := part(run)) is not None]
        return statistics.fmean(values) if values and len(values) == len(parts) else None

    return {**columns, MEAN: mean} if parts else dict(columns)


# Studies


def _mixed(studies: Mapping[Path, Study], top: str) -> Panel | None:
    methods = _names(studies, "method")
    if not methods:
        return None
    seen = "the likeliest class is one of the pair's two" if top == "top-1" else "the two likeliest are the pair's two"
    columns = {method: _number(studies, top, method=method) for method in methods}
    title, note = f"Mixed images, {top}", f"Of the mixed images whose pair has two classes, in %: {seen}."
    tested = _with_mean(columns, list(columns.values()))
    return Panel(title, note, tested, _studied(studies), f"mixed images, {top}")


def _regions(studies: Mapping[Path, Study]) -> Panel | None:
    methods = _names(studies, "method")
    if not methods:
        return None
    method = "smmix" if "smmix" in methods else methods[0]
    note = (
        f"Mean attention, × 1000, of a patch of one region to a patch of the other in the last block, on images mixed "
        f"by `{method}` (SMMix table A2, whose source region is the partner's). analysis/regions.json has every block."
    )
    columns = {pair: _number(studies, pair, method=method) for pair in PAIRS}
    return Panel("Attention between regions", note, columns, _studied(studies), scale=1000)


def _fluctuation(studies: Mapping[Path, Study]) -> Panel | None:
    studies = {folder: study for folder, study in studies.items() if study["methods"] in (None, ["cutmix"])}
    if not studies:
        return None
    note = (
        "On CutMix pairs: the root mean square of the difference between area and aligned labels (TL-Align figure 3), "
        "and how the shares by three rules correlate over the pairs with the share by similarity of the tokens after "
        "the last block (figure 4)."
    )
    columns = {f"RMSE {name}": _number(studies, name) for name in ("of shares", "of targets")}
    columns |= {
        f"correlation, {rule}": _number(studies, "correlation", rule=rule) for rule in (AREA, TRANSMIX, ALIGNED)
    }
    return Panel("Token fluctuation", note, columns, _studied(studies), scale=1, form=".3g")


def _labels(studies: Mapping[Path, Study]) -> list[Panel]:
    """A table for each mask, whose columns are label rules."""
    note = (
        "Mean distance between the partner's share by this rule and what the image shows of it: visible partner object "
        "over visible objects, in pixels. analysis/labels.json has the bias, and errors by how much is cut."
    )
    rules = [rule for rule in _names(studies, "rule") if ", " in rule]
    masks = dict.fromkeys(rule.split(", ")[0] for rule in rules)
    panels = []
    for mask in masks:
        own = {rule.removeprefix(f"{mask}, "): rule for rule in rules if rule.startswith(f"{mask}, ")}
        columns = {name: _number(studies, "error", rule=rule, cut=None) for name, rule in own.items()}
        panels.append(Panel(f"Label error, {mask}", note, columns, _studied(studies), scale=1, form=".3f"))
    return panels


def _names(studies: Mapping[Path, Study], key: str) -> list[str]:
    rows = [row for study in studies.values() for table in study["tables"] for row in table["rows"]]
    return list(dict.fromkeys(row[key] for row in rows if key in row))


def _number(studies: Mapping[Path, Study], column: str, **where: str | None) -> Measure:
    """The mean in the last row that has the column and these names: where rows go along the blocks, the last block."""

    def number(run: Run) -> float | None:
        tables = studies[run.folder]["tables"] if run.folder in studies else []
        rows = [row for table in tables for row in table["rows"] if column in row]
        fitting = [row for row in rows if all(row.get(key) == name for key, name in where.items())]
        return fitting[-1][column]["mean"] if fitting else None

    return number


def _studied(studies: Mapping[Path, Study]) -> Callable[[Run], Conditions | None]:
    def conditions(run: Run) -> Conditions | None:
        content = studies.get(run.folder)
        return None if content is None else Conditions(content["images"], measured_how(content))

    return conditions
