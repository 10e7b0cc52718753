"""Single images as a model sees them: slow twins of the loaders' batches."""

import random

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitmix.lab.data.augment import augment, erase, eval_pixels, global_generators_kept, normalize
from vitmix.lab.data.augmentation import Augmentation


def seed_all(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def train_sample(image: Image.Image, augmentation: Augmentation, *, seed_numbers: tuple[int, ...]) -> Tensor:
    """The image in training: augmented, normalized and, unless that comes later, erased."""
    with global_generators_kept():
        sample = augment(image, augmentation, seed_numbers=seed_numbers)
    normalized = normalize(sample.pixels, augmentation)
    if not augmentation.erase_after_mixing:
        erase(normalized, sample.boxes, seed_numbers=seed_numbers)
    return normalized


def eval_sample(image: Image.Image, augmentation: Augmentation) -> Tensor:
    """The image in evaluation."""
    return normalize(eval_pixels(image, augmentation), augmentation)
