"""What a person sees of a training, and what is written down about it: bar, rows, metrics files."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from vitmix.lab.training.checkpoints import write_file
from vitmix.lab.training.output import Unfailing
from vitmix.lab.training.runs import METRICS

Row = dict[str, Any]


class MetricsFiles:
    """metrics.csv and metrics.jsonl: one row per epoch, the same in both; what is not finite is left out."""

    def __init__(self, folder: Path, columns: Iterable[str]) -> None:
        self.columns = tuple(columns)
        self.csv, self.jsonl = (folder / name for name in METRICS)

    def write(self, rows: list[Row]) -> None:
        """Writes the files with these rows: all of them, so that what a full disk kept out is made up for."""
        rows = [finite(row) for row in rows]
        write_file(self.csv, "".join([self._line(self.columns), *map(self._csv, rows)]).encode())
        write_file(self.jsonl, "".join(map(self._json, rows)).encode())

    def _csv(self, row: Row) -> str:
        return self._line(row.get(name, "") for name in self.columns)

    def _json(self, row: Row) -> str:
        return json.dumps(row, allow_nan=False) + "\n"

    @staticmethod
    def _line(values: Iterable[Any]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        return text.getvalue()


def finite(row: Row) -> Row:
    """A row without what is NaN or infinite, which JSON cannot hold."""
    return {name: value for name, value in row.items() if not isinstance(value, float) or math.isfinite(value)}


class Reporter:
    """A progress bar above a table where there is a terminal, plain lines elsewhere; only the first process talks."""

    def __init__(self, *, enabled: bool, epochs: int, updates: int, columns: Iterable[str]) -> None:
        self.enabled, self.epochs, self.updates = enabled, epochs, updates
        self.columns = tuple(columns)
        self.console = Console(file=sys.stdout and Unfailing(sys.stdout), highlight=False, soft_wrap=True)  # pyright: ignore[reportArgumentType]
        self.progress: Progress | None = None
        self._task = TaskID(0)
        self._header_shown = False

    @property
    def live(self) -> bool:
        return self.enabled and self.console.is_terminal

    def start(self, update: int) -> None:
        """Shows the bar, at this many updates."""
        if not self.live:
            return
        texts = ("{task.description}", "{task.percentage:3.0f} %", "{task.fields[status]}")
        self.progress = Progress(
            TextColumn(texts[0]), BarColumn(), *map(TextColumn, texts[1:]), console=self.console, transient=True
        )
        self._task = self.progress.add_task("", total=self.updates, completed=update, status="starting")
        self.progress.start()

    def stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self.enabled:
            self.console.print(text, markup=False)

    def update(self, *, epoch: int, update: int, loss: float, lr: float, rate: float, left: float) -> None:
        """Progress within an epoch: loss since its start, images per second, seconds to the end of training."""
        if not self.enabled:
            return
        status = f"{rate:,.0f} images/s  loss {loss:.4f}  lr {lr:.2e}  {duration(left)} left"
        if self.progress is not None:
            description = f"epoch {epoch}/{self.epochs}"
            self.progress.update(self._task, completed=update, description=description, status=status, refresh=True)
        else:
            self.say(f"epoch {epoch}/{self.epochs}  update {update}/{self.updates}  {status}")

    def row(self, row: Row) -> None:
        """An epoch's results as a row of a table."""
        cells = {name: _cell(name, row.get(name)) for name in self.columns}
        if not self._header_shown:
            self._header_shown = True
            self.say("  ".join(f"{name:>{_width(name)}}" for name in self.columns))
        self.say("  ".join(f"{cells[name]:>{_width(name)}}" for name in self.columns))


def _width(name: str) -> int:
    return max(len(name), 8)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if "accuracy" in name:
        return f"{100 * value:.2f} %"
    if name == "lr":
        return f"{value:.2e}"
    if name == "seconds":
        return duration(value)
    if name == "images/s":
        return f"{value:,.0f}"
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def duration(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
