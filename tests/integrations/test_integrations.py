"""Every integration is short and runs."""

import importlib.util
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from support import ROOT

FOLDER = ROOT / "examples" / "integrations"
SHORT = {
    "plain_loop": ["--steps", "3"],
    "timm_loop": ["--epochs", "1", "--images", "192"],
    "lightning_module": ["--steps", "3"],
    "hf_trainer": ["--steps", "3"],
    "torchvision_loop": ["--epochs", "1", "--images", "192"],
}
NEEDS = {"lightning_module": "lightning", "hf_trainer": "transformers"}


@dataclass
class Updates:
    """What the optimizers of a script do.

    A few updates teach a model nothing that could be measured, so what is looked at is whether every parameter got a
    gradient and moved.
    """

    count: int = 0
    starts: dict[Tensor, Tensor] = field(default_factory=dict)
    learning: set[Tensor] = field(default_factory=set)

    def see(self, optimizer: Optimizer, *_: object) -> None:
        self.count += 1
        for group in optimizer.param_groups:
            for each in group["params"]:
                self.starts.setdefault(each, each.detach().clone())
                if each.grad is not None and each.grad.any():  # behind a head of zeros only after the first update
                    self.learning.add(each)

    def idle(self) -> list[torch.Size]:
        return [
            each.shape for each, start in self.starts.items() if each not in self.learning or torch.equal(each, start)
        ]


@pytest.fixture
def updates() -> Iterator[Updates]:
    found = Updates()
    handle = register_optimizer_step_pre_hook(found.see)
    yield found
    handle.remove()


def test_all_are_here_and_short() -> None:
    scripts = {path.stem: path for path in FOLDER.glob("*.py")}
    assert scripts.keys() == SHORT.keys()
    for path in scripts.values():
        assert len(path.read_text().splitlines()) < 60, path.name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.filterwarnings(r"error::DeprecationWarning:vitmix(\.|$)")
@pytest.mark.parametrize("name", SHORT)
def test_integration_runs(
    name: str, updates: Updates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed (extra dev)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *SHORT[name]])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    found = re.findall(r"accuracy.*?([\d.]+) ?%", out)
    assert found and 0 <= float(found[-1]) <= 100, out
    assert updates.count == 3 and len(updates.starts) > 40 and updates.idle() == []
