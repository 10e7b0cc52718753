"""Every integration is short and runs."""

import importlib.util
import re
import subprocess
import sys

import pytest

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
# Runs a script and counts its updates. A few of them teach a model nothing that could be measured, so what is looked at
# is whether every parameter got a gradient and moved.
WATCHED = r"""
import runpy, sys, warnings
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

warnings.filterwarnings("error", category=DeprecationWarning, module=r"vitmix(\.|$)")
updates, starts, learning = 0, {}, set()

def watch(optimizer, args, kwargs):
    global updates
    updates += 1
    for group in optimizer.param_groups:
        for each in group["params"]:
            starts.setdefault(each, each.detach().clone())
            if each.grad is not None and each.grad.any():  # behind a head of zeros only after the first update
                learning.add(each)

register_optimizer_step_pre_hook(watch)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
idle = [tuple(each.shape) for each, start in starts.items() if each not in learning or torch.equal(each, start)]
print(f"updates {updates}, parameters {len(starts)}, idle {idle}")
"""


def test_all_are_here_and_short() -> None:
    scripts = {path.stem: path for path in FOLDER.glob("*.py")}
    assert scripts.keys() == SHORT.keys()
    for path in scripts.values():
        assert len(path.read_text().splitlines()) < 60, path.name


@pytest.mark.parametrize("name", SHORT)
def test_integration_runs(name: str) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed (extra dev)")
    command = [sys.executable, "-c", WATCHED, str(FOLDER / f"{name}.py"), *SHORT[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"accuracy.*?([\d.]+) ?%", done.stdout)
    assert found and 0 <= float(found[-1]) <= 100, done.stdout
    watched = re.search(r"updates (\d+), parameters (\d+), idle \[\]", done.stdout)
    assert watched, done.stdout
    assert int(watched[1]) == 3 and int(watched[2]) > 40
