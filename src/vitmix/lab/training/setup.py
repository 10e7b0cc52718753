"""From a configuration to everything that a training run needs, checked, in one process or many."""

import dataclasses
import hashlib
from functools import partial

import torch
from timm.utils.model_ema import ModelEmaV3
from torch import nn

from vitmix._learner import Learner
from vitmix._mixer import AnyMixer, Switch
from vitmix.lab.data.images import ImageSet
from vitmix.lab.data.loader import EvalLoader, TrainLoader
from vitmix.lab.data.resident import ResidentEvalLoader, ResidentLoader
from vitmix.lab.runs import check_folder, run_for
from vitmix.lab.settings import ModelArgs
from vitmix.lab.training import checkpoints, prepare, processes, sharding
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.optim import make_optimizer, make_schedule
from vitmix.lab.training.partial import choose_parameters
from vitmix.parts.base import Normalization


class Setup:
    """Data, model, learner, loaders, optimizer and schedule. Wrong input is refused here, in all processes at once.

    Attributes:
        classes: outputs of the model.
        part: how many images a process computes at once.
        has_initial_weights: no checkpoint will replace the model's weights.
        core: the learner itself; `learner` is Accelerate's wrapper around it.
        teacher: the teacher's labels, if they are used.
        method, quiet: the mixer, and the one used from `mixing_off_epoch` on.
        remarks: notes for the user.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.folder = config, run_for(config)
        self.accelerator = accelerator = processes.make_accelerator(config, self.folder.path)
        self.device, self.rank, self.world = accelerator.device, accelerator.process_index, accelerator.num_processes
        deciding = dataclasses.replace(config, output=None, workers=0)  # folders and cores differ between nodes
        processes.check_alike(accelerator, deciding, _other_settings)
        processes.on_main(accelerator, lambda: check_folder(self.folder, config))
        self.part = processes.together(accelerator, lambda: processes.part_of_batch(config, self.world))
        # One after the other only if something may be downloaded, because scanning a large folder takes minutes.
        downloads = config.data.startswith("torchvision:") or "://" in config.data
        run = processes.in_turn if downloads else processes.together
        self.images, self.eval_images, self.classes = run(accelerator, self._open_data)
        for images in (self.images, self.eval_images):
            processes.check_alike(accelerator, _content(images), _other_data)
        # Only the run folder of the first process counts, because nodes need not share files.
        newest, _ = processes.on_main(accelerator, lambda: checkpoints.newest_checkpoint(self.folder.checkpoints))
        self.has_initial_weights = newest is None
        torch.manual_seed(config.seed)
        run = processes.in_turn if config.pretrained else processes.together
        model, self.remarks = run(accelerator, self._build_model)
        processes.together(accelerator, lambda: self._build(model))
        self.learner = self.core if config.fsdp else accelerator.prepare(self.core, self.optimizer)[0]

    # What another task than classification does otherwise

    def _open_data(self) -> tuple[ImageSet, ImageSet, int]:
        return prepare.open_data(self.config)

    def _build_model(self) -> tuple[nn.Module, list[str]]:
        return prepare.build_model(self.config, self.classes, initial_weights=self.has_initial_weights)

    def _build(self, model: nn.Module) -> None:
        """Builds everything that the loop needs from data and model; refuses what does not fit."""
        config = self.config
        choose_parameters(model, config)
        model.to(self.device)
        self.ema = None if config.ema is None else ModelEmaV3(model, decay=config.ema)
        self.method = prepare.build_mixer(config, self.classes)
        self.quiet = prepare.without_image_mixing(self.method)
        guide = prepare.build_guide(config, self.method, self.classes)
        self.core = Learner(model, self._mixers(), guide=guide, seed=config.seed, step=0).to(self.device)
        if config.compile:
            self.core.compile(mode=config.compile_mode, dynamic=False)
        self.augmentation = augmentation = prepare.build_augmentation(config, model)
        prepare.check_size(self.core, augmentation.sides)
        self.idle = torch.zeros(1, 3, *augmentation.sides)  # for a process without further images
        self.core.mixing.normalization = Normalization(augmentation.mean, augmentation.std)
        self.teacher = prepare.build_labels(config, self.images, self.core, augmentation, self.device)
        self.loader, self.eval_loader = self._loaders(self.part)
        self._set_length(len(self.loader) // config.accumulate)
        if config.fsdp:
            sharding.shard(self.core, config, self.accelerator)
        self.optimizer = make_optimizer(self.core, config)
        self.schedule = make_schedule(self.optimizer, config, self.updates_per_epoch)

    def _set_length(self, updates: int) -> None:
        """Refuses an epoch without a single update."""
        config, self.updates_per_epoch = self.config, updates
        if updates == 0:
            raise ValueError(
                f"a batch of {config.batch} is larger than the {len(self.images)} training images; lower batch"
            )
        if config.warmup_epochs >= config.epochs:
            self.remarks.append(f"Note: the warm-up of {config.warmup_epochs:g} epochs takes the whole run.")

    def _mixers(self) -> AnyMixer:
        """The mixer of the learner: the mixers of the method and, if mixing is switched off later, those of `quiet`."""
        if self.config.mixing_off_epoch is None:
            return self.method
        mixers = tuple(dict.fromkeys((*self.method.mixers, *self.quiet.mixers)))  # each once: each one is compiled
        if len(mixers) == 1:
            return mixers[0]
        return Switch(mixers, (1.0,) * len(mixers))  # weights are not used: the trainer draws the mixer

    def _loaders(
        self, part: processes.BatchPart
    ) -> tuple[TrainLoader | ResidentLoader, EvalLoader | ResidentEvalLoader]:
        """Batches to train and to evaluate on: read one by one, or from device memory."""
        config, augmentation = self.config, self.augmentation
        if config.resident:
            training = partial(ResidentLoader, device=self.device, compile=config.compile)
            evaluation = partial(ResidentEvalLoader, device=self.device)
        else:
            ahead = prepare.ahead_of(self.core, augmentation.sides)
            training = partial(TrainLoader, workers=config.workers, ahead=ahead)
            evaluation = partial(EvalLoader, workers=config.workers)
        settings = prepare.loader_settings(config, self.images, self.core, augmentation, self.teacher)
        place = {"rank": self.rank, "world": self.world}
        loader = training(self.images, augmentation, **settings, **part._asdict(), **place)
        return loader, evaluation(self.eval_images, augmentation, batch=config.eval_batch or part.batch, **place)

    @property
    def model_settings(self) -> ModelArgs:
        return prepare.model_settings(self.config, self.classes)

    @property
    def total_updates(self) -> int:
        return self.config.total_epochs * self.updates_per_epoch


# What must be equal in all processes


def _other_settings(first: TrainConfig, other: TrainConfig) -> str:
    names = [name for name in vars(first) if getattr(first, name) != getattr(other, name)]
    return f"it was started with another {', '.join(names)}; give every process the same settings"


def _content(images: ImageSet) -> tuple[int, int, str]:
    """A fingerprint of a dataset: number of images, of classes, and a checksum of labels and names."""
    content = hashlib.sha256(images.labels.tobytes() + "\n".join(images.classes).encode()).hexdigest()
    return len(images), len(images.classes), content


def _other_data(first: tuple[int, int, str], other: tuple[int, int, str]) -> str:
    return (
        f"its data has {other[0]} images of {other[1]} classes instead of {first[0]} of {first[1]}, or other labels; "
        "every node needs the same files"
    )
