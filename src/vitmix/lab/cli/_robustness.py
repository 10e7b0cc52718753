"""`vitmix eval --suite`: what it takes, and what it writes."""

import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitmix.lab.cli._bar import bar
from vitmix.lab.cli._parser import flag
from vitmix.lab.environment import available_cores
from vitmix.lab.settings import Folder, option, usual
from vitmix.lab.suite import PARTS, WHOLE, Robustness, SuiteOptions

if TYPE_CHECKING:
    from vitmix.lab.data.images import ImageSet
    from vitmix.lab.evaluation.subject import Running, Subject

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
class SuiteSettings(SuiteOptions):
    """What to measure besides accuracy."""

    section = SuiteOptions.section

    suite: Annotated[str, "NAME[,NAME]"] | None = option(
        None, f"{WHOLE} (all that apply), or some of {', '.join(PARTS)}; a stopped suite resumes when rerun"
    )
    folders: tuple[Annotated[str, "NAME=DIR"], ...] = option(
        (),
        "c=DIR reads a downloaded ImageNet-C, CIFAR-10-C or CIFAR-100-C; the suite shifts measures a=, r=, sketch=, "
        "stylized= and v2=DIR of ImageNet",
    )
    cells: Folder | None = option(
        None, "where predictions are stored, so that the suite can resume (default: RUN/robustness, or ./robustness)"
    )


def suite_of(settings: SuiteSettings) -> Robustness | None:
    """What the flags ask for; None without --suite, which all others need."""
    values = {each.name: getattr(settings, each.name) for each in fields(SuiteSettings)}
    given = [name for name, value in values.items() if value != usual(SuiteSettings, name)]
    if settings.suite is None:
        for name in given:
            raise ValueError(f"{flag(name)} needs a suite; add --suite {WHOLE}")
        return None
    options = {each.name: values[each.name] for each in fields(SuiteOptions)}
    parts = tuple(name.strip() for name in settings.suite.split(","))
    suite = Robustness(parts=parts, folders=dict(map(_folder, settings.folders)), **options)
    for name, owners in PARTS_OF.items():
        if name in given and not set(owners) & set(suite.measured):
            raise ValueError(
                f"{flag(name)} applies to the suite {' or '.join(owners)}, which --suite {settings.suite} does not "
                "include; add it there, or remove the option"
            )
    return suite


def run_suite(
    suite: Robustness,
    subject: "Subject",
    images: "ImageSet | None",
    running: "Running",
    *,
    own: bool,
    cells: str | None,
    output: str | None,
) -> int:
    """`own`: a run's best weights are measured on its own data, so the result belongs in its folder."""
    from vitmix.lab.evaluation.describe import describe_suite
    from vitmix.lab.evaluation.robustness import Suite
    from vitmix.lab.runs import Run
    from vitmix.lab.writing import write_file

    folder = Path(cells or (subject.run or Path()) / "robustness")
    if folder.is_file():
        raise ValueError(f"--cells must be a folder; {str(folder)!r} is a file")
    start = time.monotonic()
    try:
        with bar() as report:
            measured = Suite(subject, images, running, suite, folder=folder, progress=report)
            measurements = list(measured)
    except KeyboardInterrupt:
        print(f"Stopped. Finished conditions are stored in {folder}; rerun the command to resume.", file=sys.stderr)
        return 130
    found = measured.results(measurements, seconds=time.monotonic() - start)
    print(describe_suite(found))  # first: a disk may be full by now
    written = []
    if subject.run is not None and own:
        written.append(str(Run(subject.run).write_robustness(found)))
    if output:
        write_file(Path(output), found.encoded())
        written.append(output)
    print(f"Written to {' and '.join(written)}." if written else "Add --output FILE to write the numbers as JSON.")
    return 0


def workers(given: int | None) -> int:
    """Corruptions are computed by the workers, so that every core helps even if images are in memory."""
    return min(8, available_cores()) if given is None else given


def _folder(text: str) -> tuple[str, Path]:
    key, sign, place = text.partition("=")
    if not sign or not place:
        raise ValueError(f"--folders are written NAME=DIR, such as a=imagenet-a, got {text!r}")
    return key, Path(place)
