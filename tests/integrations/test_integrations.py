"""Every integration is short and runs."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from timm.utils import CheckpointSaver

import vitmix
from support import ROOT, tiny_batch, tiny_vit

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


# As timm's script saves: the model alone, and what a resumed training needs beside it.
TIMM = """
import sys, torch, timm
small = dict(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=10)
model = timm.create_model("vit_tiny_patch16_224", **small, checkpoint_path=sys.argv[1]).eval()
images, expected = torch.load(sys.argv[2])
with torch.no_grad():
    assert torch.equal(model(images), expected)
assert "vitmix" not in sys.modules
print("equal")
"""


def test_a_fresh_process_loads_checkpoints_of_timms_saver(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mixer, (images, labels) = vitmix.create("cutmix + htm(block=1, tau=9) | smmix", 10), tiny_batch()
    learner = vitmix.Learner(tiny_vit(), mixer).train()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-2)
    for _ in range(3):
        learner(images, labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    saver = CheckpointSaver(learner.model, optimizer, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path))
    saver.save_checkpoint(0)
    torch.save(learner.mixing.state_dict(), tmp_path / "mixing.pt")
    with torch.no_grad():
        torch.save((images, learner.eval()(images)), tmp_path / "expected.pt")
    command = [sys.executable, "-c", TIMM, str(tmp_path / "last.pth.tar"), str(tmp_path / "expected.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr
    resumed = vitmix.Learner(tiny_vit(), mixer)
    resumed.mixing.load_state_dict(torch.load(tmp_path / "mixing.pt", weights_only=True))
    assert (resumed.step, resumed.mixing.seed) == (3, learner.mixing.seed)
    added = list(zip(resumed.added.parameters(), learner.added.parameters(), strict=True))
    assert added and all(torch.equal(one, other) for one, other in added)
