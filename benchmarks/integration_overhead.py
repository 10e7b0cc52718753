"""CPU time of a step of each integration against a step of the same learner in a plain loop, taken in turn.

python benchmarks/integration_overhead.py measure --output results/speed/integrations.json
python benchmarks/integration_overhead.py table

`table` prints that of docs/integrations.md from the stored file.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitmix
from vitmix.integrations import MixModule, MixTask, MixTrainer

STORED = Path(__file__).parents[1] / "results" / "speed" / "integrations.json"
METHODS = ("cutmix", "tl_align", "smmix")
CLASSES, BATCH, WARM_UP, LEARNING_RATE = 10, 16, 5, 1e-4
IMAGE, PATCH, WIDTH, DEPTH, HEADS = 64, 8, 192, 6, 3


def timm_vit() -> nn.Module:
    import timm

    torch.manual_seed(0)
    small: dict[str, Any] = dict(img_size=IMAGE, patch_size=PATCH, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS)
    return timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **small)


def hugging_face_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    small: dict[str, Any] = dict(image_size=IMAGE, patch_size=PATCH, hidden_size=WIDTH, intermediate_size=4 * WIDTH)
    small |= dict(num_hidden_layers=DEPTH, num_attention_heads=HEADS, num_labels=CLASSES)
    return ViTForImageClassification(ViTConfig(**small))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, 3, IMAGE, IMAGE, generator=generator), torch.arange(BATCH) % CLASSES


class PlainLoop:
    """A loop with the optimizer, the schedule and the clipping of `transformers.Trainer`, as far as they are asked."""

    def __init__(self, model: nn.Module, method: str, *, scheduled: bool) -> None:
        self.learner = vitmix.Learner(model, method).train()
        self.optimizer = torch.optim.AdamW(self.learner.parameters(), lr=LEARNING_RATE, fused=True)
        self.schedule = torch.optim.lr_scheduler.ConstantLR(self.optimizer) if scheduled else None

    def step(self, images: Tensor, labels: Tensor) -> None:
        self.learner(images, labels).loss.backward()
        nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad()


class InTurn:
    """Times each step of an integration, from `begin` to `end`, and after it one of the plain loop."""

    def __init__(self, loop: PlainLoop) -> None:
        self.loop, self.batch = loop, batch()
        self.times: list[float] = []
        self.plain: list[float] = []

    def begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = time.process_time()

    def end(self, *args: Any, **kwargs: Any) -> None:
        middle = time.process_time()
        self.loop.step(*self.batch)
        self.times.append(middle - self.start)
        self.plain.append(time.process_time() - middle)


def in_trainer(method: str, steps: int) -> InTurn:
    from transformers import TrainerCallback, TrainingArguments

    clock = InTurn(PlainLoop(hugging_face_vit(), method, scheduled=True))
    callback = TrainerCallback()
    callback.on_step_begin, callback.on_step_end = clock.begin, clock.end  # pyright: ignore
    images, labels = batch()
    data = [{"pixel_values": images[n % BATCH], "labels": labels[n % BATCH]} for n in range(BATCH * steps)]
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = dict(max_steps=steps, per_device_train_batch_size=BATCH, report_to="none")
        given |= dict(use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no")
        settings = TrainingArguments(folder, dataloader_pin_memory=False, learning_rate=LEARNING_RATE, **given)
        model = hugging_face_vit()
        MixTrainer(model=model, args=settings, train_dataset=data, callbacks=[callback], mixer=method).train()
    return clock


def in_module(method: str, steps: int) -> InTurn:
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    clock = InTurn(PlainLoop(timm_vit(), method, scheduled=False))
    callback = lightning.Callback()
    callback.on_train_batch_start, callback.on_train_batch_end = clock.begin, clock.end
    module = MixModule(timm_vit(), method, optimizer=lambda each: torch.optim.AdamW(each, lr=LEARNING_RATE, fused=True))
    images, labels = batch()
    data = DataLoader(TensorDataset(images.repeat(steps, 1, 1, 1), labels.repeat(steps)), batch_size=BATCH)
    quiet: dict[str, Any] = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    quiet |= dict(enable_checkpointing=False, gradient_clip_val=1.0)
    lightning.Trainer(max_steps=steps, callbacks=[callback], **quiet).fit(module, data)
    return clock


def in_task(method: str, steps: int) -> InTurn:
    clock = InTurn(PlainLoop(timm_vit(), method, scheduled=False))
    task = MixTask(timm_vit(), method, device=torch.device("cpu"), verbose=False)
    task.train()
    module = task.get_trainable_module()
    assert module is not None
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, fused=True)
    for _ in range(steps):
        clock.begin()
        task(*clock.batch)["loss"].backward()  # as timm's script does
        nn.utils.clip_grad_norm_(task.get_clip_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.end()
    return clock


INTEGRATIONS: dict[str, Callable[[str, int], InTurn]] = {
    "MixTrainer": in_trainer,
    "MixModule": in_module,
    "MixTask": in_task,
}


def measure(steps: int) -> dict[str, Any]:
    """The milliseconds of every step after the first ones."""
    torch.set_num_threads(1)
    load, rows = os.getloadavg()[0], []
    for method in METHODS:
        for name, run in INTEGRATIONS.items():
            clock = run(method, steps + WARM_UP)
            times, plain = ([round(1e3 * each, 3) for each in part[WARM_UP:]] for part in (clock.times, clock.plain))
            rows.append({"integration": name, "method": method, "times": times, "plain": plain})
            print(f"{name} {method}: {ratio(rows[-1]):.3f}", file=sys.stderr)
    return {"torch": torch.__version__, "steps": steps, "batch": BATCH, "load": load, "rows": rows}


def ratio(row: dict[str, Any]) -> float:
    """The median over steps of the time of the integration relative to that of the plain loop."""
    return statistics.median(one / other for one, other in zip(row["times"], row["plain"], strict=True))


def table(stored: dict[str, Any]) -> str:
    """The ratios as Markdown, a row for each integration and a column for each method."""
    found = {(row["integration"], row["method"]): f"{ratio(row):.3f}" for row in stored["rows"]}
    lines = [("", *(f"`{method}`" for method in METHODS)), ("---",) * (len(METHODS) + 1)]
    lines += [(f"`{name}`", *(found[name, method] for method in METHODS)) for name in INTEGRATIONS]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "table"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path, default=STORED)
    options = parser.parse_args()
    if options.what == "measure":
        options.output.write_text(json.dumps(measure(options.steps)) + "\n")
    print(table(json.loads(options.output.read_text())))


if __name__ == "__main__":
    main()
