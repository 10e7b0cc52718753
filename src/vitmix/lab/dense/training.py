"""Training of a transfer: the loop, checkpoints and run folder of `vitmix train`, on another task."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from vitmix._learner import Output
from vitmix.lab.data.images import ImageSet, NothingReadable
from vitmix.lab.data.loader import Epochs
from vitmix.lab.dense.backbone import open_backbone
from vitmix.lab.dense.config import TransferConfig, updates_per_epoch
from vitmix.lab.dense.evaluation import evaluate, open_transferred, outcomes_of
from vitmix.lab.dense.loader import DenseEvalLoader, DenseLoader
from vitmix.lab.dense.segmentation.resident import ResidentEvalMasks, ResidentMasks
from vitmix.lab.dense.task import DenseSet, Sides, Task, TaskBatch
from vitmix.lab.dense.tasks import task_named
from vitmix.lab.reading import JsonObject
from vitmix.lab.settings import ModelArgs
from vitmix.lab.training import processes
from vitmix.lab.training.engine import Trainer
from vitmix.lab.training.optim import make_schedule, optimizer_of, parameter_groups
from vitmix.lab.training.prepare import checkpoint_activations
from vitmix.lab.training.scores import Scored
from vitmix.lab.training.texts import closing, data_text, place_of, size_of


class DenseLearner(nn.Module):
    """A model and its task as one module: a call is the forward pass of a training step."""

    def __init__(self, model: nn.Module, task: Task[Any, Any]) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.added = nn.ModuleDict()  # methods add parameters to classifiers only
        self._losses = task.losses

    def compile(self, **settings: Any) -> None:
        """Compiles the model and its losses; `settings` are those of `torch.compile`."""
        self._losses = torch.compile(self.task.losses, **settings)

    def forward(self, images: Tensor, targets: Any) -> Output:
        parts = self._losses(self.model, images, targets)
        loss = torch.stack(list(parts.values())).sum()
        none = loss.new_zeros(0)
        return Output(loss, none, none, {name: parts[name].detach() for name in self.task.parts})


class TransferTrainer(Trainer):
    """A transfer from a configuration. Wrong input is refused at once; `run` trains and returns the exit code."""

    def __init__(self, config: TransferConfig) -> None:
        self.settings, self.task = config, task_named(config.task)
        super().__init__(cast(Any, config))  # the loop reads only settings that both configurations have

    # Setup

    def _open_data(self) -> tuple[ImageSet, ImageSet, int]:
        train = self.task.open_data(self.settings.data, "train")
        held_out = self.task.open_data(self.settings.data, self.settings.eval_split)
        if train.classes != held_out.classes:
            raise ValueError(f"the splits of {self.settings.data} have different classes; name them in classes.json")
        return train, held_out, len(train.classes)

    def _build_model(self) -> tuple[nn.Module, list[str]]:
        self.backbone = open_backbone(self.settings)
        model = self.task.build(self.backbone, self.images.classes, self.settings)
        return model, [f"Starting from {self.backbone.words}; the head is new."] if self.has_initial_weights else []

    def _build(self, model: nn.Module) -> None:
        config = self.settings
        encoder = self.task.encoder_of(model)
        if config.grad_checkpointing:
            checkpoint_activations(encoder, self.backbone.name)
        encoder.requires_grad_(not config.freeze)
        model.to(self.device)
        self.ema = None if config.ema is None else ModelEmaV3(model, decay=config.ema)
        self.sides = Sides(self.backbone.size, self.backbone.mean, self.backbone.std)
        self.mixing = self.task.mixing(model, self.classes, config, self.rank)
        self.core = DenseLearner(model, self.task).to(self.device)  # pyright: ignore[reportAttributeAccessIssue]
        if config.compile:
            self.core.compile(mode=config.compile_mode, dynamic=False)
        self.loader, self.eval_loader = self._dense_loaders()  # pyright: ignore[reportAttributeAccessIssue]
        self._set_length(updates_per_epoch(config, len(self.loader) // config.accumulate))
        self.optimizer = self._make_optimizer(encoder, model)
        self.schedule = make_schedule(self.optimizer, config, self.updates_per_epoch)

    def _dense_loaders(self) -> tuple[Epochs, Iterable[TaskBatch]]:
        """Batches to train and to evaluate on: read one by one, or from device memory."""
        config, part = self.settings, self.part
        train, held_out = cast(DenseSet, self.images), cast(DenseSet, self.eval_images)
        batch = config.eval_batch or part.batch
        place = {"rank": self.rank, "world": self.world}
        training, held = {**part._asdict(), **place}, {"batch": batch, "workers": config.workers, **place}
        if config.resident:
            loader = ResidentMasks(train, config, self.sides, device=self.device, **training)
            return loader, ResidentEvalMasks(held_out, self.sides, device=self.device, **held)
        transform, collate = self.task.transform(config, self.sides), self.task.collate
        training |= {"seed": config.seed, "workers": config.workers}
        loader = DenseLoader(train, transform, collate, self.sides, **training)
        return loader, DenseEvalLoader(held_out, self.sides, **held)

    def _make_optimizer(self, encoder: nn.Module, model: nn.Module) -> torch.optim.Optimizer:
        """The backbone's layers by `layer_decay`, and the head with its own factor of the learning rate."""
        own = {id(each) for each in encoder.parameters()}
        rest = nn.ParameterDict(
            {name.replace(".", "/"): each for name, each in model.named_parameters() if id(each) not in own}
        )
        backbone, head = parameter_groups(encoder, self.settings), parameter_groups(rest, self.settings, scaled=False)
        for group in head:
            group["lr_scale"] = self.settings.head_lr
        return optimizer_of([*backbone, *head], self.settings)

    @property
    def model_settings(self) -> ModelArgs:
        return self.backbone.settings

    # The loop

    @property
    def scores(self) -> tuple[str, ...]:
        return self.task.scores

    @property
    def logged(self) -> list[str]:
        return list(self.task.parts)

    def _forward(self, loaded: Any, epoch: int, step: int) -> Output:
        batch = loaded.to(self.device)
        images, targets, off = batch.images, batch.targets, self.settings.mixing_off_epoch
        if self.settings.method != "none" and (off is None or epoch < off):
            self.mixing.step = step
            images, targets = self.mixing(images, targets)
        return self.learner(images, targets)

    def _score(self, model: nn.Module) -> Scored:
        model = self.core.model if model is self.core else model
        batches = cast(Any, self.eval_loader)
        own = outcomes_of(
            *(self.task, model, batches, self.sides, self.device),
            autocast=lambda: self.accelerator.autocast(),
            between=self._check_if_alone,
        )
        outcomes = [each for found in processes.gather(self.accelerator, own) for each in found]
        if not outcomes:
            raise NothingReadable
        values = self.task.score(outcomes, self.images.classes, intervals=False).values
        return Scored({name: values[name].mean for name in self.scores}, outcomes)

    def _about(self) -> JsonObject:
        settings = {name: value for name, value in self.backbone.settings.items() if name != "num_classes"}
        preprocessing = {"size": self.sides.size[0], "mean": list(self.sides.mean), "std": list(self.sides.std)}
        facts = {"model": self.backbone.name, "model_settings": settings, "preprocessing": preprocessing}
        return {**facts, "classes": list(self.images.classes), "task": self.task.name}

    def _opening(self) -> list[str]:
        """Data, model, device and method in two lines, and notes on the data."""
        config, model, (height, width) = self.settings, self.core.model, self.sides.size
        head, sets = getattr(model, "head_name", config.head), (self.images, self.eval_images)
        what = f"{config.task}: {self.backbone.name} with {head}, {size_of(model)}, images of {height} × {width} pixels"
        where = f"on {place_of(self.device, self.world)} in {config.precision}"
        how = f"method {config.method}; {self.total_updates:,} updates."
        notes = [f"Note: {note}" for each in sets for note in cast(DenseSet, each).notes]
        return [data_text(*sets), f"{what}, {where}; {how}", *notes]

    def _closing(self) -> str:
        return closing(self.settings, self.folder, self.position, None, self.eval_images.description)

    def _evaluate_best(self) -> None:
        """Stores scores with intervals, and examples."""
        subject, images = open_transferred(self.folder.path), cast(DenseSet, self.eval_images)
        known, running = cast(Any, self.journal.outcomes), subject.running(cpu=self.device.type == "cpu")
        evaluate(subject, images, running, known=known, folder=self.folder.path)
