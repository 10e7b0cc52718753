"""Checks whether timm's loader stops mixing when a training script turns mixing off (`mixup_enabled = False`).

The loader mixes in its worker processes, which persist over epochs by default. This script counts how many of 1,280
images have two classes, in one epoch before the switch and in two epochs after it.
"""

import timm
import torch
from PIL import Image
from timm.data import FastCollateMixup, create_loader
from torch.utils.data import Dataset


class BlackImages(Dataset):
    """Black images of ten classes."""

    transform = None

    def __len__(self) -> int:
        return 1280

    def __getitem__(self, index: int) -> tuple[object, int]:
        assert self.transform is not None  # set by create_loader
        return self.transform(Image.new("RGB", (32, 32))), index % 10


def epochs_with_mixing(persistent_workers: bool) -> list[int]:
    """Returns how many images of an epoch are mixed: before mixing is turned off, and in the two epochs after."""
    loader = create_loader(
        BlackImages(),
        input_size=(3, 32, 32),
        batch_size=128,
        is_training=True,
        num_workers=2,
        persistent_workers=persistent_workers,
        collate_fn=FastCollateMixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10),
        device=torch.device("cpu"),
    )
    smoothed = 0.1 / 10
    counts = []
    for _ in range(3):
        counts.append(sum(int(((labels > smoothed + 1e-4).sum(1) > 1).sum()) for _, labels in loader))
        loader.mixup_enabled = False
    return counts


if __name__ == "__main__":
    print(f"timm {timm.__version__}, torch {torch.__version__}")
    for persistent in (True, False):
        print(f"persistent_workers={persistent}:", *epochs_with_mixing(persistent))
