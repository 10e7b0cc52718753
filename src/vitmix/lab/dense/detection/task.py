"""Object detection as a task of `vitmix transfer`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import timm
import torch
from torch import Tensor, nn

from vitmix.dense import CopyPaste
from vitmix.lab.data.splits import Split
from vitmix.lab.dense.backbone import Backbone
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.dense.loader import shown
from vitmix.lab.dense.task import BatchMixing, DenseSet, Sides, Task, TaskBatch
from vitmix.lab.runs.dense import DenseScores
from vitmix.lab.runs.examples import StoredTile

from .augment import Augment
from .data import open_coco
from .drawing import example_tiles
from .mixing import FittedMixing, pasting
from .models import build_detector, read_arguments
from .outlines import encode_runs, pack_runs
from .records import Detected, ImageTruth, Outcome, Target, TrainingTarget, Truth
from .results import DETECTIONS, encode_detections, score_rows

PARTS = {
    "class": ("loss_classifier", "classification"),
    "box": ("loss_box_reg", "bbox_regression"),
    "proposal": ("loss_objectness", "loss_rpn_box_reg"),
    "mask": ("loss_mask",),
}
SOLID = 0.5  # of a mask's probability


def head_of(config: TransferConfig) -> Any:
    return "fasterrcnn" if config.head == "auto" else config.head


def longest(side: int, config: TransferConfig) -> int:
    """The largest longer side for a given shorter side: as 1333 for 800 in the papers, unless `long_side` is given."""
    return config.long_side or round(side * 1333 / 800)


class Detection(Task[Target, Outcome]):
    """Boxes, and masks with Mask R-CNN, of the objects in COCO's files."""

    name: ClassVar[str] = "detect"
    parts: ClassVar[tuple[str, ...]] = tuple(PARTS)

    def open_data(self, spec: str, split: Split) -> DenseSet[Target]:
        return open_coco(spec, split)

    def build(self, backbone: Backbone, classes: Sequence[str], config: TransferConfig) -> nn.Module:
        # The loader normalizes images, so the detector must not.
        detector: Any = build_detector(
            of_any_size(backbone),
            head_of(config),
            classes=len(classes),
            size=backbone.size[0],
            long_side=longest(backbone.size[0], config),
            mean=(0.0,) * 3,
            std=(1.0,) * 3,
            arguments=read_arguments(config.head_args),
        )
        detector.head_name = head_of(config)
        return detector

    def encoder_of(self, model: nn.Module) -> nn.Module:
        return model.backbone.model  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]

    def transform(self, config: TransferConfig, sides: Sides) -> Callable[..., Any]:
        masks = head_of(config) == "maskrcnn" or pasting(config.method) is not None
        return Augment(config, sides, longest(max(config.short_sides, default=0), config), masks=masks)

    def collate(self, targets: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """`TrainingTarget`s without torchvision's classes."""
        return [{key: value.as_subclass(Tensor) for key, value in each.items()} for each in targets]

    def check_method(self, method: str) -> None:
        if pasting(method) is None:
            super().check_method(method)

    def mixing(self, model: nn.Module, classes: int, config: TransferConfig, rank: int) -> BatchMixing:
        probability = pasting(config.method)
        if probability is not None:
            return FittedMixing(CopyPaste(probability, seed=config.seed, rank=rank, step=0))
        return FittedMixing(super().mixing(self.encoder_of(model), classes, config, rank))

    def losses(self, model: nn.Module, images: Tensor, targets: list[TrainingTarget]) -> dict[str, Tensor]:
        found = model(list(images), targets)
        zero = images.new_zeros(())
        return {name: sum((found[key] for key in keys if key in found), zero) for name, keys in PARTS.items()}

    def outcomes(self, model: nn.Module, batch: TaskBatch, sides: Sides) -> list[Outcome]:
        found, truths = model(batch.images), [each.truth for each in batch.targets]
        return [Outcome(truth, detections(each, truth)) for each, truth in zip(found, truths, strict=True)]

    def score(self, outcomes: Sequence[Outcome], classes: Sequence[str], *, intervals: bool) -> DenseScores:
        return score_rows(truth_of(outcomes, classes), rows_of(outcomes), intervals=intervals)

    def files(self, outcomes: Sequence[Outcome]) -> dict[str, bytes]:
        return {DETECTIONS: encode_detections(rows_of(outcomes))}

    def examples(
        self, model: nn.Module, batch: TaskBatch, classes: Sequence[str], sides: Sides
    ) -> Iterator[tuple[StoredTile, ...]]:
        for image, each in zip(batch.images, self.outcomes(model, batch, sides), strict=True):
            names = dict(zip(each.truth.categories, classes, strict=True))
            yield tuple(example_tiles(shown(image, sides), each.truth.objects, each.found, names))


def detections(found: dict[str, Tensor], truth: ImageTruth) -> list[Detected]:
    """What a detector found in an image, as in COCO's files of results."""
    boxes, scores, labels = (found[key].float().cpu().numpy() for key in ("boxes", "scores", "labels"))
    corners = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).round(2).tolist()
    rows: list[Detected] = [
        {
            "image_id": truth.image,
            "category_id": truth.categories[int(label) - 1],
            "bbox": box,
            "score": round(float(score), 5),
        }
        for box, score, label in zip(corners, scores, labels, strict=True)
    ]
    if "masks" in found:
        for row, mask in zip(rows, (found["masks"][:, 0] >= SOLID).cpu().numpy(), strict=True):
            row["segmentation"] = {"size": list(mask.shape), "counts": pack_runs(encode_runs(mask))}
    return rows


def rows_of(outcomes: Sequence[Outcome]) -> list[Detected]:
    """The detections in evaluated images."""
    return [each for outcome in outcomes for each in outcome.found]


def truth_of(outcomes: Sequence[Outcome], classes: Sequence[str]) -> Truth:
    """The objects of evaluated images, as in COCO's files."""
    truths = [each.truth for each in outcomes]
    numbered = zip(truths[0].categories, classes, strict=True)
    return {
        "images": [{"id": each.image, "height": each.size[0], "width": each.size[1]} for each in truths],
        "annotations": [each for truth in truths for each in truth.objects],
        "categories": [{"id": number, "name": name} for number, name in numbered],
    }


def of_any_size(backbone: Backbone) -> nn.Module:
    """The backbone's model with its weights, built so that it takes images of any size.

    timm resamples a ViT's position embeddings in each pass, and Swin pads its windows.
    """
    for setting in ({"dynamic_img_size": True}, {"strict_img_size": False}):
        try:
            model = timm.create_model(backbone.name, **{**backbone.settings, **setting})
        except TypeError:  # not a setting of this family
            continue
        model.load_state_dict(backbone.model.state_dict())
        return model
    try:
        with torch.no_grad():
            backbone.model.eval().forward_intermediates(torch.zeros(1, 3, 64, 96), intermediates_only=True)  # pyright: ignore
    except (AssertionError, AttributeError, RuntimeError) as problem:
        raise ValueError(
            f"{backbone.name} takes images of one size only ({' '.join(str(problem).split())[:100]}); "
            "choose another backbone, such as DeiT, Swin or PVT"
        ) from None
    return backbone.model


TASK = Detection()
