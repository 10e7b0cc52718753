"""`MixTask` in the order of timm's script: task, EMA, optimizer, resume, compilation or DDP, updates, checkpoint."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.optim import create_optimizer_v2
from timm.task import load_task_ema_checkpoint, resume_task_checkpoint
from timm.utils import CheckpointSaver
from torch import Tensor

import vitmix
from support import run_in_two, tiny_batch, tiny_vit
from vitmix.integrations import MixTask

BOTH = "cutmix + htm(block=1, tau=9) | smmix"
LOAD = """
import sys, torch, timm
small = dict(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=10)
for averaged, name in ((False, "plain"), (True, "ema")):
    model = timm.create_model("vit_tiny_patch16_224", **small)
    timm.models.load_checkpoint(model, sys.argv[1], use_ema=averaged)
    images, expected = torch.load(sys.argv[2])
    with torch.no_grad():
        assert torch.equal(model.eval()(images), expected[name]), name
assert "vitmix" not in sys.modules
print("equal")
"""


def task_and_optimizer(method: Any = BOTH, seed: int = 3) -> tuple[MixTask, torch.optim.Optimizer]:
    torch.manual_seed(0)
    task = MixTask(tiny_vit(), method, seed=seed, verbose=False)
    task.setup_ema(decay=0.5)
    return task, create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=1e-2, weight_decay=0.05)


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return tiny_batch()


def train(task: MixTask, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    (images, labels), losses = batch(), []
    for _ in range(steps):
        task.train()
        result = task(images, labels)
        result["loss"].backward()
        torch.nn.utils.clip_grad_norm_(task.get_clip_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        task.update_ema()
        assert result["output"].shape == (len(images), 10)
        losses.append(result["loss"].item())
    return losses


def save(task: MixTask, optimizer: torch.optim.Optimizer, folder: Path) -> Path:
    places = dict(checkpoint_dir=str(folder), recovery_dir=str(folder))
    CheckpointSaver(task.get_trainable_module(), optimizer, task=task, **places).save_checkpoint(0, metric=1.0)
    return folder / "last.pth.tar"


def state(task: MixTask) -> dict[str, Tensor]:
    return {**task.learner.state_dict(), **task.get_checkpoint_state(ema=True)["state_dict_ema"]}


def alike(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_fresh_process_loads_what_the_script_saves(tmp_path: Path) -> None:
    task, optimizer = task_and_optimizer()
    train(task, optimizer, 3)
    path, (images, _) = save(task, optimizer, tmp_path), batch()
    models = {"plain": task.get_eval_model(), "ema": task.get_eval_model(ema=True)}
    with torch.no_grad():
        expected = {name: model.eval()(images) for name, model in models.items() if model is not None}
    assert not torch.equal(expected["plain"], expected["ema"])
    torch.save((images, expected), tmp_path / "expected.pt")
    command = [sys.executable, "-W", "ignore", "-c", LOAD, str(path), str(tmp_path / "expected.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("method", [BOTH, "mix(mask=box) + region(head=separate)", "recursivemix"])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(method: str, tmp_path: Path) -> None:
    whole, optimizer = task_and_optimizer(method)
    train(whole, optimizer, 4)
    part, optimizer = task_and_optimizer(method)
    train(part, optimizer, 2)
    path = save(part, optimizer, tmp_path)
    resumed, optimizer = task_and_optimizer(method, seed=99)
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.fill_(0.1)  # everything comes from the checkpoint
    assert resume_task_checkpoint(resumed, str(path), optimizer, log_info=False) == 1
    load_task_ema_checkpoint(resumed, str(path))
    train(resumed, optimizer, 2)
    assert alike(state(resumed), state(whole))
    assert resumed.learner.step == 4 and resumed.learner.mixing.seed == 3


def test_checkpoints_of_a_task_without_mixing_are_resumed(tmp_path: Path) -> None:
    model = tiny_vit()
    torch.save({"state_dict": model.state_dict(), "epoch": 2, "version": 2}, tmp_path / "plain.pth.tar")
    task, _ = task_and_optimizer("smmix")
    assert resume_task_checkpoint(task, str(tmp_path / "plain.pth.tar"), log_info=False) == 3
    assert alike(dict(task.learner.model.state_dict()), dict(model.state_dict()))


def test_losses_are_those_of_a_learner() -> None:
    task, optimizer = task_and_optimizer()
    torch.manual_seed(0)
    learner = vitmix.Learner(tiny_vit(), vitmix.create(BOTH, 10), seed=3, step=0).train()
    (images, labels), losses = batch(), []
    other = torch.optim.AdamW(
        [
            {"params": [each for each in learner.parameters() if id(each) not in undecayed(learner)]},
            {"params": [each for each in learner.parameters() if id(each) in undecayed(learner)], "weight_decay": 0.0},
        ],
        lr=1e-2,
        weight_decay=0.05,
    )
    for _ in range(3):
        loss = learner(images, labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        other.step()
        other.zero_grad()
        losses.append(loss.item())
    assert train(task, optimizer, 3) == pytest.approx(losses, abs=1e-5)


def undecayed(learner: vitmix.Learner) -> set[int]:
    """The parameters without weight decay in timm: vectors, the position embedding and the class token."""
    named = learner.named_parameters()
    return {id(each) for name, each in named if each.ndim <= 1 or name.endswith(("pos_embed", "cls_token"))}


def test_weight_decay_and_layer_decay_are_those_of_the_model() -> None:
    task, optimizer = task_and_optimizer()
    decayed = {id(each) for group in optimizer.param_groups if group["weight_decay"] for each in group["params"]}
    every = {id(each) for each in task.learner.parameters()}
    assert decayed == every - undecayed(task.learner)
    settings: dict[str, Any] = dict(opt="adamw", lr=1e-2, weight_decay=0.05, layer_decay=0.5)
    scales = []
    for module in (task.learner.model, task.get_trainable_module()):
        assert module is not None
        groups = create_optimizer_v2(module, **settings).param_groups
        scales.append({id(each): group["lr_scale"] for group in groups for each in group["params"]})
    plain, mixed = scales
    assert plain == {key: scale for key, scale in mixed.items() if key in plain} and len(set(plain.values())) == 5
    assert {mixed[id(each)] for each in task.learner.added.parameters()} == {1.0}


def test_clipping_leaves_the_head_out_and_keeps_added_parameters() -> None:
    task, _ = task_and_optimizer()
    model, added = task.learner.model, list(task.learner.added.parameters())
    head = {id(each) for each in model.head.parameters()}  # pyright: ignore
    clipped = {id(each) for each in task.get_clip_parameters(exclude_head=True)}
    assert clipped == {id(each) for each in (*model.parameters(), *added)} - head and added
    assert len(task.get_clip_parameters()) == len(clipped) + len(head)


def test_compiled_training_and_evaluation() -> None:
    torch._dynamo.reset()
    plain, optimizer = task_and_optimizer("tl_align | smmix")
    expected = train(plain, optimizer, 3)
    task, optimizer = task_and_optimizer("tl_align | smmix")
    task.compile(backend="eager")
    assert train(task, optimizer, 3) == pytest.approx(expected, abs=1e-4)
    model, (images, _) = task.get_eval_model(), batch()
    assert model is not None
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(images), plain.learner.model.eval()(images), rtol=1e-3, atol=1e-4)


def test_evaluation_is_unmixed() -> None:
    task, _ = task_and_optimizer()
    (images, _), model = batch(), task.get_eval_model()
    assert model is task.learner.model and task.learner.step == 0
    with torch.no_grad():
        assert torch.equal(model.eval()(images), tiny_logits(images))


def tiny_logits(images: Tensor) -> Tensor:
    torch.manual_seed(0)
    return tiny_vit().eval()(images)


def test_a_model_without_a_number_of_classes_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="not say how many classes it has; pass vitmix.create"):
        MixTask(torch.nn.Linear(2, 2), "cutmix")


DDP = """
import torch, torch.distributed as dist
from test_timm_task import *
dist.init_process_group("gloo")
task, optimizer = task_and_optimizer()
task.prepare_distributed(find_unused_parameters=True)
with task.no_sync():
    pass
train(task, optimizer, 3)
weights = torch.cat([each.detach().flatten() for each in task.learner.parameters()])
found = [torch.empty_like(weights) for _ in range(2)]
dist.all_gather(found, weights)
assert torch.equal(*found) and task.get_eval_model() is task.learner.model
assert "task_state" in task.get_checkpoint_state()
print("alike")
"""


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    run_in_two(DDP, tmp_path)
