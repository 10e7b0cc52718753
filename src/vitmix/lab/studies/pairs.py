"""Mixed pairs for a study: the same images for every method, and the model left as it was."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix._mixer import AnyMixer, Mixer
from vitmix._mixing import Evaluating, MixedBatch, Mixing
from vitmix.attention.readers import Reader
from vitmix.attention.tap import Plan, Recorder, Tape
from vitmix.parts.shares import AreaShare, Share


class ImageBatch(NamedTuple):
    """Normalized images `(B, 3, H, W)`, their labels `(B,)`, and where their objects are, `(B, H, W)` bool."""

    images: Tensor
    labels: Tensor
    objects: Tensor | None = None


def repeatable(batches: Iterable[ImageBatch]) -> Iterable[ImageBatch]:
    """Batches that can be iterated once for every method."""
    return list(batches) if isinstance(batches, Iterator) else batches


def one_mask_each(method: AnyMixer) -> AnyMixer:
    """A method that draws a mask for every sample where it can, so that pairs are independent of each other."""

    def changed(mixer: Mixer) -> Mixer:
        mask: Any = mixer.mask
        return (
            dataclasses.replace(mixer, mask=dataclasses.replace(mask, per="sample")) if hasattr(mask, "per") else mixer
        )

    return method.each(changed)


def need_masks(method: AnyMixer, *, study: str) -> None:
    """Refuses methods that leave images alone; those of TokenMixup mix tokens, and only in training."""
    if any(not mixer.mask.mixes for mixer in method.mixers):
        raise ValueError(f"{study} needs mixed images, but {str(method)!r} mixes none; use a method such as cutmix")


def masks_alone(method: AnyMixer, share: Share | None = None, *, study: str) -> AnyMixer:
    """A method's masks and pairing with another label rule, without losses and without mixing inside the network."""
    need_masks(method, study=study)
    rule = AreaShare() if share is None else share
    return method.each(lambda mixer: dataclasses.replace(mixer, share=rule, extra=(), inner=()))


def two_regions(method: AnyMixer, *, study: str) -> None:
    """Refuses methods that blend: no token of theirs belongs to one image."""
    if any(mixer.mask.name == "constant" for mixer in method.mixers):
        raise ValueError(f"{study} needs separate regions, but {str(method)!r} blends the images; use cutmix or smmix")


def mixed_pairs(
    model: nn.Module, method: AnyMixer, batches: Iterable[ImageBatch], *, seed: int
) -> Iterator[tuple[ImageBatch, Mixing, MixedBatch]]:
    """Each batch and its mix, the model in evaluation mode and not yet run on it."""
    with Evaluating(model), method.attach(model, seed=seed, rank=0) as mixing:
        for given in batches:
            images, labels, _ = given = ImageBatch(*given)
            maps = activation_maps(model, mixing, images, labels) if needs_maps(method) else None
            yield given, mixing, mixing.mix(images, labels, maps=maps)


def refusal(model: nn.Module, method: AnyMixer, size: Grid) -> str | None:
    """Why a method cannot be measured on a model and images of a size; None if it can."""
    try:
        with method.attach(model, seed=0, rank=0) as mixing:
            mixing.draw(mixing.frame(torch.zeros(2, 3, *size)))
            if needs_maps(method):
                need_reader(model, mixing)
    except ValueError as error:
        return str(error)
    return None


def needs_maps(method: AnyMixer) -> bool:
    return any(mixer.needs.maps for mixer in method.mixers)


def activation_maps(model: nn.Module, mixing: Mixing, images: Tensor, labels: Tensor) -> Tensor:
    """Maps `(B, rows, columns)` of each image's label: the classifier applied to every final token of a model."""
    reader = need_reader(model, mixing)
    recorder = Recorder(reader, plan := Plan(final=True))
    recorder.tape = tape = Tape(plan)
    try:
        model(images)
    finally:
        recorder.remove()
    assert tape.final is not None
    patches = tape.final[:, reader.prefix :]
    logits = reader.classify(patches.flatten(0, 1)).unflatten(0, patches.shape[:2])
    picked = logits[torch.arange(len(labels), device=labels.device), :, labels]
    return picked.view(len(images), *reader.grids((images.shape[2], images.shape[3]))[-1])


def need_reader(model: nn.Module, mixing: Mixing) -> Reader:
    if mixing.reader is None:
        raise ValueError(
            f"activation labels need maps, but the tokens of a {type(model).__name__} cannot be read; leave them out"
        )
    return mixing.reader


def need_two_classes(labels: Tensor, study: str) -> None:
    if len(labels.unique()) < 2:
        raise ValueError(f"{study} needs images of at least two classes, got a single class; give other data")


def need_objects(objects: Tensor | None, study: str) -> Tensor:
    if objects is None:
        raise ValueError(
            f"{study} needs to know where the objects are, but these images have no masks; "
            "use the built-in shapes, an .npz with 'box', or give a folder of masks (--masks FOLDER)"
        )
    return objects
