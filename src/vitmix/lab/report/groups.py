"""The runs of a page, grouped by configuration."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vitmix.lab.runs import Run
from vitmix.lab.runs.published import FILE, read_published
from vitmix.lab.settings import SettingValues, usual
from vitmix.lab.training.config import AnyConfig, deciding
from vitmix.lab.training.recipes import list_recipes, read_recipe

from .html import Html, html

UNTELLING = ("recipe", "model_args")  # shorter names of settings
NOT_STARTED = "has no evaluated epoch yet; wait until its first epoch is finished"


@dataclass(frozen=True)
class Group:
    """Runs of one configuration that differ only in their seed, by their numbers on the page."""

    runs: Mapping[int, Run]
    name: str = ""
    number: int = 0

    @property
    def first(self) -> Run:
        return next(iter(self.runs.values()))

    @property
    def key(self) -> Html:
        return html.key(self.number, self.name)

    def having(self, condition: Callable[[Run], Any]) -> Self:
        """The group with only the runs that meet the condition."""
        return dataclasses.replace(self, runs={number: run for number, run in self.runs.items() if condition(run)})

    def label(self, run: Run) -> str:
        return f"{self.name}, seed {run.config.seed}"


def having(groups: Iterable[Group], condition: Callable[[Run], Any]) -> list[Group]:
    """The groups with only the runs that meet the condition; empty groups are left out."""
    return [found for group in groups if (found := group.having(condition)).runs]


def legend(groups: Sequence[Group]) -> Html:
    return html.legend([group.key for group in groups]) if len(groups) > 1 else ""


def every_run(groups: Iterable[Group]) -> list[Run]:
    return [run for group in groups for run in group.runs.values()]


def several(groups: Iterable[Group]) -> bool:
    """Whether a group has more than one run."""
    return any(len(group.runs) > 1 for group in groups)


def advice(run: Run, command: str, does: str = "measures it") -> str:
    """The command that adds what a run lacks; empty for a published run, which has no weights."""
    return f"; 'vitmix {command.format(run.path)}' {does}" if run.path.exists() else ""


def with_epoch(run: Run) -> Run:
    """The run, if it has an evaluated epoch."""
    if run.best_epoch is None:
        raise ValueError(f"{run.path} {NOT_STARTED}")
    return run


def find_runs(places: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these places, and a message for each that was left out.

    A place is a run folder, a folder of run folders, or a published comparison. A run without an evaluated epoch is
    left out if it was found in a folder, and an error if it was named.
    """
    found: dict[Path, Run] = {}
    for place in places:
        if not place.exists():
            raise ValueError(f"there is no run folder {place}")
        inside = _runs_in(place)
        for run in [with_epoch(Run.open(place))] if inside is None else inside:
            found.setdefault(run.path.resolve(), run)
    runs = [run for run in found.values() if run.best_epoch is not None]
    commands = {getattr(run.config, "task", "classify"): run.path for run in runs}
    if len(commands) > 1:
        listed = ", ".join(f"{path} ({task})" for task, path in commands.items())
        raise ValueError(f"runs of different tasks cannot share a page: {listed}; name those of one task")
    if not runs:
        raise ValueError(f"none of the {len(found)} runs in {places[0]} has an evaluated epoch yet; try again later")
    return runs, [f"Left out: {run.path} {NOT_STARTED}" for run in found.values() if run.best_epoch is None]


def _runs_in(place: Path) -> list[Run] | None:
    """The runs of a published comparison or a folder of run folders; None if a place is neither."""
    published = place / FILE if place.is_dir() else place
    if published.name.endswith(FILE) and published.is_file():
        return list(read_published(published).runs.values())
    inside = sorted(path.parent for path in place.glob("*/config.yaml"))
    return [Run(path) for path in inside] if inside and not Run(place).exists else None


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups of runs that differ only in the seed, in the given order, named by what distinguishes them."""
    members: dict[str, dict[int, Run]] = {}
    for number, run in enumerate(runs):
        key = json.dumps(deciding_settings(run.config), sort_keys=True, default=list)
        members.setdefault(key, {})[number] = run
    names = labels([next(iter(each.values())) for each in members.values()])
    return [Group(each, name, n) for n, (each, name) in enumerate(zip(members.values(), names, strict=True))]


def labels(runs: Sequence[Run]) -> list[str]:
    """A different name for each configuration: its method, and as few settings as distinguish them.

    Settings at their defaults are left out. Those that a recipe fits are named only if no other setting distinguishes
    the runs; if no setting does, the folder is named.
    """
    default, every = defaults(runs[0].config), [deciding_settings(run.config) for run in runs]
    fitted = {name for recipe in {run.config.recipe for run in runs} for name in _fitted(recipe)}
    names = differing(every)
    chosen = {"method"} & set(names)

    def label(settings: SettingValues, chosen: set[str]) -> str:
        told = [name for name in names if name in chosen - {"method"} and settings[name] != default[name]]
        method = [str(settings["method"])] if "method" in chosen else []
        return ", ".join([*method, *(f"{name} {setting_text(settings[name])}" for name in told)])

    def distinguished(*more: str) -> int:
        return len({label(settings, chosen | set(more)) for settings in every})

    while useful := [name for name in names if distinguished(name) > distinguished()]:
        chosen.add(max(useful, key=lambda name: (name not in UNTELLING, name not in fitted, distinguished(name))))
    if not all(label(settings, chosen) for settings in every):  # one has all of them at their defaults
        chosen.add("method")
    named = [label(settings, chosen) for settings in every]
    for places in ([run.path.name for run in runs], [str(run.path) for run in runs]):
        count = Counter(named)
        named = [f"{each}, {at}" if count[each] > 1 else each for each, at in zip(named, places, strict=True)]
    return named


def _fitted(recipe: str | None) -> tuple[str, ...]:
    """The settings that a recipe fits to the data and to other settings; none if this version does not know it."""
    return read_recipe(recipe).fitted if recipe in list_recipes() else ()


def deciding_settings(config: AnyConfig) -> SettingValues:
    """The settings that decide a training run's numbers, without the seed."""
    return {name: getattr(config, name) for name in deciding(config) if name != "seed"}


def differing(every: Sequence[SettingValues]) -> list[str]:
    """The settings in which configurations differ."""
    return [name for name in every[0] if len({repr(each[name]) for each in every}) > 1]


def setting_text(value: Any) -> str:
    """A setting for display."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (tuple, list)):
        return " ".join(map(setting_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={setting_text(each)}" for key, each in value.items()) or "none"
    return "none" if value is None else str(value)


def defaults(config: AnyConfig) -> SettingValues:
    """What the settings of such a configuration are unless they are given."""
    return {name: usual(type(config), name) for name in vars(config)}
