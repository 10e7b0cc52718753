"""`vitmix eval --suite`: what it takes, and what it writes."""

import argparse
import dataclasses
import json
import os
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitmix.commands._bar import bar

if TYPE_CHECKING:
    from vitmix.data.images import ImageSet
    from vitmix.evaluate import Robustness, Running, Subject

WHOLE = "robustness"  # every part that needs no folder
SETTINGS = (
    "limit",
    "attack_limit",
    "folders",
    "corruptions",
    "reference",
    "orders",
    "epsilons",
    "alphas",
    "steps",
    "cells",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("robustness", "accuracy on changed images, with intervals of 95 %")
    add = group.add_argument
    add(
        "--suite",
        metavar="NAME[,NAME]",
        help="robustness (all that needs no folders), or some of clean, noise, occlusion, corruptions, shifts, "
        "attacks, autoattack; a command that was stopped goes on where it was when it is run again",
    )
    add("--limit", type=int, metavar="N", help="take so many images at random")
    add("--attack-limit", type=int, metavar="N", help="the same for attacks (default: 1000)")
    add("--corruptions", nargs="+", metavar="NAME", help="some of ImageNet-C's (default: the 15 of the benchmark)")
    add("--reference", metavar="alexnet|FILE", help="errors that those under corruption are relative to, or their JSON")
    add("--orders", nargs="+", metavar="ORDER", help="of dropped patches: random, salient-first, salient-last")
    add(
        "--epsilons",
        nargs="+",
        metavar="E",
        help="largest change by attacks, in pixels of 0..1 (default: 1/255 4/255 8/255)",
    )
    add(
        "--alphas",
        nargs="+",
        metavar="A",
        help="steps of PGD, in pixels (default: .001 .003 .01 .03, as in TokenMixup)",
    )
    add("--steps", type=int, metavar="N", help="steps of PGD (default: 10)")
    add(
        "--folders",
        nargs="+",
        metavar="NAME=DIR",
        help="c=DIR reads a downloaded ImageNet-C; the suite shifts measures a=, r=, sketch=, stylized= and v2=DIR",
    )
    add("--cells", metavar="FOLDER", help="where answers are kept (default: RUN/robustness, or robustness here)")


def settings_of(namespace: argparse.Namespace) -> "Robustness | None":
    """What the flags ask for; None without --suite, which all others need."""
    from vitmix.evaluate import Robustness

    if namespace.suite is None:
        for name in SETTINGS:
            if getattr(namespace, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} goes with a suite; add --suite robustness")
        return None
    given: dict[str, Any] = {}
    for name in ("limit", "attack_limit", "reference", "steps"):
        given[name] = getattr(namespace, name)
    for name in ("corruptions", "orders"):
        given[name] = None if getattr(namespace, name) is None else tuple(getattr(namespace, name))
    for name in ("epsilons", "alphas"):
        texts = getattr(namespace, name)
        given[name] = None if texts is None else tuple(_number(text, name) for text in texts)
    folders = dict(_folder(text) for text in namespace.folders or ())
    parts: list[str] = []
    for name in namespace.suite.split(","):
        whole = [*Robustness().parts] + (["shifts"] if set(folders) - {"c"} else [])
        parts += whole if name.strip() == WHOLE else [name.strip()]
    return Robustness(
        parts=tuple(parts), folders=folders, **{name: value for name, value in given.items() if value is not None}
    )


def run_suite(
    settings: "Robustness",
    subject: "Subject",
    images: "ImageSet | None",
    running: "Running",
    *,
    cells: str | None,
    output: str | Path | None,
) -> int:
    from vitmix import __version__
    from vitmix.evaluate import text
    from vitmix.evaluate.robustness import Suite
    from vitmix.train.checkpoints import write_file

    folder = Path(cells or (subject.run or Path()) / "robustness")
    output = output or (None if subject.run is None else subject.run / "robustness.json")
    start = time.monotonic()
    try:
        with bar() as report:
            suite = Suite(subject, images, running, settings, folder=folder, progress=report)
            measurements = [each._asdict() for each in suite]
    except KeyboardInterrupt:
        print(f"Stopped. What was measured is kept in {folder}; the same command goes on from there.", file=sys.stderr)
        return 130
    found = {
        "weights": subject.weights,
        "model": subject.config.model,
        "data": suite.data,
        "measurements": measurements,
        "corruption_errors": suite.errors,
        "settings": {**dataclasses.asdict(settings), "folders": {key: str(at) for key, at in settings.folders.items()}},
        "precision": running.precision,
        "seconds": time.monotonic() - start,
        "broken_images": suite.broken,
        "remarks": suite.remarks,
        "vitmix": __version__,
    }
    print(text.describe_suite(found))  # first: a disk may be full by now
    if output is not None:
        write_file(Path(output), json.dumps(found, allow_nan=False).encode())
    return 0


def workers(given: int | None) -> int:
    """Corruptions are computed by the workers, so that every core helps even where pictures are in memory."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1) if given is None else given


def _number(text: str, name: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--{name} are numbers such as 0.03 or 8/255, got {text!r}") from None


def _folder(text: str) -> tuple[str, Path]:
    key, sign, place = text.partition("=")
    if not sign or not place:
        raise ValueError(f"--folders are written NAME=DIR, such as a=imagenet-a, got {text!r}")
    return key, Path(place)
