"""Measurements along the strength of a change: a chart of the report, a table of a comparison.

A change that has its own fields in `Facts` is named here; any other is shown by part, `kind` and `strength`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from vitmix.lab.evaluation.describe import pixels_text
from vitmix.lab.runs import Facts, Measurement

ATTACKS = {"fgsm": "FGSM", "pgd": "PGD", "autoattack": "AutoAttack"}
NOISE = "under noise of this standard deviation on pixels in 0..1"
OCCLUSION = "without this part of the patches"
NORMS = {"linf": "largest change", "l2": "Euclidean length"}


class Course(NamedTuple):
    """One kind of change; `about` says what a strength is. Strengths are shown multiplied by `scale`, with `unit`."""

    part: str
    title: str
    x_name: str
    about: str = ""
    scale: float = 1
    unit: str = ""

    def label(self, strength: float) -> str:
        """A strength as a column header."""
        shown = f"{round(self.scale * strength, 9):g}"
        return f"{shown} {self.unit}" if self.unit else f"{self.x_name.partition(',')[0]} = {shown}"


def course_of(of: Facts) -> tuple[Course, float] | None:
    """The course of a measurement and the strength of its change; None if it has no course."""
    if of.sigma is not None:
        return Course(of.part, "Gaussian noise", "σ", NOISE), of.sigma
    if of.share is not None:
        return Course(of.part, f"Occlusion, {of.order}", "patches dropped, %", OCCLUSION, 100, "%"), of.share
    if of.severity is not None:
        return Course(of.part, of.corruption or of.part, "severity"), of.severity
    if of.attack in ATTACKS and of.epsilon is not None and of.norm is not None:
        steps = f", {of.steps:g} steps of {pixels_text(of.alpha)}" if of.alpha is not None else ""
        scale, unit = (255, "ε × 255") if of.norm == "linf" else (1, "ε")
        return Course(of.part, f"{ATTACKS[of.attack]}{steps}", f"{unit}, {NORMS[of.norm]}", "", scale), of.epsilon
    if of.strength is not None:
        return Course(of.part, ", ".join(filter(None, (of.part, of.kind))), "strength"), of.strength
    return None


def courses(measurements: Iterable[Measurement]) -> dict[Course, dict[float, str]]:
    """The names of the measurements by course and strength, weakest first."""
    found: dict[Course, dict[float, str]] = {}
    untouched: dict[str | None, str] = {}
    norms: dict[Course, str | None] = {}
    for each in measurements:
        place = course_of(each.of)
        if place is not None:
            found.setdefault(place[0], {})[place[1]] = each.name
            norms[place[0]] = each.of.norm
        elif each.of.attack == "none":  # where every attack of its norm starts
            untouched[each.of.norm] = each.name
    for course, names in found.items():
        if course.part in ("attacks", "autoattack") and norms[course] in untouched:
            names.setdefault(0.0, untouched[norms[course]])
    return {course: dict(sorted(names.items())) for course, names in found.items()}
