"""How much of the objects a mask takes and hides: how often SMMix's window covers the object."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from vitmix._mix import Mix
from vitmix._mixer import AnyMixer

from .labels import visible_pixels
from .pairs import Pictures, couples, joined, masks_alone, mixed_pairs, need_objects, paired, repeatable, two_regions
from .results import Table, spread

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
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[Pictures], *, seed: int = 0
) -> Table:
    """For each method's masks, how much of either object the pasted region takes and hides."""
    batches, rows = repeatable(batches), []
    for name, method in methods.items():
        two_regions(method, study=STUDY)
        parts: list[Tensor] = []
        areas: list[Tensor] = []
        shared: list[Tensor] = []
        for pictures, mixing, batch in mixed_pairs(model, masks_alone(method, study=STUDY), batches, seed=seed):
            mixing.forget()
            shown, hidden = object_coverage(need_objects(pictures.objects, STUDY), batch.mix)
            counted = (shown.isfinite() & hidden.isfinite()).cpu() & paired(batch)
            parts.append(torch.stack([shown, hidden]).cpu()[:, counted])
            areas.append(mixing.evidence(batch).area.cpu()[counted])
            shared.append(couples(batch.mix.partner)[counted])
        if not parts or not torch.cat(parts, 1).numel():
            raise ValueError(f"{STUDY} found no pair of objects; give pictures with object masks")
        shown, hidden = torch.cat(parts, 1)
        every = joined(shared)
        values = {
            "area": torch.cat(areas),
            "pasted": shown,
            f"at least {MOST:.0%}": shown >= MOST,
            f"at least {WHOLE:.0%}": shown >= WHOLE,
            "own hidden": hidden,
        }
        rows.append(((name,), {key: spread(value, every) for key, value in values.items()}))
    notes = (
        "area: of the pasted region; pasted: the part of the partner's object in it; at least: how often that is so "
        "much of it; own hidden: the part of the own object under it.",
    )
    return Table("Objects and the pasted region", ("method",), rows, notes, percent=tuple(rows[0][1]))
