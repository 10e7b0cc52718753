"""Mixed pairs for a study: the same images for every method; the model does not change."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitmix._guide import Evaluating
from vitmix._mixer import AnyMixer, Mixer
from vitmix._mixing import MixedBatch, Mixing
from vitmix.attention.readers import Reader
from vitmix.attention.tap import Plan, Recorder, Tape
from vitmix.lab.runs import Table, TableRow
from vitmix.parts.shares import AreaShare, Share

from .estimates import Gathered


class ImageBatch(NamedTuple):
    """Normalized images `(B, 3, H, W)`, their labels `(B,)`, and where their objects are, `(B, H, W)` bool."""

    images: Tensor
    labels: Tensor
    objects: Tensor | None = None


Found = tuple[Mapping[Any, Tensor], Tensor]
"""Values `(B,)` of mixed images by column, and which of the images count."""


@dataclass(frozen=True)
class PairStudy:
    """A measurement on the mixed images of each method: a function of model, methods and batches.

    Attributes:
        study: its name in errors.
        look: from the model, a batch and its mix, before the model ran on it, to values by the names that follow the
            method in a row.
        nothing: the error message if no image counts.
        regions: whether methods that blend images are refused, because their tokens do not belong to one image.
        percent: whether the values are fractions.
    """

    study: str
    title: str
    keys: tuple[str, ...]
    look: Callable[[nn.Module, ImageBatch, Mixing, MixedBatch], Mapping[tuple[str, ...], Found]]
    notes: tuple[str, ...]
    nothing: str
    regions: bool = False
    percent: bool = False

    @torch.no_grad()
    def __call__(
        self, model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[ImageBatch], *, seed: int = 0
    ) -> Table:
        batches, rows = repeatable(batches), list[TableRow]()
        for name, method in methods.items():
            masks = masks_alone(method, study=self.study)
            if self.regions and any(mixer.mask.name == "constant" for mixer in method.mixers):
                raise ValueError(
                    f"{self.study} needs separate regions, but '{method}' blends the images; use cutmix or smmix"
                )
            found: dict[tuple[str, ...], Gathered] = defaultdict(Gathered)
            for images, mixing, batch in mixed_pairs(model, masks, batches, seed=seed):
                for names, (values, counted) in self.look(model, images, mixing, batch).items():
                    found[names].add(values, batch, counted)
            own = [((name, *names), each.estimates()) for names, each in found.items() if len(each)]
            if not own:
                raise ValueError(f"{self.study} {self.nothing}")
            rows += own
        return Table(self.title, self.keys, rows, self.notes, tuple(rows[0][1]) if self.percent else ())


def repeatable(batches: Iterable[ImageBatch]) -> Iterable[ImageBatch]:
    """Batches that can be iterated once for every method."""
    return list(batches) if isinstance(batches, Iterator) else batches


def one_mask_each(method: AnyMixer) -> AnyMixer:
    """The method with one mask per sample where possible, so that pairs are independent."""

    def changed(mixer: Mixer) -> Mixer:
        mask: Any = mixer.mask
        return (
            dataclasses.replace(mixer, mask=dataclasses.replace(mask, per="sample")) if hasattr(mask, "per") else mixer
        )

    return method.each(changed)


def need_masks(method: AnyMixer, *, study: str) -> None:
    """Refuses methods that do not mix images; TokenMixup mixes tokens, and only in training."""
    if any(not mixer.mask.mixes for mixer in method.mixers):
        raise ValueError(
            f"{study} needs mixed images, but {str(method)!r} does not mix images; use a method such as cutmix"
        )


def masks_alone(method: AnyMixer, share: Share | None = None, *, study: str) -> AnyMixer:
    """A method's masks and pairing with another label rule, without losses and without mixing inside the network."""
    need_masks(method, study=study)
    rule = AreaShare() if share is None else share
    return method.each(lambda mixer: dataclasses.replace(mixer, share=rule, extra=(), inner=()))


def mixed_pairs(
    model: nn.Module, method: AnyMixer, batches: Iterable[ImageBatch], *, seed: int
) -> Iterator[tuple[ImageBatch, Mixing, MixedBatch]]:
    """Each batch and its mix, the model in evaluation mode and not yet run on it."""
    with Evaluating(model), method.attach(model, seed=seed, rank=0, step=0) as mixing:
        for given in batches:
            images, labels, _ = given = ImageBatch(*given)
            maps = activation_maps(model, mixing, images, labels) if needs_maps(method) else None
            yield given, mixing, mixing.mix(images, labels, maps=maps)


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


def need_objects(objects: Tensor | None, study: str) -> Tensor:
    if objects is None:
        raise ValueError(
            f"{study} needs to know where the objects are, but these images have no masks; "
            "use the built-in shapes, an .npz with 'box', or give a folder of masks (--masks FOLDER)"
        )
    return objects
