"""The page of a report: sections from top to bottom, each a function of the groups of runs."""

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from vitmix import __version__
from vitmix.lab.plotting.canvas import OWN, PARTNER
from vitmix.lab.writing import write_file

from .cost import cost, runs, settings
from .curves import curves
from .groups import Group, every_run, find_runs, group_runs
from .html import Html, html, templates
from .images import examples, figures, gallery
from .measurements import robustness
from .mistakes import calibration, classes, confusions
from .scores import results
from .studies import studies


class Section(NamedTuple):
    """A part of the page; one without content is left out."""

    anchor: str
    title: str
    content: Sequence[Html]


def write_report(
    places: Sequence[Path], output: Path, *, examples: int = 5, say: Callable[[str], None] = lambda text: None
) -> int:
    """Writes the page of these runs, or of those in these folders; returns its size in bytes.

    Args:
        examples: mixed images for each method that a run switches between, as far as they are stored; 0 for none.
    """
    if output.is_dir() or not output.parent.is_dir():
        raise ValueError(f"cannot write the page to {output}; name a file in a folder that exists")
    found, left_out = find_runs(places)
    for sentence in left_out:
        say(sentence)
    page = render(group_runs(found), examples=examples, notes=left_out)
    content = page.encode(errors="replace")  # JSON can hold halves of characters
    write_file(output, content)
    return len(content)


def render(
    groups: Sequence[Group],
    *,
    heading: str = "",
    first: Sequence[Section] = (),
    notes: Sequence[str] = (),
    examples: int = 0,
) -> str:
    """The whole page as text: `notes` at the top, then the `first` sections, then those of every report."""
    sections = [*first, *_sections(groups, examples)]
    every = every_run(groups)
    data = ", ".join(sorted({run.config.data for run in every}))
    style = resources.files("vitmix.lab.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            title=heading or (groups[0].name if len(groups) == 1 else f"{len(groups)} configurations compared"),
            about=f"{len(every)} run{'s' * (len(every) > 1)} · {data}",
            style=f":root {{ --own: {OWN}; --partner: {PARTNER}; }}\n{style}",
            notes=list(map(html.note, notes)),
            sections=[section for section in sections if section.content],
            version=__version__,
        )
    )


def _sections(groups: Sequence[Group], count: int) -> list[Section]:
    return [
        Section("results", "Results", results(groups)),
        Section("curves", "Curves", curves(groups)),
        Section("examples", "What the model saw", examples(groups, count)),
        Section("gallery", "Where the model looks", gallery(groups, count)),
        Section("drawn", "Figures", figures(groups)),
        Section("classes", "Accuracy of each class", classes(groups)),
        Section("calibration", "Calibration", calibration(groups)),
        Section("confusions", "Most frequent mistakes", confusions(groups)),
        Section("robustness", "Robustness", robustness(groups)),
        Section("analyses", "Studies of mixing", studies(groups)),
        Section("cost", "Speed and cost", cost(groups)),
        Section("runs", "Runs", runs(groups)),
        Section("settings", "Configuration", settings(groups)),
    ]
