"""`MixModule`: fits, resumes, and fresh processes load its checkpoints."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitmix
from support import tiny_vit

lightning = pytest.importorskip("lightning")

from vitmix.integrations import MixModule  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders, loggers and workers
CLASSES = 10
HTM = "cutmix + htm(block=1, tau=9) | smmix"


def data(count: int = 16) -> torch.utils.data.DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, torch.arange(count) % CLASSES), batch_size=4
    )


def module(method: str = HTM) -> MixModule:
    torch.manual_seed(0)
    return MixModule(tiny_vit(), vitmix.create(method, CLASSES))


def fit(made: MixModule, steps: int, folder: Path, **settings: Any) -> Any:
    quiet: dict[str, Any] = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = lightning.Trainer(max_steps=steps, default_root_dir=folder, enable_checkpointing=False, **quiet)
    trainer.fit(made, data(4), **settings)  # one batch: Lightning resumes at the start of an epoch
    trainer.save_checkpoint(folder / f"{steps}.ckpt")
    return trainer


def weights(made: MixModule) -> Tensor:
    return torch.cat([each.detach().flatten() for each in made.learner.parameters()])


LOAD = """
import sys, torch, vitmix
from support import tiny_vit
from vitmix.integrations import MixModule
images, expected = torch.load(sys.argv[2])
mixer = vitmix.create(sys.argv[3], 10)
module = MixModule.load_from_checkpoint(sys.argv[1], model=tiny_vit(), mixer=mixer).eval()
with torch.no_grad():
    assert torch.equal(module(images), expected)
assert module.learner.step == 3
print("equal")
"""


def test_a_fresh_process_loads_a_checkpoint(tmp_path: Path) -> None:
    made = module()
    before = weights(made)
    fit(made, 3, tmp_path)
    assert not torch.equal(weights(made), before)
    images = data().dataset[:4][0]
    with torch.no_grad():
        torch.save((images, made.eval()(images)), tmp_path / "expected.pt")
    given = [tmp_path / "3.ckpt", tmp_path / "expected.pt", HTM]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", LOAD, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "equal" in done.stdout


@pytest.mark.parametrize("method", [HTM, "recursivemix"])
def test_a_resumed_fit_ends_where_an_uninterrupted_one_does(tmp_path: Path, method: str) -> None:
    whole, first, second = module(method), module(method), MixModule(tiny_vit(), vitmix.create(method, CLASSES))
    fit(whole, 4, tmp_path / "whole")
    fit(first, 2, tmp_path)
    fit(second, 4, tmp_path, ckpt_path=tmp_path / "2.ckpt", weights_only=True)
    assert second.learner.step == whole.learner.step == 4
    torch.testing.assert_close(weights(second), weights(whole))


def test_validation_is_unmixed(tmp_path: Path) -> None:
    made = module("mixup")
    trainer = fit(made, 2, tmp_path)
    (found,) = trainer.validate(made, data(), verbose=False)
    images, labels = data().dataset[:]
    with torch.no_grad():
        logits = made.eval()(images)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    assert found["val_loss"] == pytest.approx(float(loss), abs=1e-5)
    assert found["val_accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert made.learner.step == 2
    torch.testing.assert_close(torch.cat(trainer.predict(made, data())), logits)


def test_the_optimizer_may_be_given(tmp_path: Path) -> None:
    made = MixModule(tiny_vit(), vitmix.create(HTM, CLASSES), optimizer=lambda each: torch.optim.SGD(each, lr=0.1))
    trainer = fit(made, 1, tmp_path)
    (optimizer,) = trainer.optimizers
    assert isinstance(optimizer, torch.optim.SGD)
    assert len(optimizer.param_groups[0]["params"]) == len(list(made.learner.parameters()))
    assert len(list(made.learner.added.parameters())) > 0


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmix import integrations

    for name, package, extra in (("MixModule", "lightning", "lightning"), ("MixTrainer", "transformers", "hf")):

        def missing(module: str, package: str = package) -> None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

        monkeypatch.setattr(integrations, "import_module", missing)
        with pytest.raises(ImportError, match=rf"{name} needs {package}: pip install 'vitmix\[{extra}\]'"):
            getattr(integrations, name)


def test_nothing_is_imported_before_it_is_used() -> None:
    code = "import vitmix.integrations, sys; print({'torch', 'transformers', 'lightning'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert said.stdout.strip() == "set()", said.stderr
