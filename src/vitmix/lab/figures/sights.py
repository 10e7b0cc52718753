"""What is looked through and at: models with their names, and pictures, alone or mixed by a method."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from vitmix._mixer import Mixer
from vitmix._mixing import MixedBatch, Mixing
from vitmix._text import create
from vitmix.attention.readers import logits_of
from vitmix.lab.data.augment import Augmentation, eval_pixels, normalize
from vitmix.lab.evaluation.subject import Subject
from vitmix.lab.show.pictures import Picture
from vitmix.lab.show.scene import mixed_pixels, mixing_pair, without_dropout

MANIFOLD = "manifold"  # the baseline of the picture of heads: hidden tokens blended half and half
Found = TypeVar("Found")


@dataclass(frozen=True)
class Sight:
    """A model, by a short name, and how pictures reach it; `classes` are the names of its outputs where known."""

    name: str
    model: nn.Module
    augmentation: Augmentation
    outputs: int
    classes: tuple[str, ...] = ()
    trained: bool = True

    def pixels(self, pictures: Sequence[Picture]) -> Tensor:
        """`(B, 3, H, W)` in 0..1, whole pictures."""
        return torch.stack([eval_pixels(each.image, self.augmentation) for each in pictures]).float() / 255

    def images(self, pixels: Tensor) -> Tensor:
        return normalize(pixels * 255, self.augmentation)

    def known(self, picture: Picture) -> int | None:
        """The output that a picture's name says."""
        return self.classes.index(picture.name) if picture.name in self.classes else None

    def predicted(self, pictures: Sequence[Picture]) -> list[int]:
        with torch.no_grad():
            return logits_of(self.model(self.images(self.pixels(pictures)))).argmax(1).tolist()

    def labels(self, pictures: Sequence[Picture]) -> list[int]:
        """What the pictures' names say, or else what the model sees."""
        known, seen = [self.known(each) for each in pictures], self.predicted(pictures)
        return [guess if label is None else label for label, guess in zip(known, seen, strict=True)]

    def class_name(self, label: int) -> str:
        return self.classes[label] if label < len(self.classes) else f"class {label}"


def sight_of(subject: Subject, name: str, *, trained: bool = True) -> Sight:
    """A subject as it is looked through: whole pictures, no dropout."""
    without_dropout(subject.model)
    whole = dataclasses.replace(subject.augmentation, crop_pct=1.0)
    outputs = subject.settings["num_classes"]
    if outputs < 2:
        raise ValueError(f"{subject.weights} is no classifier of two classes or more; use another model")
    return Sight(name, subject.model, whole, outputs, subject.classes or (), trained)


def short_names(places: Sequence[str]) -> list[str]:
    """What to call models: the last part of each place, with the folder above where that tells no two apart."""
    last = [Path(place).stem if Path(place).is_file() else Path(place).name for place in places]
    if len(set(last)) == len(last):
        return last
    longer = [f"{Path(place).resolve().parent.name}/{name}" for place, name in zip(places, last, strict=True)]
    return longer if len(set(longer)) == len(longer) else list(places)


@dataclass(frozen=True)
class Shot:
    """A picture, or two and the method that mixes them."""

    pictures: tuple[Picture, ...]
    method: str | None = None

    @property
    def title(self) -> str:
        return " + ".join(picture.name for picture in self.pictures)

    def mixers(self, outputs: int) -> tuple[Mixer, ...]:
        assert self.method is not None
        return create(self.method, outputs).mixers


def pairs_of(pictures: Sequence[Picture]) -> list[tuple[Picture, Picture]]:
    """Neighbors, two by two."""
    if len(pictures) % 2:
        raise ValueError(f"pictures are mixed in pairs, and {len(pictures)} are no pairs; give an even number")
    return list(zip(pictures[::2], pictures[1::2], strict=True))


def shots_of(pictures: Sequence[Picture], methods: Sequence[str]) -> list[Shot]:
    """Every picture; with methods, every pair mixed by each of them, and by each choice of a switch."""
    if not methods:
        return [Shot((picture,)) for picture in pictures]
    texts = [text for method in methods for text in _choices(method)]
    return [Shot(pair, text) for pair in pairs_of(pictures) for text in texts]


def _choices(method: str) -> list[str]:
    if method == MANIFOLD:
        return [method]
    mixers = create(method, 2).mixers
    return [method] if len(mixers) == 1 else [str(mixer) for mixer in mixers]


@dataclass(frozen=True)
class Look(Generic[Found]):
    """What was found, the picture as the model saw it `(3, H, W)`, and where it is mixed, the parts of the target."""

    pixels: Tensor
    found: Found
    own: float = 1.0
    partner: float = 0.0


def look(sight: Sight, shot: Shot, seed: int, find: Callable[[Tensor], Found]) -> Look[Found]:
    """What `find`, which runs the model, makes of the images, of a pair while the method acts; row 0 is the picture."""
    if shot.method is None:
        pixels = sight.pixels(shot.pictures)
        return Look(pixels[0], find(sight.images(pixels)))
    return look_mixed(sight, shot, seed, lambda mixing, batch: find(batch.images))


def look_mixed(sight: Sight, shot: Shot, seed: int, find: Callable[[Mixing, MixedBatch], Found]) -> Look[Found]:
    """The same of a pair, with the mixed batch at hand."""
    (mixer,) = shot.mixers(sight.outputs)
    if any(part.adds_tokens for part in mixer.inner):
        raise ValueError(f"{mixer} adds tokens that have no place in the picture; draw another method")
    images = sight.images(sight.pixels(shot.pictures))
    labels = sight.labels(shot.pictures) if mixer.needs.maps else [0, 1]
    with mixing_pair(sight.model, mixer, images, labels, seed) as (mixing, batch):
        found = find(mixing, batch)
        own, partner = mixing.targets(batch)[0, :2].tolist()
    return Look(mixed_pixels(batch, sight.augmentation), found, own, partner)
