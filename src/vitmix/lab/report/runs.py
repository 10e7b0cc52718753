"""Runs as a report reads them: every number is asked for by its place in the run folder."""

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vitmix.lab.evaluation import results
from vitmix.lab.evaluation.stored import evaluate_run, read_evaluation
from vitmix.lab.training.config import FIELDS, TrainConfig, resolve
from vitmix.lab.training.measure import MEASURES
from vitmix.lab.training.runs import RunFolder
from vitmix.lab.training.summary import is_better

UNTELLING = ("recipe", "model_args")  # a name for other settings, and a long one


@dataclass
class Run:
    """A run folder that was read. `not_evaluated` says why there is no evaluation."""

    folder: Path
    config: TrainConfig
    rows: list[dict[str, Any]]
    summary: dict[str, Any] | None
    evaluation: dict[str, Any] | None = None
    not_evaluated: str | None = None
    number: int = 0

    @property
    def best_row(self) -> int:
        """The place in `rows` of the epoch whose weights were kept as the best."""
        name = self.config.best
        measured = [index for index, row in enumerate(self.rows) if row.get(name) is not None]
        best = measured[0]
        for index in measured[1:]:
            if is_better(name, self.rows[index][name], self.rows[best][name]):
                best = index
        return best

    @property
    def finished(self) -> bool:
        return self.summary is not None

    def value(self, source: str) -> float | None:
        """The number at `"metrics.jsonl:ROW.NAME"`, `"evaluation.json:NAME"` or of a function of them, below.

        `metrics.jsonl:best.NAME` and `:last.NAME` are rows by their meaning, `metrics.jsonl:median.NAME` a median.
        The best row's measures are those of the weights that were kept, which may be the averaged ones.
        """
        file, _, place = source.partition(":")
        first, _, name = place.partition(".")
        if file == "metrics.jsonl":
            if first == "median":
                found = [row[name] for row in self.rows if row.get(name) is not None]
                return statistics.median(found) if found else None
            if first == "best" and name in MEASURES and self.config.best.startswith("ema_"):
                name = f"ema_{name}"  # of the weights that were kept
            index = {"best": self.best_row, "last": len(self.rows) - 1}.get(first)
            return self.rows[int(first) if index is None else index].get(name)
        if file == "summary.json":
            return (self.summary or {}).get(place)
        if file == results.FILE:  # VALUE.MEASUREMENT
            return self.measured.get(name, {}).get(first)
        return None if self.evaluation is None else self._evaluated(place)

    def _evaluated(self, place: str) -> float | None:
        """`NAME`, or `images.LABEL`, `recall.LABEL` and `confusion.LABEL.PREDICTED`, counted from the confusion."""
        assert self.evaluation is not None
        first, *rest = place.split(".")
        if not rest:
            return self.evaluation.get(first)
        label, *seen = map(int, rest)
        counts = self._confusion.get(label, {})
        if first == "confusion":
            return counts.get(seen[0], 0)
        total = sum(counts.values())
        return total if first == "images" else counts.get(label, 0) / total if total else None

    @cached_property
    def robustness(self) -> dict[str, Any] | None:
        """What `vitmix eval --suite` found with the best weights, if it did."""
        return results.read_results(self.folder)

    @cached_property
    def measured(self) -> dict[str, dict[str, Any]]:
        """The measurements of `robustness` by name."""
        return {row["name"]: row for row in (self.robustness or {"measurements": []})["measurements"]}

    @cached_property
    def _confusion(self) -> dict[int, dict[int, int]]:
        """label → predicted → images"""
        assert self.evaluation is not None
        found: dict[int, dict[int, int]] = {}
        for label, predicted, count in self.evaluation["confusion"]:
            found.setdefault(label, {})[predicted] = count
        return found


@dataclass
class Group:
    """Runs of one configuration that differ in their seed alone."""

    runs: list[Run]
    name: str = ""
    number: int = 0
    different: dict[str, Any] = field(default_factory=dict)

    def only(self, runs: Sequence[Run]) -> "Group":
        """The group with these of its runs alone."""
        return dataclasses.replace(self, runs=list(runs))

    def values(self, source: str) -> list[float]:
        return [value for run in self.runs if (value := run.value(source)) is not None]


class NotStarted(ValueError):
    """A run without an evaluated epoch."""


def read_run(folder: Path) -> Run:
    """A run that has finished an epoch."""
    place = RunFolder(folder)
    if not place.exists:
        raise ValueError(f"{folder} is not a run folder: it holds no {place.config.name}")
    rows, config = place.read_metrics(), resolve(file=place.config)
    if not any(row.get(config.best) is not None for row in rows):
        raise NotStarted(f"{folder} has no evaluated epoch yet; come back when its first row is written")
    return Run(folder, config, rows, place.read_summary())


def find_runs(places: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these folders, which are run folders or hold some, and a sentence for each that was left out.

    Left out are runs without an evaluated epoch that were found in a folder; one that is named itself is refused.
    """
    found: dict[Path, tuple[Path, bool]] = {}  # resolved → as given, and whether it was named itself
    for place in places:
        if not place.is_dir():
            raise ValueError(f"there is no run folder {place}")
        inside = sorted(path.parent for path in place.glob("*/config.yaml"))
        named = RunFolder(place).exists or not inside
        for path in [place] if named else inside:
            first, before = found.get(path.resolve(), (path, False))
            found[path.resolve()] = (first, named or before)
    runs: list[Run] = []
    left_out: list[str] = []
    for path, named in found.values():
        try:
            runs.append(read_run(path))
        except NotStarted as error:
            if named:
                raise
            left_out.append(f"Left out: {error}")
    if not runs:
        raise ValueError(f"none of the {len(left_out)} runs in {places[0]} has an evaluated epoch yet; come back later")
    for number, run in enumerate(runs):
        run.number = number
    return runs, left_out


def add_evaluations(runs: Sequence[Run], *, compute: bool, say: Callable[[str], None]) -> None:
    """Reads each run's stored evaluation; where there is none, evaluates its best weights and stores the result."""
    for run in runs:
        run.evaluation = read_evaluation(run.folder)
        if run.evaluation is None and compute:
            say(f"Evaluating {run.folder}")
            try:
                run.evaluation = evaluate_run(run.folder)
            except (ValueError, OSError) as error:
                run.not_evaluated = " ".join(str(error).split())
        elif run.evaluation is None:
            run.not_evaluated = f"there is no complete evaluation.json; 'vitmix eval {run.folder}' writes it"


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs with the same configuration but for the seed, in the order given; named by what tells them apart."""
    groups: dict[str, Group] = {}
    for run in runs:
        key = json.dumps(deciding(run.config), sort_keys=True, default=list)
        groups.setdefault(key, Group([])).runs.append(run)
    found = list(groups.values())
    names = [name for name in deciding(runs[0].config) if len({repr(_of(each, name)) for each in found}) > 1]
    for number, group in enumerate(found):
        group.number = number
        group.different = {name: _of(group, name) for name in names}
    for group, label in zip(found, _labels(found), strict=True):
        group.name = label
    return found


def _labels(groups: Sequence[Group]) -> list[str]:
    """What to call each group, no two alike: its method, and as few settings as tell the groups apart.

    A setting at its default goes without saying; where no setting helps, the folder does.
    """
    names, usual = list(groups[0].different), defaults()
    chosen = {"method"} & set(names)

    def found(chosen: set[str]) -> list[str]:
        return [
            ", ".join(
                [str(_of(group, "method"))] * ("method" in chosen)
                + [
                    f"{name} {plain(value)}"
                    for name, value in group.different.items()
                    if name in chosen - {"method"} and value != usual[name]
                ]
            )
            for group in groups
        ]

    def told_apart(name: str) -> int:
        return len(set(found(chosen | {name})))

    while useful := [name for name in names if told_apart(name) > len(set(found(chosen)))]:
        chosen.add(max(useful, key=lambda name: (name not in UNTELLING, told_apart(name))))
    if not all(found(chosen)):  # one with all of them at their defaults
        chosen.add("method")
    labels = found(chosen)
    for place in (lambda group: group.runs[0].folder.name, lambda group: str(group.runs[0].folder)):
        twice = {label for label, count in Counter(labels).items() if count > 1}
        labels = [
            f"{label}, {place(group)}" if label in twice else label for label, group in zip(labels, groups, strict=True)
        ]
    return labels


def deciding(config: TrainConfig) -> dict[str, Any]:
    """The settings that decide a training's numbers, without the seed."""
    return {
        name: getattr(config, name)
        for name, each in FIELDS.items()
        if not each.metadata["may_change"] and name != "seed"
    }


def plain(value: Any) -> str:
    """A setting as a person writes it."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (tuple, list)):
        return " ".join(map(plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={plain(each)}" for key, each in value.items()) or "none"
    return str(value)


def _of(group: Group, name: str) -> Any:
    return getattr(group.runs[0].config, name)


def defaults() -> dict[str, Any]:
    return dataclasses.asdict(TrainConfig())
