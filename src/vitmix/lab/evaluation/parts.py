"""The parts of the robustness suite: for each, its conditions and how their predictions are summarized."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitmix._sampling import generator_for
from vitmix.lab.data.images import ImageSet
from vitmix.lab.extras import version_of
from vitmix.lab.runs import Facts, Measurement
from vitmix.lab.suite import COMMON, ORDERS, SEVERITIES, SHIFTS, Robustness

from . import corruptions, shifts
from .attacks import auto_attack, check_auto_attack, fgsm, pgd
from .conditions import Change, Condition, Examiner
from .corruptions import CorruptedImages, Errors, corruption, divisors, read_reference
from .describe import pixels_text
from .occlusion import PatchOrder, gaussian_noise, grid_of, saliency_of
from .shifts import is_cifar_c, stored_corruptions
from .summaries import Answered, Summarize, accuracies, calibrated, corruption_errors, worst_so_far

CHOICE = 0x43484F49  # separates these random numbers from others made from the same seed


class ConditionSeries(NamedTuple):
    """Conditions that are summarized together."""

    conditions: list[Condition]
    summary: Summarize = accuracies


class Builder:
    """Makes the conditions of each part, by the method of its name.

    Raises an error for what cannot be measured; `NotPossible` if it only does not apply.

    Args:
        images: of the model's classes; None if only folders are measured.
        remarks: notes are added to it.
    """

    def __init__(self, settings: Robustness, examiner: Examiner, images: ImageSet | None, remarks: list[str]) -> None:
        self.settings, self.examiner, self.subject, self.remarks = settings, examiner, examiner.subject, remarks
        if images is not None:
            self.images = chosen(images, settings.limit, settings.seed)
            self.attacked = chosen(images, min(settings.attack_limit, len(self.images)), settings.seed)

    def _condition(self, of: Facts, images: ImageSet, change: Change | None = None, **deciding: Any) -> Condition:
        """A condition with predictions that depend on the seed, on what is measured, and on what is `deciding`.

        Stored predictions are found by these settings, so these stay as in version 0.1.
        """
        facts = {key: value for key, value in of.to_json().items() if key != "part"}
        return Condition(name_of(of), images, of, {"seed": self.settings.seed, **facts, **deciding}, change)

    def clean(self) -> list[ConditionSeries]:
        return [ConditionSeries([self._condition(Facts(part="clean"), self.images, part="clean")], calibrated)]

    def noise(self) -> list[ConditionSeries]:
        conditions, seed = [], self.settings.seed
        for sigma in self.settings.sigmas:
            change = partial(gaussian_noise, sigma=sigma, seed=seed)
            conditions.append(self._condition(Facts(part="noise", sigma=sigma), self.images, change, part="noise"))
        return [ConditionSeries(conditions)]

    def occlusion(self) -> list[ConditionSeries]:
        classifier, sides, orders = self.examiner.classifier, self.examiner.augmentation.sides, self.settings.orders
        if orders is None:
            orders = ORDERS
            try:
                saliency_of(classifier, sides)
            except ValueError as problem:
                orders = ("random",)
                self.remarks.append(f"Note: patches are dropped at random only, not by saliency: {problem}.")
        grid = grid_of(classifier, sides)
        self.remarks.append(f"Note: patches are dropped on a grid of {grid[0]} x {grid[1]}.")
        found = []
        for order in orders:
            ranks, conditions = PatchOrder(classifier, sides, order=order, seed=self.settings.seed), []
            for share in self.settings.dropped:
                of = Facts(part="occlusion", order=order, grid=ranks.grid, share=share)
                change = partial(ranks.drop, share=share)
                conditions.append(self._condition(of, self.images, change, part="occlusion"))
            found.append(ConditionSeries(conditions))
        return found

    def corruptions(self) -> list[ConditionSeries]:
        settings, stored = self.settings, self.settings.folders.get("c")
        reference = self._reference()
        divisors(reference, settings.corruptions, len(settings.severities))  # report a wrong reference now
        kinds = list(itertools.product(settings.corruptions, settings.severities))
        if stored is not None:
            cropped, found = not is_cifar_c(Path(stored)), stored_corruptions(Path(stored), kinds, self.subject)
            self.remarks += [] if cropped else [f"Note: label i of {stored} is taken as output i."]
            images = {kind: chosen(each, settings.limit, settings.seed) for kind, each in found.items()}
        else:
            own, seed, cropped = self.examiner.augmentation, settings.seed, True
            corruptions.check_sides(own)
            images = {kind: CorruptedImages(self.images, own, corruption(*kind), seed=seed) for kind in kinds}
        conditions = []
        for (name, severity), each in images.items():
            of = Facts(part="corruptions", corruption=name, severity=severity)
            condition = self._condition(of, each, package=None if stored else corruptions.maker(name))
            conditions.append(dataclasses.replace(condition, cropped=cropped))
        return [ConditionSeries(conditions, partial(self._corruption_summary, reference))]

    def _reference(self) -> Errors | None:
        """The given errors; for ImageNet's classes, those of AlexNet, which are for ImageNet's images."""
        settings = self.settings
        if settings.reference is not None:
            return read_reference(settings.reference)
        if set(settings.corruptions) - set(COMMON) or len(settings.severities) != len(SEVERITIES):
            return None  # AlexNet's are known only for these, as the mean over all severities
        if "c" not in settings.folders:
            classes = self.subject.classes or tuple(self.images.classes)
        elif is_cifar_c(Path(settings.folders["c"])):
            return None
        else:
            classes = self.subject.classes or shifts.synsets()
        return read_reference("alexnet") if classes == shifts.synsets() else None

    def _corruption_summary(self, reference: Errors | None, found: Answered) -> Iterator[Measurement]:
        names, severities = self.settings.corruptions, len(self.settings.severities)
        yield from accuracies(found)
        yield from corruption_errors(found, divisors(None, names, severities), "error", "mean corruption error")
        if reference is not None:
            yield from corruption_errors(found, divisors(reference, names, severities), "relative error", "mCE")

    def shifts(self) -> list[ConditionSeries]:
        conditions = []
        for kind in (kind for kind in SHIFTS if kind in self.settings.folders):
            name, found = SHIFTS[kind], shifts.open_shift(kind, Path(self.settings.folders[kind]), self.subject)
            if found.left_out:
                count = f"{found.left_out} {'class' if found.left_out == 1 else 'classes'}"
                self.remarks.append(f"Note: {name} has {count} that the model does not know; left out.")
            images = chosen(found.images, self.settings.limit, self.settings.seed)
            condition = self._condition(Facts(part="shifts"), images, part=name)
            conditions.append(dataclasses.replace(condition, name=name, outputs=found.outputs))
        return [ConditionSeries(conditions)]

    def attacks(self) -> list[ConditionSeries]:
        settings, norm = self.settings, self.settings.norm
        untouched = Facts(part="attacks", attack="none", norm=norm)
        # Equal to the clean predictions if those are on the same images.
        clean = Condition(name_of(untouched), self.attacked, untouched, {"seed": settings.seed, "part": "clean"})
        found = [ConditionSeries([clean]), self._attack(fgsm, partial(Facts, part="attacks", attack="fgsm"))]
        for alpha in settings.alphas:
            attack = partial(pgd, alpha=alpha, steps=settings.steps, seed=settings.seed)
            facts = partial(Facts, part="attacks", attack="pgd", alpha=alpha, steps=settings.steps)
            found.append(self._attack(attack, facts))
        return found

    def autoattack(self) -> list[ConditionSeries]:
        check_auto_attack(self.subject.outputs)
        attack = partial(auto_attack, seed=self.settings.seed)
        # Its random numbers are drawn for whole batches.
        deciding = {"batch": self.examiner.running.batch, "package": version_of("pyautoattack")}
        return [self._attack(attack, partial(Facts, part="autoattack", attack="autoattack"), **deciding)]

    def _attack(self, attack: Callable[..., Tensor], facts: Callable[..., Facts], **deciding: Any) -> ConditionSeries:
        """An attack within each bound, the smallest first; `facts` are given norm and bound."""
        conditions, norm = [], self.settings.norm
        for bound in sorted(set(self.settings.epsilons)):
            change = partial(attack, self.examiner.classifier, epsilon=bound, norm=norm)
            of = facts(norm=norm, epsilon=bound)
            conditions.append(self._condition(of, self.attacked, change, **deciding))
        return ConditionSeries(conditions, worst_so_far)


def name_of(of: Facts) -> str:
    """The name of a measurement, in texts and in robustness.json."""
    if of.sigma is not None:
        return f"noise sigma={of.sigma:g}"
    if of.share is not None:
        return f"occlusion {of.order} {100 * of.share:g} %"
    if of.corruption is not None:
        return f"corruption {of.corruption} {of.severity}"
    if of.strength is not None:
        return " ".join(filter(None, (of.part, of.kind, f"{of.strength:g}")))
    if of.attack is None:
        return of.part
    norm = "" if of.norm == "linf" else f" {of.norm}"
    if of.epsilon is None:
        return f"attack {of.attack}{norm}"
    words = f"{of.attack}-{of.steps}" if of.steps is not None else of.attack
    step = "" if of.alpha is None else f" alpha={pixels_text(of.alpha)}"
    return f"{words}{norm}{step} eps={pixels_text(of.epsilon)}"


def chosen(images: ImageSet, limit: int | None, seed: int) -> ImageSet:
    """At most `limit` random images, in order; a smaller choice is part of a larger one."""
    if limit is None or limit >= len(images):
        return images
    order = torch.randperm(len(images), generator=generator_for(CHOICE, seed)).numpy()
    return images.subset(np.sort(order[:limit]), f"{images.description}, {limit} of them at random")
