"""Conditions: a model's predictions on changed images, one file for each, so that a stopped suite resumes when rerun.

A file is named by a checksum over the weights, the images, the preprocessing and the condition's settings: results of
anything else are never used. It is rewritten every few seconds under another name and renamed, so it is always
complete.
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
from vitmix.lab.data.loader import Batch, EvalLoader
from vitmix.lab.maps.teachers import weights_checksum
from vitmix.lab.reading import JsonObject, parse_json
from vitmix.lab.runs import Facts
from vitmix.lab.writing import write_file

from .predictions import Outcomes, check_finite, logits_over
from .shifts import NpyImages
from .subject import Running, Subject

FORMAT = 2  # of the files; raised when the same settings would give other predictions
SAVE_SECONDS = 10.0
SAMPLED = 64  # images read for the checksum of a dataset that has neither files nor an array

Change = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From pixels in 0..1, labels and indices in the dataset to pixels."""
Progress = Callable[[str, int, int], None]
"""Called with a condition's name, the number of finished images and their total."""


class PixelClassifier(nn.Module):
    """A classifier of pixels in 0..1: the model in evaluation mode with its normalization inside.

    So attacks see the trained model, with steps in pixels.
    """

    def __init__(
        self, model: nn.Module, augmentation: Augmentation, device: torch.device, autocast: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.model = model.to(device).eval()
        self.autocast = autocast
        self.mean, self.std = (per_channel(values, device) for values in (augmentation.mean, augmentation.std))

    def forward(self, pixels: Tensor) -> Tensor:
        # The gradients of confident predictions are too small for fp16, and an attack needs them.
        dtype = None if pixels.requires_grad and self.autocast is torch.float16 else self.autocast
        with torch.autocast(pixels.device.type, dtype=dtype, enabled=dtype is not None):
            logits = logits_of(self.model((pixels - self.mean) / self.std))
        return logits.float()


@dataclass(frozen=True)
class Condition:
    """One measurement of accuracy: images, and what is done to their pixels.

    Attributes:
        of: what is measured.
        settings: what determines the predictions besides weights, images and preprocessing.
        cropped: the images are already cropped and are used whole.
        outputs: the classes among which the model chooses (default: all).
    """

    name: str
    images: ImageSet
    of: Facts
    settings: JsonObject
    change: Change | None = None
    cropped: bool = False
    outputs: tuple[int, ...] | None = None


@dataclass
class Answers:
    """For each image: 1 correct, 0 wrong, -1 unreadable; and the confidence of the prediction."""

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
        """(correct predictions, images)"""
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
        """The stored content; empty if the file is damaged."""
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
class Examiner:
    """Runs one model on conditions, and stores its predictions in a folder if one is given."""

    subject: Subject
    running: Running
    folder: Path | None = None
    progress: Progress = field(default=lambda name, done, images: None)
    _checksums: dict[int, tuple[ImageSet, str]] = field(default_factory=dict, repr=False)

    @cached_property
    def augmentation(self) -> Augmentation:
        """The subject's augmentation without normalization, which the classifier does."""
        own = self.subject.augmentation
        return dataclasses.replace(own, mean=(0.0,) * 3, std=(1.0,) * 3, auto_augment=None, color_jitter=0.0)

    @cached_property
    def classifier(self) -> PixelClassifier:
        running = self.running
        running.set_matmul_precision()
        return PixelClassifier(self.subject.model, self.subject.augmentation, running.device, running.autocast)

    def answers(self, condition: Condition) -> Answers:
        """The model's predictions: the stored ones, and the missing ones computed now."""
        images, place = condition.images, None
        found = Answers.none_yet(len(images))
        if self.folder is not None:
            place = self.folder / f"{self.key(condition)}.json"
            if place.is_file():
                found = Answers.parse(place.read_bytes(), len(images))
            for row in np.flatnonzero(~found.readable[: found.done]).tolist():  # found before the stop
                images.broken.setdefault(row, f"{images.name(row)}: could not be read")
        if found.done < len(images):
            self._ask(condition, found, place)
        else:
            self.progress(condition.name, found.done, found.done)
        return found

    def _ask(self, condition: Condition, found: Answers, place: Path | None) -> None:
        start, batch, total = found.done, self.running.batch, len(condition.images)
        augmentation = dataclasses.replace(self.augmentation, crop_pct=1.0) if condition.cropped else self.augmentation
        # Data in memory needs no workers.
        workers = 0 if isinstance(condition.images, ArrayImages) else self.running.workers
        loader = EvalLoader(condition.images, augmentation, batch=batch, workers=workers, start=start)
        saved = time.monotonic()
        for each, logits in logits_over(loader, lambda each: self._classify(condition, each), self.running.device):
            labels, rows = each.labels, each.indices.cpu().numpy()
            if condition.outputs is not None:
                outputs = torch.tensor(condition.outputs, device=logits.device)
                logits, labels = logits[:, outputs], torch.searchsorted(outputs, labels)
            outcomes = Outcomes.of(logits, labels)
            found.right[rows] = outcomes.correct.cpu().numpy()
            found.confidence[rows] = outcomes.confidence.cpu().numpy()
            check_finite(found.confidence[rows])
            # A whole number of batches: a resumed condition must see the batches of an uninterrupted one.
            batches = (int(rows.max()) - start) // batch + 1
            found.done = min(total, start + batches * batch)
            self.progress(condition.name, found.done, total)
            if place is not None and time.monotonic() - saved > SAVE_SECONDS:
                write_file(place, found.text().encode())
                saved = time.monotonic()
        found.done = total
        if place is not None:
            write_file(place, found.text().encode())

    def _classify(self, condition: Condition, batch: Batch) -> Tensor:
        pixels = batch.images
        if condition.change is not None:
            with torch.enable_grad():  # for attacks
                pixels = condition.change(pixels, batch.labels, batch.indices)
        return self.classifier(pixels)

    def key(self, condition: Condition) -> str:
        """The checksum of everything that determines a condition's predictions."""
        own = self.subject.augmentation
        images = getattr(condition.images, "original", condition.images)  # of generated corruptions
        if id(images) not in self._checksums:
            self._checksums[id(images)] = (images, data_checksum(images))  # so that no other gets its id
        parts = [FORMAT, self._weights, self._checksums[id(images)][1], dict(condition.settings), condition.outputs]
        # Also the crop of cropped images, because images that are corrupted here were cropped before.
        parts += [own.sides, own.mean, own.std, own.interpolation, own.crop_pct]
        parts += [condition.cropped, self.running.precision]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    @cached_property
    def _weights(self) -> list[Any]:
        # Not only the weights: models with equal state can compute different things.
        settings = {name: repr(value) for name, value in self.subject.settings.items()}
        return [self.subject.config.model, settings, weights_checksum(self.subject.model)]


def data_checksum(images: ImageSet) -> str:
    """The checksum of labels and images; for files, names, sizes and times represent the content."""
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
