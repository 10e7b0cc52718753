"""How pictures and models share a sheet: as rows, or as columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitmix.lab.show.pictures import Picture

from .sheet import Band, Panel, Row, Sheet, as_pixels, overlay, unit_scale
from .sights import Look, Shot, Sight, shots_of


@dataclass(frozen=True)
class Subjects:
    """What all kinds take: models, pictures, and methods that mix neighboring pictures."""

    sights: Sequence[Sight]
    pictures: Sequence[Picture]
    methods: Sequence[str] = ()
    seed: int = 0

    def shots(self, methods: Sequence[str] | None = None) -> list[Shot]:
        return shots_of(self.pictures, self.methods if methods is None else methods)

    def footer(self, shots: Sequence[Shot], *words: str) -> str:
        untrained = [sight.name for sight in self.sights if not sight.trained]
        warning = f"UNTRAINED, so this means nothing: {', '.join(untrained)}." if untrained else ""
        model = f"Model: {self.sights[0].name}." if len(self.sights) == 1 else ""
        mixed = {shot.method for shot in shots if shot.method is not None}
        method = f"Mixed by {min(mixed)}." if len(mixed) == 1 else ""
        return "  ".join(each for each in (*words, method, model, warning) if each)


def banded(
    subjects: Subjects, row: Callable[[Sight, Shot], tuple[tuple[str, ...], list[Panel]]], shots: Sequence[Shot]
) -> tuple[Band, ...]:
    """Rows of every shot through every model; models whose columns differ get a band of their own."""
    bands: dict[tuple[str, ...], list[Row]] = {}
    for shot in shots:
        for sight in subjects.sights:
            heads, panels = row(sight, shot)
            said = [_method(shot, shots), sight.name if len(subjects.sights) > 1 else ""]
            bands.setdefault(heads, []).append(Row(tuple(panels), "\n".join(filter(None, said))))
    return tuple(Band(heads, tuple(rows), lead=1) for heads, rows in bands.items())


def columns(
    subjects: Subjects,
    shots: Sequence[Shot],
    look_at: Callable[[Sight, Shot], tuple[Look, list[Panel]]],
    parts: Sequence[str],
    *,
    footer: str,
    ends: tuple[str, str] = ("least", "most"),
) -> Sheet:
    """The picture, then what each model gives, in as many columns as there are `parts` of it.

    Where a method mixes by what the model sees, each model has a picture of its own.
    """
    found = [[look_at(sight, shot) for sight in subjects.sights] for shot in shots]
    alike = all(torch.equal(seen.pixels, row[0][0].pixels) for row in found for seen, _ in row)
    heads: list[str] = []
    for number, sight in enumerate(subjects.sights):
        name = sight.name if len(subjects.sights) > 1 else ""
        heads += [": ".join(filter(None, ("" if alike else name, "picture")))] if not (alike and number) else []
        heads += [": ".join(filter(None, (name, part))) for part in parts]
    rows = []
    for shot, row in zip(shots, found, strict=True):
        panels: list[Panel] = []
        for number, (seen, maps) in enumerate(row):
            panels += [*([] if alike and number else [picture_panel(seen, shot)]), *maps]
        rows.append(Row(tuple(panels), _method(shot, shots)))
    unit = len(parts) + (not alike)
    return Sheet((Band(tuple(heads), tuple(rows), lead=int(alike), unit=unit),), footer, "heat", ends)


def _method(shot: Shot, shots: Sequence[Shot]) -> str:
    """The method of a shot, where it tells shots apart."""
    return shot.method or "" if len({each.method for each in shots}) > 1 else ""


def picture_panel(seen: Look, shot: Shot) -> Panel:
    if shot.method in (None, "none"):  # other methods that took nothing of the partner say so
        return Panel(as_pixels(seen.pixels), shot.pictures[0].name)
    parts = zip(shot.pictures, (seen.own, seen.partner), strict=True)
    return Panel(as_pixels(seen.pixels), "\n".join(f"{picture.name} {part:.0%}" for picture, part in parts))


def heat_panel(seen: Look, values: Tensor) -> Panel:
    return Panel(overlay(seen.pixels, unit_scale(values), "heat"))
