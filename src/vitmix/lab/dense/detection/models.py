"""torchvision's detectors on a timm backbone."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from vitmix._checks import check_count, check_fraction, unknown_name
from vitmix.lab.settings import SettingValues

from .pyramid import STRIDES, WIDTH, PyramidBackbone

Head = Literal["fasterrcnn", "maskrcnn", "retinanet"]
RATIOS = (0.5, 1.0, 2.0)
LARGE = 512  # pixels of the shorter side from which on objects span many cells of the coarse maps
GRID = 7  # cells of a region of interest, along a side


@dataclass(frozen=True)
class HeadArguments:
    """Settings of a head; the defaults are those of the papers.

    Args:
        width: channels of the feature maps and of the mask head.
        hidden: width of the two layers that classify a region.
        proposals: regions of an image that the first stage passes on; twice as many in training.
        regions: regions of an image that the second stage is trained on.
        detections: most detections of an image.
        score_threshold: least score of a detection.
    """

    width: int = WIDTH
    hidden: int = 1024
    proposals: int = 1000
    regions: int = 512
    detections: int = 100
    score_threshold: float = 0.05

    def __post_init__(self) -> None:
        for name in ("width", "hidden", "proposals", "regions", "detections"):
            check_count(name, getattr(self, name))
        check_fraction("score_threshold", self.score_threshold)


def read_arguments(given: SettingValues) -> HeadArguments:
    """Settings from `--head-args`."""
    known = [each.name for each in fields(HeadArguments)]
    for name in given:
        if name not in known:
            raise unknown_name("head argument", name, known)
    return HeadArguments(**given)


def build_detector(
    model: nn.Module,
    head: Head,
    *,
    classes: int,
    size: int,
    long_side: int,
    mean: Sequence[float],
    std: Sequence[float],
    arguments: HeadArguments | None = None,
) -> nn.Module:
    """A detector of `classes` classes, besides the background.

    In evaluation, images are resized so that the shorter side has `size` pixels, or the longer one `long_side` if that
    is less; in training they come as they are. The detector normalizes by mean and std: images in 0..1 must not be
    normalized before, and for normalized ones these are 0 and 1.
    """
    check_count("long_side", long_side, least=size)
    given = arguments or HeadArguments()
    # torchvision's own training skips resizing too, if the augmentation of its data resizes.
    images = dict(min_size=size, max_size=long_side, image_mean=list(mean), image_std=list(std), _skip_resize=True)
    if head == "retinanet":
        return _one_stage(model, classes, given, images)
    return _two_stages(model, classes, given, images, anchor_sizes(size), masks=head == "maskrcnn")


def _one_stage(model: nn.Module, classes: int, given: HeadArguments, images: dict[str, Any]) -> nn.Module:
    sizes = tuple(_retina_sizes(stride) for stride in (*STRIDES[1:], 64, 128))
    return RetinaNet(
        PyramidBackbone(model, LastLevelP6P7(given.width, given.width), STRIDES[1:], given.width),
        classes + 1,
        anchor_generator=AnchorGenerator(sizes, (RATIOS,) * len(sizes)),
        detections_per_img=given.detections,
        score_thresh=given.score_threshold,
        topk_candidates=given.proposals,
        **images,
    )


def _two_stages(
    model: nn.Module,
    classes: int,
    given: HeadArguments,
    images: dict[str, Any],
    sizes: tuple[tuple[float, ...], ...],
    *,
    masks: bool,
) -> nn.Module:
    settings: dict[str, Any] = dict(
        rpn_anchor_generator=AnchorGenerator(sizes, (RATIOS,) * len(sizes)),
        rpn_pre_nms_top_n_train=2 * given.proposals,
        rpn_post_nms_top_n_train=2 * given.proposals,
        rpn_pre_nms_top_n_test=given.proposals,
        rpn_post_nms_top_n_test=given.proposals,
        box_head=TwoMLPHead(given.width * GRID**2, given.hidden),
        box_predictor=FastRCNNPredictor(given.hidden, classes + 1),
        box_batch_size_per_image=given.regions,
        box_detections_per_img=given.detections,
        box_score_thresh=given.score_threshold,
        **images,
    )
    backbone = PyramidBackbone(model, LastLevelMaxPool(), STRIDES, given.width)
    if not masks:
        return FasterRCNN(backbone, **settings)
    settings["mask_head"] = MaskRCNNHeads(given.width, (given.width,) * 4, 1)
    settings["mask_predictor"] = MaskRCNNPredictor(given.width, given.width, classes + 1)
    return MaskRCNN(backbone, **settings)


def anchor_sizes(size: int) -> tuple[tuple[float, ...], ...]:
    """Sides of the anchors of strides 4 to 64 in images of this size.

    From 512 pixels on, as in the papers: eight strides. In smaller images, these would skip objects below 32 pixels,
    and large objects span few cells of the coarse maps: there are two anchors per octave, from four strides on.
    """
    factors = (8.0,) if size >= LARGE else (4.0, 4 * 2**0.5)
    return tuple(tuple(stride * factor for factor in factors) for stride in (*STRIDES, 64))


def _retina_sizes(stride: int) -> tuple[float, ...]:
    """Three sizes per octave, from four strides on."""
    return tuple(4 * stride * 2 ** (third / 3) for third in range(3))
