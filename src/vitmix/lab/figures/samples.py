"""The input of a model in a figure (an image, or a pair mixed by a method) and the result."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitmix._mix import mix_images
from vitmix._mixer import Mixer
from vitmix._mixing import MixedBatch, Mixing, per_process
from vitmix._text import create
from vitmix.attention.readers import logits_of
from vitmix.lab.data.augmentation import Augmentation
from vitmix.lab.maps.teachers import dense_logits

from .images import NamedImage
from .models import NamedModel

MANIFOLD = "manifold"  # the baseline in the figure of heads: hidden tokens blended half and half
Found = TypeVar("Found")


@dataclass(frozen=True)
class Sample:
    """One image, or two and the method that mixes them."""

    images: tuple[NamedImage, ...]
    method: str | None = None


def pairs_of(images: Sequence[NamedImage]) -> list[tuple[NamedImage, NamedImage]]:
    """Neighbors, two by two."""
    if len(images) % 2:
        raise ValueError(f"images are mixed in pairs, got {len(images)}; give an even number")
    return list(zip(images[::2], images[1::2], strict=True))


def method_choices(method: str) -> list[str]:
    """The method, or the methods of a switch."""
    mixers = () if method == MANIFOLD else create(method, 2).mixers
    return [str(mixer) for mixer in mixers] if len(mixers) > 1 else [method]


@dataclass(frozen=True)
class Observation(Generic[Found]):
    """The result, the image as the model saw it `(3, H, W)`, and the two parts of its target."""

    pixels: Tensor
    found: Found
    own: float = 1.0
    partner: float = 0.0


def observe(model: NamedModel, sample: Sample, seed: int, find: Callable[[Tensor], Found]) -> Observation[Found]:
    """What `find` returns for a sample, which is row 0 of its input; `find` runs the model while the method acts."""
    if sample.method is None:
        pixels = model.pixels(sample.images)
        return Observation(pixels[0], find(model.inputs(pixels)))
    return observe_mixed(model, sample, seed, lambda mixing, batch: find(batch.images))


def observe_mixed(
    model: NamedModel, sample: Sample, seed: int, find: Callable[[Mixing, MixedBatch], Found]
) -> Observation[Found]:
    """The same for a mixed pair; `find` also gets the batch."""
    assert sample.method is not None
    (mixer,) = create(sample.method, model.outputs).mixers
    images = model.inputs(model.pixels(sample.images))
    labels = model.labels(sample.images) if mixer.needs.maps else [0, 1]
    with mixing_pair(model.model, mixer, images, labels, seed) as (mixing, batch):
        found = find(mixing, batch)
        own, partner = mixing.targets(batch)[0, :2].tolist()
    return Observation(in_pixels(mixed_origin(batch)[1], model.augmentation), found, own, partner)


def demonstrated(mixer: Mixer) -> Mixer:
    """HTM's score net is not stored with a model's weights, so every sample counts as easy."""
    return dataclasses.replace(mixer, inner=tuple(part.demonstrated() for part in mixer.inner))


@contextmanager
def mixing_pair(
    model: nn.Module,
    mixer: Mixer,
    images: Tensor,
    labels: Sequence[int],
    seed: int,
    *,
    classes: tuple[int, int] = (0, 1),
) -> Iterator[tuple[Mixing, MixedBatch]]:
    """A method acting on two images, which get two `classes`, so that the target shows their parts.

    The method acts when the model runs on the batch's images inside this context.

    Args:
        labels: the images' classes, for activation labels.
    """
    maps = dense_logits(model, images).softmax(1) if mixer.needs.label_maps else None
    if mixer.needs.maps:
        maps = torch.stack([each[label] for each, label in zip(dense_logits(model, images), labels, strict=True)])
    with demonstrated(mixer).attach(model, seed=seed, rank=0, step=0) as mixing:
        if maps is not None and maps.ndim == 4:
            maps = functional.interpolate(maps, mixing.frame(images).final_grid, mode="bilinear", antialias=True)
        elif maps is not None:  # on the token grid, which fits every mask
            grid = mixing.frame(images).grid or images.shape[2:]
            maps = functional.interpolate(maps.unsqueeze(1), tuple(grid), mode="bilinear", antialias=True).squeeze(1)
        if per_process(mixing.modules):  # RecursiveMix pastes the batch before: the pair the other way round
            before = mixing.mix(images.flip(0), torch.tensor(classes[::-1]))
            with torch.no_grad():
                mixing.losses(logits_of(model(before.images)), before)
        generator = torch.Generator().manual_seed(seed)
        yield mixing, mixing.mix(images, torch.tensor(classes), maps=maps, generator=generator)


def in_pixels(image: Tensor, augmentation: Augmentation) -> Tensor:
    """A normalized image `(3, H, W)` in 0..1."""
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (augmentation.mean, augmentation.std))
    return (image * std + mean).clamp(0, 1)


def mixed_origin(batch: MixedBatch) -> tuple[Tensor, Tensor]:
    """The partner's part of each cell of the first mixed image, and that image; including tokens that HTM took."""
    mask = batch.mix.mask.float()
    mask = mask.expand(2, *mask.shape[1:])
    mixed = batch.images[0]
    if any(actor.settings.applies_mask and actor.training for actor in batch.tape.actors):  # to tokens
        mixed = mix_images(batch.images, batch.mix.mask, batch.mix.partner)[0]
    paired = batch.mix.partner != torch.arange(2)
    first, second = mask[0] * paired[0], 1 - mask[1] * paired[1]
    for actor in batch.tape.actors:
        if actor.exchange is not None and int(actor.exchange.partner[0]) == 1:
            grid = batch.frame.grids[actor.block]
            take = actor.exchange.take[0].view(1, *grid)
            coarse = [functional.adaptive_avg_pool2d(each.unsqueeze(0), grid)[0] for each in (first, second)]
            first = torch.where(take[0], coarse[1], coarse[0])
            taken = functional.interpolate(take.float().unsqueeze(0), batch.frame.size, mode="nearest")[0]
            mixed = torch.where(taken > 0, batch.images[1], mixed)
    return first, mixed
