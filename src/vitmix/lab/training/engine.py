"""Training on Accelerate: one process or many, one readable loop, and a state that can be put down and taken up."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from vitmix._learner import Learner
from vitmix._sampling import Draw, generator_for
from vitmix.lab.data.loader import Batch, EvalLoader, TrainLoader, WorkerLost
from vitmix.lab.training import checkpoints, prepare, processes, runs, sharding, state
from vitmix.lab.training.config import TrainConfig, checkpoint_interval
from vitmix.lab.training.measure import MEASURES, LossTally, in_step, score
from vitmix.lab.training.opening import opening
from vitmix.lab.training.optim import make_optimizer, make_schedule
from vitmix.lab.training.progress import MetricsFiles, Reporter, Row
from vitmix.lab.training.state import Position
from vitmix.lab.training.stepper import Stepper
from vitmix.lab.training.summary import about, is_better, summarize

DROPOUT = 1  # names a stream of random numbers
LOOK_SECONDS = 3.0  # between looks whether another process was told to stop


class NonFinite(RuntimeError):
    """The loss or the state is not finite any more; the text says where, and what is left."""


class Trainer:
    """A training from a configuration. Wrong input is refused at once; `run` trains and returns the exit code."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.folder = config, runs.folder_for(config)
        self.accelerator = accelerator = processes.make_accelerator(config, self.folder.path)
        self.device, self.rank, self.world = accelerator.device, accelerator.process_index, accelerator.num_processes
        deciding = dataclasses.replace(config, output=None, workers=0)  # folders and cores are each node's own
        processes.check_alike(accelerator, deciding, prepare.other_settings)
        processes.on_main(accelerator, lambda: self.folder.check(config))
        part = processes.together(accelerator, lambda: processes.part_of_batch(config, self.world))
        # In turn only where something may be downloaded: to look through a large folder takes minutes.
        run = processes.in_turn if config.data.startswith("torchvision:") else processes.together
        self.images, self.eval_images, self.classes = run(accelerator, lambda: prepare.open_data(config))
        facts = [prepare.describe(images) for images in (self.images, self.eval_images)]
        processes.check_alike(accelerator, facts, prepare.other_data)
        # Only the first process's run folder counts: nodes need not share their files.
        newest, _ = processes.on_main(accelerator, lambda: checkpoints.newest_checkpoint(self.folder.checkpoints))
        self.has_initial_weights = newest is None
        torch.manual_seed(config.seed)
        run = processes.in_turn if config.pretrained else processes.together
        model, self.remarks = run(
            accelerator, lambda: prepare.build_model(config, self.classes, initial_weights=self.has_initial_weights)
        )
        processes.together(accelerator, lambda: self._build(model, part))
        self.learner = self.core if config.fsdp else accelerator.prepare(self.core, self.optimizer)[0]
        self.stepper = Stepper(list(self.core.parameters()), self.optimizer, accelerator, config)
        # Dropout: not alike on all ranks, and not the stream of the mixing draws, which end in (step, rank).
        torch.manual_seed(generator_for(config.seed, self.rank, 0, DROPOUT).initial_seed() % 2**63)
        self.position = Position()
        parts = ["loss", *prepare.loss_parts(self.method), *prepare.counted(self.method)]
        self.tally = LossTally(parts, self.device, capacity=config.log_every)
        measures = [*MEASURES, *(f"ema_{name}" for name in MEASURES if self.ema is not None)]
        columns = ["epoch", "lr", *self.tally.names, *measures, "images/s", "seconds"]
        self.metrics = MetricsFiles(self.folder.path, columns)
        self.reporter = Reporter(
            enabled=accelerator.is_main_process,
            epochs=config.total_epochs,
            updates=self.total_updates,
            columns=[name for name in columns if self.classes > 5 or not name.endswith("accuracy5")],
        )
        self.stopper, self._part = processes.Stopper(), 0
        if isinstance(self.loader, TrainLoader) and isinstance(self.eval_loader, EvalLoader):  # which have workers
            self.loader.when_lost = self.eval_loader.when_lost = self._lose_worker
        processes.on_main(accelerator, lambda: self.folder.open(config))

    def _build(self, model: nn.Module, part: int) -> None:
        """Everything between data and model on one side and the loop on the other; refuses what does not fit."""
        config = self.config
        model.to(self.device)
        if config.warmup_epochs >= config.epochs:
            self.remarks.append(
                f"Note: the warm-up of {config.warmup_epochs:g} epochs is not over before the training."
            )
        self.ema = None if config.ema is None else ModelEmaV3(model, decay=config.ema)
        self.method = prepare.build_mixer(config, self.classes)
        self.quiet = prepare.without_image_mixing(self.method)
        guide = prepare.build_guide(config, self.method, self.classes)
        self.core = Learner(model, prepare.all_mixers(config, self.method, self.quiet), guide=guide).to(self.device)
        if config.compile:
            self.core.compile(mode=config.compile_mode, dynamic=False)
        augmentation = prepare.build_augmentation(config, model)
        prepare.check_size(self.core, augmentation)
        self.idle = torch.zeros(1, 3, *augmentation.sides)  # images for a process that has none left
        maps = prepare.map_settings(config, self.images, self.core, augmentation)
        place = (self.device, self.rank, self.world)
        self.loader, self.eval_loader = prepare.make_loaders(
            config, self.images, self.eval_images, augmentation, part, place, maps
        )
        self.updates_per_epoch = len(self.loader) // config.accumulate
        if self.updates_per_epoch == 0:
            raise ValueError(
                f"a batch of {config.batch} is more than the {len(self.images)} training images; lower batch"
            )
        if config.fsdp:
            sharding.shard(self.core, config, self.accelerator)
        self.optimizer = make_optimizer(self.core, config)
        self.schedule = make_schedule(self.optimizer, config, self.updates_per_epoch)

    @property
    def total_updates(self) -> int:
        return self.config.total_epochs * self.updates_per_epoch

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
            self.folder.close()
            if isinstance(self.loader, TrainLoader):
                self.loader.close()
            self._track(lambda: [tracker.finish() for tracker in self.accelerator.trackers])

    def _run(self) -> int:
        summary = processes.on_main(self.accelerator, self.folder.read_summary)
        if summary is not None:
            self.reporter.say(f"This run is finished.\n{summary['text']}")
            if not self.folder.best.exists() and summary.get("best") is not None:
                self.reporter.say(f"{self.folder.best} is missing; {self.folder.last.name} holds the final weights.")
            return 0
        self._start()
        with self.stopper:
            try:
                for epoch in range(self.position.epoch, self.config.total_epochs):
                    self._train_epoch(epoch)
                    self._finish_epoch(epoch)
            except processes.Stopped as stopped:
                saved = self._save()  # in here, where a second SIGTERM does not end it half-way
                self.reporter.say(f"Stopped {stopped}. {saved}.")
                return stopped.exit_code
        code = self._finish()
        # Told to stop when nothing was left to train: whoever goes on after a training must know.
        return 128 + self.stopper.received if code == 0 and self.stopper.received else code

    def _train_epoch(self, epoch: int) -> None:
        self.learner.train()
        self._reported = time.perf_counter(), self.update
        batches = self.loader.epoch(epoch, start=self.position.step * self.config.accumulate)
        with closing(batches):  # pyright: ignore[reportArgumentType]  an iteration left open keeps its workers waiting
            self._train_on(batches, epoch)

    def _train_on(self, batches: Iterator[Batch], epoch: int) -> None:
        while self.position.step < self.updates_per_epoch:
            self.schedule.step_update(self.update)
            self._learn(batches, epoch)
            reading = self.update % self.config.log_every == 0 or self.position.step == self.updates_per_epoch
            if reading:
                self._report(epoch)
            if reading or self.update % self._look_every == 0:
                self.stopper.check(self.accelerator)
            if self.position.step < self.updates_per_epoch and self._checkpoint_due(reading):
                self._save()

    def _learn(self, batches: Iterator[Batch], epoch: int) -> None:
        """One update, from as many parts of the batch as are accumulated."""
        accumulate = self.config.accumulate
        values = []
        for part in range(accumulate):
            self._part = part
            batch = next(batches).to(self.device)
            draw = self._draw(batch.images, epoch, self.update * accumulate + part)
            erase = None if batch.erase is None else (batch.erase, torch.randn_like(batch.images))
            with self.accelerator.accumulate(self.learner):
                output = self.learner(batch.images, batch.labels, maps=batch.maps, draw=draw, erase=erase)
                self.accelerator.backward(output.loss)
            values.append(self.tally.values({"loss": output.loss.detach(), **output.parts, **output.counts}))
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

    def _lose_worker(self, lost: WorkerLost) -> None:
        """Stops the training where its state is whole: at once, or after this update, read without workers."""
        self.stopper.lost = str(lost)
        if self.world == 1 and self._part == 0:  # several processes would stop at different updates
            self.stopper.check(self.accelerator)

    def _draw(self, images: Tensor, epoch: int, step: int) -> Draw:
        """The batch's choices: a function of (seed, step, rank), the choice of the mixer one of (seed, step)."""
        frame, seed = self.core.mixing.frame(images), self.config.seed
        off = self.config.mixing_off_epoch is not None and epoch >= self.config.mixing_off_epoch
        own, shared = generator_for(seed, step, 1 + self.rank), generator_for(seed, step, 0)
        method = self.quiet if off else self.method
        draw = method.draw(frame, own, shared=shared)
        return dataclasses.replace(draw, choice=self.core.mixer.mixers.index(method.mixers[draw.choice]))

    def _usable(self, loss: Tensor) -> bool:
        """Whether the update may be made. A loss that is not finite is skipped or ends the run."""
        usable = self.stepper.clip(loss)
        if usable and self.world == 1 and self.device.type == "cpu" and not torch.isfinite(loss):
            raise self._lost_loss(self.update)  # before it reaches the weights; a GPU is asked with each report
        return usable

    def _check_finite(self) -> None:
        self.tally.flush()
        bad = self.tally.first_bad >= 0
        if not self.config.skip_nonfinite and processes.any_process(self.accelerator, bad):
            found = processes.gather(self.accelerator, self.tally.first_bad)
            raise self._lost_loss(self._first_update + min(number for number in found if number >= 0))

    def _check_state(self) -> None:
        """A finite loss can have a gradient that is not: what it did to the weights must not be saved."""
        lost = state.nonfinite_part(self)
        if lost is not None:
            raise self._not_finite(f"{lost} not finite after update {self.update}")

    def _lost_loss(self, update: int) -> NonFinite:
        return self._not_finite(f"the loss was not finite at update {update}")

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
        """Reads the losses, which makes the host wait for the device, and shows the progress."""
        means = self.tally.means(self.accelerator)
        self._check_finite()
        self.position.overflowed += self.stepper.take_overflows()
        elapsed, updates = self._count_training()
        per_update = elapsed / max(updates, 1)
        if self.world > 1:  # looking for signals takes a message and waits for the device
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
        row: Row = {"epoch": epoch + 1, "lr": self.optimizer.param_groups[-1]["lr"]}
        row |= self.tally.means(self.accelerator)
        last = epoch + 1 == self.config.total_epochs
        if last or (epoch + 1) % self.config.eval_every == 0:
            row |= self._measure(self.core)
            if self.ema is not None:
                row |= {f"ema_{name}": value for name, value in self._measure(self.ema.module).items()}
        seconds = position.seconds - sum(each["seconds"] for each in position.history)
        row |= {"images/s": self.updates_per_epoch * self.config.batch / max(seconds, 1e-9), "seconds": seconds}
        self._keep_best(row)
        position.history.append(row)
        self._tell(row)
        position.epoch, position.step = epoch + 1, 0
        self.tally.reset()
        if last or self._checkpoint_due(True):
            self._save()

    def _measure(self, model: torch.nn.Module) -> dict[str, float]:
        def between() -> None:
            if self.world == 1:
                self.stopper.check(self.accelerator)

        batches: Iterable[Batch] = self.eval_loader
        if self.config.fsdp:  # every pass of spread weights is a message
            batches = in_step(batches, self.accelerator, self.idle)
        return score(model, batches, self.accelerator, between=between)

    # Writing down

    def _keep_best(self, row: Row) -> None:
        name, best = self.config.best, self.position.best
        if not math.isfinite(row.get(name, math.nan)):  # not evaluated, or NaN, than which nothing would be better
            return
        if best is not None and not is_better(name, row[name], best[name]):
            return
        model = self.ema.module if self.ema is not None and name.startswith("ema_") else self.core.model
        weights = sharding.whole(model.state_dict())  # in all processes
        write = lambda: checkpoints.write_weights(self.folder.best, weights, about(self))  # noqa: E731
        if self._try(write, "best weights"):  # else the file holds the best ones before, or is not there
            self.position.best = {key: row[key] for key in row if key == "epoch" or key.endswith(MEASURES)}

    def _tell(self, row: Row) -> None:
        self._try(lambda: self.metrics.write(self.position.history), "metrics")
        self.reporter.row(row)
        values = {name: value for name, value in row.items() if name != "epoch"}
        self._track(lambda: self.accelerator.log(values, step=row["epoch"]))

    def _track(self, action: Callable[[], object]) -> None:
        """Lets trackers write; where they cannot, the training goes on without them."""
        try:
            action()
        except OSError as error:
            self.accelerator.trackers = []
            self.reporter.say(f"Tracking has ended: {error.strerror or error}. The training goes on without it.")

    def _try(self, write: Callable[[], object], what: str, then: Callable[[], str] = str) -> bool:
        """Lets the first process write; a full or failing disk is told and does not end the training."""
        failed = False
        if self.accelerator.is_main_process:
            try:
                write()
            except OSError as error:
                self.reporter.say(f"The {what} could not be written: {error.strerror or error}. {then()}".rstrip())
                failed = True
        return not processes.any_process(self.accelerator, failed)

    def _checkpoint_due(self, reading: bool) -> bool:
        number, unit = checkpoint_interval(self.config.checkpoint_every)
        if unit == "seconds":
            due = time.perf_counter() - self._saved >= number
            return (self.world == 1 or reading) and processes.any_process(self.accelerator, due)
        every = number if unit == "steps" else number * self.updates_per_epoch
        return self.update % max(1, round(every)) == 0

    def _save(self) -> str:
        """Writes a checkpoint and says how that went. A full disk leaves the older ones as they are."""
        self._check_finite()
        self._check_state()
        self.position.overflowed += self.stepper.take_overflows()
        if self.update > self._reported[1]:  # updates that no report has counted; a resumed run will not
            self._count_training()
        self._saved = self._count_time()
        captured, update = state.capture(self), self.update

        def write() -> None:
            checkpoints.save_checkpoint(self.folder.checkpoints, update, captured, keep=self.config.keep)

        if self._try(write, f"checkpoint of update {update}"):
            return f"Checkpoint of update {self.update} is written; the same command continues from there"
        newest = self._newest()
        self.reporter.say(f"{newest}.")
        return newest

    def _newest(self) -> str:
        try:
            newest, _ = checkpoints.newest_checkpoint(self.folder.checkpoints)
        except OSError as error:
            return f"The checkpoints cannot be read now ({error.strerror}); the same command continues from the newest"
        if newest is None:
            return "There is no complete checkpoint; the same command starts from the beginning"
        return f"The newest complete checkpoint is {newest.name}; the same command continues from there"

    def _start(self) -> None:
        for line in (*opening(self), *self.remarks):
            self.reporter.say(line)
        for remark in state.resume(self):
            self.reporter.say(remark)
        # A resumed run computes the later rows again.
        self._try(lambda: self.metrics.write(self.position.history), "metrics")
        plain = {
            name: value if isinstance(value, (int, float, str)) else str(value)
            for name, value in vars(self.config).items()
        }
        self._track(lambda: self.accelerator.init_trackers("vitmix", config=plain))
        self._first_update, self._look_every = self.update, 1
        self._saved = self._counted = time.perf_counter()
        self.reporter.start(self.update)

    def _count_training(self) -> tuple[float, int]:
        """Adds the time since this was called last to that of training; returns it and the updates made in it."""
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
        self._keep_best(last)  # again: there may have been no room for the last epoch's
        if self.position.best is None and math.isfinite(last.get(self.config.best, math.nan)):
            self.reporter.say(f"The best weights could not be written. {self._newest()}, once there is room.")
            return 1  # else the run would be finished, and without best weights for good
        summary = summarize(self)
        text, weights = summary["text"], sharding.whole(self.core.model.state_dict())

        def write() -> None:
            self.metrics.write(self.position.history)  # again: there may have been no room for the last epoch's
            checkpoints.write_weights(self.folder.last, weights, about(self))
            self.folder.write_summary(summary)

        # One line: a comparison shows the last one as the reason.
        if not self._try(write, "metrics, final weights and summary", lambda: f"{self._newest()}, once there is room."):
            return 1
        self.reporter.stop()
        self.reporter.say(text)
        return 0
