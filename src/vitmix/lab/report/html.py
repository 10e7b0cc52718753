"""Pieces of HTML. Every number of a page is a `<data>` element that says where it comes from."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from html import escape

from vitmix.lab.training.progress import duration

from .runs import Group, Run
from .svg import look

Shown = Callable[[float], str]
PERCENT: Shown = lambda value: f"{100 * value:.2f} %"  # noqa: E731
LOSS: Shown = lambda value: f"{value:.4f}"  # noqa: E731
COUNT: Shown = lambda value: f"{value:,.0f}"  # noqa: E731
TIME: Shown = duration
GIGA: Shown = lambda value: f"{value / 1e9:.4g} G"  # noqa: E731
NONE = '<span class="soft">–</span>'


def number(run: Run, source: str, shown: Shown) -> str:
    """A number of a run, with its full value and its place in the run folder as attributes."""
    value = run.value(source)
    if value is None:
        return NONE
    return f'<data value="{value!r}" data-run="{run.number}" data-from="{escape(source)}">{shown(value)}</data>'


def spread(group: Group, source: str, shown: Shown) -> str:
    """Mean ± sample standard deviation over the group's runs; the number itself where one run has it."""
    values = group.values(source)
    if len(values) < 2:
        return next((number(run, source, shown) for run in group.runs if run.value(source) is not None), NONE)
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    where = f'data-group="{group.number}" data-from="{escape(source)}"'
    return (
        f'<data value="{mean!r}" data-of="mean" {where}>{shown(mean)}</data>'
        f' ± <data value="{deviation!r}" data-of="deviation" {where}>{shown(deviation)}</data>'
    )


def total(group: Group, source: str) -> str:
    """A count, added up over the group's runs."""
    value = sum(group.values(source))
    where = f'data-of="total" data-group="{group.number}" data-from="{escape(source)}"'
    return f'<data value="{value!r}" {where}>{value:,}</data>'


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    kind: str = "",
    marked: Sequence[bool] | None = None,
) -> str:
    """Cells are HTML already; the last cell of a short row goes on to the end. `marked` rows stand out."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = []
    for index, row in enumerate(rows):
        wide = f' colspan="{len(head) - len(row) + 1}"' if len(row) < len(head) else ""
        cells = [f"<td>{cell}</td>" for cell in row[:-1]] + [f"<td{wide}>{row[-1]}</td>"]
        body.append(f"<tr{' class=different' * bool(marked and marked[index])}>{''.join(cells)}</tr>")
    inside = f"<thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody>"
    said = f'<p class="soft">{caption}</p>' if caption else ""
    return f'<div class="scroll"><table class="{kind}">{inside}</table></div>{said}'


def key(group: Group) -> str:
    """A group's name with its color and dashes."""
    return f'<span class="key {look(group.number)}"><span>{escape(group.name)}</span></span>'


def legend(groups: Sequence[Group]) -> str:
    if len(groups) < 2:
        return ""
    return '<ul class="legend">' + "".join(f"<li>{key(group)}</li>" for group in groups) + "</ul>"


def section(name: str, title: str, *content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{"".join(content)}</section>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
