"""`vitmix eval`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitmix.lab.cli._common import MeasuredModel, OutputFile, open_model
from vitmix.lab.cli._parser import Command
from vitmix.lab.cli._robustness import SuiteSettings, run_suite, suite_of, workers
from vitmix.lab.settings import option

if TYPE_CHECKING:
    from vitmix.lab.evaluation import Running


@dataclass(frozen=True, kw_only=True)
class Eval(SuiteSettings, MeasuredModel):
    """Evaluate a run, a weights file or a timm model."""

    batch: int | None = option(None, "images per step (default: the run's)")
    workers: int | None = option(None, "processes that load images (default: the run's)")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = option(
        None, "numeric precision (default: the run's on a GPU, otherwise fp32)"
    )
    output: OutputFile | None = option(None, "write all results to this JSON file")


def run(settings: Eval) -> int:
    # Not at the top: every other command would wait for these imports.
    from vitmix.lab.evaluation.classification import evaluate, store
    from vitmix.lab.evaluation.describe import describe
    from vitmix.lab.writing import write_file

    if (folder := _transferred(settings)) is not None:
        return _evaluate_transfer(settings, folder)
    if (folder := _exported_to_onnx(settings)) is not None:
        return _evaluate_onnx(settings, folder)
    suite = suite_of(settings)
    found = open_model(settings, settings.what)
    needs_images = suite is None or suite.needs_images
    images = found.evaluation_images(data=settings.data, split=settings.split) if needs_images else None
    if suite is not None:
        settings = replace(settings, workers=workers(settings.workers))
    running = _with_flags(found.running(images, cpu=settings.cpu), settings)
    own = found.which == "best" and not (settings.data or settings.split or settings.size)
    if suite is not None:
        return run_suite(suite, found, images, running, own=own, cells=settings.cells, output=settings.output)
    assert images is not None
    evaluation = evaluate(found, images, running)
    if own:
        evaluation = store(found, evaluation)
    print(describe(evaluation))  # first: a disk may be full by now
    if settings.output:
        write_file(Path(settings.output), evaluation.encoded())
    return 0


def _with_flags(running: "Running", settings: Eval) -> "Running":
    given = {name: getattr(settings, name) for name in ("precision", "batch", "workers")}
    return replace(running, **{name: value for name, value in given.items() if value is not None})


def _transferred(settings: Eval) -> Path | None:
    """The folder of a transfer run, if one is named."""
    from vitmix.lab.runs import Run

    folder = Path(settings.what or settings.model or "")
    return folder if Run(folder).exists and Run(folder).config.command == "transfer" else None


def _exported_to_onnx(settings: Eval) -> Path | None:
    """The folder of an export for onnxruntime, if it or its file is named."""
    from vitmix.lab.training.header import ONNX_FILE

    named = Path(settings.what or settings.model or "")
    folder = named.parent if named.name == ONNX_FILE else named
    files = {name: (folder / name).is_file() for name in (ONNX_FILE, "config.json", "model.safetensors")}
    return folder if files[ONNX_FILE] and files["config.json"] and not files["model.safetensors"] else None


def _evaluate_onnx(settings: Eval, folder: Path) -> int:
    from vitmix.lab.evaluation import Running, evaluate, open_onnx
    from vitmix.lab.evaluation.describe import describe
    from vitmix.lab.writing import write_file

    if suite_of(settings) is not None:
        raise ValueError(f"{folder} is an ONNX export, without gradients or attention; run the suite on its run")
    if settings.size or settings.arch or settings.model_args or settings.pretrained:
        raise ValueError(f"{folder} is an ONNX export, which names its model and size; give --data and --split alone")
    if settings.precision not in (None, "fp32"):
        raise ValueError(f"{folder} is an ONNX export, which computes in fp32; leave out --precision")
    subject, computes = open_onnx(folder)
    images = subject.evaluation_images(data=settings.data, split=settings.split)
    running = Running(batch=settings.batch or 64, workers=settings.workers or 0)
    evaluation = evaluate(subject, images, running, computes=computes)
    print(describe(evaluation))
    if settings.output:
        write_file(Path(settings.output), evaluation.encoded())
    return 0


def _evaluate_transfer(settings: Eval, folder: Path) -> int:
    from vitmix.lab.dense.evaluation import describe, evaluate, open_transferred
    from vitmix.lab.writing import write_file

    if suite_of(settings) is not None:
        raise ValueError(f"{folder} is a run of vitmix transfer; the robustness suite measures classifiers only")
    if settings.size or settings.arch or settings.model_args or settings.pretrained:
        raise ValueError(f"{folder} is a run, which names its model and size; give --data, --split or --batch alone")
    subject = open_transferred(folder, settings.weights)
    own = settings.weights == "best" and not (settings.data or settings.split)
    running = _with_flags(subject.running(cpu=settings.cpu), settings)
    images = subject.images(settings.data, settings.split)
    evaluation = evaluate(subject, images, running, folder=folder if own else None)
    print(describe(evaluation))
    if settings.output:
        write_file(Path(settings.output), evaluation.encoded())
    return 0


COMMAND = Command(Eval, run)
