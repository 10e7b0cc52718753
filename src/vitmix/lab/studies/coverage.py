"""How much of the objects a mask takes and hides: how often SMMix's window covers the object."""

import torch
from torch import Tensor, nn

from vitmix._mix import Mix
from vitmix._mixing import MixedBatch, Mixing

from .labels import visible_pixels
from .pairs import Found, ImageBatch, PairStudy, need_objects

STUDY = "object coverage"
MOST, WHOLE = 0.5, 0.95  # of the object's pixels; a window of whole tokens may miss the rim


def object_coverage(objects: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """The fractions `(B,)` of the partner's object that are pasted and of the original object that are hidden, or NaN.

    Args:
        objects: `(B, H, W)` bool, where the object is in each unmixed image.
    """
    size = objects.sum((1, 2), dtype=torch.float64)
    own, theirs = visible_pixels(objects, mix)
    return theirs / size[mix.partner], 1 - own / size


def _look(model: nn.Module, images: ImageBatch, mixing: Mixing, batch: MixedBatch) -> dict[tuple[str, ...], Found]:
    mixing.forget()
    shown, hidden = object_coverage(need_objects(images.objects, STUDY), batch.mix)
    values = {
        "area": mixing.evidence(batch).area,
        "pasted": shown,
        f"at least {MOST:.0%}": shown >= MOST,
        f"at least {WHOLE:.0%}": shown >= WHOLE,
        "own hidden": hidden,
    }
    return {(): (values, shown.isfinite() & hidden.isfinite())}


coverage_study = PairStudy(
    STUDY,
    "Objects and the pasted region",
    ("method",),
    _look,
    (
        "area: of the pasted region; pasted: the fraction of the partner's object in it; at least: how often this "
        "fraction is so large; own hidden: the fraction of the original object under it.",
    ),
    nothing="found no pair of objects; give images with object masks",
    regions=True,
    percent=True,
)
