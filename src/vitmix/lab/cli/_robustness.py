"""`vitmix eval --suite`: what it takes, and what it writes."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitmix.lab.cli._bar import bar
from vitmix.lab.environment import available_cores

if TYPE_CHECKING:
    from vitmix.lab.data.images import ImageSet
    from vitmix.lab.evaluation import Robustness, Running, Subject

ATTACKS = ("attacks", "autoattack")
PARTS_OF = {  # options that say something of these parts alone
    "attack_limit": ATTACKS,
    "corruptions": ("corruptions",),
    "reference": ("corruptions",),
    "orders": ("occlusion",),
    "norm": ATTACKS,
    "epsilons": ATTACKS,
    "alphas": ("attacks",),
    "steps": ("attacks",),
}
SETTINGS = ("limit", "folders", "cells", *PARTS_OF)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("robustness", "accuracy on changed images, with intervals of 95 %")
    add = group.add_argument
    add(
        "--suite",
        metavar="NAME[,NAME]",
        help="robustness (all that is possible), or some of clean, noise, occlusion, corruptions, shifts, attacks, "
        "autoattack; a command that was stopped goes on where it was when it is run again",
    )
    add("--limit", type=int, metavar="N", help="take so many images at random")
    add("--attack-limit", type=int, metavar="N", help="the same for attacks (default: 1000)")
    add("--corruptions", nargs="+", metavar="NAME", help="some of ImageNet-C's (default: the 15 of the benchmark)")
    add("--reference", metavar="alexnet|FILE", help="errors that those under corruption are relative to, or their JSON")
    add("--orders", nargs="+", metavar="ORDER", help="of dropped patches: random, salient-first, salient-last")
    add(
        "--norm",
        choices=("linf", "l2"),
        help="what attacks bound: the largest change of a value, or its Euclidean length",
    )
    add(
        "--epsilons",
        nargs="+",
        metavar="E",
        help="those bounds, in pixels of 0..1 (default: 1/255 4/255 8/255; l2: .25 .5 1)",
    )
    add(
        "--alphas",
        nargs="+",
        metavar="A",
        help="steps of PGD, in pixels (default: .001 .003 .01 .03, as in TokenMixup; l2: .05 .1 .2)",
    )
    add("--steps", type=int, metavar="N", help="steps of PGD (default: 10)")
    add(
        "--folders",
        nargs="+",
        metavar="NAME=DIR",
        help="c=DIR reads a downloaded ImageNet-C, CIFAR-10-C or CIFAR-100-C; the suite shifts measures a=, r=, "
        "sketch=, stylized= and v2=DIR of ImageNet",
    )
    add("--cells", metavar="FOLDER", help="where answers are kept (default: RUN/robustness, or robustness here)")


def settings_of(namespace: argparse.Namespace) -> "Robustness | None":
    """What the flags ask for; None without --suite, which all others need."""
    from vitmix.lab.evaluation import Robustness

    if namespace.suite is None:
        for name in SETTINGS:
            if getattr(namespace, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} goes with a suite; add --suite robustness")
        return None
    given: dict[str, Any] = {}
    for name in ("limit", "attack_limit", "reference", "norm", "steps"):
        given[name] = getattr(namespace, name)
    for name in ("corruptions", "orders"):
        given[name] = None if getattr(namespace, name) is None else tuple(getattr(namespace, name))
    for name in ("epsilons", "alphas"):
        texts = getattr(namespace, name)
        given[name] = None if texts is None else tuple(pixels_of(text, name) for text in texts)
    folders = dict(_folder(text) for text in namespace.folders or ())
    parts = tuple(name.strip() for name in namespace.suite.split(","))
    given = {name: value for name, value in given.items() if value is not None}
    settings = Robustness(parts=parts, folders=folders, **given)
    for name, owners in PARTS_OF.items():
        if name in given and not set(owners) & set(settings.measured):
            raise ValueError(
                f"--{name.replace('_', '-')} is of the suite {' or '.join(owners)}, which --suite {namespace.suite} "
                "does not measure; add it there, or leave the option out"
            )
    return settings


def run_suite(
    settings: "Robustness",
    subject: "Subject",
    images: "ImageSet | None",
    running: "Running",
    *,
    own: bool,
    cells: str | None,
    output: str | None,
) -> int:
    """`own`: a run's best weights are measured on its own data, so that the result belongs into its folder."""
    from vitmix.lab.evaluation import text
    from vitmix.lab.evaluation.results import keep_in_run, results_of
    from vitmix.lab.evaluation.robustness import Suite
    from vitmix.lab.training.checkpoints import write_file

    folder = Path(cells or (subject.run or Path()) / "robustness")
    if folder.is_file():
        raise ValueError(f"--cells keeps answers in a folder, and {str(folder)!r} is a file; name a folder")
    start = time.monotonic()
    try:
        with bar() as report:
            suite = Suite(subject, images, running, settings, folder=folder, progress=report)
            measurements = list(suite)
    except KeyboardInterrupt:
        print(f"Stopped. What was measured is kept in {folder}; the same command goes on from there.", file=sys.stderr)
        return 130
    found = results_of(suite, measurements, seconds=time.monotonic() - start)
    print(text.describe_suite(found))  # first: a disk may be full by now
    written = []
    if subject.run is not None and own:
        written.append(str(keep_in_run(subject.run, found)))
    if output:
        write_file(Path(output), json.dumps(found, allow_nan=False).encode())
        written.append(output)
    print(f"Written to {' and '.join(written)}." if written else "Add --output FILE to have the numbers as JSON.")
    return 0


def workers(given: int | None) -> int:
    """Corruptions are computed by the workers, so that every core helps even where pictures are in memory."""
    return min(8, available_cores()) if given is None else given


def pixels_of(text: str, name: str) -> float:
    """A number as people write bounds and steps in pixels."""
    above, _, below = text.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--{name} are numbers such as 0.03 or 8/255, got {text!r}") from None


def _folder(text: str) -> tuple[str, Path]:
    key, sign, place = text.partition("=")
    if not sign or not place:
        raise ValueError(f"--folders are written NAME=DIR, such as a=imagenet-a, got {text!r}")
    return key, Path(place)
