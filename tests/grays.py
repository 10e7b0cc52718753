"""A model whose answers are known by hand, images for it, and a small ViT."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

from training import one_thread, train  # noqa: F401
from vitmix.lab.data.images import ArrayImages
from vitmix.lab.evaluation import Subject
from vitmix.lab.evaluation.conditions import PixelClassifier
from vitmix.lab.runs import Estimate, Measurement
from vitmix.lab.training.config import TrainConfig

CPU = torch.device("cpu")
CENTERS = (31.5, 95.5, 159.5, 223.5)  # of gray, in 0..255: boundaries at 63.5, 127.5 and 191.5
GRAYS = (10, 60, 61, 63, 66, 67, 100, 125, 130, 160, 190, 200)


class NearestGray(nn.Module):
    """Linear: says which of some grays is nearest to an image's mean, so how far each may be moved is known."""

    def __init__(self, centers: Sequence[float] = CENTERS, side: int = 8) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.tensor(centers) / 255)
        mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
        self.pretrained_cfg = {"mean": mean, "std": std, "crop_pct": 1.0, "input_size": (3, side, side)}
        self.mean, self.std = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        gray = (images * self.std + self.mean).mean((1, 2, 3)).unsqueeze(1)
        return 100 * (2 * gray * self.centers - self.centers.square())


def subject_of(model: Any, outputs: int, classes: Sequence[str] | None = None, side: int = 8) -> Subject:
    config = TrainConfig(model="own", size=side, crop_pct=1.0)
    return Subject(model, config, outputs, {}, "own", None if classes is None else tuple(classes))


def gray_images(grays: Sequence[int] = GRAYS, side: int = 8) -> ArrayImages:
    pixels = np.stack([np.full((side, side, 3), gray, np.uint8) for gray in grays])
    labels = [int(np.abs(np.array(CENTERS) - gray).argmin()) for gray in grays]
    return ArrayImages(pixels, labels, ["a", "b", "c", "d"], "grays")


def within(grays: Sequence[int], bound: float) -> float:
    """The share of grays that stay on their side of every boundary when moved by less than the bound (of 255)."""
    return float(np.mean([min(abs(gray - edge) for edge in (63.5, 127.5, 191.5)) > bound for gray in grays]))


def grays_subject() -> Subject:
    return subject_of(NearestGray(), 4)


def classifier_of(subject: Subject) -> PixelClassifier:
    return PixelClassifier(subject.model, subject.augmentation, CPU)


def named(measurements: Iterable[Measurement]) -> dict[str, Estimate]:
    return {each.name: each.estimate for each in measurements}


def tiny_vit(**changes: Any) -> Any:
    torch.manual_seed(0)
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 12}
    return timm.create_model("vit_tiny_patch16_224", **{**settings, **changes}).eval()
