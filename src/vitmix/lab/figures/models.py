"""The models of a figure, with their names."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn

from vitmix.attention.readers import logits_of
from vitmix.lab.data.augment import eval_pixels, normalize
from vitmix.lab.data.augmentation import Augmentation
from vitmix.lab.evaluation.subject import Subject

from .images import NamedImage


@dataclass(frozen=True)
class NamedModel:
    """A classifier with a short name and its preprocessing; `classes` are the names of its outputs, if known."""

    name: str
    model: nn.Module
    augmentation: Augmentation
    outputs: int
    classes: tuple[str, ...] = ()
    trained: bool = True

    def pixels(self, images: Sequence[NamedImage]) -> Tensor:
        """`(B, 3, H, W)` in 0..1."""
        return torch.stack([eval_pixels(each.image, self.augmentation) for each in images]).float() / 255

    def inputs(self, pixels: Tensor) -> Tensor:
        """The model's input for pixels in 0..1."""
        return normalize(pixels * 255, self.augmentation)

    def known(self, image: NamedImage) -> int | None:
        """The output that has the image's name."""
        return self.classes.index(image.name) if image.name in self.classes else None

    def predicted(self, images: Sequence[NamedImage]) -> list[int]:
        with torch.no_grad():
            return logits_of(self.model(self.inputs(self.pixels(images)))).argmax(1).tolist()

    def labels(self, images: Sequence[NamedImage]) -> list[int]:
        """The classes that the images are named after, otherwise the predicted ones."""
        known, seen = [self.known(each) for each in images], self.predicted(images)
        return [guess if label is None else label for label, guess in zip(known, seen, strict=True)]

    def class_name(self, label: int) -> str:
        return self.classes[label] if label < len(self.classes) else f"class {label}"


def named_model(subject: Subject, name: str, *, trained: bool = True) -> NamedModel:
    """A model for figures: whole images instead of center crops, no dropout."""
    without_dropout(subject.model)
    whole = dataclasses.replace(subject.augmentation, crop_pct=1.0)
    if subject.outputs < 2:
        raise ValueError(f"{subject.weights} needs at least two classes, but has {subject.outputs}; use another model")
    return NamedModel(name, subject.model, whole, subject.outputs, subject.classes or (), trained)


def without_dropout(model: nn.Module) -> None:
    """Training mode for hidden mixing alone, without dropout and the like."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, DropPath):
            module.drop_prob = 0.0
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def short_names(places: Sequence[str]) -> list[str]:
    """Names for models: the last part of each path, with the folder above if two would be equal."""
    last = [Path(place).stem if Path(place).is_file() else Path(place).name for place in places]
    if len(set(last)) == len(last):
        return last
    longer = [f"{Path(place).resolve().parent.name}/{name}" for place, name in zip(places, last, strict=True)]
    return longer if len(set(longer)) == len(longer) else list(places)
