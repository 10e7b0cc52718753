"""Images with masks, and transfers small enough for tests."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitmix.lab.dense.config import TransferConfig, resolve_transfer

COLORS = np.array([[20, 20, 20], [200, 30, 30], [30, 30, 200], [30, 200, 30]])
VIT = {"patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2}
TINY: dict[str, Any] = {
    "backbone": "vit_tiny_patch16_224",
    "model_args": VIT,
    "head": "setr",
    "head_args": {"channels": 8},
    "size": 32,
    "epochs": 2,
    "batch": 4,
    "lr": 0.003,
    "warmup_epochs": 0.5,
    "layer_decay": 0.9,
    "workers": 0,
    "log_every": 1,
    "track": "none",
    "cpu": True,
}


def labels_of(number: int, size: tuple[int, int] = (40, 48), classes: int = 3) -> np.ndarray:
    """A square of a class on a background of class 0."""
    rng, labels = np.random.default_rng(number), np.zeros(size, np.uint8)
    top, left = (int(rng.integers(0, side // 2)) for side in size)
    labels[top : top + size[0] // 2, left : left + size[1] // 2] = 1 + number % (classes - 1)
    return labels


def image_of(labels: np.ndarray, number: int = 0) -> np.ndarray:
    noise = np.random.default_rng(number).integers(0, 40, (*labels.shape, 3))
    return (COLORS[labels % len(COLORS)] + noise).astype(np.uint8)


def write_pair(image: Path, mask: Path, number: int, offset: int = 0) -> None:
    labels = labels_of(number)
    for path, pixels in ((image, image_of(labels, number)), (mask, labels + np.uint8(offset))):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def write_masks(folder: Path, train: int = 8, test: int = 3) -> Path:
    """`masks:FOLDER`, with three classes."""
    for split, count in (("train", train), ("test", test)):
        for number in range(count):
            write_pair(folder / split / "images" / f"{number}.png", folder / split / "masks" / f"{number}.png", number)
    return folder


def tiny_transfer(data: Path | str, output: Path, **changes: Any) -> TransferConfig:
    spec = data if isinstance(data, str) else f"masks:{data}"
    return resolve_transfer({**TINY, "data": spec, "output": str(output), **changes})


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Settings as a user gives them on the command line."""
    words = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "backbone":
            words.append(str(value))
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-"))
        elif isinstance(value, dict):
            words += [flag, *(f"{key}={each}".replace(" ", "") for key, each in value.items())]
        elif isinstance(value, (tuple, list)):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return words
