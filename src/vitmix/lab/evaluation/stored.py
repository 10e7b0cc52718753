"""A whole evaluation as plain values, and the one that belongs to a run: RUN/evaluation.json."""

import json
import time
from pathlib import Path
from typing import Any

import torch

from vitmix import __version__
from vitmix.lab.data.images import ArrayImages, ImageSet
from vitmix.lab.data.loader import EvalLoader
from vitmix.lab.data.sources import open_images
from vitmix.lab.environment import available_cores
from vitmix.lab.reading import fits, is_count, is_number, read_known
from vitmix.lab.runs import Run
from vitmix.lab.training.checkpoints import write_file

from .cost import count_flops, count_parameters, throughput
from .measure import calibration_bins, predict
from .subject import Running, Subject, checksum, open_subject

FILE = "evaluation.json"
SHAPE = {  # what its readers look up
    **{name: str for name in ("weights", "data", "device", "precision")},
    **{name: is_number for name in ("accuracy", "accuracy5", "loss", "ece", "images_per_second")},
    **{name: is_count for name in ("n", "parameters", "flops", "batch")},
    "classes": [str],
    "bins": [{"count": is_count, "accuracy": is_number, "confidence": is_number}],
    "confusion": [[is_count]],
}
Evaluation = dict[str, Any]


def evaluate(subject: Subject, images: ImageSet, running: Running) -> Evaluation:
    """Everything `vitmix eval` says about a model on these images, as JSON holds it.

    `confusion` lists [label, predicted, images] for every pair that occurs; `n` counts the images that could be read.
    """
    images, remarks = subject.fit_labels(images)
    augmentation = subject.augmentation
    model = subject.model.to(running.device)
    torch.set_float32_matmul_precision("high" if running.precision == "tf32" else "highest")
    loader = EvalLoader(images, augmentation, batch=running.batch, workers=running.workers)
    start = time.perf_counter()
    predictions = predict(model, loader, running.device, autocast=running.autocast)
    seconds = time.perf_counter() - start
    speed = throughput(model, augmentation.sides, batch=min(running.batch, len(predictions)), autocast=running.autocast)
    return {
        "weights": subject.weights,
        "model": subject.config.model,
        "model_settings": subject.settings,
        "data": images.description,
        "n": len(predictions),
        **{each.name: each.value for each in predictions.measurements()},
        "classes": images.classes,
        "bins": calibration_bins(predictions.confidence, predictions.correct),
        "confusion": predictions.confusion(),
        "parameters": count_parameters(model),
        "flops": count_flops(model, augmentation.sides),
        "size": list(augmentation.sides),
        "images_per_second": speed.value,
        "passes_timed": speed.n,
        "batch": min(running.batch, len(predictions)),
        "seconds": seconds,
        "device": torch.cuda.get_device_name(running.device) if running.device.type == "cuda" else "cpu",
        "precision": running.precision,
        "broken_images": sorted(images.broken.values()),
        "remarks": remarks,
        "vitmix": __version__,
    }


def evaluate_run(folder: Path, images: ImageSet | None = None) -> Evaluation:
    """Evaluates a run's best weights on the split that it was evaluated on, and keeps the result in its folder.

    Args:
        images: that split, where it is open: what of it cannot be read is known then, and not told again.
    """
    subject = open_subject(folder)
    images = own_images(subject) if images is None else images
    found = evaluate(subject, images, running_of(subject, images))
    keep_evaluation(subject, found)
    return found


def keep_evaluation(subject: Subject, found: Evaluation) -> None:
    """Writes the evaluation of a run's best weights into its folder."""
    assert subject.run is not None
    found["weights_sha256"] = subject.sha256
    write_file(subject.run / FILE, json.dumps(found, allow_nan=False).encode())
    from .examples import draw_examples  # not at the top: figures import this package

    Run(subject.run).write_examples(draw_examples(subject), subject.sha256)


def own_images(subject: Subject, *, data: str | None = None, split: str | None = None) -> ImageSet:
    """The images that a run was evaluated on, unless others are named."""
    if data is None and subject.run is None:
        raise ValueError(f"{subject.weights} is of no run folder, so it names no data; give --data, such as shapes")
    own = subject.config.eval_split if subject.run is not None else "test"
    return open_images(data or subject.config.data, split or own)  # pyright: ignore[reportArgumentType]


def read_evaluation(folder: Path) -> Evaluation | None:
    """The stored evaluation of a run's best weights, unless there is none, or one of other weights or another form."""
    found = read_known(folder / FILE)
    if not fits(found, SHAPE) or not found["bins"]:
        return None
    if any(len(row) != 3 or row[0] >= len(found["classes"]) for row in found["confusion"]):
        return None
    known = checksums(folder, "best")
    return found if not known or found.get("weights_sha256") in known else None


def running_of(subject: Subject, images: ImageSet | None, *, cpu: bool = False) -> Running:
    """As the training computed, where this machine can."""
    config = subject.config
    device = torch.device("cpu" if cpu or config.cpu or not torch.cuda.is_available() else "cuda")
    in_memory = isinstance(images, ArrayImages)  # which needs no help
    return Running(
        device,
        "fp32" if device.type == "cpu" else config.precision,
        config.eval_batch or min(config.batch, 256),
        0 if in_memory else min(config.workers, available_cores()),
    )


def checksums(folder: Path, *names: str) -> set[str]:
    """Of the weights `best` or `last` in a run folder; empty where there are none, as in a published folder."""
    paths = [folder / f"{name}.safetensors" for name in names]
    return {checksum(path) for path in paths if path.is_file()}
