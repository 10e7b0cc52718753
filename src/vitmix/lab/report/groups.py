"""Runs on a page: which ones, and which of them are one configuration."""

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmix.lab.runs import Run
from vitmix.lab.runs.published import FILE, read_published
from vitmix.lab.training.config import FIELDS, TrainConfig

from .html import Html, html
from .svg import Line, Points

UNTELLING = ("recipe", "model_args")  # a name for other settings, and a long one
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Runs of one configuration that differ in their seed alone, by their numbers on the page."""

    runs: Mapping[int, Run]
    name: str = ""
    number: int = 0

    @property
    def first(self) -> Run:
        return next(iter(self.runs.values()))

    @property
    def key(self) -> Html:
        return html.key(self.number, self.name)

    def only(self, numbers: Iterable[int]) -> "Group":
        """The group with these of its runs alone."""
        return dataclasses.replace(self, runs={number: self.runs[number] for number in numbers})

    def label(self, run: Run) -> str:
        return f"{self.name}, seed {run.config.seed}"


def legend(groups: Sequence[Group]) -> Html:
    return html.legend([group.key for group in groups]) if len(groups) > 1 else ""


def course_lines(groups: Iterable[Group], points: Callable[[Run], Points]) -> list[Line]:
    """Curves of the runs; of a group of several also their mean, where all of them have a point."""
    lines: list[Line] = []
    for group in groups:
        courses = {run: points(run) for run in group.runs.values()}
        kind = "seed" if len(courses) > 1 else "mean"
        lines += [Line(group.number, course, group.label(run), kind) for run, course in courses.items() if course]
        tables = [dict(course) for course in courses.values()]
        shared = sorted(set.intersection(*map(set, tables))) if len(tables) > 1 else []
        mean = [(x, statistics.fmean(each[x] for each in tables)) for x in shared]
        lines += [Line(group.number, mean, f"{group.name}, mean")] if mean else []
    return lines


def numbered(groups: Iterable[Group]) -> dict[int, tuple[Group, Run]]:
    """Every run with its group, by its number on the page."""
    return {number: (group, run) for group in groups for number, run in group.runs.items()}


def every_run(groups: Iterable[Group]) -> list[Run]:
    return [run for group in groups for run in group.runs.values()]


def advice(run: Run, command: str, does: str = "measures it") -> str:
    """Which command repairs what a run lacks; none for a published run, which has no weights."""
    return f"; 'vitmix {command.format(run.path)}' {does}" if run.path.exists() else ""


class NotStarted(ValueError):
    """A run without an evaluated epoch."""


def started(run: Run) -> Run:
    """The run, if it has an evaluated epoch."""
    if run.best_epoch is None:
        raise NotStarted(f"{run.path} has no evaluated epoch yet; come back when its first row is written")
    return run


def find_runs(places: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these places and a sentence for each that was left out.

    A place is a run folder, a folder of run folders, or a published comparison. A run without an evaluated epoch is
    left out where it was found in a folder and refused where it is named itself.
    """
    found: dict[Path, tuple[Run, bool]] = {}  # by its place, with whether it was named itself
    for place in places:
        if not place.exists():
            raise ValueError(f"there is no run folder {place}")
        inside, named = _runs_in(place)
        for run in inside:
            first, before = found.get(run.path.resolve(), (run, False))
            found[run.path.resolve()] = (first, named or before)
    runs: list[Run] = []
    left_out: list[str] = []
    for run, named in found.values():
        try:
            runs.append(started(run))
        except NotStarted as error:
            if named:
                raise
            left_out.append(f"Left out: {error}")
    if not runs:
        raise ValueError(f"none of the {len(left_out)} runs in {places[0]} has an evaluated epoch yet; come back later")
    return runs, left_out


def _runs_in(place: Path) -> tuple[list[Run], bool]:
    """The runs of a place, and whether it is a run itself."""
    published = place / FILE if place.is_dir() else place
    if published.name.endswith(FILE) and published.is_file():
        return list(read_published(published).runs.values()), False
    inside = sorted(path.parent for path in place.glob("*/config.yaml"))
    if inside and not Run(place).exists:
        return [Run(path) for path in inside], False
    return [Run.open(place)], True


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs with the same configuration but for the seed, in the order given; named by what distinguishes them."""
    members: dict[str, dict[int, Run]] = {}
    for number, run in enumerate(runs):
        key = json.dumps(deciding(run.config), sort_keys=True, default=list)
        members.setdefault(key, {})[number] = run
    names = labels([next(iter(each.values())) for each in members.values()])
    return [Group(each, name, n) for n, (each, name) in enumerate(zip(members.values(), names, strict=True))]


def labels(runs: Sequence[Run]) -> list[str]:
    """A different name for each configuration: its method, and as few settings as distinguish them.

    Settings at their defaults are not named; where no setting helps, the folder is.
    """
    usual, every = defaults(), [deciding(run.config) for run in runs]
    names = differing(every)
    chosen = {"method"} & set(names)

    def found(chosen: set[str]) -> list[str]:
        return [
            ", ".join(
                [str(settings["method"])] * ("method" in chosen)
                + [
                    f"{name} {plain(settings[name])}"
                    for name in names
                    if name in chosen - {"method"} and settings[name] != usual[name]
                ]
            )
            for settings in every
        ]

    def distinguished(name: str) -> int:
        return len(set(found(chosen | {name})))

    while useful := [name for name in names if distinguished(name) > len(set(found(chosen)))]:
        chosen.add(max(useful, key=lambda name: (name not in UNTELLING, distinguished(name))))
    if not all(found(chosen)):  # one has all of them at their defaults
        chosen.add("method")
    named = found(chosen)
    for places in ([run.path.name for run in runs], [str(run.path) for run in runs]):
        twice = {label for label, count in Counter(named).items() if count > 1}
        named = [f"{label}, {at}" if label in twice else label for label, at in zip(named, places, strict=True)]
    return named


def deciding(config: TrainConfig) -> dict[str, Any]:
    """The settings that decide a training's numbers, without the seed."""
    return {
        name: getattr(config, name)
        for name, each in FIELDS.items()
        if not each.metadata["may_change"] and name != "seed"
    }


def differing(every: Sequence[Settings]) -> list[str]:
    """The settings in which configurations differ."""
    return [name for name in every[0] if len({repr(each[name]) for each in every}) > 1]


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


def defaults() -> Settings:
    return dataclasses.asdict(TrainConfig())
