"""Training on Accelerate: one process or many, one readable loop, and a state that can be saved and resumed."""

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._learner import Output
from vitmix._sampling import Draw, generator_for
from vitmix.lab.data.images import DataLost
from vitmix.lab.data.loader import Batch
from vitmix.lab.data.workers import Fetcher, WorkerLost
from vitmix.lab.environment import describe_environment
from vitmix.lab.evaluation.classification import Known, evaluate_run
from vitmix.lab.evaluation.predictions import Outcomes
from vitmix.lab.evaluation.subject import Running
from vitmix.lab.reading import JsonObject
from vitmix.lab.runs import EMA, SCORES, Epoch, FolderLock, Run, Summary
from vitmix.lab.training import checkpoints, header, prepare, processes, sharded, texts
from vitmix.lab.training.config import TrainConfig, checkpoint_interval
from vitmix.lab.training.journal import Journal
from vitmix.lab.training.losses import LossTally
from vitmix.lab.training.partial import keep_statistics
from vitmix.lab.training.progress import Reporter
from vitmix.lab.training.scores import Scored, in_step, score
from vitmix.lab.training.setup import Setup
from vitmix.lab.training.state import Position, TrainState, find_checkpoint
from vitmix.lab.training.stepper import Stepper

DROPOUT = 1  # names a stream of random numbers
LOST_LOSS = "the loss was not finite at update {}"
LOOK_SECONDS = 3.0  # between checks whether another process was told to stop


class NonFinite(RuntimeError):
    """The loss or the state is no longer finite; the text says where, and which checkpoint is left."""


class Trainer(Setup):
    """A training run from a configuration. Wrong input is refused at once; `run` trains and returns the exit code."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        accelerator = self.accelerator
        self.stepper = Stepper(list(self.core.parameters()), self.optimizer, accelerator, config)
        # For dropout: different on each rank, and different from the mixing draws, which end in (step, rank).
        torch.manual_seed(generator_for(config.seed, self.rank, 0, DROPOUT).initial_seed() % 2**63)
        self.tally = LossTally(["loss", *self.logged], self.device, capacity=config.log_every)
        self.state = TrainState(config, accelerator, self.core, self.optimizer, self.tally, self.ema)
        scores = [*self.scores, *(f"{EMA}{name}" for name in self.scores if self.ema is not None)]
        columns = ["epoch", "lr", *self.tally.names, *scores, "images/s", "seconds"]
        self.reporter = Reporter(
            enabled=accelerator.is_main_process,
            epochs=config.total_epochs,
            updates=self.total_updates,
            columns=[name for name in columns if self.classes > 5 or not name.endswith("accuracy5")],
        )
        self.stopper, self._part = processes.Stopper(), 0
        self._outcomes: list[Outcomes] = []  # from the latest evaluation in this process
        for loader in self._fetchers:
            loader.when_lost = self._lose_worker
        self.journal = Journal(self.folder, self.state, self.reporter, about=self._about(), scores=self.scores)
        self.lock = FolderLock(self.folder.path)
        processes.on_main(accelerator, self._take_folder)
        if config.fsdp:
            sharded.check_shared(self.folder.path, accelerator)

    def _take_folder(self) -> None:
        self.lock.acquire()
        if not self.folder.exists:
            self.folder.write_config(self.config)

    @property
    def position(self) -> Position:
        return self.state.position

    @property
    def _fetchers(self) -> list[Fetcher[Any]]:
        """The loaders that may have workers; none if the data is in device memory."""
        return [each for each in (self.loader, self.eval_loader) if isinstance(each, Fetcher)]

    @property
    def update(self) -> int:
        """Updates made since the start of training."""
        return self.position.epoch * self.updates_per_epoch + self.position.step

    # The loop

    def run(self) -> int:
        """Trains to the end, from the newest checkpoint if there is one. Returns the exit code."""
        try:
            return self._run()
        except NonFinite as error:
            self.reporter.say(f"Stopped: {error}.")
            return 1
        finally:
            self.reporter.stop()
            self.lock.release()
            for loader in self._fetchers:
                loader.close()
            self.journal.track(lambda: [tracker.finish() for tracker in self.accelerator.trackers])

    def _run(self) -> int:
        summary = processes.on_main(self.accelerator, lambda: Run(self.folder.path).summary)
        if summary is not None:
            self.reporter.say(f"This run is finished.\n{summary.text}")
            if not self.folder.best.exists() and summary.best is not None:
                self.reporter.say(f"{self.folder.best} is missing; {self.folder.last.name} holds the final weights.")
            return 0
        self._start()
        with self.stopper:
            try:
                for epoch in range(self.position.epoch, self.config.total_epochs):
                    self._train_epoch(epoch)
                    self._finish_epoch(epoch)
            except processes.Stopped as stopped:
                saved = self._save()  # inside, where a second SIGTERM does not interrupt it
                self.reporter.say(f"Stopped {stopped}. {saved}.")
                return stopped.exit_code
            except DataLost:
                if self.world == 1 and self._part == 0:  # others would wait; half an update cannot be repeated
                    self.reporter.say(f"{self._save()}.")
                raise
        code = self._finish()
        # A signal after the last update: the caller must know about it, otherwise it would continue.
        return 128 + self.stopper.received if code == 0 and self.stopper.received else code

    def _train_epoch(self, epoch: int) -> None:
        self.learner.train()
        if self.config.trains_part:
            keep_statistics(self.core.model)
        self._reported = time.perf_counter(), self.update
        batches = self.loader.epoch(epoch, start=self.position.step * self.config.accumulate)
        with closing(batches):  # pyright: ignore[reportArgumentType]  an iteration left open keeps its workers waiting
            while self.position.step < self.updates_per_epoch:
                self.schedule.step_update(self.update)
                self._learn(batches, epoch)
                self.reporter.advance(self.update)
                reading = self.update % self.config.log_every == 0 or self.position.step == self.updates_per_epoch
                if reading:
                    self._report(epoch)
                if reading or self.update % self._look_every == 0:
                    self.stopper.check(self.accelerator)
                if self.position.step < self.updates_per_epoch and self._checkpoint_due(reading):
                    self._save()

    def _learn(self, batches: Iterator[Batch], epoch: int) -> None:
        """One update from all accumulated micro-batches."""
        accumulate = self.config.accumulate
        values = []
        for part in range(accumulate):
            self._part = part
            loaded = next(batches)
            with self.accelerator.accumulate(self.learner):
                output = self._forward(loaded, epoch, self.update * accumulate + part)
                self.accelerator.backward(self._weighted(output.loss))
            found = self.tally.values({"loss": output.loss.detach(), **output.parts, **output.counts})
            values.append(self._weighted(found))
        mean = values[0] if accumulate == 1 else torch.stack(values).mean(0)
        if self._usable(mean[0]):
            self.tally.add(mean)
            self.stepper.apply()
        else:
            self.position.skipped += 1
            self.stepper.leave_out()
        self.optimizer.zero_grad()
        self.position.step, self._part = self.position.step + 1, 0
        if self.ema is not None:
            self.ema.update(self.core.model, step=self.update)

    def _weighted(self, mean: Tensor) -> Tensor:
        """A mean over this process's images, such that its mean over processes is the one over all images."""
        plan = self.loader.plan
        return mean * (plan.size * self.world / plan.total) if plan.extra else mean

    def _lose_worker(self, lost: WorkerLost) -> None:
        """Stops the run in a complete state: at once, or after this update, with batches loaded without workers."""
        self.stopper.lost = str(lost)
        if self.world == 1 and self._part == 0:  # several processes would stop at different updates
            self.stopper.check(self.accelerator)

    def _forward(self, loaded: Batch, epoch: int, step: int) -> Output:
        batch = loaded.to(self.device)
        draw = self._draw(batch.images, epoch, step).with_ahead(batch.ahead)
        erase = None if batch.erase is None else (batch.erase, torch.randn_like(batch.images))
        labels, maps = prepare.training_labels(self.config, self.teacher, batch, loaded.indices)
        return self.learner(batch.images, labels, maps=maps, draw=draw, erase=erase)

    def _draw(self, images: Tensor, epoch: int, step: int) -> Draw:
        """The choices for the batch, from (seed, step, rank); a switch chooses its mixer from (seed, step)."""
        frame, seed = self.core.mixing.frame(images), self.config.seed
        off = self.config.mixing_off_epoch is not None and epoch >= self.config.mixing_off_epoch
        own, shared = generator_for(seed, step, 1 + self.rank), generator_for(seed, step, 0)
        method = self.quiet if off else self.method
        draw = method.draw(frame, own, shared=shared)
        return dataclasses.replace(draw, choice=self.core.mixer.mixers.index(method.mixers[draw.choice]))

    def _usable(self, loss: Tensor) -> bool:
        """Whether to make the update. A non-finite loss is skipped or ends the run."""
        usable = self.stepper.clip(loss)
        if usable and self.world == 1 and self.device.type == "cpu" and not torch.isfinite(loss):
            # Before it reaches the weights; on a GPU, only checked with each report.
            raise self._not_finite(LOST_LOSS.format(self.update))
        return usable

    def _check_finite(self) -> None:
        self.tally.flush()
        bad = self.tally.first_bad >= 0
        if not self.config.skip_nonfinite and processes.any_process(self.accelerator, bad):
            found = processes.gather(self.accelerator, self.tally.first_bad)
            first = self._first_update + min(number for number in found if number >= 0)
            raise self._not_finite(LOST_LOSS.format(first))

    def _check_state(self) -> None:
        """A finite loss can have a non-finite gradient; the resulting weights must not be saved."""
        lost = self.state.nonfinite_part()
        if lost is not None:
            raise self._not_finite(f"{lost} not finite after update {self.update}")

    def _not_finite(self, what: str) -> NonFinite:
        try:
            newest = checkpoints.newest_checkpoint(self.folder.checkpoints)[0] or "the start"
        except OSError as error:
            newest = f"not known ({error.strerror})"
        skip = "" if self.config.skip_nonfinite else ", or pass --skip-nonfinite"
        return NonFinite(
            f"{what} with method {self.config.method!r}; the last good checkpoint is {newest}; "
            f"lower the learning rate{skip}"
        )

    def _report(self, epoch: int) -> None:
        """Reads the losses, for which the host waits for the device, and shows the progress."""
        means = self.tally.means(self.accelerator)
        self._check_finite()
        self.position.overflowed += self.stepper.take_overflows()
        elapsed, updates = self._count_training()
        per_update = elapsed / max(updates, 1)
        if self.world > 1:  # checking for signals sends a message and waits for the device
            slowest = max(processes.gather(self.accelerator, per_update))
            self._look_every = max(1, round(LOOK_SECONDS / max(slowest, 1e-9)))
        if self.position.step == self.updates_per_epoch and not self.reporter.live:
            return  # the epoch's row follows
        self.reporter.update(
            epoch=epoch + 1,
            update=self.update,
            loss=means["loss"],
            lr=self.optimizer.param_groups[-1]["lr"],
            rate=self.config.batch / max(per_update, 1e-9),
            left=per_update * (self.total_updates - self.update),
        )

    def _finish_epoch(self, epoch: int) -> None:
        self._check_state()
        position = self.position
        values = {"lr": self.optimizer.param_groups[-1]["lr"], **self.tally.means(self.accelerator)}
        last = epoch + 1 == self.config.total_epochs
        if last or (epoch + 1) % self.config.eval_every == 0:
            values |= self._score_models()
        seconds = position.seconds - sum(each.values["seconds"] for each in position.history)
        values |= {"images/s": self.updates_per_epoch * self.config.batch / max(seconds, 1e-9), "seconds": seconds}
        finished = Epoch(epoch + 1, values)
        self.journal.keep_best(finished, self._outcomes)
        position.history += (finished,)
        self.journal.tell(finished)
        position.epoch, position.step = epoch + 1, 0
        self.tally.reset()
        if last or self._checkpoint_due(True):
            self._save()

    def _score_models(self) -> dict[str, float]:
        """The scores of the model and of its averaged copy, by column."""
        found = {"": self._score(self.core)}
        if self.ema is not None:
            found[EMA] = self._score(self.ema.module)
        self._outcomes = found[EMA if self.config.best.startswith(EMA) else ""].outcomes
        return {f"{prefix}{name}": value for prefix, each in found.items() for name, value in each.values.items()}

    def _score(self, model: nn.Module) -> Scored:
        batches: Iterable[Batch] = self.eval_loader
        if self.config.fsdp:  # every pass of sharded weights sends messages
            batches = in_step(batches, self.accelerator, self.idle)
        return score(model, batches, self.accelerator, between=self._check_if_alone)

    def _check_if_alone(self) -> None:
        """Stops in the middle of an evaluation; several processes would stop at different batches."""
        if self.world == 1:
            self.stopper.check(self.accelerator)

    def _checkpoint_due(self, reading: bool) -> bool:
        number, unit = checkpoint_interval(self.config.checkpoint_every)
        if unit == "seconds":
            due = time.perf_counter() - self._saved >= number
            return (self.world == 1 or reading) and processes.any_process(self.accelerator, due)
        every = number if unit == "steps" else number * self.updates_per_epoch
        return self.update % max(1, round(every)) == 0

    def _save(self) -> str:
        """Writes a checkpoint and returns a message about it."""
        self._check_finite()
        self._check_state()
        self.position.overflowed += self.stepper.take_overflows()
        if self.update > self._reported[1]:  # updates not counted by a report; a resumed run will not count them either
            self._count_training()
        self._saved = self._count_time()
        self.position.broken = self._broken_images()
        return self.journal.save(self.update)

    def _start(self) -> None:
        for line in (*self._opening(), *self.remarks, *self._resume()):
            self.reporter.say(line)
        self.journal.begin()
        self._first_update, self._look_every = self.update, 1
        self._saved = self._counted = time.perf_counter()
        self.reporter.start(self.update)

    def _resume(self) -> list[str]:
        """Continues from the newest complete checkpoint; reports what was found and what was lost."""
        accelerator, folder = self.accelerator, self.folder
        path, newest, remarks = processes.on_main(
            accelerator, lambda: find_checkpoint(folder.checkpoints, self.config.keep)
        )
        if path is None:
            if not self.has_initial_weights:
                raise RuntimeError("the checkpoint that was found at the start is gone; rerun the command")
            return remarks
        world = self.state.load(path)
        if self.position.best is not None and (lost := processes.on_main(accelerator, self._lost_best)):
            self.position.best = None
            remarks.append(f"{folder.best} {lost}; the best weights are selected from now on")
        repeated = f"; {newest - self.update} updates are repeated" if newest > self.update else ""
        at = f"{self.update} of {self.total_updates} (epoch {self.position.epoch + 1})"
        remarks.append(f"resuming at update {at}{repeated}")
        if world != self.world:
            remarks.append(texts.other_world(self.config, world, self.world))
        return remarks

    def _lost_best(self) -> str:
        """Why the file of the best weights is not that of the best epoch, or nothing."""
        if not self.folder.best.is_file():
            return "is missing"
        epoch, best = header.epoch_of(self.folder.best), self.position.best
        # Written after the checkpoint. The repeated epoch may turn out otherwise, on a GPU for example.
        return f"is of epoch {epoch}, which is repeated" if best and epoch not in (None, best.number) else ""

    def _broken_images(self) -> tuple[str, ...]:
        """The unreadable images found so far by any process, by split; all processes must call this together."""
        # Files of different splits can have the same name.
        found = {f"training: {each}" for each in self.images.broken.values()}
        found |= {f"evaluation: {each}" for each in self.eval_images.broken.values()} | set(self.position.broken)
        return tuple(sorted(set().union(*processes.gather(self.accelerator, found))))

    def _count_training(self) -> tuple[float, int]:
        """Adds the time since the last call to the training time; returns it and the updates in that time."""
        now = time.perf_counter()
        elapsed, updates = now - self._reported[0], self.update - self._reported[1]
        self._reported = now, self.update
        self.position.seconds += elapsed
        return elapsed, updates

    def _count_time(self) -> float:
        now = time.perf_counter()
        self.position.wall += now - self._counted
        self._counted = now
        return now

    def _finish(self) -> int:
        self._count_time()
        last = self.position.history[-1]
        self.journal.keep_best(last, self._outcomes)  # again, because the disk may have been full after the last epoch
        score = last.get(self.config.best)
        if self.position.best is None and score is not None and math.isfinite(score):
            self.reporter.say(f"The best weights could not be written. {self.journal.newest()}, once there is room.")
            return 1  # otherwise the run would count as finished, without best weights
        summary = self._summary()
        if not self.journal.finish(summary):
            return 1
        self.reporter.stop()
        self.reporter.say(summary.text)
        return 0

    def _summary(self) -> Summary:
        """The summary; all processes must call this together."""
        config, position = self.config, self.position
        if not self.folder.best.exists():  # removed since, or never written
            position.best = None
        position.broken = self._broken_images()
        settings = self.model_settings
        return Summary(
            text=self._closing(),
            accuracy=position.history[-1].get("accuracy"),
            best=position.best,
            last=position.history[-1],
            epochs=config.total_epochs,
            updates=self.total_updates,
            seconds=position.wall,
            training_seconds=position.seconds,
            skipped_updates=position.skipped,
            overflowed_updates=position.overflowed,
            broken_images=position.broken,
            model=config.model,
            model_settings=settings,
            classes=tuple(self.images.classes),
            processes=self.world,
            peak_memory=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
            environment=describe_environment(self.device),
        )

    # What another task than classification says otherwise, besides `_forward` and `_score`

    @property
    def scores(self) -> tuple[str, ...]:
        """The columns of an evaluation."""
        return SCORES

    @property
    def logged(self) -> list[str]:
        """The columns of an update, besides the loss."""
        return prepare.logged(self.method)

    def _about(self) -> JsonObject:
        return texts.header_facts(self.config, self.model_settings, self.augmentation, self.images.classes)

    def _opening(self) -> list[str]:
        return texts.opening(
            self.config, self.images, self.eval_images, self.core.model, device=self.device, world=self.world
        )

    def _closing(self) -> str:
        settings, data = self.model_settings, self.eval_images.description
        return texts.closing(self.config, self.folder, self.position, settings, data)

    def evaluate_best(self) -> None:
        """Stores the evaluation of the best weights, if it is missing."""
        if not self.accelerator.is_main_process or self.config.fsdp:  # the model may not fit on one device
            return
        try:
            run = Run(self.folder.path)
            if run.evaluation is None and run.dense is None:
                self._evaluate_best()
        except (ValueError, OSError) as error:  # the run itself is finished
            self.reporter.say(f"The best weights could not be evaluated: {error}")

    def _evaluate_best(self) -> None:
        config, known = self.config, None
        if self.world == 1 and not config.resident:  # otherwise batches differed, or images were resized on the device
            batch = config.eval_batch or config.batch // config.accumulate
            known = Known(Running(self.device, config.precision, batch), self.journal.outcomes)
        evaluate_run(self.folder.path, self.eval_images, known)
