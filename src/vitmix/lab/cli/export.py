"""`vitmix export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from vitmix.lab.cli._common import ModelChoice, Place, open_model
from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import option


@dataclass(frozen=True, kw_only=True)
class Export(ModelChoice):
    """Write a model for timm, Hugging Face transformers or ONNX."""

    what: Place = option(..., "run folder, weights file, or name of a timm model", positional=True)
    output: Annotated[str, "OUT"] = option(..., "folder to write; must not exist, or be empty", positional=True)
    to: Literal["timm", "hf", "onnx"] = option(..., "timm, Hugging Face transformers, or ONNX")


def run(settings: Export) -> int:
    from vitmix.lab.export import export

    if not settings.pretrained and not Path(settings.what).exists():
        raise ValueError(f"there is no run folder and no file {settings.what}; for a timm model, add --pretrained")
    if settings.to == "onnx":
        from vitmix.lab.onnx_files import check_packages

        check_packages()
    files = export(open_model(settings, settings.what), Path(settings.output), to=settings.to)
    print(f"{settings.output}: {', '.join(files)}")
    if settings.to == "onnx":
        print(f"Load  onnxruntime.InferenceSession({str(Path(settings.output) / 'model.onnx')!r})")
        return 0
    if settings.to == "hf":
        print(f"Load  AutoModelForImageClassification.from_pretrained({str(Path(settings.output).absolute())!r})")
    print(f"Load  timm.create_model('local-dir:{settings.output}', pretrained=True)")
    return 0


COMMAND = Command(Export, run)
