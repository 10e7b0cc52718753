"""Cells: a model's answers on changed images, one file for each, so that a stopped evaluation goes on where it was.

A cell's file is named by a checksum over the weights, the images, the preprocessing and the cell's settings: what was
measured on anything else is never taken. It is written anew every few seconds under another name and renamed, so it is
always whole.
"""

import base64
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitmix.attention.readers import logits_of
from vitmix.lab.data.augment import Augmentation, per_channel
from vitmix.lab.data.images import ArrayImages, FileImages, ImageSet
from vitmix.lab.data.loader import EvalLoader
from vitmix.lab.maps.teachers import weights_checksum
from vitmix.lab.reading import parse_json
from vitmix.lab.training.checkpoints import write_file

from .cifar_c import NpyImages
from .measure import check_finite, top_predictions
from .subject import Running, Subject

FORMAT = 2  # of the files; raised when the same settings would give other answers
SAVE_SECONDS = 10.0
SAMPLED = 64  # pictures read for the checksum of a data set that has neither files nor an array

# Settings that decide answers but say nothing of what is measured.
HIDDEN = ("part", "seed", "batch", "package")

Change = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From pixels in 0..1, labels and places in the data set to pixels."""
Progress = Callable[[str, int, int], None]
"""Hears a cell's name, how many of its images are done, and how many there are."""


class PixelClassifier(nn.Module):
    """A classifier of pixels in 0..1: the model in evaluation mode with its normalization inside.

    So attacks see what was trained, and measure their steps in pixels.
    """

    def __init__(
        self, model: nn.Module, augmentation: Augmentation, device: torch.device, autocast: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.model = model.to(device).eval()
        self.autocast = autocast
        self.mean, self.std = (per_channel(values, device) for values in (augmentation.mean, augmentation.std))

    def forward(self, pixels: Tensor) -> Tensor:
        # The gradients of sure answers are too small for fp16, and an attack without them would not succeed.
        dtype = None if pixels.requires_grad and self.autocast is torch.float16 else self.autocast
        with torch.autocast(pixels.device.type, dtype=dtype, enabled=dtype is not None):
            logits = logits_of(self.model((pixels - self.mean) / self.std))
        return logits.float()


@dataclass(frozen=True)
class Cell:
    """One measurement of accuracy.

    Attributes:
        settings: what decides the answers besides weights, images and preprocessing.
        cropped: the images were cropped already and are taken whole.
        outputs: the only classes among which the model chooses; all if None.
    """

    name: str
    images: ImageSet
    settings: dict[str, Any]
    change: Change | None = None
    cropped: bool = False
    outputs: tuple[int, ...] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What is measured, for those who look up or draw the numbers."""
        return {name: value for name, value in self.settings.items() if name not in HIDDEN}


@dataclass
class Answers:
    """Of each image: 1 right, 0 wrong, -1 unreadable; and the confidence in the answer."""

    right: np.ndarray
    confidence: np.ndarray
    done: int = 0

    @classmethod
    def none_yet(cls, images: int) -> "Answers":
        return cls(np.full(images, -1, dtype=np.int8), np.zeros(images, dtype=np.float32))

    @property
    def readable(self) -> np.ndarray:
        return self.right >= 0

    def count(self, name: str) -> tuple[int, int]:
        """(right answers, images)"""
        n = int(self.readable.sum())
        if n == 0:
            raise ValueError(f"none of the images of {name!r} could be read; get the files again")
        return int((self.right == 1).sum()), n

    def text(self) -> str:
        values = {
            "images": len(self.right),
            "done": self.done,
            "right": "".join("01-"[value] for value in self.right[: self.done]),
            "confidence": base64.b64encode(self.confidence[: self.done].astype("<f4").tobytes()).decode(),
        }
        return json.dumps(values)

    @classmethod
    def parse(cls, text: str | bytes, images: int) -> "Answers":
        """What a file holds; nothing yet where it is damaged."""
        found = cls.none_yet(images)
        try:
            values = parse_json(text)
            right = np.array(["01-".index(mark) for mark in values["right"]], dtype=np.int8)
            right[right == 2] = -1
            confidence = np.frombuffer(base64.b64decode(values["confidence"]), dtype="<f4")
            if values["images"] != images or not len(right) == len(confidence) == values["done"] <= images:
                return found
        except (ValueError, KeyError, TypeError, AttributeError):
            return found
        found.done = len(right)
        found.right[: found.done], found.confidence[: found.done] = right, confidence
        return found


@dataclass
class Measurer:
    """Measures cells of one model, and keeps what it found in a folder if there is one."""

    subject: Subject
    running: Running
    folder: Path | None = None
    progress: Progress = field(default=lambda name, done, images: None)
    _checksums: dict[int, tuple[ImageSet, str]] = field(default_factory=dict, repr=False)

    @cached_property
    def augmentation(self) -> Augmentation:
        """The subject's, as far as pixels; normalization is the classifier's."""
        own = self.subject.augmentation
        return dataclasses.replace(own, mean=(0.0,) * 3, std=(1.0,) * 3, auto_augment=None, color_jitter=0.0)

    @cached_property
    def classifier(self) -> PixelClassifier:
        running = self.running
        torch.set_float32_matmul_precision("high" if running.precision == "tf32" else "highest")
        return PixelClassifier(self.subject.model, self.subject.augmentation, running.device, running.autocast)

    def answers(self, cell: Cell) -> Answers:
        """The model's answers in a cell: those that were kept, and the missing ones measured now."""
        place = None if self.folder is None else self.folder / f"{self.key(cell)}.json"
        found = Answers.none_yet(len(cell.images))
        if place is not None and place.is_file():
            found = Answers.parse(place.read_bytes(), len(cell.images))
            for row in np.flatnonzero(~found.readable[: found.done]).tolist():  # found out by the stopped process
                cell.images.broken.setdefault(row, f"{cell.images.name(row)}: could not be read")
        if found.done < len(cell.images):
            self._measure(cell, found, place)
        else:
            self.progress(cell.name, found.done, found.done)
        return found

    def _measure(self, cell: Cell, found: Answers, place: Path | None) -> None:
        start, batch, total = found.done, self.running.batch, len(cell.images)
        augmentation = dataclasses.replace(self.augmentation, crop_pct=1.0) if cell.cropped else self.augmentation
        workers = 0 if isinstance(cell.images, ArrayImages) else self.running.workers  # pixels in memory need no help
        loader = EvalLoader(cell.images, augmentation, batch=batch, workers=workers, start=start)
        saved = time.monotonic()
        for each in loader:
            each = each.to(self.running.device)
            right, confidence = self._answer(cell, each.images, each.labels, each.indices)
            rows = each.indices.cpu().numpy()
            found.right[rows], found.confidence[rows] = right.cpu().numpy(), confidence.cpu().numpy()
            check_finite(found.confidence[rows])
            # A whole number of batches: a resumed cell must see the batches of an uninterrupted one.
            batches = (int(rows.max()) - start) // batch + 1
            found.done = min(total, start + batches * batch)
            self.progress(cell.name, found.done, total)
            if place is not None and time.monotonic() - saved > SAVE_SECONDS:
                write_file(place, found.text().encode())
                saved = time.monotonic()
        found.done = total
        if place is not None:
            write_file(place, found.text().encode())

    def _answer(self, cell: Cell, pixels: Tensor, labels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        if cell.change is not None:
            pixels = cell.change(pixels, labels, indices)
        with torch.no_grad():
            logits = self.classifier(pixels)
        if cell.outputs is not None:
            chosen = torch.tensor(cell.outputs, device=logits.device)
            logits, labels = logits[:, chosen], torch.searchsorted(chosen, labels)
        predicted, confidence, _, _ = top_predictions(logits, labels)
        return predicted == labels, confidence

    def key(self, cell: Cell) -> str:
        """The checksum of everything that decides a cell's answers."""
        own = self.subject.augmentation
        images = getattr(cell.images, "original", cell.images)  # of generated corruptions
        if id(images) not in self._checksums:
            self._checksums[id(images)] = (images, data_checksum(images))  # kept, so that no other gets its id
        parts = [FORMAT, self._weights, self._checksums[id(images)][1], cell.settings, cell.outputs]
        # The crop of cropped images too: those that are corrupted here were cropped before.
        parts += [own.sides, own.mean, own.std, own.interpolation, own.crop_pct, cell.cropped, self.running.precision]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    @cached_property
    def _weights(self) -> list[Any]:
        # Not the weights alone: models of one state can differ in what they compute.
        settings = {name: repr(value) for name, value in self.subject.settings.items()}
        return [self.subject.config.model, settings, weights_checksum(self.subject.model)]


def data_checksum(images: ImageSet) -> str:
    """Of labels and pictures; of files names, sizes and times stand for the content."""
    digest = hashlib.sha256(images.labels.tobytes())
    if isinstance(images, ArrayImages):
        digest.update(np.ascontiguousarray(images.pixels).data)
    elif isinstance(images, FileImages):
        for index in range(len(images)):
            facts = os.stat(os.path.join(images.root, images.name(index)))
            digest.update(f"{images.name(index)}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    elif isinstance(images, NpyImages):
        facts = images.place.stat()
        digest.update(f"{images.place.name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode() + images.rows.tobytes())
    else:
        digest.update(images.description.encode())
        for index in np.linspace(0, len(images) - 1, min(SAMPLED, len(images))).astype(int):
            image, _, found = images.readable(int(index))
            digest.update(f"{found} {image.size}".encode() + image.tobytes())
    return digest.hexdigest()
