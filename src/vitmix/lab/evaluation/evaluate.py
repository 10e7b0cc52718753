"""A whole evaluation, as `vitmix eval` prints it and RUN/evaluation.json stores it."""

import time
from pathlib import Path

import torch

from vitmix import __version__
from vitmix.lab.data.images import ImageSet
from vitmix.lab.data.loader import EvalLoader
from vitmix.lab.runs import Evaluation, Run

from .cost import count_flops, count_parameters, throughput
from .predictions import Predictions, calibration_bins, calibration_error, predict
from .subject import Running, Subject, open_subject


def evaluate(subject: Subject, images: ImageSet, running: Running, known: Predictions | None = None) -> Evaluation:
    """Everything that `vitmix eval` says about a model on these images.

    Args:
        known: the model's predictions on these images, where somebody has them.
    """
    fitted, remarks = subject.fit_labels(images)
    augmentation = subject.augmentation
    model = subject.model.to(running.device)
    torch.set_float32_matmul_precision("high" if running.precision == "tf32" else "highest")
    start = time.perf_counter()
    if known is None or fitted is not images:  # whose labels have other numbers
        loader = EvalLoader(fitted, augmentation, batch=running.batch, workers=running.workers)
        known = predict(model, loader, running.device, autocast=running.autocast)
    seconds, batch = time.perf_counter() - start, min(running.batch, len(known))
    speed = throughput(model, augmentation.sides, batch=batch, autocast=running.autocast)
    return Evaluation(
        weights=subject.weights,
        model=subject.config.model,
        model_settings=subject.settings,
        data=fitted.description,
        n=len(known),
        accuracy=float(known.correct.mean()),
        accuracy5=float(known.in_top5.mean()),
        loss=float(known.losses.mean()),
        ece=calibration_error(known.confidence, known.correct),
        classes=tuple(fitted.classes),
        bins=calibration_bins(known.confidence, known.correct),
        confusion=tuple(known.confusion()),
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


def evaluate_run(folder: Path, images: ImageSet | None = None, known: Predictions | None = None) -> Evaluation:
    """Evaluates a run's best weights on the split that it was evaluated on, and stores the result in its folder.

    Args:
        images: that split, where it is open: what of it cannot be read is known then, and not told again.
        known: the predictions of the best weights on it, see `evaluate`.
    """
    subject = open_subject(folder)
    images = subject.own_images() if images is None else images
    found = evaluate(subject, images, subject.running(images), known)
    return Run(folder).write_evaluation(found, subject.sha256)
