"""A matrix of runs as a value and as YAML: rows (methods, or any settings) × models × datasets × seeds.

about: SMMix table 7
baseline: CutMix                        # a row; that named cutmix, or else the first one, if left out
settings: {recipe: smmix}               # of every run; names as `vitmix train` knows them
rows:
  CutMix: mixup(alpha=0.8) | cutmix     # a method, or settings as name: value
  TokenMix: {method: tokenmix, loss: bce}
models: [deit_tiny_patch16_224]         # those of the settings if left out; or names with settings
data: [shapes]                          # likewise
seeds: [0, 1, 2]

Rows that differ in one value are a sweep: each gives what stands for `{}`.

sweep: {method: "htm(block=2, tau={})"}
rows: {tau 0.1: 0.1, tau 0.2: 0.2, no HTM: {method: cutmix}}

A matrix whose settings name a task is one of transfers; the settings are then those of `vitmix transfer`, and `models`
are backbones.

settings: {task: segment, data: "masks:DIR", epochs: 20}
rows: {CutMix: {backbone: runs/cutmix}, SMMix: {backbone: runs/smmix}}
"""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from vitmix._checks import check_choice, check_count, unknown_name
from vitmix._grammar import spelled
from vitmix._text import create
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.dense.tasks import TASKS, task_named
from vitmix.lab.reading import JsonObject
from vitmix.lab.runs import Run
from vitmix.lab.runs.published import FILE, read_published
from vitmix.lab.settings import SettingValues
from vitmix.lab.training.config import AnyConfig, TrainConfig, checked_setting, read_yaml, resolve_any

_FOLDER = files("vitmix.lab.comparison") / "matrices"
AXES = {"rows": "method", "models": "model", "data": "data"}  # with the setting that a text in their place is for
TRANSFER_AXES = {**AXES, "models": "backbone"}
KEYS = ("about", "note", "baseline", "settings", *AXES, "seeds")
RESERVED = ("seed", "output", "resume")  # decided by the matrix


@dataclass(frozen=True)
class Training:
    """One training run of a matrix; `name` is that of its folder.

    Attributes:
        column: the labels of model and data, within which rows are compared; empty where the matrix has no such axis.
        published: the run, where its folder holds no training and a published comparison beside it does.
    """

    row: str
    column: tuple[str, str]
    seed: int
    name: str
    config: AnyConfig
    published: Run | None = field(default=None, compare=False)

    @property
    def run(self) -> Run:
        """The run as it is now."""
        assert self.config.output is not None
        found = Run(self.config.output)
        return found if self.published is None or found.exists else self.published

    @property
    def model(self) -> str:
        return self.column[0] or self.config.model

    @property
    def data(self) -> str:
        return self.column[1] or self.config.data


@dataclass(frozen=True)
class RunMatrix:
    """What to compare. `models` and `data` map labels to settings; empty, they are those of the settings."""

    rows: Mapping[str, SettingValues]
    models: Mapping[str, SettingValues] = field(default_factory=dict)
    data: Mapping[str, SettingValues] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: SettingValues = field(default_factory=dict)
    baseline: str | None = None
    about: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("a matrix needs rows to compare; give methods")
        for seed in self.seeds:
            check_count("seed", seed, least=0)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different whole numbers, at least one, got {list(self.seeds)}")
        if self.baseline is not None:
            check_choice("baseline", self.baseline, self.rows)
        every = (self.settings, *self.rows.values(), *self.models.values(), *self.data.values())
        for name in RESERVED:
            if any(name in settings for settings in every):
                raise ValueError(f"{name} cannot be set in a matrix, which decides it; leave it out")
        if any("task" in each for each in every[1:]):
            raise ValueError("all runs of a matrix have one task; name it in the settings of the matrix")

    @property
    def score(self) -> str:
        """The score by which rows are compared."""
        return TASKS[self.settings["task"]].scores[0] if "task" in self.settings else "accuracy"

    @property
    def reference(self) -> str:
        """The row that the others are compared with."""
        named = [row for row in self.rows if row.lower() == "cutmix"]
        return self.baseline or (named or list(self.rows))[0]

    def only(self, rows: Sequence[str]) -> "RunMatrix":
        """The matrix of these rows, in the given order, with the same baseline if it is among them."""
        for row in rows:
            check_choice("row", row, self.rows)
        baseline = self.reference if self.reference in rows else None
        return dataclasses.replace(self, rows={row: self.rows[row] for row in rows}, baseline=baseline)

    def trainings(self, output: Path, *others: Path) -> list[Training]:
        """The runs in the matrix's order, the seeds of a row beside each other; refuses settings that do not fit.

        So runs that take equally long run in parallel, and share the device with others like them. Those that a
        comparison published in `output`, or in one of the other folders, are done.
        """
        axes = (self.models or {"": {}}, self.data or {"": {}}, self.rows)
        found: list[Training] = []
        for (model, of_model), (data, of_data), (row, of_row) in product(*(axis.items() for axis in axes)):
            settings = {**self.settings, **of_model, **of_data, **of_row}
            found += [_training(row, (model, data), seed, settings, output) for seed in self.seeds]
        twins = [name for name, count in Counter(each.name for each in found).items() if count > 1]
        if twins:
            raise ValueError(f"two runs would use the same folder {twins[0]}; give rows, models and data other names")
        files = [folder / FILE for folder in (*others, output) if (folder / FILE).is_file()]
        published = {name: run for file in files for name, run in read_published(file).runs.items()}
        return [dataclasses.replace(each, published=published.get(each.name)) for each in found]

    def plain(self) -> JsonObject:
        """As YAML data."""
        values = {name: getattr(self, name) for name in KEYS}
        values |= {"seeds": list(self.seeds), "settings": dict(self.settings)}
        values |= {name: {label: dict(each) for label, each in values[name].items()} for name in AXES}
        return {name: value for name, value in values.items() if value not in (None, "", {})}


def _training(row: str, column: tuple[str, str], seed: int, settings: SettingValues, output: Path) -> Training:
    try:
        config = resolve_any({**settings, "seed": seed})
        _check_method(config)
    except ValueError as error:
        raise ValueError(f"row {row!r}: {error}") from None
    name = "-".join(map(_slug, (row, column[0] or config.model, column[1] or config.data))) + f"-seed{seed}"
    config = dataclasses.replace(config, output=str(output / "runs" / name), track="none")
    return Training(row, column, seed, name, config)


def _check_method(config: AnyConfig) -> None:
    if isinstance(config, TrainConfig):
        create(config.method, 2, defaults={} if config.loss is None else {"loss": config.loss})
    else:
        task_named(config.task).check_method(config.method)


def _slug(text: str, most: int = 40) -> str:
    """A text as part of a folder name; a long one is cut and gets a checksum."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_") or "_"
    return slug if len(slug) <= most else f"{slug[: most - 7]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


# Text


def check_task(value: Any, source: str) -> str:
    """The name of a task of `vitmix transfer`."""
    if value not in tuple(TASKS):
        raise ValueError(f"task in {source} must be one of {', '.join(TASKS)}, got {value!r}")
    return str(value)


def parse_matrix(content: JsonObject, source: str) -> RunMatrix:
    """A matrix from YAML data."""
    known, task = (*KEYS, "sweep"), None
    if isinstance(content.get("settings"), dict) and "task" in content["settings"]:
        task = check_task(content["settings"]["task"], source)
    for key in content:
        if key not in known:
            raise ValueError(f"{source}: {unknown_name('entry of a matrix', key, known)}")
    given = {name: content.get(name) or {} for name in AXES}
    if not isinstance(content.get("rows"), (dict, list)):
        raise ValueError(f"{source} has no rows; write 'rows:' and below it a name and a method for each")
    if "sweep" in content:
        given["rows"] = _swept(given["rows"], content["sweep"], source)
    seeds, settings = content.get("seeds", [0, 1, 2]), content.get("settings") or {}
    if not isinstance(seeds, list):
        raise ValueError(f"{source}: seeds must be a list such as [0, 1, 2], got {seeds!r}")
    if not isinstance(settings, dict):
        raise ValueError(f"{source}: settings must be 'name: value' lines, got {settings!r}")
    _check_settings(settings, f"the settings of {source}", task)
    kinds = AXES if task is None else TRANSFER_AXES
    axes = {name: _labeled(given[name], setting, f"{source}, {name}", task) for name, setting in kinds.items()}
    baseline = None if content.get("baseline") is None else str(content["baseline"])
    if baseline is not None and baseline not in axes["rows"] and spelled(baseline) in axes["rows"]:
        baseline = spelled(baseline)
    about, note = (str(content.get(name, "")) for name in ("about", "note"))
    return RunMatrix(**axes, seeds=tuple(seeds), settings=settings, baseline=baseline, about=about, note=note)


def _swept(rows: dict[Any, Any] | list[Any], sweep: Any, source: str) -> dict[Any, Any]:
    """The rows with each one's value in the sweep's settings; rows that are settings themselves stay."""
    if not isinstance(sweep, dict) or not any("{}" in str(text) for text in sweep.values()):
        raise ValueError(f"{source}: sweep must be settings with {{}} for the value of a row, got {sweep!r}")
    entries = rows if isinstance(rows, dict) else {str(value): value for value in rows}
    return {
        label: value
        if isinstance(value, dict)
        else {name: str(text).replace("{}", str(value)) for name, text in sweep.items()}
        for label, value in entries.items()
    }


def _labeled(entries: Any, setting: str, source: str, task: str | None) -> dict[str, SettingValues]:
    """`[a, b]` as `{a: {setting: a}, ...}`; a mapping's texts likewise, its mappings as they are."""
    if isinstance(entries, (list, tuple)):
        label = spelled if setting == "method" else str  # a method that is named by its text has one name
        entries = {label(str(each)): each for each in entries}
    if not isinstance(entries, dict):
        raise ValueError(f"{source} must be a list, or names with settings, got {entries!r}")
    found = {}
    for label, each in entries.items():
        if isinstance(each, dict):
            found[str(label)] = each if setting == "method" or setting in each else {setting: str(label), **each}
        elif isinstance(each, str):
            found[str(label)] = {setting: each}
        else:
            raise ValueError(f"{source}: {label!r} must be a string or settings, got {each!r}")
        _check_settings(found[str(label)], f"{source}, {str(label)!r}", task)
    return found


def _check_settings(settings: SettingValues, source: str, task: str | None) -> None:
    """Refuses unknown names and wrong values here, where the error can say in which file they are."""
    for name, value in settings.items():
        checked_setting(name, value, source, TrainConfig if task is None else TransferConfig)


def list_matrices() -> dict[str, RunMatrix]:
    """The built-in matrices by name."""
    return {name: read_matrix(name) for name in _ready()}


def _ready() -> list[str]:
    return sorted(each.name.removesuffix(".yaml") for each in _FOLDER.iterdir() if each.name.endswith(".yaml"))


def read_matrix(what: str) -> RunMatrix:
    """The matrix in a YAML file or a published comparison, or a built-in one by name."""
    ready, published = _FOLDER / f"{what}.yaml", Path(what) / FILE
    if published.is_file() or Path(what).name == FILE:
        about = read_published(published if published.is_file() else Path(what)).about
        return parse_matrix(about["matrix"] if isinstance(about.get("matrix"), dict) else {}, what)
    if Path(what).suffix in (".yaml", ".yml") or (Path(what).is_file() and not ready.is_file()):
        return parse_matrix(read_yaml(what), what)
    if not ready.is_file():
        raise unknown_name("matrix", what, _ready())
    return parse_matrix(yaml.safe_load(ready.read_text(encoding="utf-8")), f"matrix {what}")


def usual_output(what: str) -> Path:
    """The default folder of a comparison; a published one is read in place."""
    if what and (Path(what) / FILE).is_file():
        return Path(what)
    return Path("comparisons") / Path(what or "methods").stem


def changed(
    matrix: RunMatrix | None,
    *,
    methods: Sequence[str] = (),
    models: Sequence[str] = (),
    data: Sequence[str] = (),
    seeds: Sequence[int] = (),
    settings: SettingValues | None = None,
    baseline: str | None = None,
) -> RunMatrix:
    """A matrix with the values that the command line replaces; without a matrix, made of those alone.

    Settings are for every run, so one that a row, model or dataset sets itself is refused: otherwise a row would
    train something other than its name says.
    """
    plain: JsonObject = {} if matrix is None else matrix.plain()
    task = {**plain.get("settings", {}), **(settings or {})}.get("task")
    _check_settings(settings or {}, "--set", None if task is None else check_task(task, "--set"))
    given = {"rows": list(methods), "models": list(models), "data": list(data), "seeds": list(seeds)}
    plain |= {name: value for name, value in given.items() if value}
    if methods:
        plain.pop("baseline", None)
    if baseline is not None:
        plain["baseline"] = baseline
    if settings:
        plain["settings"] = {**plain.get("settings", {}), **settings}
    found = parse_matrix(plain, "the matrix")
    for part, setting in (AXES if task is None else TRANSFER_AXES).items():
        for name in settings or ():
            own = [repr(label) for label, each in getattr(found, part).items() if name in each]
            if own:
                which = ", ".join(own[:3]) + (f" and {len(own) - 3} more" if len(own) > 3 else "")
                flag = "model" if part == "models" else setting
                instead = f"give --{flag} to replace the {part}" if name == setting else "change it in the matrix"
                whose = f"the {part} of the matrix set it ({which})"
                raise ValueError(f"--set {name} applies to every run, but {whose}; {instead}")
    return found
