"""A matrix of trainings as a value and as YAML: rows (methods, or any settings) × models × data sets × seeds.

about: SMMix table 7
baseline: CutMix                        # a row; that named cutmix, or else the first one, if left out
settings: {recipe: smmix}               # of every training; names as `vitmix train` knows them
rows:
  CutMix: mixup(alpha=0.8) | cutmix     # a method, or settings as name: value
  TokenMix: {method: tokenmix, loss: bce}
models: [deit_tiny_patch16_224]         # those of the settings if left out; or names with settings
data: [shapes]                          # likewise
seeds: [0, 1, 2]

Rows that differ in one value are a sweep: each gives what stands for `{}`.

sweep: {method: "htm(block=2, tau={})"}
rows: {tau 0.1: 0.1, tau 0.2: 0.2, no HTM: {method: cutmix}}
"""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from vitmix._checks import check_choice, check_count, unknown_name
from vitmix._grammar import spelled
from vitmix._text import create
from vitmix.lab.runs import Run
from vitmix.lab.runs.published import FILE, read_published
from vitmix.lab.training.config import TrainConfig, checked_setting, read_yaml, resolve

_FOLDER = files("vitmix.lab.comparison") / "matrices"
KEYS = ("about", "note", "baseline", "settings", "rows", "models", "data", "seeds")
RESERVED = ("seed", "output", "resume")  # the matrix's own business
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """One training of a matrix; `name` is that of its folder.

    Attributes:
        column: the labels of model and data, within which rows are compared; empty where the matrix has no such axis.
        published: the run, where its folder holds no training and a published comparison beside it does.
    """

    row: str
    column: tuple[str, str]
    seed: int
    name: str
    config: TrainConfig
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


def is_trained(run: Run) -> bool:
    """Whether the training is finished and its best weights are evaluated."""
    return run.summary is not None and run.evaluation is not None


@dataclass(frozen=True)
class Matrix:
    """What to compare. `models` and `data` map labels to settings; empty, they are those of the settings."""

    rows: Mapping[str, Settings]
    models: Mapping[str, Settings] = field(default_factory=dict)
    data: Mapping[str, Settings] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: Settings = field(default_factory=dict)
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
        for settings in (self.settings, *self.rows.values(), *self.models.values(), *self.data.values()):
            for name in RESERVED:
                if name in settings:
                    raise ValueError(f"{name} cannot be set in a matrix, which decides it; leave it out")

    @property
    def reference(self) -> str:
        """The row that the others are compared with."""
        named = [row for row in self.rows if row.lower() == "cutmix"]
        return self.baseline or (named or list(self.rows))[0]

    def only(self, rows: Sequence[str]) -> "Matrix":
        """The matrix of these rows, in the order given, with the same baseline where that is among them."""
        for row in rows:
            check_choice("row", row, self.rows)
        baseline = self.reference if self.reference in rows else None
        return dataclasses.replace(self, rows={row: self.rows[row] for row in rows}, baseline=baseline)

    def trainings(self, output: Path, *others: Path) -> list[Training]:
        """The trainings in the matrix's order, the seeds of a row beside each other; refuses settings that do not fit.

        So trainings that take equally long run side by side, and compete for the device with their like. Those that a
        comparison published in `output`, or in one of the other folders, are done.
        """
        found: list[Training] = []
        for model, of_model in (self.models or {"": {}}).items():
            for data, of_data in (self.data or {"": {}}).items():
                for row, of_row in self.rows.items():
                    settings = {**self.settings, **of_model, **of_data, **of_row}
                    found += [_training((row, model, data, seed), settings, output) for seed in self.seeds]
        twins = [name for name, count in Counter(each.name for each in found).items() if count > 1]
        if twins:
            raise ValueError(f"two trainings would share the folder {twins[0]}; give rows, models and data other names")
        files = [folder / FILE for folder in (*others, output) if (folder / FILE).is_file()]
        published = {name: run for file in files for name, run in read_published(file).runs.items()}
        return [dataclasses.replace(each, published=published.get(each.name)) for each in found]

    def plain(self) -> dict[str, Any]:
        """As YAML holds it."""
        values = {name: getattr(self, name) for name in KEYS}
        values["seeds"] = list(self.seeds)
        values |= {
            name: {label: dict(each) for label, each in values[name].items()} for name in ("rows", "models", "data")
        }
        values["settings"] = dict(self.settings)
        return {name: value for name, value in values.items() if value not in (None, "", {})}


def _training(names: tuple[str, str, str, int], settings: dict[str, Any], output: Path) -> Training:
    row, model, data, seed = names
    try:
        config = resolve({**settings, "seed": seed})
        create(config.method, 2, defaults={} if config.loss is None else {"loss": config.loss})
    except ValueError as error:
        raise ValueError(f"row {row!r}: {error}") from None
    name = "-".join(_slug(each) for each in (row, model or config.model, data or config.data)) + f"-seed{seed}"
    place = str(output / "runs" / name)
    config = dataclasses.replace(config, output=place, track="none")
    return Training(row, (model, data), seed, name, config)


def _slug(text: str, most: int = 40) -> str:
    """A text as part of a folder's name; what is cut off a long one leaves a checksum behind."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_") or "_"
    return slug if len(slug) <= most else f"{slug[: most - 7]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


# Text


def parse_matrix(content: Mapping[str, Any], source: str) -> Matrix:
    """A matrix from what YAML holds."""
    for key in content:
        if key not in (*KEYS, "sweep"):
            raise ValueError(f"{source}: {unknown_name('entry of a matrix', key, (*KEYS, 'sweep'))}")
    if not isinstance(content.get("rows"), (dict, list)):
        raise ValueError(f"{source} has no rows; write 'rows:' and below it a name and a method for each")
    given = _swept(content["rows"], content["sweep"], source) if "sweep" in content else content["rows"]
    seeds = content.get("seeds", [0, 1, 2])
    if not isinstance(seeds, list):
        raise ValueError(f"{source}: seeds must be a list such as [0, 1, 2], got {seeds!r}")
    settings = content.get("settings") or {}
    if not isinstance(settings, dict):
        raise ValueError(f"{source}: settings must be 'name: value' lines, got {settings!r}")
    _check_settings(settings, f"the settings of {source}")
    rows = _labeled(given, "method", f"{source}, rows")
    baseline = content.get("baseline")
    if baseline is not None and str(baseline) not in rows and spelled(str(baseline)) in rows:
        baseline = spelled(str(baseline))
    return Matrix(
        rows=rows,
        models=_labeled(content.get("models") or {}, "model", f"{source}, models"),
        data=_labeled(content.get("data") or {}, "data", f"{source}, data"),
        seeds=tuple(seeds),
        settings=settings,
        baseline=None if baseline is None else str(baseline),
        about=str(content.get("about", "")),
        note=str(content.get("note", "")),
    )


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


def _labeled(entries: Any, setting: str, source: str) -> dict[str, Settings]:
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
            raise ValueError(f"{source}: {label!r} must be a text or settings, got {each!r}")
        _check_settings(found[str(label)], f"{source}, {str(label)!r}")
    return found


def _check_settings(settings: Settings, source: str) -> None:
    """Refuses unknown names and wrong kinds of values while it is known where they stand."""
    for name, value in settings.items():
        checked_setting(name, value, source)


def list_matrices() -> dict[str, Matrix]:
    """The ready matrices by name."""
    names = sorted(each.name.removesuffix(".yaml") for each in _FOLDER.iterdir() if each.name.endswith(".yaml"))
    return {name: read_matrix(name) for name in names}


def read_matrix(what: str) -> Matrix:
    """The matrix in a YAML file or a published comparison, or a ready one by its name."""
    ready, published = _FOLDER / f"{what}.yaml", Path(what) / FILE
    if published.is_file() or Path(what).name == FILE:
        about = read_published(published if published.is_file() else Path(what)).about
        return parse_matrix(about["matrix"] if isinstance(about.get("matrix"), dict) else {}, what)
    if Path(what).suffix in (".yaml", ".yml") or (Path(what).is_file() and not ready.is_file()):
        return parse_matrix(read_yaml(what), what)
    if not ready.is_file():
        names = [each.name.removesuffix(".yaml") for each in _FOLDER.iterdir()]
        raise unknown_name("matrix", what, sorted(names))
    return parse_matrix(yaml.safe_load(ready.read_text(encoding="utf-8")), f"matrix {what}")


def usual_output(what: str) -> Path:
    """Where a comparison is kept unless a folder is named: a published one is read where it is."""
    if what and (Path(what) / FILE).is_file():
        return Path(what)
    return Path("comparisons") / Path(what or "methods").stem


def changed(
    matrix: Matrix | None,
    *,
    methods: Sequence[str] = (),
    models: Sequence[str] = (),
    data: Sequence[str] = (),
    seeds: Sequence[int] = (),
    settings: Settings | None = None,
    baseline: str | None = None,
) -> Matrix:
    """A matrix with what was named on the command line in the place of its own; made of that alone if there is none.

    Settings are for every training, so those that rows, models or data set themselves are refused: under their names
    something else would be trained.
    """
    _check_settings(settings or {}, "--set")
    plain: dict[str, Any] = {} if matrix is None else matrix.plain()
    given = {"rows": list(methods), "models": list(models), "data": list(data), "seeds": list(seeds)}
    plain |= {name: value for name, value in given.items() if value}
    if methods:
        plain.pop("baseline", None)
    if baseline is not None:
        plain["baseline"] = baseline
    if settings:
        plain["settings"] = {**plain.get("settings", {}), **settings}
    found = parse_matrix(plain, "the matrix")
    for part, flag in (("rows", "--method"), ("models", "--model"), ("data", "--data")):
        for name in settings or ():
            _refuse_shared(name, getattr(found, part), part, flag)
    return found


def _refuse_shared(name: str, labeled: Mapping[str, Settings], part: str, flag: str) -> None:
    """Refuses a setting for all where one of these rows, models or data sets has its own."""
    own = [repr(label) for label, settings in labeled.items() if name in settings]
    if not own:
        return
    which = ", ".join(own[:3]) + (f" and {len(own) - 3} more" if len(own) > 3 else "")
    instead = f"give {flag} to replace the {part}" if name == flag[2:] else "change it in the matrix"
    raise ValueError(f"--set {name} is for every training, but the {part} of the matrix set it ({which}); {instead}")
