"""`MixTrainer`: what users of `transformers.Trainer` rely on works, and fresh processes load what it writes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import vitmix

pytest.importorskip("transformers", minversion="5")
pytest.importorskip("accelerate")

import transformers  # noqa: E402

from support import run_in_two
from trainers import CLASSES, Images, OwnTrainer, arguments, logits, lora, trainer, vit  # noqa: E402
from vitmix.integrations import MixTrainer  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
HTM = "cutmix + htm(block=1, tau=9)"


def fresh(code: str, *given: object) -> str:
    """What a fresh process prints, which has the tests and the library on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# The models are loaded by transformers alone: no vitmix in that process.
LOAD = """
import sys, torch
from transformers import AutoModelForImageClassification
for folder, file in zip(sys.argv[1::2], sys.argv[2::2]):
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    images, expected = torch.load(file)
    with torch.no_grad():
        assert torch.equal(model(images).logits, expected), (model(images).logits - expected).abs().max()
    assert model.config._attn_implementation == "sdpa" or model.config.model_type == "timm_wrapper"
    print("equal")
assert "vitmix" not in sys.modules
"""
LOAD_LORA = """
import sys, torch
from peft import PeftModel
from transformers import ViTForImageClassification
base = ViTForImageClassification.from_pretrained(sys.argv[1])
model = PeftModel.from_pretrained(base, sys.argv[2]).eval()
images, expected = torch.load(sys.argv[3])
with torch.no_grad():
    assert torch.equal(model(images).logits, expected), (model(images).logits - expected).abs().max()
assert "vitmix" not in sys.modules and base.config._attn_implementation == "sdpa"
print("equal")
"""


def same_names(folder: Path) -> bool:
    """Whether a saved model has the tensors that transformers writes for it."""
    vit().save_pretrained(folder / "plain")
    one, other = (load_file(folder / each / "model.safetensors") for each in ("saved", "plain"))
    return one.keys() == other.keys()


def stored(model: Any, folder: Path) -> Path:
    torch.save((Images(6).images, logits(model)), folder / "expected.pt")
    return folder / "expected.pt"


def test_a_fresh_process_loads_what_was_trained(tmp_path: Path) -> None:
    saved: list[Path] = []
    compiled = {"torch_compile": True, "torch_compile_backend": "eager"}
    torch._dynamo.reset()
    cases: list[tuple[str, dict[str, Any]]] = [
        *((each, {}) for each in ("mixup | cutmix", "tl_align", "smmix", HTM, "mix(mask=box) + region(head=separate)")),
        *((HTM, settings) for settings in ({"bf16": True}, {"gradient_checkpointing": True}, compiled)),
        ("a timm model", {}),
    ]
    for number, (method, settings) in enumerate(cases):
        folder = tmp_path / str(number)
        of_timm = method == "a timm model"
        mixed = trainer(folder, "smmix", model=timm_vit()) if of_timm else trainer(folder, method, **settings)
        before = logits(mixed.model)
        mixed.train()
        mixed.save_model(str(folder / "saved"))
        assert not torch.allclose(logits(mixed.model), before), method
        if not of_timm:
            assert type(mixed.model) is transformers.ViTForImageClassification
            assert same_names(folder)
            config = json.loads((folder / "saved" / "config.json").read_text())
            assert config["architectures"] == ["ViTForImageClassification"] and "vitmix" not in json.dumps(config)
        plain = mixed.accelerator.unwrap_model(mixed.model, keep_fp32_wrapper=False, keep_torch_compile=False)
        saved += [folder / "saved", stored(plain, folder)]
    assert fresh(LOAD, *saved).split() == ["equal"] * len(cases)


def timm_vit() -> transformers.TimmWrapperForImageClassification:
    small = dict(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3)
    config = transformers.TimmWrapperConfig(architecture="vit_tiny_patch16_224", model_args=small, num_labels=CLASSES)
    return transformers.TimmWrapperForImageClassification(config)


def test_adapters_with_smmix_load_in_a_fresh_process(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = vit()
    base.save_pretrained(tmp_path / "base")
    mixed = trainer(tmp_path, "smmix", model=lora(base))
    before = logits(mixed.model)
    mixed.train()
    mixed.save_model(str(tmp_path / "saved"))
    assert not torch.allclose(logits(mixed.model), before)
    assert (tmp_path / "saved" / "adapter_model.safetensors").exists()
    assert "equal" in fresh(LOAD_LORA, tmp_path / "base", tmp_path / "saved", stored(mixed.model, tmp_path))


# The same numbers as a loop of one's own


def plain_losses(method: str, steps: int, *, accumulate: int = 1) -> tuple[list[float], list[Tensor]]:
    """A learner in a plain loop, with the batches, the optimizer and the clipping of the trainer."""
    learner = vitmix.Learner(vit(), vitmix.create(method, CLASSES), seed=3, step=0)
    learner.train()
    for parameter in learner.added.parameters():
        nn.init.constant_(parameter, 0.02)
    data, losses = Images(), []
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(steps):
        total = 0.0
        for part in range(accumulate):
            first = 4 * (step * accumulate + part)
            loss = learner(data.images[first : first + 4], data.labels[first : first + 4]).loss / accumulate
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, [each.detach() for each in learner.parameters()]


class InOrder(MixTrainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(Images())


def logged(mixed: Any) -> list[float]:
    return [each["loss"] for each in mixed.state.log_history if "loss" in each]


@pytest.mark.parametrize("method", ["mixup | cutmix", "smmix", HTM])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_losses_are_those_of_a_learner(method: str, accumulate: int, tmp_path: Path) -> None:
    steps = 6 // accumulate
    settings = dict(max_steps=steps, gradient_accumulation_steps=accumulate)
    mixed = trainer(tmp_path, method, kind=InOrder, mix_seed=3, **settings)
    for parameter in mixed.mixing.parameters():
        nn.init.constant_(parameter, 0.02)
    mixed.train()
    losses, weights = plain_losses(method, steps, accumulate=accumulate)
    assert logged(mixed) == pytest.approx(losses, abs=2e-4)
    for ours, theirs in zip((*mixed.model.parameters(), *mixed.mixing.parameters()), weights, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "settings", [{"bf16": True}, {"gradient_checkpointing": True}, {"torch_compile": True}], ids=str
)
@pytest.mark.parametrize("method", ["tl_align", "smmix", HTM])
def test_precision_checkpointing_and_compilation(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    torch._dynamo.reset()
    if "torch_compile" in settings:
        settings = settings | {"torch_compile_backend": "eager"}
    mixed = trainer(tmp_path, method, kind=InOrder, mix_seed=3, max_steps=3, **settings)
    for parameter in mixed.mixing.parameters():
        nn.init.constant_(parameter, 0.02)
    mixed.train()
    tolerance = 0.05 if "bf16" in settings else 2e-4
    assert logged(mixed) == pytest.approx(plain_losses(method, 3)[0], abs=tolerance)
    mixed.save_model(str(tmp_path / "saved"))
    assert same_names(tmp_path)
    loaded = transformers.ViTForImageClassification.from_pretrained(tmp_path / "saved")
    weights = mixed.accelerator.unwrap_model(mixed.model, keep_torch_compile=False).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())


@pytest.mark.gpu
def test_half_precision_scales_the_gradients_of_added_parameters(tmp_path: Path) -> None:
    norms, losses = [], []
    for number, settings in enumerate([{}, {"fp16": True, "use_cpu": False}]):
        mixed = trainer(tmp_path / str(number), HTM, kind=InOrder, mix_seed=3, max_steps=4, **settings)
        for parameter in mixed.mixing.parameters():
            nn.init.constant_(parameter, 0.02)
        if settings:
            # Low enough for float16 from the first step, so that no update is left out.
            mixed.accelerator.scaler.load_state_dict(mixed.accelerator.scaler.state_dict() | {"scale": 2.0**7})
        before = added(mixed)
        mixed.train()
        assert all(not torch.equal(one, other) for one, other in zip(before, added(mixed), strict=True)) and before
        losses.append(logged(mixed))
        norms.append([each["grad_norm"] for each in mixed.state.log_history if "grad_norm" in each])
    assert mixed.accelerator.scaler.get_scale() == 2.0**7
    assert losses[1] == pytest.approx(losses[0], abs=0.05)
    assert norms[1][0] == pytest.approx(norms[0][0], rel=0.05)


# Evaluation


def test_evaluation_is_unmixed(tmp_path: Path) -> None:
    mixed = trainer(tmp_path, "mixup | smmix", eval_strategy="steps", eval_steps=1)
    plain = transformers.Trainer(mixed.model, arguments(tmp_path), eval_dataset=Images(16))
    assert mixed.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], abs=1e-6)
    drawn = mixed.mixing.step
    mixed.evaluate()
    assert mixed.mixing.step == drawn == 0
    mixed.train()
    assert mixed.mixing.step == 4
    assert mixed.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], abs=1e-6)
    predicted = mixed.predict(Images(6)).predictions
    torch.testing.assert_close(torch.as_tensor(predicted), logits(mixed.model))


def test_a_trainer_of_ones_own_mixes(tmp_path: Path) -> None:
    mixed = trainer(tmp_path, "tl_align", kind=OwnTrainer)
    mixed.train()
    mixed.evaluate()
    assert mixed.mixing.step == 4 and mixed.evaluated == 1


# Added parameters and resuming


def added(mixed: Any) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in mixed.mixing.parameters()]


@pytest.mark.parametrize("method", [HTM, "mix(mask=box) + region(head=separate)", "mixup | smmix", "recursivemix"])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(method: str, tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", method)
    start = added(whole)
    whole.train()
    assert all(not torch.equal(one, other) for one, other in zip(start, added(whole), strict=True))
    trainer(tmp_path / "parts", method, max_steps=2).train()
    resumed = trainer(tmp_path / "parts", method, model=None, seed=42)
    with torch.no_grad():
        for parameter in (*resumed.model.parameters(), *resumed.mixing.parameters()):
            parameter.fill_(0.1)  # everything comes from the checkpoint
    resumed.mixing.stream.seed = 1
    resumed.train(resume_from_checkpoint=True)
    assert resumed.mixing.step == whole.mixing.step == 4 and resumed.mixing.seed == whole.mixing.seed
    torch.testing.assert_close(logits(resumed.model), logits(whole.model))
    for one, other in zip(added(resumed), added(whole), strict=True):
        torch.testing.assert_close(one, other)


def test_adapters_resume(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    whole = trainer(tmp_path / "whole", HTM, model=lora())
    whole.train()
    trainer(tmp_path / "parts", HTM, model=lora(), max_steps=2).train()
    resumed = trainer(tmp_path / "parts", HTM, model=lora())
    resumed.train(resume_from_checkpoint=True)
    torch.testing.assert_close(logits(resumed.model), logits(whole.model))


def test_another_method_is_not_resumed(tmp_path: Path) -> None:
    trainer(tmp_path, HTM, max_steps=2).train()
    with pytest.raises(ValueError, match="belongs to the method 'cutmix \\+ htm.*'; resume with that method"):
        trainer(tmp_path, "cutmix").train(resume_from_checkpoint=True)


def test_checkpoints_of_a_plain_trainer_are_resumed(tmp_path: Path) -> None:
    transformers.Trainer(vit(), arguments(tmp_path, max_steps=2), train_dataset=Images()).train()
    mixed = trainer(tmp_path, "smmix")
    mixed.train(resume_from_checkpoint=True)
    assert mixed.mixing.step == 2


def test_the_best_model_brings_its_added_parameters(tmp_path: Path) -> None:
    settings = dict(load_best_model_at_end=True, eval_strategy="steps", eval_steps=2, learning_rate=0.5)
    mixed = trainer(tmp_path, HTM, metric_for_best_model="eval_loss", **settings)
    mixed.train()
    best = load_file(Path(mixed.state.best_model_checkpoint) / "vitmix.safetensors")
    for name, value in mixed.mixing.modules.state_dict().items():
        assert torch.equal(value, best[f"added.{name}"])


def test_an_optimizer_of_ones_own_gets_the_added_parameters_once(tmp_path: Path) -> None:
    model = vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mixed = trainer(tmp_path, HTM, model=model, optimizers=(optimizer, None))
    mixed.train()
    listed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(listed) == len(set(listed)) == len(list(model.parameters())) + len(added(mixed))


def test_a_scheduler_of_ones_own_keeps_its_groups(tmp_path: Path) -> None:
    model = vit()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    mixed = trainer(tmp_path, HTM, model=model, optimizers=(optimizer, scheduler))
    mixed.train()
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert {id(each) for each in mixed.mixing.parameters()} <= trained


def test_seeds_of_the_trainer_decide(tmp_path: Path) -> None:
    seeds = [trainer(tmp_path, "cutmix", seed=seed).mixing.seed for seed in (1, 2, 1)]
    assert seeds[0] == seeds[2] != seeds[1]


# Elsewhere


def test_a_model_is_pushed_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: list[set[str]] = []

    class Hub:
        def create_repo(self, *args: Any, **kwargs: Any) -> Any:
            return type("Repo", (), {"repo_id": "me/model"})()

        def upload_folder(self, *, folder_path: str, **kwargs: Any) -> str:
            uploaded.append({path.name for path in Path(folder_path).iterdir() if path.is_file()})
            return "done"

    from transformers import trainer as home

    monkeypatch.setattr(home, "hf_api", Hub)
    monkeypatch.setattr(home.Trainer, "init_hf_repo", lambda self, **kwargs: setattr(self, "hub_model_id", "me/model"))
    monkeypatch.setattr(home.Trainer, "create_model_card", lambda self, **kwargs: None)
    mixed = trainer(tmp_path, HTM, max_steps=1, save_strategy="no")
    mixed.train()
    mixed.push_to_hub()
    assert uploaded and {"config.json", "model.safetensors", "vitmix.safetensors"} <= uploaded[0]


def test_a_new_model_is_attached_again(tmp_path: Path) -> None:
    mixed = trainer(tmp_path, "smmix")
    first = mixed.mixing
    mixed.model = mixed.model_wrapped = vit()
    assert mixed.mixing is not first and first.closed and mixed.mixing.model is mixed.model


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"label_smoothing_factor": 0.1}, "give the mixer smoothing= instead"),
        ({"method": "nothing like this"}, "expected|unknown"),
        ({"compute_loss_func": lambda *given: 0}, "compute_loss_func does not know mixed labels; leave it out"),
    ],
)
def test_what_cannot_work_is_told_at_once(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        trainer(tmp_path, **settings)


def test_several_gpus_in_one_process_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.TrainingArguments, "n_gpu", property(lambda settings: 2))
    with pytest.raises(ValueError, match="nn.DataParallel, which splits mixed batches; start one process for each GPU"):
        trainer(tmp_path)


@pytest.mark.parametrize(("backend", "name"), [("deepspeed", "DeepSpeed"), ("fsdp", "FSDP")])
def test_backends_that_shard_are_told_at_once(backend: str, name: str, tmp_path: Path) -> None:
    class Sharding(MixTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            setattr(self, f"is_{backend}_enabled", True)

    with pytest.raises(ValueError, match=f"not with {name}; use torchrun without it"):
        trainer(tmp_path, kind=Sharding)


DDP = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from trainers import *
folder = Path(sys.argv[1])
mixed = trainer(folder, "cutmix + htm(block=1, tau=9) | smmix", ddp_find_unused_parameters=True, seed=3)
torch.manual_seed(dist.get_rank())  # whatever users do
mixed.train()
weights = torch.cat([each.detach().flatten() for each in (*mixed.model.parameters(), *mixed.mixing.parameters())])
found = [torch.empty_like(weights) for _ in range(2)]
dist.all_gather(found, weights)
assert torch.equal(*found) and len(list(mixed.mixing.parameters())) > 0
mixed.save_model(str(folder / "saved"))
dist.barrier()
loaded = ViTForImageClassification.from_pretrained(folder / "saved")
torch.testing.assert_close(logits(loaded), logits(mixed.accelerator.unwrap_model(mixed.model)))
print("alike")
"""


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    run_in_two(DDP, tmp_path)
