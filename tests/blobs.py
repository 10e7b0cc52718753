"""Smooth images without symmetry, with themselves as maps."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.images import ArrayImages

SIDE = 64
RAND = Augmentation(SIDE, scale=(0.3, 1.0), hflip=0.5, auto_augment="rand-m9-mstd0.5-inc1", erasing=0.0, mean=(0,) * 3)


def blobs(height: int, width: int, seed: int = 0) -> Tensor:
    """A smooth image in 0..1 without any symmetry: black with three spots of different size and brightness."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    values = np.zeros((height, width))
    for strength in (1.0, 0.7, 0.4):
        row, column, spread = rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.8), rng.uniform(0.08, 0.15)
        distance = ((y / height - row) ** 2 + (x / width - column) ** 2) / spread**2
        values = np.maximum(values, strength * np.exp(-distance / 2))
    return torch.from_numpy(values).float()


def image_of(values: Tensor) -> Image.Image:
    return Image.fromarray((values * 255).round().byte().numpy()).convert("RGB")


def correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first.double().flatten(), second.double().flatten()]))[0, 1])


def blob_images(count: int = 24, side: int = 40) -> tuple[ArrayImages, Tensor]:
    values = torch.stack([blobs(side, side, seed) for seed in range(count)])
    pixels = (values * 255).round().byte().unsqueeze(3).expand(-1, -1, -1, 3).contiguous().numpy()
    return ArrayImages(pixels, np.arange(count) % 3, ["a", "b", "c"], "blobs"), values
