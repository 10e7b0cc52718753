"""What a dense task provides; the loop, the run folder and the commands know nothing else of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor, nn

from vitmix.attention.readers import frame_of
from vitmix.dense.transforms import DenseMix, dense_mixer
from vitmix.lab.data.images import FileImages, NothingReadable
from vitmix.lab.data.splits import Split
from vitmix.lab.dense.backbone import Backbone
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.dense.tasks import TASKS
from vitmix.lab.runs.dense import DenseScores
from vitmix.lab.runs.examples import StoredTile

Target = TypeVar("Target")
"""What belongs to an image."""
Outcome = TypeVar("Outcome")
"""What is kept of an evaluated image, in host memory and picklable: processes exchange it."""
IGNORED = 255  # the label of pixels that belong to no class


class BatchMixing(Protocol):
    """Mixes the images and targets of a batch; its draws are a function of (seed, step, rank)."""

    @property
    def step(self) -> int: ...

    @step.setter
    def step(self, value: int) -> None: ...

    def __call__(self, images: Any, targets: Any) -> tuple[Any, Any]: ...


class DenseSet(FileImages, Generic[Target]):
    """Image files with a target each; every label is 0, since an image has no single one.

    Attributes:
        notes: what a user should know of the set, such as images without objects; said once at the start.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, root: str, files: Sequence[str], classes: Sequence[str], description: str) -> None:
        super().__init__(root, files, [0] * len(files), classes, description)

    @abstractmethod
    def target(self, index: int, image: Image.Image) -> Target:
        """The target of an image; a ValueError where it does not fit."""

    def sample(self, index: int) -> tuple[Image.Image, Target]:
        """Image and target; raises `BrokenImage` where either cannot be used."""
        image, _ = self[index]
        try:
            return image, self.target(index, image)
        except MemoryError:
            raise
        except Exception as problem:  # decoders raise nearly anything on damaged bytes
            raise self.unreadable(index, problem) from problem

    def nothing_readable(self) -> NothingReadable:
        return NothingReadable(
            f"none of the {len(self)} images of {self.description} could be used; the first: "
            f"{self.broken[min(self.broken)]}; correct the files or --data"
        )

    def usable(self, index: int) -> tuple[Image.Image, Target, int]:
        """Image, target and index of the first usable sample from `index` on, wrapping around at the end."""
        (image, target), found = self.first_readable(index, self.sample)
        return image, target, found


class Sides(NamedTuple):
    """How images reach the model: height and width of its input, mean and deviation of pixels in 0..1."""

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass
class TaskBatch:
    """Images `(B, 3, H, W)`, normalized, and what the task's `collate` made of their targets.

    In evaluation, images and targets are lists: the images are whole and differ in size.
    """

    images: Any
    targets: Any
    indices: Tensor
    broken: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str) -> "TaskBatch":
        return TaskBatch(moved(self.images, device), moved(self.targets, device), self.indices, self.broken)

    def pin_memory(self) -> "TaskBatch":
        return TaskBatch(pinned(self.images), pinned(self.targets), self.indices, self.broken)


def moved(tree: Any, device: torch.device | str) -> Any:
    """A nested value with its tensors on a device."""
    return _each(tree, lambda value: value.to(device, non_blocking=True))


def pinned(tree: Any) -> Any:
    return _each(tree, lambda value: value.pin_memory())


def _each(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _each(value, change) for key, value in tree.items()}
    return type(tree)(_each(value, change) for value in tree) if isinstance(tree, (list, tuple)) else tree


def _reads_model(method: str, classes: int) -> bool:
    """Whether a method needs the model: for its attention, or for the grid of its tokens."""
    mixers = dense_mixer(method, classes).mixers
    try:
        for each in mixers:
            each.draw(frame_of(torch.zeros(2, 3, 32, 32), None), torch.Generator())
    except ValueError:  # there is no grid to draw from
        return True
    return any(not each.input_only for each in mixers)


class Task(ABC, Generic[Target, Outcome]):
    """A dense task. Methods hold no state: settings come with each call."""

    name: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ()
    """Names of the parts of the loss, for the log; none if it has one part."""

    @property
    def scores(self) -> tuple[str, ...]:
        """The columns of an evaluation; the first selects the best weights."""
        return TASKS[self.name].scores

    @abstractmethod
    def open_data(self, spec: str, split: Split) -> DenseSet[Target]:
        """The images with targets that a text such as `"masks:DIR"` names."""

    @abstractmethod
    def build(self, backbone: Backbone, classes: Sequence[str], config: TransferConfig) -> nn.Module:
        """The model: the backbone, with its weights, and a new head. `encoder_of` finds the backbone in it."""

    @abstractmethod
    def encoder_of(self, model: nn.Module) -> nn.Module:
        """The timm model in it, whose parameters have the backbone's learning rate."""

    @abstractmethod
    def transform(self, config: TransferConfig, sides: Sides) -> Callable[..., Any]:
        """The joint augmentation: (`tv_tensors.Image` uint8, target) to the same of the model's input size."""

    @abstractmethod
    def collate(self, targets: list[Any]) -> Any:
        """The targets of a training batch, from those that `transform` returns."""

    def check_method(self, method: str) -> None:
        """Refuses a method that dense targets cannot follow."""
        dense_mixer(method, 2)

    def mixing(self, model: nn.Module, classes: int, config: TransferConfig, rank: int) -> BatchMixing:
        """What `--method` does to a batch; refuses methods that dense targets cannot follow."""
        return DenseMix(
            config.method,
            model=model if _reads_model(config.method, classes) else None,
            num_classes=classes,
            ignore_index=IGNORED,
            seed=config.seed,
            rank=rank,
            step=0,
        )

    @abstractmethod
    def losses(self, model: nn.Module, images: Tensor, targets: Any) -> dict[str, Tensor]:
        """The parts of the loss by name, to be added up; the model is in training mode."""

    @abstractmethod
    def outcomes(self, model: nn.Module, batch: TaskBatch, sides: Sides) -> list[Outcome]:
        """What the scores need of each image of a batch for evaluation."""

    @abstractmethod
    def score(self, outcomes: Sequence[Outcome], classes: Sequence[str], *, intervals: bool) -> DenseScores:
        """The scores of all images; 95 % intervals, which take longer, where they are asked for."""

    def files(self, outcomes: Sequence[Outcome]) -> dict[str, bytes]:
        """What the run folder keeps of an evaluation, by the name of the file."""
        return {}

    @abstractmethod
    def examples(
        self, model: nn.Module, batch: TaskBatch, classes: Sequence[str], sides: Sides
    ) -> Iterator[tuple[StoredTile, ...]]:
        """A row of tiles for each image, for the report: image, truth, prediction, errors."""
