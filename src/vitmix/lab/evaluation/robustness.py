"""Robustness: accuracy on changed images. Every part is a list of cells, and how numbers come from their answers."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitmix._sampling import generator_for
from vitmix.lab.data.images import ImageSet
from vitmix.lab.training.checkpoints import make_folder

from . import shifts
from .attacks import AutoAttack, Fgsm, Pgd, check_auto_attack
from .cells import Cell, Change, Measurer, Progress
from .cifar_c import is_cifar_c, open_cifar_c
from .corruptions import (
    COMMON,
    SEVERITIES,
    CorruptedImages,
    Errors,
    check_sides,
    corruption,
    divisors,
    maker,
    read_reference,
)
from .extras import NotPossible, version_of
from .measure import Measurement
from .occlusion import ORDERS, Dropped, Noise, PatchOrder, grid_of, saliency_of
from .settings import Robustness
from .shifts import stored_corruptions
from .subject import Running, Subject
from .summaries import Found, Summary, accuracies, calibrated, corruption_errors, worst_so_far
from .text import pixels_text

CHOICE = 0x43484F49  # keeps these random numbers apart from others made from the same seed


class Part(NamedTuple):
    """A part of the suite or a piece of it: cells, and the numbers that their answers give."""

    name: str
    cells: list[Cell]
    summary: Summary


class Suite:
    """A whole evaluation: what can be refused is refused when it is made, before anything is measured.

    Attributes:
        remarks: what there is to say besides the numbers.
        errors: of each corruption, for each severity; known once measured.
    """

    def __init__(
        self,
        subject: Subject,
        images: ImageSet | None,
        running: Running,
        settings: Robustness,
        *,
        folder: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.subject, self.settings = subject, settings
        self.remarks: list[str] = []
        if settings.needs_images:
            if images is None:
                raise ValueError(f"{', '.join(settings.measured)} need images of the model's classes; give --data")
            images, self.remarks = subject.fit_labels(images)
            if len(np.unique(images.labels)) < 2:
                raise ValueError(f"{images.description} shows one class only, so nothing can be mistaken; give more")
            self.images = chosen(images, settings.limit, settings.seed)
            self.attacked = chosen(images, min(settings.attack_limit, len(self.images)), settings.seed)
        self.measurer = Measurer(subject, running, folder)
        self.errors: dict[str, list[float]] = {}
        self.parts = [part for name in settings.measured for part in self._built(name)]
        self._report, self._before = progress, 0
        self._total = sum(len(cell.images) for part in self.parts for cell in part.cells)
        self.measurer.progress = self._progress

    def __iter__(self) -> Iterator[Measurement]:
        if self.measurer.folder is not None:
            make_folder(self.measurer.folder)
        self._before = 0
        self.errors.clear()
        for part in self.parts:
            found: Found = []
            for cell in part.cells:
                found.append((cell, self.measurer.answers(cell)))
                self._before += len(cell.images)
            for each in part.summary(found):
                yield each._replace(of={"part": part.name, **each.of})

    @property
    def data(self) -> str:
        """What was measured on."""
        found = [self.images.description] if self.settings.needs_images else []
        return "; ".join([*found, *(f"{key}={place}" for key, place in self.settings.folders.items())])

    @property
    def broken(self) -> list[str]:
        """Names of the images that could not be read, and why."""
        images = (cell.images for part in self.parts for cell in part.cells)
        return sorted({reason for each in images for reason in each.broken.values()})

    def _progress(self, name: str, done: int, images: int) -> None:
        if self._report is not None:
            self._report(name, self._before + done, self._total)

    def _built(self, name: str) -> list[Part]:
        builders: dict[str, Callable[[], list[Part]]] = {
            "clean": self._clean,
            "noise": self._noise,
            "occlusion": self._occlusion,
            "corruptions": self._corruptions,
            "shifts": self._shifts,
            "attacks": self._attacks,
            "autoattack": self._autoattack,
        }
        try:
            return builders[name]()
        except NotPossible as problem:
            if name in self.settings.parts:
                raise
            self.remarks.append(f"Note: the suite {name} is left out: {problem}.")
            return []

    def _cell(self, name: str, images: ImageSet, change: Change | None = None, **facts: Any) -> Cell:
        return Cell(name, images, {"seed": self.settings.seed, **facts}, change)

    def _clean(self) -> list[Part]:
        return [Part("clean", [self._cell("clean", self.images, part="clean")], calibrated)]

    def _noise(self) -> list[Part]:
        cells = [
            self._cell(
                f"noise sigma={sigma:g}", self.images, Noise(sigma, self.settings.seed), part="noise", sigma=sigma
            )
            for sigma in self.settings.sigmas
        ]
        return [Part("noise", cells, accuracies)]

    def _occlusion(self) -> list[Part]:
        settings, classifier, sides = self.settings, self.measurer.classifier, self.measurer.augmentation.sides
        orders, parts = settings.orders or ORDERS, []
        if settings.orders is None:
            try:
                saliency_of(classifier, sides)
            except ValueError as problem:
                orders = ("random",)
                self.remarks.append(f"Note: patches are dropped at random only, not by saliency: {problem}.")
        rows, columns = grid_of(classifier, sides)
        self.remarks.append(f"Note: patches are dropped on a grid of {rows} x {columns}.")
        for order in orders:
            ranks = PatchOrder(classifier, sides, order=order, seed=settings.seed)
            facts = {"part": "occlusion", "order": order, "grid": ranks.grid}
            cells = [
                self._cell(
                    f"occlusion {order} {100 * share:g} %", self.images, Dropped(ranks, share), share=share, **facts
                )
                for share in settings.dropped
            ]
            parts.append(Part("occlusion", cells, accuracies))
        return parts

    def _corruptions(self) -> list[Part]:
        settings = self.settings
        reference = self._reference()
        divisors(reference, settings.corruptions, len(settings.severities))  # a wrong reference should show now
        kinds = list(itertools.product(settings.corruptions, settings.severities))
        stored = "c" in settings.folders
        if stored:
            root = Path(settings.folders["c"])
            images, cropped = self._stored_corruptions(root, kinds), not is_cifar_c(root)
        else:
            own, seed = self.measurer.augmentation, settings.seed
            check_sides(own)
            images = {kind: CorruptedImages(self.images, own, corruption(*kind), seed=seed) for kind in kinds}
            cropped = True
        cells = []
        for (name, severity), each in images.items():
            facts = {"corruption": name, "severity": severity, "package": None if stored else maker(name)}
            cell = self._cell(f"corruption {name} {severity}", each, **facts)
            cells.append(dataclasses.replace(cell, cropped=cropped))
        return [Part("corruptions", cells, partial(self._corruption_summary, reference))]

    def _stored_corruptions(self, root: Path, kinds: list[tuple[str, int]]) -> dict[tuple[str, int], ImageSet]:
        if is_cifar_c(root):
            self.remarks.append(f"Note: label i of {root} is taken as output i.")
        found = (open_cifar_c if is_cifar_c(root) else stored_corruptions)(root, kinds, self.subject)
        return {kind: chosen(each, self.settings.limit, self.settings.seed) for kind, each in found.items()}

    def _reference(self) -> Errors | None:
        """The errors that are given; for ImageNet's classes AlexNet's, which belong to ImageNet's images alone."""
        settings = self.settings
        if settings.reference is not None:
            return read_reference(settings.reference)
        if set(settings.corruptions) - set(COMMON) or len(settings.severities) != len(SEVERITIES):
            return None  # AlexNet's are known for these alone, as the mean over all severities
        if "c" not in settings.folders:
            classes = self.subject.classes or tuple(self.images.classes)
        elif is_cifar_c(Path(settings.folders["c"])):
            return None
        else:
            classes = self.subject.classes or shifts.synsets()
        return read_reference("alexnet") if classes == shifts.synsets() else None

    def _corruption_summary(self, reference: Errors | None, found: Found) -> Iterator[Measurement]:
        yield from accuracies(found)
        settings = self.settings
        for cell, answers in found:
            right, n = answers.count(cell.name)
            self.errors.setdefault(cell.settings["corruption"], []).append(1 - right / n)
        plain, relative = (divisors(each, settings.corruptions, len(settings.severities)) for each in (None, reference))
        yield from corruption_errors(found, plain, "error", "mean corruption error")
        if reference is not None:
            yield from corruption_errors(found, relative, "relative error", "mCE")

    def _shifts(self) -> list[Part]:
        cells = []
        for kind in (kind for kind in shifts.NAMES if kind in self.settings.folders):
            name, found = shifts.NAMES[kind], shifts.open_shift(kind, Path(self.settings.folders[kind]), self.subject)
            if found.left_out:
                count = f"{found.left_out} {'class' if found.left_out == 1 else 'classes'}"
                self.remarks.append(f"Note: {name} has {count} that the model does not know; left out.")
            images = chosen(found.images, self.settings.limit, self.settings.seed)
            cells.append(dataclasses.replace(self._cell(name, images, part=name), outputs=found.outputs))
        return [Part("shifts", cells, accuracies)]

    def _attacks(self) -> list[Part]:
        settings, classifier = self.settings, self.measurer.classifier
        steps, seed, norm = settings.steps, settings.seed, settings.norm
        untouched = self._cell(f"attack none{self._norm}", self.attacked, part="clean")
        cells = [self._attack("fgsm", "fgsm", bound, Fgsm(classifier, bound, norm)) for bound in self._bounds]
        parts = [Part("attacks", [untouched], self._untouched), Part("attacks", cells, worst_so_far)]
        for alpha in settings.alphas:
            facts = {"alpha": alpha, "steps": steps}
            cells = [
                self._attack("pgd", f"pgd-{steps}", bound, Pgd(classifier, bound, alpha, steps, seed, norm), **facts)
                for bound in self._bounds
            ]
            parts.append(Part("attacks", cells, worst_so_far))
        return parts

    def _autoattack(self) -> list[Part]:
        check_auto_attack(self.subject.settings["num_classes"])
        # Its random numbers are drawn for a batch as a whole.
        facts = {"batch": self.measurer.running.batch, "package": version_of("pyautoattack")}
        classifier, seed, norm = self.measurer.classifier, self.settings.seed, self.settings.norm
        cells = [
            self._attack("autoattack", "autoattack", bound, AutoAttack(classifier, bound, seed, norm), **facts)
            for bound in self._bounds
        ]
        return [Part("autoattack", cells, worst_so_far)]

    def _attack(self, attack: str, words: str, bound: float, change: Change, **facts: Any) -> Cell:
        step = f" alpha={pixels_text(facts['alpha'])}" if "alpha" in facts else ""
        name = f"{words}{self._norm}{step} eps={pixels_text(bound)}"
        return self._cell(name, self.attacked, change, attack=attack, norm=self.settings.norm, epsilon=bound, **facts)

    def _untouched(self, found: Found) -> Iterator[Measurement]:
        """Of the attacked images as they are: the same cell as the clean one where that has the same images."""
        for each in accuracies(found):
            yield each._replace(of={"attack": "none", "norm": self.settings.norm})

    @property
    def _bounds(self) -> list[float]:
        return sorted(set(self.settings.epsilons))

    @property
    def _norm(self) -> str:
        return "" if self.settings.norm == "linf" else f" {self.settings.norm}"


def robustness(
    subject: Subject, images: ImageSet | None, running: Running, settings: Robustness | None = None, **options: Any
) -> Iterator[Measurement]:
    """The suite's measurements, one by one; `options` are those of `Suite`."""
    return iter(Suite(subject, images, running, settings or Robustness(), **options))


def chosen(images: ImageSet, limit: int | None, seed: int) -> ImageSet:
    """At most so many images at random, in their order; a smaller choice is part of a larger one."""
    if limit is None or limit >= len(images):
        return images
    order = torch.randperm(len(images), generator=generator_for(CHOICE, seed)).numpy()
    return images.subset(np.sort(order[:limit]), f"{images.description}, {limit} of them at random")
