"""What a model sees in mixed images: top-1 is right on either image's class, top-2 must name both (SMMix figure 5a)."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from vitmix._mixer import AnyMixer
from vitmix.attention.readers import logits_of

from .pairs import Pictures, couples, joined, masks_alone, mixed_pairs, need_two_classes, paired, repeatable
from .results import Table, spread

STUDY = "mixed-image accuracy"


def mixed_top(logits: Tensor, own: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the likeliest class is one of the two `(B,)`, and whether the two likeliest are both of them `(B,)`."""
    if logits.shape[1] < 2:
        raise ValueError(f"{STUDY} needs a classifier of two classes or more, got {logits.shape[1]}")
    first, second = logits.topk(2, dim=1).indices.unbind(1)
    both = ((first == own) & (second == partner)) | ((first == partner) & (second == own))
    return (first == own) | (first == partner), both


@torch.no_grad()
def mixed_accuracy(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[Pictures], *, seed: int = 0
) -> Table:
    """Top-1 and top-2 accuracy on the mixed images of each method; pairs of one class are left out."""
    batches, rows = repeatable(batches), []
    for name, method in methods.items():
        found, labels, shared = [], [], []
        for pictures, mixing, batch in mixed_pairs(model, masks_alone(method, study=STUDY), batches, seed=seed):
            logits = logits_of(model(batch.images))
            mixing.targets(batch)
            labels.append(pictures.labels)
            own, partner = pictures.labels, pictures.labels[batch.mix.partner]
            counted = paired(batch) & (own != partner).cpu()
            found.append(torch.stack(mixed_top(logits, own, partner)).cpu()[:, counted])
            shared.append(couples(batch.mix.partner)[counted])
        need_two_classes(torch.cat(labels) if labels else torch.empty(0), STUDY)
        if not found or not torch.cat(found, 1).numel():
            raise ValueError(f"{STUDY} found no pair of two classes; give more images")
        top1, top2 = torch.cat(found, 1)
        every = joined(shared)
        rows.append(((name,), {"top-1": spread(top1, every), "top-2": spread(top2, every)}))
    notes = ("top-1: the likeliest class is one of the pair's two; top-2: the two likeliest are both of them.",)
    return Table("Accuracy on mixed images", ("method",), rows, notes, percent=("top-1", "top-2"))
