"""Models as ONNX files, with any number of images in a batch, checked by onnxruntime before they are kept."""

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

FILE = "model.onnx"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4  # between logits
BATCHES = (1, 2, 5)


def check_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"--to onnx needs {', '.join(missing)}; install them with pip install 'vitmix[onnx]'")


def write_onnx(model: nn.Module, path: Path, size: tuple[int, int]) -> None:
    """Writes `images (batch, 3, height, width)` to `logits (batch, classes)`; batch is free, the size fixed."""
    check_packages()
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    try:
        with _quiet():
            program = torch.onnx.export(
                model.eval().cpu(),
                (images,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
        assert program is not None
        program.save(str(path))
    except Exception as error:  # from the exporter, for operations that ONNX does not have
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{type(model).__name__} cannot be written as ONNX: {reason}; use --to timm") from None


@torch.no_grad()
def check_onnx(model: nn.Module, path: Path, size: tuple[int, int]) -> None:
    """Raises an error if the file gives other logits than the model, for several batch sizes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(1)
    for batch in BATCHES:
        images = torch.randn(batch, 3, *size, generator=generator)
        try:
            (logits,) = session.run(["logits"], {"images": images.numpy()})
        except Exception as error:  # onnxruntime has its own error classes
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"onnxruntime refuses the exported model for a batch of {batch}: {reason}") from None
        difference = float((torch.from_numpy(logits) - model(images)).abs().max())
        if not difference <= TOLERANCE:
            raise ValueError(
                f"the logits of the ONNX file differ by {difference:.2g}, more than {TOLERANCE:g}; use --to timm"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notices and progress."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
