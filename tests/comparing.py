"""Comparisons small enough for tests."""

import time
from pathlib import Path
from typing import Any

import yaml

from training import TINY
from vitmix.lab.comparison.matrix import Training
from vitmix.lab.evaluation.classification import evaluate_run
from vitmix.lab.training.engine import Trainer

SETTINGS = {name: value for name, value in TINY.items() if name not in ("method", "model_args", "track")}
SETTINGS |= {"epochs": 1, "model_args": dict(TINY["model_args"])}


def write(tmp_path: Path, **changes: Any) -> Path:
    content = {"rows": {"CutMix": "cutmix", "none": "none"}, "seeds": [0], "settings": SETTINGS} | changes
    path = tmp_path / "matrix.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def finish(training: Training) -> None:
    """What a process of the comparison would do."""
    assert Trainer(training.config).run() == 0
    evaluate_run(training.run.path)


def wait_for(condition: Any, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
