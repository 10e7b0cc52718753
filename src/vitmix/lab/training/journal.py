"""What a training run writes: epochs, best and final weights, checkpoints, the summary.

A full or failing disk is reported and does not end the run: the next epoch writes what is missing.
"""

import json
import math
from collections.abc import Callable
from functools import partial

from vitmix.lab.evaluation.predictions import Outcomes
from vitmix.lab.reading import JsonObject
from vitmix.lab.runs import EMA, SCORES, Epoch, Run, Summary, is_better
from vitmix.lab.training import checkpoints, processes, sharded, sharding
from vitmix.lab.training.partial import merged_weights
from vitmix.lab.training.progress import Reporter
from vitmix.lab.training.state import TrainState
from vitmix.lab.training.weights import write_weights


class Journal:
    """The files of a training run in progress. All processes must call each of these methods together.

    Attributes:
        outcomes: predictions of the weights in best.safetensors, if this process evaluated them.
    """

    def __init__(
        self,
        run: Run,
        state: TrainState,
        reporter: Reporter,
        *,
        about: JsonObject,
        scores: tuple[str, ...] = SCORES,
    ) -> None:
        self.run, self.state, self.reporter, self.about, self.scores = run, state, reporter, about, scores
        self.config, self.accelerator = state.config, state.accelerator
        self.outcomes: list[Outcomes] = []

    def begin(self) -> None:
        self.attempt(self._write_epochs, "metrics")  # a resumed run recomputes the later rows
        plain = {
            name: value if isinstance(value, (int, float, str)) else str(value)
            for name, value in vars(self.config).items()
        }
        self.track(lambda: self.accelerator.init_trackers("vitmix", config=plain))

    def tell(self, epoch: Epoch) -> None:
        """Writes and prints a finished epoch."""
        self.attempt(self._write_epochs, "metrics")
        self.reporter.row(epoch)
        self.track(lambda: self.accelerator.log(dict(epoch.values), step=epoch.number))

    def keep_best(self, epoch: Epoch, outcomes: list[Outcomes]) -> None:
        """Writes the weights if they are the best so far; `outcomes` are their predictions."""
        name, state, new = self.config.best, self.state, epoch.get(self.config.best)
        best = state.position.best
        if new is None or not math.isfinite(new):  # not evaluated, or NaN, which compares as the best forever
            return
        if best is not None and not is_better(name, new, best.values[name]):
            return
        model = state.ema.module if state.ema is not None and name.startswith(EMA) else state.core.model
        weights = sharding.gathered(merged_weights(model), self.accelerator)
        # If this fails, the file has the previous best weights, or does not exist.
        if self.attempt(lambda: write_weights(self.run.best, weights, self._header(epoch)), "best weights"):
            scores = {key: value for key, value in epoch.values.items() if key.endswith(self.scores)}
            state.position.best, self.outcomes = Epoch(epoch.number, scores), outcomes

    def save(self, update: int) -> str:
        """Writes a checkpoint and returns a message about it. A full disk does not affect older ones."""
        captured, folder, keep = self.state.capture(update), self.run.checkpoints, self.config.keep
        if self.config.fsdp:
            save, folder = partial(sharded.save_checkpoint, accelerator=self.accelerator), folder.absolute()
        else:
            save = checkpoints.save_checkpoint
        write = lambda: save(folder, update, captured, keep=keep)  # noqa: E731
        if self.attempt(write, f"checkpoint of update {update}", everywhere=self.config.fsdp):
            return f"Checkpoint of update {update} is written; rerun the command to resume from there"
        newest = self.newest()
        self.reporter.say(f"{newest}.")
        return newest

    def newest(self) -> str:
        """A message about where a rerun resumes."""
        try:
            newest, _ = checkpoints.newest_checkpoint(self.run.checkpoints)
        except OSError as error:
            return f"The checkpoints cannot be read now ({error.strerror}); rerun the command to resume from the newest"
        if newest is None:
            return "There is no complete checkpoint; a rerun starts from the beginning"
        return f"The newest complete checkpoint is {newest.name}; rerun the command to resume from there"

    def finish(self, summary: Summary) -> bool:
        """Writes the final weights and the summary; False if that fails."""
        weights = sharding.gathered(merged_weights(self.state.core.model), self.accelerator)

        def write() -> None:
            self._write_epochs()  # again, because the disk may have been full after the last epoch
            write_weights(self.run.last, weights, self._header(self.state.position.history[-1]))
            self.run.write_summary(summary)

        # One line, because a comparison shows the last line as the reason.
        then = lambda: f"{self.newest()}, once there is room."  # noqa: E731
        return self.attempt(write, "metrics, final weights and summary", then)

    def attempt(
        self, write: Callable[[], object], what: str, then: Callable[[], str] = str, *, everywhere: bool = False
    ) -> bool:
        """Lets the first process write, or every process its part; False if that fails."""
        failed = False
        if everywhere or self.accelerator.is_main_process:
            try:
                write()
            except OSError as error:
                self.reporter.say(f"The {what} could not be written: {error.strerror or error}. {then()}".rstrip())
                failed = True
        return not processes.any_process(self.accelerator, failed)

    def track(self, action: Callable[[], object]) -> None:
        """Lets trackers write; if they cannot, the run continues without them."""
        try:
            action()
        except Exception as error:  # each tracker has its own kinds
            self.accelerator.trackers = []
            why = (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split())[:200]
            self.reporter.say(f"Tracking stopped: {why or type(error).__name__}. The run continues without it.")

    def _header(self, epoch: Epoch) -> dict[str, str]:
        """The header of weights, as safetensors stores it: texts by name."""
        return {"vitmix": json.dumps({**self.about, "epoch": epoch.number})}

    def _write_epochs(self) -> None:
        self.run.write_epochs(self.state.position.history)
