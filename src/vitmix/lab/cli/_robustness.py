"""`vitmix eval --suite`: what it takes, and what it writes."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vitmix.lab.cli._bar import bar
from vitmix.lab.cli._parser import flag
from vitmix.lab.environment import available_cores
from vitmix.lab.settings import Folder, Name, Settings, option

if TYPE_CHECKING:
    from vitmix.lab.data.images import ImageSet
    from vitmix.lab.evaluation import Robustness, Running, Subject

Pixels = Annotated[str, "NUMBER"]
ATTACKS = ("attacks", "autoattack")
PARTS_OF = {  # options that apply to these parts alone
    "attack_limit": ATTACKS,
    "corruptions": ("corruptions",),
    "reference": ("corruptions",),
    "orders": ("occlusion",),
    "norm": ATTACKS,
    "epsilons": ATTACKS,
    "alphas": ("attacks",),
    "steps": ("attacks",),
}


@dataclass(frozen=True, kw_only=True)
class SuiteSettings(Settings):
    """What to measure besides accuracy. None: the suite's defaults, which stand in `Robustness`."""

    section = "Robustness: accuracy on changed images, with 95 % intervals"

    suite: Annotated[str, "NAME[,NAME]"] | None = option(
        None,
        "robustness (all that is possible), or some of clean, noise, occlusion, corruptions, shifts, attacks, "
        "autoattack; a stopped suite resumes when rerun",
    )
    limit: int | None = option(None, "number of images, chosen at random (default: all)")
    attack_limit: int | None = option(None, "the same for attacks (default: 1000)")
    corruptions: tuple[Name, ...] = option((), "some of ImageNet-C's (default: the 15 of the benchmark)")
    reference: Annotated[str, "alexnet|FILE"] | None = option(
        None, "normalize corruption errors by AlexNet's, or by those of a JSON file"
    )
    orders: tuple[Name, ...] = option((), "of dropped patches: random, salient-first, salient-last")
    norm: Literal["linf", "l2"] | None = option(None, "norm that bounds attacks (default: linf)")
    epsilons: tuple[Pixels, ...] = option((), "bounds, in pixels of 0..1 (default: 1/255 4/255 8/255; l2: .25 .5 1)")
    alphas: tuple[Pixels, ...] = option(
        (), "step sizes of PGD, in pixels (default: .001 .003 .01 .03, as in TokenMixup; l2: .05 .1 .2)"
    )
    steps: int | None = option(None, "steps of PGD (default: 10)")
    folders: tuple[Annotated[str, "NAME=DIR"], ...] = option(
        (),
        "c=DIR reads a downloaded ImageNet-C, CIFAR-10-C or CIFAR-100-C; the suite shifts measures a=, r=, sketch=, "
        "stylized= and v2=DIR of ImageNet",
    )
    cells: Folder | None = option(None, "where answers are kept (default: RUN/robustness, or robustness here)")


def suite_of(settings: SuiteSettings) -> "Robustness | None":
    """What the flags ask for; None without --suite, which all others need."""
    from vitmix.lab.evaluation import Robustness

    named = {name: getattr(settings, name) for name in ("limit", "folders", "cells", *PARTS_OF)}
    given: dict[str, Any] = {name: value for name, value in named.items() if value not in (None, ())}
    if settings.suite is None:
        for name in given:
            raise ValueError(f"{flag(name)} goes with a suite; add --suite robustness")
        return None
    given.pop("cells", None)
    given["folders"] = dict(map(_folder, settings.folders))
    for name in ("epsilons", "alphas"):
        if name in given:
            given[name] = tuple(pixels_of(text, name) for text in given[name])
    suite = Robustness(parts=tuple(name.strip() for name in settings.suite.split(",")), **given)
    for name, owners in PARTS_OF.items():
        if name in given and not set(owners) & set(suite.measured):
            raise ValueError(
                f"{flag(name)} applies to the suite {' or '.join(owners)}, which --suite {settings.suite} does not "
                "measure; add it there, or leave the option out"
            )
    return suite


def run_suite(
    suite: "Robustness",
    subject: "Subject",
    images: "ImageSet | None",
    running: "Running",
    *,
    own: bool,
    cells: str | None,
    output: str | None,
) -> int:
    """`own`: a run's best weights are measured on its own data, so that the result belongs into its folder."""
    from vitmix.lab.evaluation.describe import describe_suite
    from vitmix.lab.evaluation.robustness import Suite
    from vitmix.lab.runs import Run
    from vitmix.lab.writing import write_file

    folder = Path(cells or (subject.run or Path()) / "robustness")
    if folder.is_file():
        raise ValueError(f"--cells keeps answers in a folder, and {str(folder)!r} is a file; name a folder")
    start = time.monotonic()
    try:
        with bar() as report:
            measured = Suite(subject, images, running, suite, folder=folder, progress=report)
            measurements = list(measured)
    except KeyboardInterrupt:
        print(f"Stopped. What was measured is kept in {folder}; the same command resumes.", file=sys.stderr)
        return 130
    found = measured.results(measurements, seconds=time.monotonic() - start)
    print(describe_suite(found))  # first: a disk may be full by now
    written = []
    if subject.run is not None and own:
        written.append(str(Run(subject.run).write_robustness(found)))
    if output:
        write_file(Path(output), found.encoded())
        written.append(output)
    print(f"Written to {' and '.join(written)}." if written else "Add --output FILE to have the numbers as JSON.")
    return 0


def workers(given: int | None) -> int:
    """Corruptions are computed by the workers, so that every core helps even if images are in memory."""
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
