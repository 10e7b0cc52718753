"""One of two processes of the distributed tests: gradients of every method, then a training. Run by test_ddp.py."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from training import tiny
from vitmix.train.engine import Trainer

# Every method, and those whose added parameters are idle in some batches.
METHODS = [
    "none",
    "mixup(alpha=0.8)",
    "cutmix",
    "tokenmix",
    "transmix",
    "tl_align",
    "smmix",
    "vtm(block=1, tokens=2)",
    "htm(block=1)",
    "mixup | tl_align",
    "cutmix + region(head=separate) | mixup",
    "mixup | cutmix + htm(block=1)",
]
EXACT = {"method": "none", "drop": 0.0, "drop_path": 0.0, "optimizer": "momentum", "lr": 0.1}


def first_gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The gradients of the first update, by the trainer's own step."""
    found: dict[str, torch.Tensor] = {}

    def note() -> None:
        for name, parameter in trainer.core.named_parameters():
            if parameter.grad is not None:
                found[name] = parameter.grad.clone()

    trainer.apply_gradients = note
    trainer.learner.train()
    trainer._learn(trainer.loader.epoch(0), epoch=0)
    return found


def gradient_settings(method: str) -> dict[str, object]:
    return {**EXACT, "method": method, "seed": 3}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for number, method in enumerate(METHODS):
        trainer = Trainer(tiny(folder / f"gradient{number}", **gradient_settings(method)))
        gradients = first_gradients(trainer)
        assert trainer.world == 2
        save_file(gradients, folder / f"gradients{number}-{trainer.rank}.safetensors")
    code = Trainer(tiny(folder / "two", ema=0.9, checkpoint_every="4 steps", **EXACT)).run()
    (folder / f"code-{trainer.rank}.json").write_text(json.dumps(code))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
