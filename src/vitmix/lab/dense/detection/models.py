"""torchvision's detectors on a timm backbone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from vitmix._checks import check_count, unknown_name

from .pyramid import STRIDES, WIDTH, Backbone

Head = Literal["fasterrcnn", "maskrcnn", "retinanet"]
RATIOS = (0.5, 1.0, 2.0)
LARGE = 512  # pixels of the shorter side from which on objects span many cells of the coarse maps
# Arguments of the head, and what torchvision calls them in the two families.
ARGUMENTS = {
    "detections": ("box_detections_per_img", "detections_per_img"),
    "score_threshold": ("box_score_thresh", "score_thresh"),
}


def build_detector(
    model: nn.Module,
    head: Head,
    *,
    classes: int,
    size: int,
    long_side: int,
    mean: Sequence[float],
    std: Sequence[float],
    arguments: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A detector of `classes` classes, besides the background, that takes images in 0..1.

    In evaluation, images are resized so that the shorter side has `size` pixels, or the longer one `long_side` if that
    is less; in training they come as they are. The detector normalizes by mean and std, so images must not be
    normalized before, or these must be 0 and 1.

    Args:
        arguments: most `detections` per image, and their least score, `score_threshold`.
    """
    check_count("long_side", long_side, least=size)
    single = head == "retinanet"
    settings: dict[str, Any] = {}
    for name, value in (arguments or {}).items():
        if name not in ARGUMENTS:
            raise unknown_name("head argument", name, ARGUMENTS)
        settings[ARGUMENTS[name][single]] = value
    settings |= dict(min_size=size, max_size=long_side, image_mean=list(mean), image_std=list(std))
    # As torchvision's own training does where the data is resized by its augmentation.
    settings["_skip_resize"] = True
    if single:
        extra, strides = LastLevelP6P7(WIDTH, WIDTH), (*STRIDES[1:], 64, 128)
        anchors = AnchorGenerator(tuple(_retina_sizes(stride) for stride in strides), (RATIOS,) * len(strides))
        backbone = Backbone(model, extra, STRIDES[1:])
        return RetinaNet(backbone, classes + 1, anchor_generator=anchors, **settings)
    anchors = AnchorGenerator(anchor_sizes(size), (RATIOS,) * (len(STRIDES) + 1))
    detector: Callable[..., nn.Module] = MaskRCNN if head == "maskrcnn" else FasterRCNN
    return detector(Backbone(model, LastLevelMaxPool()), classes + 1, rpn_anchor_generator=anchors, **settings)


def anchor_sizes(size: int) -> tuple[tuple[float, ...], ...]:
    """Sides of the anchors of strides 4 to 64 in images of this size.

    From 512 pixels on, as in the papers: eight strides. In smaller images, objects are as large as a few cells of the
    coarse maps, and such anchors would skip sizes below 32 pixels: there are two anchors per octave from 4 strides on.
    """
    factors = (8.0,) if size >= LARGE else (4.0, 4 * 2**0.5)
    return tuple(tuple(stride * factor for factor in factors) for stride in (*STRIDES, 64))


def _retina_sizes(stride: int) -> tuple[float, ...]:
    """Three sizes per octave, from four strides on."""
    return tuple(4 * stride * 2 ** (third / 3) for third in range(3))
