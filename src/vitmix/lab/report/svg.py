"""Charts as inline SVG: small, crisp at any size, and colored by the page's own style sheet.

Scales are computed here; macros in `templates/blocks.html.j2` write the shapes.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vitmix.lab.runs import Bin, Run

from .groups import Group
from .html import Html, html

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 8, 10, 34
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A curve of group `group`; `kind` is mean (thick) or seed (thin), or band, the outline of an area."""

    group: int
    points: Points
    label: str
    kind: str = "mean"


def band(group: int, low: Points, high: Points) -> Line:
    """The area between two curves over the same x."""
    return Line(group, [*low, *reversed(high)], "", "band")


def course_lines(groups: Iterable[Group], points: Callable[[Run], Points]) -> list[Line]:
    """Curves of the runs and, for a group of several, their mean at each x that all of them have."""
    lines: list[Line] = []
    for group in groups:
        kind = "seed" if len(group.runs) > 1 else "mean"
        own = [Line(group.number, points(run), group.label(run), kind) for run in group.runs.values()]
        lines += [line for line in own if line.points]
        mean = [(x, statistics.fmean(values)) for x, values in shared(group, points).items()]
        lines += [Line(group.number, mean, f"{group.name}, mean")] if mean else []
    return lines


def shared(group: Group, points: Callable[[Run], Points]) -> dict[float, list[float]]:
    """The values of several runs, at every x that all of them have."""
    tables = [dict(points(run)) for run in group.runs.values()]
    xs = sorted(set.intersection(*map(set, tables))) if len(tables) > 1 else []
    return {x: [each[x] for each in tables] for x in xs}


@dataclass(frozen=True)
class Axes:
    """The ranges of x and y, the ticks between them, and where a value lies in the view box."""

    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    percent: tuple[bool, bool] = (False, False)
    width, height = WIDTH, HEIGHT
    left, right, top, floor, middle = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM, (LEFT + WIDTH - RIGHT) / 2

    def place(self, x: float, y: float) -> tuple[float, float]:
        x_span, y_span = self.x[1] - self.x[0], (self.y[1] - self.y[0]) or 1.0
        across = (x - self.x[0]) / x_span if x_span > 0 else 0.5
        up = (y - self.y[0]) / y_span
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def path(self, points: Points) -> str:
        return " ".join("{:.2f},{:.2f}".format(*self.place(*point)) for point in points)

    @property
    def x_marks(self) -> list[tuple[float, str]]:
        """Positions and labels."""
        found = [(round(self.place(tick, 0)[0], 1), _label(tick, self.percent[0])) for tick in self.x_ticks]
        return [(x, label) for x, label in found if LEFT - 1 <= x <= WIDTH - RIGHT + 1]

    @property
    def y_marks(self) -> list[tuple[float, str]]:
        return [(round(self.place(0, tick)[1], 1), _label(tick, self.percent[1])) for tick in self.y_ticks]


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    shown: Callable[[float], str] = lambda value: f"{100 * value:.3g} %",
    x_name: str,
    x_range: tuple[float, float] | None = None,
    percent: bool = False,
) -> Html:
    """Curves over a common x.

    Args:
        shown: writes a value of a curve.
        x_range: range of the x-axis (default: that of the data).
        percent: whether the y-axis is in percent.
    """
    xs, ys = zip(*(point for line in lines for point in line.points), strict=True)
    x_range = x_range or (min(xs), max(xs))
    x_ticks = ticks(*x_range) if x_range[0] < x_range[1] else [x_range[0]]
    if all(float(x).is_integer() for x in xs):  # epochs and blocks are whole numbers
        x_ticks = [tick for tick in x_ticks if float(tick).is_integer()]
    y_ticks = ticks(min(ys), max(ys))
    axes = Axes(x_range, (y_ticks[0], y_ticks[-1]), x_ticks, y_ticks, (False, percent))
    order = {kind: place for place, kind in enumerate(("band", "seed", "mean"))}
    return html.line_chart(axes, title, x_name, sorted(lines, key=lambda line: order[line.kind]), shown)


def reliability_chart(title: str, bins: Sequence[Bin], group: int) -> Html:
    """The accuracy of predictions by their confidence."""
    marks = [0, 0.2, 0.4, 0.6, 0.8, 1]
    return html.reliability_chart(Axes((0, 1), (0, 1), marks, marks, (True, True)), title, group, list(enumerate(bins)))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers that enclose [low, high]."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return [0.0, 1.0]
    if high - low <= 1e-300:  # too close to be divided
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    rough = (high - low) / most
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _label(tick: float, percent: bool) -> str:
    return f"{100 * tick:,.6g} %" if percent else f"{tick:,.6g}"  # enough digits, because ticks are round
