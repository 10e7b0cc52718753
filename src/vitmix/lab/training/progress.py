"""Progress of a training run: bar, table, durations."""

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from vitmix.lab.runs import Epoch
from vitmix.lab.training.output import Unfailing

PERCENT = ("miou", "ap", "mask_ap")  # beginnings of columns that are shown so


class Reporter:
    """On a terminal, a progress bar above a table; otherwise plain lines. Only the first process prints."""

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

    def advance(self, update: int) -> None:
        """Moves the bar; `update` shows numbers, because reading them makes the host wait."""
        if self.progress is not None:
            self.progress.update(self._task, completed=update)

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

    def row(self, epoch: Epoch) -> None:
        """An epoch's results as a row of a table."""
        values = {"epoch": epoch.number, **epoch.values}
        cells = {name: _cell(name, values.get(name)) for name in self.columns}
        if not self._header_shown:
            self._header_shown = True
            self.say("  ".join(f"{name:>{_width(name)}}" for name in self.columns))
        self.say("  ".join(f"{cells[name]:>{_width(name)}}" for name in self.columns))


def _width(name: str) -> int:
    return max(len(name), 8)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.removeprefix("ema_").startswith(PERCENT) or "accuracy" in name:
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
