"""The subject of an evaluation: a run, a weights file or a timm model, as a model with its preprocessing."""

import copy
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import timm
import torch
from torch import nn

from vitmix._checks import check_choice, check_count, check_workers
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.classes import match_names
from vitmix.lab.data.images import ArrayImages, ImageSet
from vitmix.lab.data.sources import open_images
from vitmix.lab.environment import available_cores
from vitmix.lab.onnx_files import OnnxClassifier
from vitmix.lab.runs import Run, checksum
from vitmix.lab.settings import ModelArgs
from vitmix.lab.training import prepare
from vitmix.lab.training.config import AnyConfig, TrainConfig
from vitmix.lab.training.header import ONNX_FILE, Header, read_export, read_header
from vitmix.lab.training.weights import load_weights, read_weights

ONNX = "{} is an ONNX export, which only vitmix eval reads; name the run, or its export with --to timm"
PRECISIONS = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class NotPossible(ValueError):
    """Raised if the model or its images do not allow a measurement."""


@dataclass(frozen=True)
class Running:
    """Where and how to compute."""

    device: torch.device = torch.device("cpu")
    precision: str = "fp32"
    batch: int = 64
    workers: int = 0

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        check_count("batch", self.batch)
        check_workers(self.workers)

    @classmethod
    def of(cls, config: AnyConfig, *, batch: int, cpu: bool = False) -> "Running":
        """The settings of a run, adapted to this machine."""
        device = torch.device("cpu" if cpu or config.cpu or not torch.cuda.is_available() else "cuda")
        precision = "fp32" if device.type == "cpu" else config.precision
        return cls(device, precision, batch, min(config.workers, available_cores()))

    @property
    def autocast(self) -> torch.dtype | None:
        return PRECISIONS[self.precision]

    def set_matmul_precision(self) -> None:
        """For products in float32, which autocast leaves as they are."""
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")


@dataclass(frozen=True)
class Subject:
    """A classifier in evaluation mode, on the CPU until `evaluate` moves it.

    Attributes:
        config: determines the model and its preprocessing; for a run, its configuration.
        outputs: of its classifier.
        arguments: what `timm.create_model` takes besides the name and the number of outputs.
        classes: the names of the outputs, if known.
        run: the run folder that it comes from, if any.
        which: `"best"` or `"last"`, of the weights of a run.
        trained: whether its weights were trained, not random.
        sha256: of the weights file, computed before it is read, because a training run may replace it at any time.
    """

    model: nn.Module
    config: TrainConfig
    outputs: int
    arguments: ModelArgs
    weights: str
    classes: tuple[str, ...] | None = None
    run: Path | None = None
    which: str | None = None
    trained: bool = True
    sha256: str | None = None
    _opened: dict[tuple[str, str], ImageSet] = field(default_factory=dict, repr=False, compare=False)

    @property
    def settings(self) -> ModelArgs:
        """What `timm.create_model` takes besides the name."""
        return {"num_classes": self.outputs, **self.arguments}

    @property
    def augmentation(self) -> Augmentation:
        return prepare.build_augmentation(self.config, self.model)

    def fit_labels(self, images: ImageSet) -> tuple[ImageSet, list[str]]:
        """The images with labels as indices of this model's outputs, and notes about the matching."""
        outputs = self.outputs
        if self.classes is not None and tuple(images.classes) != self.classes[: len(images.classes)]:
            numbers = match_names(images.classes, self.classes, description=images.description, whose=self.weights)
            fitted = copy.copy(images)  # shallow: the pixels are shared
            fitted.labels, fitted.classes = np.array(numbers)[images.labels], list(self.classes)
            return fitted, ["Note: the data numbers its classes differently; labels were matched by name."]
        if len(images.classes) > outputs:
            raise ValueError(
                f"{images.description} has {len(images.classes)} classes, but {self.weights} has {outputs} outputs; "
                "evaluate on the classes it was trained on"
            )
        if len(images.classes) < outputs and self.classes is None:
            return images, [
                f"Note: {outputs} outputs, {len(images.classes)} classes in the data: label i is taken as output i."
            ]
        return images, []

    def evaluation_images(self, *, data: str | None = None, split: str | None = None) -> ImageSet:
        """The images that a run was evaluated on (default), or those of `data`."""
        if data is None and self.run is None:
            raise ValueError(f"{self.weights} is not a run folder, so it names no data; give --data, such as shapes")
        own = self.config.eval_split if self.run is not None else "test"
        place = data or self.config.data, split or own
        if place not in self._opened:  # scanning a large folder takes minutes
            self._opened[place] = open_images(*place)  # pyright: ignore[reportArgumentType]
        return self._opened[place]

    def give_images(self, images: ImageSet) -> None:
        """Uses these open images as those that the run was evaluated on."""
        self._opened[self.config.data, self.config.eval_split] = images

    def running(self, images: ImageSet | None, *, cpu: bool = False) -> Running:
        """The run's settings, adapted to this machine."""
        usual = Running.of(self.config, batch=self.config.eval_batch or min(self.config.batch, 256), cpu=cpu)
        in_memory = isinstance(images, ArrayImages)  # which needs no workers
        return dataclasses.replace(usual, workers=0) if in_memory else usual


def open_subject(
    what: str | Path,
    *,
    model: str | None = None,
    model_args: ModelArgs | None = None,
    pretrained: bool = False,
    weights: str = "best",
    size: int | None = None,
) -> Subject:
    """The classifier that a run folder, a weights file or the name of a timm model stands for.

    Args:
        model: the timm model of a weights file that does not name it.
        model_args: further settings of that model.
        pretrained: for a timm name: its published weights instead of random ones.
        weights: for a run: `"best"` or `"last"`.
        size: image side in pixels (default: the run's or the model's).
    """
    if size is not None:
        check_count("size", size)
    if (model_args or {}).get("num_classes") is not None:
        check_count("num_classes", (model_args or {})["num_classes"])
    place = Path(what)
    if not place.is_dir() and not place.is_file():
        check_place(str(what))
        if model is not None:
            raise ValueError(f"--arch needs a weights file; {str(what)!r} is not one; leave --arch out")
        return _of_timm(str(what), dict(model_args or {}), pretrained, size)
    if pretrained:
        raise ValueError(f"pretrained needs the name of a timm model; {what} has its own weights")
    if place.is_dir():
        if model is not None or model_args:
            raise ValueError(f"{what} is a run folder, which names its model; remove model and model_args")
        return _of_folder(place, weights, size)
    if place.suffix == ".onnx":
        raise ValueError(ONNX.format(what))
    if model is None and place.stem in ("best", "last") and Run(place.parent).exists:
        return _of_run(place.parent, place.stem, size)  # its configuration has the preprocessing
    return _of_file(place, model, dict(model_args or {}), size)


def check_place(what: str) -> None:
    """Refuses what reads like a path, where nothing is there."""
    if "/" in what or Path(what).suffix in (".safetensors", ".pth", ".pt", ".bin"):
        raise ValueError(f"there is no run folder and no file {what}")


def _of_folder(folder: Path, weights: str, size: int | None) -> Subject:
    """A run, or what `vitmix export` wrote."""
    if Run(folder).exists:
        return _of_run(folder, weights, size)
    if (folder / ONNX_FILE).is_file() and not (folder / "model.safetensors").is_file():
        raise ValueError(ONNX.format(folder))
    if not (folder / "model.safetensors").is_file():
        return _of_run(folder, weights, size)  # the error says what is missing
    return _of_file(folder / "model.safetensors", None, {}, size, read_export(folder))


def open_onnx(folder: Path) -> tuple[Subject, nn.Module]:
    """What `vitmix export --to onnx` wrote: its model without the weights, and a module that computes its logits."""
    path = folder / ONNX_FILE
    sha256, header = checksum(path), read_export(folder)
    if header.model is None or header.num_classes is None:
        raise ValueError(f"{folder / 'config.json'} does not name the model; was it written by vitmix export?")
    config = dataclasses.replace(TrainConfig(model=header.model, model_args=header.model_args), **header.preprocessing)
    subject = _built(config, header.num_classes, str(path), header.classes)
    return dataclasses.replace(subject, sha256=sha256), OnnxClassifier(path)


def _of_run(folder: Path, weights: str, size: int | None) -> Subject:
    check_choice("weights", weights, ("best", "last"))
    run = Run.open(folder)
    path = run.weights(weights)
    config, sha256, header = run.classifier_config, checksum(path), read_header(path)
    if header.model is None or header.num_classes is None:
        read_weights(path)  # raises an error if it is damaged
        raise ValueError(f"{path} does not name its model; was it written by vitmix train?")
    # From the file itself: a recipe that changed since would add its model_args to the stored ones.
    config = dataclasses.replace(config, model=header.model, model_args=header.model_args, size=size or config.size)
    subject = _built(config, header.num_classes, str(path), header.classes)
    load_weights(subject.model, path)
    return dataclasses.replace(subject, run=folder, which=weights, sha256=sha256)


def _of_file(
    path: Path, model: str | None, model_args: ModelArgs, size: int | None, header: Header | None = None
) -> Subject:
    sha256 = checksum(path)
    header = header or (Header() if model is not None else read_header(path))
    name = model or header.model
    if name is None:
        read_weights(path)  # raises an error if it is damaged
        raise ValueError(f"{path} does not name its model; give --arch NAME, a timm model")
    settings = {**header.model_args, **model_args}
    outputs = settings.pop("num_classes", None) or header.num_classes or _outputs(name, path)
    own = settings.get("img_size")  # height and width stay an argument of the model
    config = TrainConfig(model=name, model_args=settings, size=own if isinstance(own, int) else None)
    config = dataclasses.replace(_with_model_interpolation(config), **header.preprocessing)
    config = config if size is None else dataclasses.replace(config, size=size)
    subject = _built(config, outputs, str(path), header.classes)
    left_out = load_weights(subject.model, path).left_out
    if left_out:
        raise ValueError(f"{path} is not a classifier of {outputs} classes ({left_out[0]} differs); give num_classes")
    return dataclasses.replace(subject, sha256=sha256)


def _of_timm(name: str, model_args: ModelArgs, pretrained: bool, size: int | None) -> Subject:
    outputs = model_args.pop("num_classes", None)
    config = TrainConfig(model=name, model_args=model_args, size=size, pretrained=pretrained)
    if outputs is None:
        prepare.model_settings(config, 1)  # refuses an unknown name
        cfg = timm.models.get_pretrained_cfg(name)
        outputs = cfg.num_classes if cfg is not None else 1000
    words = f"{name} with timm's published weights" if pretrained else f"{name} with random weights"
    subject = _built(_with_model_interpolation(config), outputs, words, None, published=pretrained)
    return dataclasses.replace(subject, trained=pretrained)


def _built(
    config: TrainConfig, outputs: int, weights: str, classes: tuple[str, ...] | None, *, published: bool = False
) -> Subject:
    """The model without its weights, except for timm's `published` ones: no file may cause a download."""
    if classes is not None and len(classes) > outputs:
        raise ValueError(f"{weights} names {len(classes)} classes, but its model has {outputs} outputs; correct them")
    plain = dataclasses.replace(config, checkpoint=None, grad_checkpointing=False)
    model, _ = prepare.build_model(plain, outputs, initial_weights=published)
    own = prepare.build_augmentation(plain, model)
    # So that a method attached to the model knows it; a copy, because timm's models share their configuration.
    vars(model)["pretrained_cfg"] = {**getattr(model, "pretrained_cfg", {}), "mean": own.mean, "std": own.std}
    arguments = {
        name: value for name, value in prepare.model_settings(config, outputs).items() if name != "num_classes"
    }
    return Subject(model.eval(), plain, outputs, arguments, weights, classes)


def _with_model_interpolation(config: TrainConfig) -> TrainConfig:
    """The configuration with the interpolation of the model's timm entry, for weights that vitmix did not train."""
    cfg = timm.models.get_pretrained_cfg(config.model, allow_unregistered=True)
    own = getattr(cfg, "interpolation", None)
    return dataclasses.replace(config, interpolation=own) if own in ("bicubic", "bilinear") else config


def _outputs(name: str, path: Path) -> int:
    """How many classes a weights file has, by the rows of its classifier."""
    cfg = timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    classifier = getattr(cfg, "classifier", None)
    first = classifier if isinstance(classifier, str) or not classifier else classifier[0]
    weight = read_weights(path).get(f"{first}.weight")
    if weight is None:
        said = read_header(path).model
        if said is not None and said != name:
            raise ValueError(f"{path} holds weights of {said}, not of {name}; leave --arch out")
        raise ValueError(
            f"{path} has no classifier {first!r} as {name} has; give its model, "
            "or the number of its classes (num_classes)"
        )
    return len(weight)
