"""A whole evaluation, as `vitmix eval` prints it and RUN/evaluation.json stores it."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from vitmix import __version__
from vitmix.lab.data.images import ImageSet
from vitmix.lab.data.loader import EvalLoader
from vitmix.lab.runs import Evaluation, Run

from .cost import count_flops, count_parameters, throughput
from .predictions import Outcomes, calibration_bins, calibration_error, predict
from .subject import Running, Subject, open_subject


@dataclass(frozen=True)
class Known:
    """Outcomes of a model on some images, in order, and how they were computed."""

    running: Running
    outcomes: list[Outcomes]

    def fits(self, running: Running) -> bool:
        """Whether computing them again would give identical bits; the number of workers does not matter."""
        own, other = ((each.device.type, each.precision, each.batch) for each in (self.running, running))
        return bool(self.outcomes) and own == other


def evaluate(
    subject: Subject,
    images: ImageSet,
    running: Running,
    known: Known | None = None,
    computes: nn.Module | None = None,
) -> Evaluation:
    """Everything that `vitmix eval` reports about a model on these images.

    Args:
        known: the model's outcomes on them.
        computes: what computes the logits, if it is not the model itself.
    """
    fitted, remarks = subject.fit_labels(images)
    augmentation = subject.augmentation
    model = subject.model.to(running.device)
    computes = model if computes is None else computes
    running.set_matmul_precision()
    start = time.perf_counter()
    if known is not None and known.fits(running) and fitted is images:  # otherwise labels have other numbers
        found = Outcomes.joined(known.outcomes)
    else:
        loader = EvalLoader(fitted, augmentation, batch=running.batch, workers=running.workers)
        found = predict(computes, loader, running.device, autocast=running.autocast)
    seconds, batch = time.perf_counter() - start, min(running.batch, len(found))
    correct, confidence = found.correct.numpy(), found.confidence.numpy()
    speed = throughput(computes, augmentation.sides, batch=batch, autocast=running.autocast)
    return Evaluation(
        weights=subject.weights,
        model=subject.config.model,
        model_settings=subject.settings,
        data=fitted.description,
        n=len(found),
        accuracy=float(correct.mean()),
        accuracy5=float(found.in_top5.numpy().mean()),
        loss=float(found.losses.numpy().mean()),
        ece=calibration_error(confidence, correct),
        classes=tuple(fitted.classes),
        bins=calibration_bins(confidence, correct),
        confusion=found.confusion(),
        parameters=count_parameters(model),
        flops=count_flops(model, augmentation.sides),
        size=augmentation.sides,
        images_per_second=speed.mean,
        passes_timed=speed.n,
        batch=batch,
        seconds=seconds,
        device=torch.cuda.get_device_name(running.device) if running.device.type == "cuda" else "cpu",
        precision=running.precision,
        broken_images=tuple(sorted(fitted.broken.values())),
        remarks=tuple(remarks),
        vitmix=__version__,
    )


def evaluate_run(folder: Path, images: ImageSet | None = None, known: Known | None = None) -> Evaluation:
    """Evaluates a run's best weights on the split that it was evaluated on, and stores the result in its folder.

    Args:
        images: that split, if it is already open; its unreadable images are then known and not reported again.
        known: the outcomes of the best weights on it.
    """
    subject = open_subject(folder)
    if images is not None:
        subject.give_images(images)
    images = subject.evaluation_images()
    found = evaluate(subject, images, subject.running(images), known)
    return store(subject, found)


def store(subject: Subject, evaluation: Evaluation) -> Evaluation:
    """Stores the evaluation of a run's best weights in its folder, with images that show them."""
    from .examples import make_examples  # not at the top: figures import this package

    assert subject.run is not None
    run = Run(subject.run)
    run.write_examples(make_examples(subject), subject.sha256)  # first: an evaluation implies its examples
    return run.write_evaluation(evaluation, subject.sha256)
