"""How much of the objects a mask takes and hides: how often SMMix's window covers the object."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from vitmix._mix import Mix
from vitmix._mixer import AnyMixer
from vitmix.lab.runs import Table

from .estimates import Gathered
from .labels import visible_pixels
from .pairs import ImageBatch, masks_alone, mixed_pairs, need_objects, repeatable, two_regions

STUDY = "object coverage"
MOST, WHOLE = 0.5, 0.95  # of the object's pixels; a rim of it may lie beyond a window cut by tokens


def object_coverage(objects: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """The part `(B,)` of the partner's object that was pasted, and of the own object that is hidden; NaN without one.

    Args:
        objects: `(B, H, W)` bool, where the object is in each unmixed image.
    """
    size = objects.sum((1, 2), dtype=torch.float64)
    own, theirs = visible_pixels(objects, mix)
    return theirs / size[mix.partner], 1 - own / size


@torch.no_grad()
def coverage_study(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[ImageBatch], *, seed: int = 0
) -> Table:
    """For each method's masks, how much of either object the pasted region takes and hides."""
    batches, rows = repeatable(batches), []
    for name, method in methods.items():
        two_regions(method, study=STUDY)
        found = Gathered()
        for images, mixing, batch in mixed_pairs(model, masks_alone(method, study=STUDY), batches, seed=seed):
            mixing.forget()
            shown, hidden = object_coverage(need_objects(images.objects, STUDY), batch.mix)
            values = {
                "area": mixing.evidence(batch).area,
                "pasted": shown,
                f"at least {MOST:.0%}": shown >= MOST,
                f"at least {WHOLE:.0%}": shown >= WHOLE,
                "own hidden": hidden,
            }
            found.add(values, batch, shown.isfinite() & hidden.isfinite())
        if not len(found):
            raise ValueError(f"{STUDY} found no pair of objects; give images with object masks")
        rows.append(((name,), found.estimates()))
    notes = (
        "area: of the pasted region; pasted: the part of the partner's object in it; at least: how often that is so "
        "much of it; own hidden: the part of the own object under it.",
    )
    return Table("Objects and the pasted region", ("method",), rows, notes, percent=tuple(rows[0][1]))
