"""Runs in one file, for a repository: the contents of their folders without weights.

The file is compressed JSON lines. The first line describes the whole. Each other line is a file of a run:
{"run": NAME, "file": NAME, "content": ...}. Lines of the same file are neighbors, so that they compress well. Numbers
have eight significant digits.
"""

import dataclasses
import gzip
import io
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitmix.lab.reading import JsonObject, open_regular, parse_json
from vitmix.lab.settings import SettingValues
from vitmix.lab.training.config import CONFIG, AnyConfig, TrainConfig, resolve_any
from vitmix.lab.training.recipes import read_recipe
from vitmix.lab.writing import write_file

from .folder import ANALYSIS, DENSE, EVALUATION, METRICS, ROBUSTNESS, SUMMARY, Run
from .records import parse
from .training import Epoch

FILE = "comparison.jsonl.gz"
DIGITS = 8
# Settings that older files lack, so that publishing those again changes nothing.
NEWER = ("reset_head", "freeze", "lora", "balance", "labels", "power", "decay_epochs")
MOST = 2**24  # bytes of the lines together; as Python objects, they may take thirty times that


class PublishedRun(Run):
    """A run in such a file; there is no folder at its path."""

    def __init__(self, path: Path, files: JsonObject) -> None:
        super().__init__(path)
        self._files = files

    @property
    def exists(self) -> bool:
        return CONFIG in self._files

    @cached_property
    def config(self) -> AnyConfig:
        return resolve_any(self._files[CONFIG])

    @cached_property
    def epochs(self) -> list[Epoch]:
        return list(parse(tuple[Epoch, ...], self._files.get(METRICS, []), METRICS))

    def _studies(self) -> list[str]:
        return [Path(name).stem for name in self._files if name.startswith(f"{ANALYSIS}/")]

    def _content(self, name: str) -> Any:
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]


@dataclass(frozen=True)
class Published:
    """The first line, and the runs by name."""

    about: JsonObject
    runs: Mapping[str, Run]


def write_published(path: Path, about: JsonObject, runs: Mapping[str, Run]) -> None:
    files = {name: _files(name, run) for name, run in runs.items()}
    names = sorted({file for each in files.values() for file in each})
    lines: list[Any] = [about]
    lines += [
        {"run": run, "file": name, "content": each[name] if name == CONFIG else _rounded(each[name])}
        for name in names
        for run, each in files.items()
        if name in each
    ]
    text = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines)
    write_file(path, gzip.compress(text.encode(), mtime=0))


def _files(name: str, run: Run) -> JsonObject:
    """The contents of a run's files, without the paths of the machine it ran on."""
    config = dataclasses.replace(run.config, output=None, resume=None)
    found: JsonObject = {CONFIG: _settings(config), METRICS: [epoch.to_json() for epoch in run.epochs]}
    measured: JsonObject = {EVALUATION: run.evaluation, DENSE: run.dense, ROBUSTNESS: run.robustness}
    measured |= {f"{ANALYSIS}/{study}.json": content for study, content in run.analyses.items()}
    for file, record in measured.items():
        if record is not None:
            found[file] = record.to_json() | {"weights": f"{name}/{Path(record.weights).name}"}
    if run.summary is not None:
        text = run.summary.text.replace(f"{run.path.parent}/", "")
        elsewhere = re.compile(rf"[^\s'\"]*/(?={re.escape(name)}/)")  # by another path to the run
        found[SUMMARY] = run.summary.to_json() | {"text": elsewhere.sub("", text)}
    return found


def _settings(config: AnyConfig) -> SettingValues:
    """All settings, except newer ones of a training at their default that the recipe does not set."""
    if not isinstance(config, TrainConfig):
        return dataclasses.asdict(config)
    usual, recipe = TrainConfig(), {} if config.recipe is None else read_recipe(config.recipe).settings
    left_out = {name for name in NEWER if getattr(config, name) == getattr(usual, name) and name not in recipe}
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in left_out}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):  # settings are compared with those of today
        return {key: each if key == "settings" else _rounded(each) for key, each in value.items()}
    return value


def read_published(path: Path) -> Published:
    """The runs in a file; ValueError for any other file."""
    try:
        with open_regular(path) as file, gzip.open(file) as unpacked:
            text = unpacked.read(MOST + 1)
        if len(text) > MOST:
            raise ValueError(f"it has more than the {MOST:,} bytes allowed")
        about, *lines = (parse_json(line) for line in io.BytesIO(text))
        files: dict[str, JsonObject] = {}
        for line in lines:
            files.setdefault(str(line["run"]), {})[str(line["file"])] = line["content"]
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a published comparison: {error}") from None
    if not isinstance(about, dict) or not all(isinstance(each.get(CONFIG), dict) for each in files.values()):
        raise ValueError(f"{path} is not a published comparison: its first line or a configuration is missing")
    return Published(about, {name: PublishedRun(path.parent / name, each) for name, each in files.items()})
