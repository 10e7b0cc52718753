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
from support import run_in_two, tiny_vit

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


def quiet_trainer(steps: int, folder: Path, **settings: Any) -> Any:
    quiet: dict[str, Any] = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    quiet |= dict(enable_checkpointing=False, default_root_dir=folder)
    return lightning.Trainer(max_steps=steps, **quiet, **settings)


def fit(made: MixModule, steps: int, folder: Path, *, precision: Any = None, **settings: Any) -> Any:
    trainer = quiet_trainer(steps, folder, precision=precision)
    trainer.fit(made, data(4), **settings)  # one batch: Lightning resumes at the start of an epoch
    trainer.save_checkpoint(folder / f"{steps}.ckpt")
    return trainer


def weights(made: MixModule) -> Tensor:
    return torch.cat([each.detach().flatten() for each in made.learner.parameters()])


class Noting(MixModule):
    """Notes the loss of every batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses = [*getattr(self, "losses", []), float(loss.detach())]
        return loss


def noting(method: str) -> Noting:
    torch.manual_seed(0)
    return Noting(tiny_vit(), vitmix.create(method, CLASSES), seed=3)


def plain_losses(method: str, *, updates: int, accumulate: int) -> tuple[list[float], Tensor]:
    """The losses and weights of a plain loop of the same learner."""
    learner, batches, losses = noting(method).learner.train(), list(data()), list[float]()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3, weight_decay=0.05)
    for update in range(updates):
        for part in range(accumulate):
            loss = learner(*batches[(update * accumulate + part) % len(batches)]).loss
            (loss / accumulate).backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    return losses, torch.cat([each.detach().flatten() for each in learner.parameters()])


SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"precision": "bf16-mixed"},
    "accumulation": {"accumulate_grad_batches": 2},
    "checkpointing": {},
    "compiled learner": {},
    "compiled module": {},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("method", ["tl_align", "smmix", "cutmix + htm(block=1, tau=9)"])
def test_losses_are_those_of_a_learner(name: str, method: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    made: Any = noting(method)
    if name == "checkpointing":
        made.model.set_grad_checkpointing()
    if name == "compiled learner":
        made.learner.compile(backend="eager")
    trainer = quiet_trainer(3, tmp_path, **SETTINGS[name])
    trainer.fit(torch.compile(made, backend="eager") if name == "compiled module" else made, data())
    accumulate = SETTINGS[name].get("accumulate_grad_batches", 1)
    losses, expected = plain_losses(method, updates=3, accumulate=accumulate)
    exact = name != "bf16"
    assert made.losses == pytest.approx(losses, abs=1e-4 if exact else 0.1)
    if exact:
        torch.testing.assert_close(weights(made), expected, rtol=1e-3, atol=1e-4)
    else:
        assert made.losses != losses


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


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16-mixed"}], ids=str)
def test_a_fresh_process_loads_a_checkpoint(tmp_path: Path, settings: dict[str, Any]) -> None:
    made = module()
    before = weights(made)
    fit(made, 3, tmp_path, **settings)
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


DDP = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from test_lightning_module import *
made = module()
start = weights(made)
settings = dict(strategy="ddp_find_unused_parameters_true", devices=2)
trainer = quiet_trainer(4, Path(sys.argv[1]), **settings)
torch.manual_seed(trainer.global_rank)  # whatever users do
boxes = []
draw = made.learner.mixing.draw
made.learner.mixing.draw = lambda frame: boxes.append(draw(frame)) or boxes[-1]
trainer.fit(made, data(16))
own = (weights(made), [(each.choice, {name: value.tolist() for name, value in each.values.items()}) for each in boxes])
found = [None, None]
dist.all_gather_object(found, own)
(one, first), (other, second) = found
assert torch.equal(one, other) and not torch.equal(one, start) and len(list(made.learner.added.parameters())) > 0
assert [choice for choice, _ in first] == [choice for choice, _ in second] and len(first) == 4
assert first != second, "both processes drew the same boxes"
path = Path(sys.argv[1]) / "ddp.ckpt"
trainer.save_checkpoint(path)
loaded = MixModule.load_from_checkpoint(path, model=tiny_vit(), mixer=vitmix.create(HTM, CLASSES))
assert torch.equal(weights(loaded), one) and loaded.learner.step == 4
print("alike")
"""


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    run_in_two(DDP, tmp_path)


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


def test_a_method_may_be_a_text(tmp_path: Path) -> None:
    made = MixModule(tiny_vit(), HTM)
    fit(made, 1, tmp_path)
    assert made.learner.mixer == vitmix.create(HTM, CLASSES)
    loaded = MixModule.load_from_checkpoint(tmp_path / "1.ckpt", model=tiny_vit(), mixer=HTM)
    assert torch.equal(weights(loaded), weights(made))


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
