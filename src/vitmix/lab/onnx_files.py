"""Models as ONNX files, with any number of images in a batch, checked by onnxruntime before they are kept."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from vitmix.lab.extras import need
from vitmix.lab.training.header import ONNX_FILE

FILE = ONNX_FILE
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4  # between logits, relative to the largest one
BATCHES = (1, 2, 5)


def check_packages() -> None:
    for name in PACKAGES:
        need(name)


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
        raise ValueError(
            f"{type(model).__name__} cannot be written as ONNX: {_first_line(error)}; use --to timm"
        ) from None


@torch.no_grad()
def check_onnx(model: nn.Module, path: Path, size: tuple[int, int]) -> None:
    """Raises an error if the file gives other logits than the model, for several batch sizes."""
    session = need("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(1)
    for batch in BATCHES:
        images = torch.randn(batch, 3, *size, generator=generator)
        try:
            (logits,) = session.run(["logits"], {"images": images.numpy()})
        except Exception as error:  # onnxruntime has its own error classes
            raise ValueError(
                f"onnxruntime refuses the exported model for a batch of {batch}: {_first_line(error)}"
            ) from None
        expected = model(images)
        difference, largest = float((torch.from_numpy(logits) - expected).abs().max()), float(expected.abs().max())
        if not difference <= TOLERANCE * largest:
            raise ValueError(
                f"the logits of the ONNX file differ by {difference:.2g}, more than {TOLERANCE:g} of the largest, "
                f"{largest:.2g}; use --to timm"
            )


class OnnxClassifier(nn.Module):
    """A file of `write_onnx` as a module that onnxruntime computes, on the CPU."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        runtime = need("onnxruntime")
        try:
            self.session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has its own error classes
            raise ValueError(f"onnxruntime cannot read {path}: {_first_line(error)}; export the run again") from None

    def forward(self, images: Tensor) -> Tensor:
        try:
            (logits,) = self.session.run(["logits"], {"images": images.numpy()})
        except Exception as error:
            raise ValueError(f"onnxruntime refuses images of {tuple(images.shape)}: {_first_line(error)}") from None
        return torch.from_numpy(logits)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
