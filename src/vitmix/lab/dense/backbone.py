"""The backbone: the timm model that a run folder, a weights file or a name stands for, as a source of feature maps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from vitmix import models as models  # its import registers names with timm
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.evaluation.subject import Subject, check_place, open_subject
from vitmix.lab.settings import ModelArgs
from vitmix.lab.training.header import Header
from vitmix.lab.training.prepare import check_model

LEVELS = 4  # feature maps that heads take


@dataclass(frozen=True)
class Backbone:
    """A timm model without its classifier, and how images reach it.

    Attributes:
        name, settings: what `timm.create_model` takes to build it again.
        words: which weights it has, for display.
    """

    model: nn.Module
    name: str
    settings: ModelArgs
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    words: str

    @property
    def encoder(self) -> "Encoder":
        return Encoder(self.model, self.name)


class Encoder(nn.Module):
    """Feature maps at four depths of a timm model, shallowest first.

    Attributes:
        channels, strides: of each map. A plain ViT has one stride, a pyramid four.
        prefix: class and register tokens beside each map.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        if not hasattr(model, "forward_intermediates") or not hasattr(model, "feature_info"):
            raise ValueError(f"timm gives no intermediate features of {name}; use another backbone")
        self.model = model
        info: Any = model.feature_info
        if len(info) < LEVELS:
            raise ValueError(f"{name} has {len(info)} depths to take features from, heads need {LEVELS}")
        depths = [(number + 1) * len(info) // LEVELS - 1 for number in range(LEVELS)]
        if len({int(each["reduction"]) for each in info}) > 1:  # a pyramid: the last levels, without a map of stride 2
            depths = list(range(len(info) - LEVELS, len(info)))
        self.indices = depths
        self.channels = [int(info[index]["num_chs"]) for index in self.indices]
        self.strides = [int(info[index]["reduction"]) for index in self.indices]
        self.prefix = int(getattr(model, "num_prefix_tokens", 0)) if self.is_plain else 0

    @property
    def is_plain(self) -> bool:
        """Whether all maps have one resolution, as in a ViT."""
        return len(set(self.strides)) == 1

    def forward(self, images: Tensor) -> list[Tensor]:
        """The maps `(B, C, h, w)`."""
        return self.model.forward_intermediates(images, indices=self.indices, intermediates_only=True)  # pyright: ignore

    def with_prefix(self, images: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        """The maps, and the prefix tokens `(B, prefix, C)` of each where there are any."""
        if not self.prefix:
            maps = self(images)
            return maps, [None] * len(maps)
        found = self.model.forward_intermediates(  # pyright: ignore[reportCallIssue]
            images, indices=self.indices, intermediates_only=True, return_prefix_tokens=True
        )
        return [each[0] for each in found], [each[1] for each in found]


def check_backbone(config: TransferConfig) -> None:
    """Refuses a name that is neither a file, nor a folder, nor a model of timm."""
    place = config.backbone or str(config.arch)
    if not Path(place).exists():
        check_place(place)
        check_model(place)
    if config.arch is not None:
        check_model(config.arch)


def open_backbone(config: TransferConfig) -> Backbone:
    """The backbone that a configuration names, with its weights; positions are resampled to the image size."""
    place = config.backbone or str(config.arch)
    is_file = Path(place).is_file()
    subject = open_subject(
        place,
        model=config.arch if is_file else None,
        model_args=config.model_args,
        pretrained=config.pretrained,
        weights=config.weights,
        size=config.size,
    )
    if not is_file and config.arch not in (None, subject.config.model):
        raise ValueError(f"arch is {config.arch}, but {place} is {subject.config.model}; leave one of them out")
    return _of(subject, config.drop_path)


def rebuilt(header: Header, config: TransferConfig, path: Path) -> Backbone:
    """The backbone that the weights of a transfer run are of, without weights."""
    if header.model is None:
        raise ValueError(f"{path} does not name its backbone; was it written by vitmix transfer?")
    settings = {**header.model_args, "num_classes": 0}
    model = timm.create_model(header.model, **settings)
    cfg = getattr(model, "pretrained_cfg", {})
    side = header.preprocessing.get("size") or cfg.get("input_size", (3, 224, 224))[-1]
    mean, std = (header.preprocessing.get(name) or cfg[name] for name in ("mean", "std"))
    return Backbone(model, header.model, settings, (side, side), mean, std, str(path))


def _of(subject: Subject, drop_path: float | None) -> Backbone:
    model, augmentation = subject.model, subject.augmentation
    if drop_path is not None:  # timm builds blocks without it where it is zero, so it cannot be set later
        model = timm.create_model(subject.config.model, **subject.settings, drop_path_rate=drop_path)
        model.load_state_dict(subject.model.state_dict())
    if not hasattr(model, "reset_classifier"):
        raise ValueError(f"timm cannot remove the classifier of {subject.config.model}; use another backbone")
    model.reset_classifier(0)  # pyright: ignore[reportCallIssue]
    settings = {**subject.settings, "num_classes": 0}
    sides, mean, std = augmentation.sides, augmentation.mean, augmentation.std
    return Backbone(model, subject.config.model, settings, sides, mean, std, subject.weights)
