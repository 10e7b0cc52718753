"""Charts as inline SVG: small, crisp at any size, and colored by the page's own style sheet."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 8, 10, 34
COLORS, DASHES = 8, 4  # of the style sheet
Points = Sequence[tuple[float, float]]


def look(group: int) -> str:
    """The classes that a group's curves and its name in legends have: a color, and dashes once all colors are taken."""
    dashes = group // COLORS % DASHES
    return f"g{group % COLORS}" + (f" d{dashes}" if dashes else "")


@dataclass(frozen=True)
class Line:
    """A curve of group `group`; `kind` is mean (thick) or seed (thin)."""

    group: int
    points: Points
    label: str
    kind: str = "mean"


@dataclass(frozen=True)
class Band:
    """The area between two curves over the same x."""

    group: int
    low: Points
    high: Points


def line_chart(
    title: str,
    lines: Sequence[Line],
    bands: Sequence[Band] = (),
    *,
    shown: Callable[[float], str],
    x_name: str,
    x_range: tuple[float, float] | None = None,
    percent: bool = False,
) -> str:
    """Curves over a common x. `shown` writes a value; `percent` is for the y-axis; `x_range` is the points' if none."""
    points = [point for line in lines for point in line.points] + [p for b in bands for p in (*b.low, *b.high)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_range = x_range or (min(xs), max(xs))
    x_ticks = ticks(*x_range) if x_range[0] < x_range[1] else [x_range[0]]
    if all(float(x).is_integer() for x in xs):  # there is no epoch and no block one and a half
        x_ticks = [tick for tick in x_ticks if float(tick).is_integer()]
    y_ticks = ticks(min(ys), max(ys))
    y_range = (y_ticks[0], y_ticks[-1])
    place = _placer(x_range, y_range)
    marked = _percents if percent else _plain
    parts = [_open(title, x_range, y_range), _grid(x_ticks, y_ticks, place, _plain, marked, x_name)]
    for band in bands:
        outline = " ".join(_at(place, point) for point in (*band.low, *reversed(band.high)))
        parts.append(f'<polygon class="band {look(band.group)}" points="{outline}"/>')
    for line in sorted(lines, key=lambda each: each.kind == "mean"):
        path = " ".join(_at(place, point) for point in line.points)
        said = escape(f"{line.label}: {shown(line.points[-1][1])} at {line.points[-1][0]:g}")
        shape = f'<polyline class="{line.kind} {look(line.group)}" points="{path}"><title>{said}</title></polyline>'
        if len(line.points) == 1:
            x, y = place(*line.points[0])
            shape = (
                f'<circle class="dot {look(line.group)}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{said}</title></circle>'
            )
        parts.append(shape)
    return "".join([*parts, "</svg>"])


def reliability_chart(title: str, bins: Sequence[dict[str, float]], group: int) -> str:
    """Accuracy of the predictions of each bin of confidence; on the diagonal a model is as right as it is sure."""
    place = _placer((0, 1), (0, 1))
    marks = [0, 0.2, 0.4, 0.6, 0.8, 1]
    percent = lambda value: f"{100 * value:.0f} %"  # noqa: E731
    parts = [_open(title, (0, 1), (0, 1)), _grid(marks, marks, place, percent, percent, "confidence")]
    most = max(row["count"] for row in bins)
    for number, row in enumerate(bins):
        if not row["count"]:
            continue
        left, top = place(number / len(bins), row["accuracy"])
        right, bottom = place((number + 1) / len(bins), 0)
        said = f"{row['count']:,} images: {100 * row['accuracy']:.1f} % right, {100 * row['confidence']:.1f} % sure"
        faint = 0.25 + 0.75 * math.sqrt(row["count"] / most)
        parts.append(
            f'<rect class="bar {look(group)}" x="{left + 0.5:.2f}" y="{top:.2f}" width="{right - left - 1:.2f}" '
            f'height="{bottom - top:.2f}" fill-opacity="{faint:.2f}" data-bin="{number}"><title>{said}</title></rect>'
        )
    start, end = place(0, 0), place(1, 1)
    parts.append(f'<line class="diagonal" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>')
    return "".join([*parts, "</svg>"])


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


def _plain(tick: float) -> str:
    return f"{tick:,.6g}"  # ticks are round, so this is all of their digits and no more


def _percents(tick: float) -> str:
    return f"{_plain(100 * tick)} %"


Place = Callable[[float, float], tuple[float, float]]


def _placer(x_range: tuple[float, float], y_range: tuple[float, float]) -> Place:
    x_span = (x_range[1] - x_range[0]) or 1.0
    y_span = (y_range[1] - y_range[0]) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_range[0]) / x_span if x_range[1] > x_range[0] else 0.5
        up = (y - y_range[0]) / y_span
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    return place


def _at(place: Place, point: tuple[float, float]) -> str:
    x, y = place(*point)
    return f"{x:.2f},{y:.2f}"


def _open(title: str, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    ranges = " ".join(repr(float(each)) for each in (*x_range, *y_range))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" data-ranges="{ranges}">'
        f"<title>{escape(title)}</title>"
    )


def _grid(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    place: Place,
    x_shown: Callable[[float], str],
    y_shown: Callable[[float], str],
    x_name: str,
) -> str:
    floor, left, right = HEIGHT - BOTTOM, LEFT, WIDTH - RIGHT
    parts = []
    for tick in y_ticks:
        _, y = place(0, tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{escape(y_shown(tick))}</text>')
    for tick in x_ticks:
        x, _ = place(tick, y_ticks[0])
        if left - 1 <= x <= right + 1:
            anchor = "end" if x > right - 12 else "middle"
            parts.append(f'<text x="{x:.1f}" y="{floor + 14}" text-anchor="{anchor}">{escape(x_shown(tick))}</text>')
    parts.append(
        f'<text class="axis" x="{(left + right) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_name)}</text>'
    )
    return "".join(parts)
