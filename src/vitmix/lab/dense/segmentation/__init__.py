"""Semantic segmentation: a class for every pixel."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitmix.dense import mask_cross_entropy
from vitmix.lab.data.splits import Split
from vitmix.lab.dense.backbone import Backbone
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.dense.segmentation import scores
from vitmix.lab.dense.segmentation.data import open_masks
from vitmix.lab.dense.segmentation.heads import Segmenter, build_segmenter
from vitmix.lab.dense.segmentation.tiles import tiles
from vitmix.lab.dense.segmentation.windows import predict
from vitmix.lab.dense.task import IGNORED, DenseSet, Outcome, Sides, Target, Task
from vitmix.lab.dense.transforms import joint_transform
from vitmix.lab.runs.dense import DenseScores
from vitmix.lab.runs.examples import Tile


class Segmentation(Task):
    """Label maps, scored by mean intersection over union. A target has a `mask`."""

    name = "segment"

    def open_data(self, spec: str, split: Split) -> DenseSet:
        return open_masks(spec, split)

    def build(self, backbone: Backbone, classes: Sequence[str], config: TransferConfig) -> nn.Module:
        if len(classes) < 2:
            raise ValueError(f"{config.data} has {len(classes)} class; segmentation needs at least two")
        model = build_segmenter(backbone.encoder, config.head, len(classes), config.head_args)
        _check_size(model, backbone)
        return model

    def encoder_of(self, model: nn.Module) -> nn.Module:
        return cast(Segmenter, model).encoder.model

    def transform(self, config: TransferConfig, sides: Sides) -> Any:
        return joint_transform(config, sides)

    def collate(self, targets: list[Target]) -> Tensor:
        """`(B, H, W)`"""
        return torch.stack([each["mask"].as_subclass(Tensor) for each in targets])

    def losses(self, model: nn.Module, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        found = cast(Segmenter, model).weighted_logits(images)
        parts = [weight * mask_cross_entropy(logits.float(), targets, ignore_index=IGNORED) for logits, weight in found]
        return {"loss": torch.stack(parts).sum()}

    def outcomes(
        self,
        model: nn.Module,
        images: Sequence[Tensor],
        targets: Sequence[Target],
        config: TransferConfig,
        sides: Sides,
    ) -> list[Outcome]:
        masks = [each["mask"].as_subclass(Tensor) for each in targets]
        logits = predict(model, images, sides.size, [tuple(each.shape) for each in masks])
        return [scores.count(one, mask) for one, mask in zip(logits, masks, strict=True)]

    def score(self, outcomes: Sequence[Outcome], classes: Sequence[str], *, intervals: bool) -> DenseScores:
        return scores.score(outcomes, classes, intervals=intervals)

    def examples(
        self,
        model: nn.Module,
        images: Sequence[Tensor],
        targets: Sequence[Target],
        classes: Sequence[str],
        config: TransferConfig,
        sides: Sides,
    ) -> Iterator[tuple[Tile, ...]]:
        masks = [each["mask"].as_subclass(Tensor) for each in targets]
        logits = predict(model, images, sides.size, [tuple(each.shape) for each in masks])
        for image, mask, one in zip(images, masks, logits, strict=True):
            yield tiles(image, mask, one.argmax(0), classes, sides)


@torch.no_grad()
def _check_size(model: Segmenter, backbone: Backbone) -> None:
    """Refuses images for which backbone and head are not made, by a pass without values."""
    height, width = backbone.size
    try:
        copy.deepcopy(model).to("meta").eval()(torch.zeros(1, 3, height, width, device="meta"))
    except NotImplementedError:  # an operation that needs values
        return
    except (AssertionError, RuntimeError, ValueError) as problem:
        raise ValueError(
            f"images of {height} × {width} pixels do not fit {backbone.name} with the head {model.head_name} "
            f"({' '.join(str(problem).split())[:150]}); change --size"
        ) from None


TASK = Segmentation()
