"""CPU time of a step of `MixTrainer` against a step of the same learner in a plain loop, taken in turn.

python benchmarks/trainer_overhead.py [--method smmix] [--steps 60]
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

import vitmix
from vitmix.integrations import MixTrainer

CLASSES, BATCH, WARM_UP = 10, 16, 5


def build_model() -> ViTForImageClassification:
    torch.manual_seed(0)
    small: dict[str, Any] = dict(image_size=64, patch_size=8, hidden_size=192, intermediate_size=768)
    small |= dict(num_hidden_layers=6, num_attention_heads=3, num_labels=CLASSES)
    return ViTForImageClassification(ViTConfig(**small))


class PlainLoop:
    """A loop with the same optimizer, schedule and clipping as the trainer's."""

    def __init__(self, method: str) -> None:
        self.learner = vitmix.Learner(build_model(), vitmix.create(method, CLASSES)).train()
        self.optimizer = torch.optim.AdamW(self.learner.parameters(), lr=1e-4, fused=True)
        self.schedule = torch.optim.lr_scheduler.ConstantLR(self.optimizer)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.learner(images, labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()


class InTurn(TrainerCallback):
    """Times each step of the trainer, and after it one of the plain loop."""

    def __init__(self, loop: PlainLoop, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.loop, self.images, self.labels = loop, images, labels
        self.mixed: list[float] = []
        self.plain: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        middle = time.process_time()
        self.loop.step(self.images, self.labels)
        self.mixed.append(middle - self.start)
        self.plain.append(time.process_time() - middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="smmix")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    images, labels = torch.randn(BATCH, 3, 64, 64), torch.arange(BATCH) % CLASSES
    data = [{"pixel_values": images[n % BATCH], "labels": labels[n % BATCH]} for n in range(BATCH * options.steps)]
    clock = InTurn(PlainLoop(options.method), images, labels)
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = dict(max_steps=options.steps, per_device_train_batch_size=BATCH, report_to="none")
        given |= dict(use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no")
        settings = TrainingArguments(folder, dataloader_pin_memory=False, learning_rate=1e-4, **given)
        trainer = MixTrainer(
            model=build_model(), args=settings, train_dataset=data, callbacks=[clock], mixer=options.method
        )
        trainer.train()
    mixed, plain = clock.mixed[WARM_UP:], clock.plain[WARM_UP:]
    ratios = [one / other for one, other in zip(mixed, plain, strict=True)]
    print(
        f"{options.method}: {1e3 * statistics.median(mixed):.1f} ms in MixTrainer, "
        f"{1e3 * statistics.median(plain):.1f} ms in a plain loop, median ratio {statistics.median(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
