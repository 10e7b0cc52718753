"""What a model sees in mixed images: top-1 is right on either image's class, top-2 must name both (SMMix figure 5a)."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from vitmix._mixer import AnyMixer
from vitmix.attention.readers import logits_of
from vitmix.lab.runs import Table

from .estimates import Gathered
from .pairs import ImageBatch, masks_alone, mixed_pairs, need_two_classes, repeatable

STUDY = "mixed-image accuracy"


def mixed_top(logits: Tensor, own: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the most likely class is one of the two `(B,)`, and whether the two most likely are both `(B,)`."""
    if logits.shape[1] < 2:
        raise ValueError(f"{STUDY} needs at least two classes, got {logits.shape[1]}")
    first, second = logits.topk(2, dim=1).indices.unbind(1)
    both = ((first == own) & (second == partner)) | ((first == partner) & (second == own))
    return (first == own) | (first == partner), both


@torch.no_grad()
def mixed_accuracy(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[ImageBatch], *, seed: int = 0
) -> Table:
    """Top-1 and top-2 accuracy on the mixed images of each method; pairs of one class are left out."""
    batches, rows = repeatable(batches), []
    for name, method in methods.items():
        found, labels = Gathered(), [torch.empty(0)]
        for images, mixing, batch in mixed_pairs(model, masks_alone(method, study=STUDY), batches, seed=seed):
            logits = logits_of(model(batch.images))
            mixing.targets(batch)
            own, partner = images.labels, images.labels[batch.mix.partner]
            top1, top2 = mixed_top(logits, own, partner)
            found.add({"top-1": top1, "top-2": top2}, batch, own != partner)
            labels.append(own)
        need_two_classes(torch.cat(labels[1:] or labels), STUDY)
        if not len(found):
            raise ValueError(f"{STUDY} found no pair of two classes; give more images")
        rows.append(((name,), found.estimates()))
    notes = ("top-1: the likeliest class is one of the pair's two; top-2: the two likeliest are both of them.",)
    return Table("Accuracy on mixed images", ("method",), rows, notes, percent=("top-1", "top-2"))
