"""The page of a report: sections from top to bottom, each a function of the groups of runs."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from vitmix import __version__
from vitmix.lab.plotting.canvas import OWN, PARTNER
from vitmix.lab.writing import write_file

from . import dense, images
from .curves import curves
from .groups import Group, every_run, find_runs, group_runs
from .html import Html, templates
from .measurements import robustness
from .mistakes import calibration, classes, confusions
from .studies import studies
from .summaries import cost, results, runs, settings


class PageSection(NamedTuple):
    """A section of the page; without content it is left out."""

    anchor: str
    title: str
    content: Sequence[Html]


def write_report(
    places: Sequence[Path], output: Path, *, examples: int = 5, say: Callable[[str], None] = lambda text: None
) -> int:
    """Writes the page of these runs, or of those in these folders; returns its size in bytes.

    Args:
        examples: largest number of stored mixed images for each method of a run; 0 for none.
    """
    if output.is_dir() or not output.parent.is_dir():
        raise ValueError(f"cannot write the page to {output}; name a file in a folder that exists")
    found, left_out = find_runs(places)
    for message in left_out:
        say(message)
    page = render(group_runs(found), examples=examples, notes=left_out)
    content = page.encode(errors="replace")  # JSON can hold halves of characters
    write_file(output, content)
    return len(content)


def render(
    groups: Sequence[Group],
    *,
    heading: str = "",
    first: Sequence[PageSection] = (),
    notes: Sequence[str] = (),
    examples: int = 0,
) -> str:
    """The whole page as text: `notes` at the top, then the `first` sections, then those of every report."""
    own = _dense_sections if groups[0].first.config.command == "transfer" else _sections
    sections = [*first, *own(groups, examples)]
    every = every_run(groups)
    data = ", ".join(sorted({run.config.data for run in every}))
    style, script = _text("style.css"), _text("sort.js")
    page = templates.get_template("page.html.j2")
    return page.render(
        title=heading or (groups[0].name if len(groups) == 1 else f"{len(groups)} configurations compared"),
        about=f"{len(every)} run{'s' * (len(every) > 1)} · {data}",
        script=script,
        policy=_policy(script),
        style=f":root {{ --own: {OWN}; --partner: {PARTNER}; }}\n{style}",
        notes=notes,
        sections=[section for section in sections if section.content],
        version=__version__,
    )


def _sections(groups: Sequence[Group], examples: int) -> list[PageSection]:
    return [
        PageSection("results", "Results", results(groups)),
        PageSection("curves", "Curves", curves(groups)),
        PageSection("examples", "What the model saw", images.examples(groups, examples)),
        PageSection("gallery", "Where the model looks", images.gallery(groups, examples)),
        PageSection("drawn", "Figures", images.figures(groups)),
        PageSection("classes", "Accuracy of each class", classes(groups)),
        PageSection("calibration", "Calibration", calibration(groups)),
        PageSection("confusions", "Most frequent mistakes", confusions(groups)),
        PageSection("robustness", "Robustness", robustness(groups)),
        PageSection("analyses", "Studies of mixing", studies(groups)),
        PageSection("cost", "Speed and cost", cost(groups)),
        PageSection("runs", "Runs", runs(groups)),
        PageSection("settings", "Configuration", settings(groups)),
    ]


def _dense_sections(groups: Sequence[Group], examples: int) -> list[PageSection]:
    """Those of transfers."""
    return [
        PageSection("results", "Results", dense.results(groups)),
        PageSection("curves", "Curves", curves(groups)),
        PageSection("predictions", "Predictions", dense.predictions(groups, examples)),
        PageSection("classes", "Scores of each class", dense.classes(groups)),
        PageSection("cost", "Speed and cost", cost(groups, {"parameters": dense.PARAMETERS})),
        PageSection("runs", "Runs", runs(groups)),
        PageSection("settings", "Configuration", settings(groups)),
    ]


def _text(name: str) -> str:
    return resources.files("vitmix.lab.report").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """What a browser may do for the page: run this one script, and load nothing."""
    sha256 = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{sha256}'"
