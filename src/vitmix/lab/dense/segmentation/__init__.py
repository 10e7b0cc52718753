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
from vitmix.lab.dense.segmentation.data import open_masks
from vitmix.lab.dense.segmentation.heads import Segmenter, build_segmenter
from vitmix.lab.dense.segmentation.scores import Counts, count, score
from vitmix.lab.dense.segmentation.tiles import tiles
from vitmix.lab.dense.segmentation.windows import predict
from vitmix.lab.dense.task import IGNORED, DenseSet, Sides, Task, TaskBatch
from vitmix.lab.dense.transforms import joint_transform
from vitmix.lab.runs.dense import DenseScores
from vitmix.lab.runs.examples import StoredTile


class Segmentation(Task[Tensor, Counts]):
    """Label maps, scored by mean intersection over union."""

    name = "segment"

    def open_data(self, spec: str, split: Split) -> DenseSet[Tensor]:
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

    def collate(self, targets: list[Tensor]) -> Tensor:
        """`(B, H, W)`"""
        return torch.stack([each.as_subclass(Tensor) for each in targets])

    def losses(self, model: nn.Module, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        found = cast(Segmenter, model).weighted_logits(images)
        parts = [weight * mask_cross_entropy(logits.float(), targets, ignore_index=IGNORED) for logits, weight in found]
        return {"loss": torch.stack(parts).sum()}

    def outcomes(self, model: nn.Module, batch: TaskBatch, sides: Sides) -> list[Counts]:
        return [count(logits, mask) for mask, logits in _predicted(model, batch, sides)]

    def score(self, outcomes: Sequence[Counts], classes: Sequence[str], *, intervals: bool) -> DenseScores:
        return score(outcomes, classes, intervals=intervals)

    def examples(
        self, model: nn.Module, batch: TaskBatch, classes: Sequence[str], sides: Sides
    ) -> Iterator[tuple[StoredTile, ...]]:
        for image, (mask, logits) in zip(batch.images, _predicted(model, batch, sides), strict=True):
            yield tiles(image, mask, logits.argmax(0), classes, sides)


def _predicted(model: nn.Module, batch: TaskBatch, sides: Sides) -> Iterator[tuple[Tensor, Tensor]]:
    """For each image its label map `(H, W)` and the logits `(K, H, W)`."""
    masks = [each.as_subclass(Tensor) for each in batch.targets]
    logits = predict(model, batch.images, sides.size, [tuple(each.shape) for each in masks])
    return zip(masks, logits, strict=True)


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
