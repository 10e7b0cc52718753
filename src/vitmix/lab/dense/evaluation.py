"""The evaluation of a transfer run: its best weights on whole images, with intervals and examples."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitmix import __version__
from vitmix.lab.data.images import NothingReadable
from vitmix.lab.dense.backbone import Backbone, rebuilt
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.dense.loader import DenseEvalLoader
from vitmix.lab.dense.task import DenseSet, Outcome, Sides, Task, TaskBatch
from vitmix.lab.dense.tasks import task_named
from vitmix.lab.environment import describe_environment
from vitmix.lab.evaluation.subject import Running
from vitmix.lab.runs import Run, checksum
from vitmix.lab.runs.dense import DenseEvaluation, DenseScores
from vitmix.lab.runs.examples import Examples, Strips
from vitmix.lab.training.header import read_header
from vitmix.lab.training.texts import unusable
from vitmix.lab.training.weights import read_weights
from vitmix.lab.writing import write_file

EXAMPLES = 6  # images of a report
PREDICTIONS = "Predictions"


@dataclass(frozen=True)
class Transferred:
    """A model with its head, from a transfer run, in evaluation mode."""

    model: nn.Module
    task: Task[Any, Any]
    config: TransferConfig
    backbone: Backbone
    classes: tuple[str, ...]
    weights: Path
    sha256: str

    @property
    def sides(self) -> Sides:
        return Sides(self.backbone.size, self.backbone.mean, self.backbone.std)

    def running(self, *, cpu: bool = False) -> Running:
        """The run's settings, adapted to this machine."""
        config = self.config
        return Running.of(config, batch=config.eval_batch or config.batch // config.accumulate, cpu=cpu)

    def images(self, data: str | None = None, split: str | None = None) -> DenseSet:
        """The images that the run was evaluated on, unless others are named."""
        own: Any = split or self.config.eval_split
        found = self.task.open_data(data or self.config.data, own)
        if tuple(found.classes) != self.classes:
            raise ValueError(
                f"{found.description} has the classes {', '.join(found.classes)}, but {self.weights} was trained on "
                f"{', '.join(self.classes)}; evaluate on the same classes"
            )
        return found


def open_transferred(folder: str | Path, weights: str = "best") -> Transferred:
    """The model of a transfer run."""
    run = Run.open(folder)
    config = run.config
    if not isinstance(config, TransferConfig):
        raise ValueError(f"{folder} is a run of vitmix train, not of vitmix transfer")
    path = run.weights(weights)
    sha256, header = checksum(path), read_header(path)
    task, backbone = task_named(config.task), rebuilt(header, config, path)
    classes = header.classes or ()
    model = task.build(backbone, classes, config)
    try:
        model.load_state_dict(read_weights(path))
    except RuntimeError as problem:
        raise ValueError(
            f"the weights in {path} do not fit its configuration: {' '.join(str(problem).split())[:200]}"
        ) from None
    return Transferred(model.eval(), task, config, backbone, classes, path, sha256)


@torch.no_grad()
def outcomes_of(
    task: Task[Any, Outcome],
    model: nn.Module,
    batches: Iterable[TaskBatch],
    sides: Sides,
    device: torch.device,
    *,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    between: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """What the scores need of each image; `between` is called before every batch."""
    training = model.training
    model.eval()
    found: list[Outcome] = []
    for batch in batches:
        between()
        with autocast():
            found += task.outcomes(model, batch.to(device), sides)
    model.train(training)
    return found


def evaluate(
    subject: Transferred,
    images: DenseSet,
    running: Running,
    *,
    known: Sequence[Any] = (),
    folder: Path | None = None,
) -> DenseEvaluation:
    """The scores of a model on images, with intervals.

    Args:
        known: what the scores need of each image, where a training has it.
        folder: the run folder that keeps the scores, examples, and what the task stores of its outcomes.
    """
    began, device, dtype = time.perf_counter(), running.device, running.autocast
    running.set_matmul_precision()
    loader = DenseEvalLoader(images, subject.sides, batch=running.batch, workers=running.workers)
    autocast = nullcontext if dtype is None else lambda: torch.autocast(device.type, dtype)
    model = subject.model.to(device)
    found = known or outcomes_of(subject.task, model, loader, subject.sides, device, autocast=autocast)
    if not found:
        raise NothingReadable(f"none of the images of {images.description} could be read; get the files again")
    evaluation = DenseEvaluation(
        task=subject.task.name,
        head=getattr(model, "head_name", subject.config.head),
        model=subject.backbone.name,
        model_settings=subject.backbone.settings,
        data=images.description,
        scores=subject.task.score(found, subject.classes, intervals=True),
        classes=subject.classes,
        parameters=sum(each.numel() for each in model.parameters()),
        size=subject.sides.size,
        seconds=time.perf_counter() - began,
        device=describe_environment(device)["device"],
        precision=running.precision,
        broken_images=tuple(sorted(images.broken.values())),
        vitmix=__version__,
        weights=str(subject.weights),
        weights_sha256=subject.sha256,
    )
    if folder is not None:
        for name, content in subject.task.files(found).items():
            write_file(folder / name, content)
        store(subject, images, evaluation, folder)
    return evaluation


@torch.no_grad()
def make_examples(subject: Transferred, images: DenseSet) -> Examples:
    """Image, truth, prediction and errors of a few images, evenly spread over the set."""
    count = min(EXAMPLES, len(images))
    rows = sorted({round((number + 0.5) * len(images) / count - 0.5) for number in range(count)})
    loader = DenseEvalLoader(images.subset(torch.tensor(rows).numpy(), images.description), subject.sides, batch=count)
    device = next(subject.model.parameters()).device
    tiles = []
    for batch in loader:
        tiles += subject.task.examples(subject.model, batch.to(device), subject.classes, subject.sides)
    return Examples(mixed=(), strips=(Strips(PREDICTIONS, tuple(tiles)),))


def store(subject: Transferred, images: DenseSet, evaluation: DenseEvaluation, folder: Path) -> None:
    """Writes scores and examples of a run's best weights into its folder."""
    run = Run(folder)
    run.write_examples(make_examples(subject, images), subject.sha256)
    run.write_dense(evaluation, subject.sha256)


def describe(evaluation: DenseEvaluation) -> str:
    """The evaluation as text."""
    scores = evaluation.scores
    lines = [f"{evaluation.model} with {evaluation.head} on {evaluation.data}, {scores.n:,} images:"]
    lines += score_lines(scores)
    if evaluation.broken_images:
        lines.append(f"  {unusable(len(evaluation.broken_images))}: {evaluation.broken_images[0]}")
    return "\n".join(lines)


def score_lines(scores: DenseScores) -> list[str]:
    """Scores with their intervals, then those of each class."""
    lines = [f"  {name} {_shown(name, each)}" for name, each in scores.values.items()]
    if scores.interval:
        lines.append(f"  In brackets: {scores.interval}.")
    columns = dict.fromkeys(name for each in scores.by_class for name in each.values)
    for each in scores.by_class:
        told = ", ".join(f"{name} {each.values[name]:.4g}" for name in columns if name in each.values)
        lines.append(f"  {each.name}: {told or 'no pixel or object'}")
    return [*lines, *(f"  Note: {note}" for note in scores.notes)]


def _shown(name: str, estimate: Any) -> str:
    return estimate.text() if name.endswith("loss") else f"{estimate.text(100, '.2f')} %"
