"""Accuracy on mixed images: top-1 must be one of the two classes, top-2 must be both (SMMix figure 5a)."""

from torch import Tensor, nn

from vitmix._mixing import MixedBatch, Mixing
from vitmix.attention.readers import logits_of

from .pairs import Found, ImageBatch, PairStudy

STUDY = "mixed-image accuracy"


def mixed_top(logits: Tensor, own: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the most likely class is one of the two `(B,)`, and whether the two most likely are both `(B,)`."""
    if logits.shape[1] < 2:
        raise ValueError(f"{STUDY} needs at least two classes, got {logits.shape[1]}")
    first, second = logits.topk(2, dim=1).indices.unbind(1)
    both = ((first == own) & (second == partner)) | ((first == partner) & (second == own))
    return (first == own) | (first == partner), both


def _look(model: nn.Module, images: ImageBatch, mixing: Mixing, batch: MixedBatch) -> dict[tuple[str, ...], Found]:
    logits = logits_of(model(batch.images))
    mixing.targets(batch)
    own, partner = images.labels, images.labels[batch.mix.partner]
    top1, top2 = mixed_top(logits, own, partner)
    return {(): ({"top-1": top1, "top-2": top2}, own != partner)}  # pairs of one class do not count


mixed_accuracy = PairStudy(
    STUDY,
    "Accuracy on mixed images",
    ("method",),
    _look,
    ("top-1: the most likely class is one of the pair's two; top-2: the two most likely classes are both of them.",),
    nothing="found no pair of two classes; give more images, of at least two classes",
    percent=True,
)
