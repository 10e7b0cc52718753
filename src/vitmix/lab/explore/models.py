"""The models of the page: those named on the command line, runs, and names of timm and Hugging Face models."""

import contextlib
import dataclasses
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from timm.data.imagenet_info import ImageNetInfo
from torch import nn

from vitmix.lab.data.augment import Augmentation
from vitmix.lab.evaluation.subject import Subject, open_subject
from vitmix.lab.extras import need
from vitmix.lab.figures.models import NamedModel, named_model, short_names, without_dropout
from vitmix.lab.network import downloads
from vitmix.lab.runs import Run
from vitmix.lab.settings import ModelArgs
from vitmix.lab.training.header import metadata_and_sizes

USUAL = "deit_tiny_patch16_224"
MOST_PARAMETERS = 400_000_000
MOST_OPEN = 3  # models in memory
HF_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")
RANDOM = "random weights, so its attention and predictions mean nothing"


@dataclass(frozen=True)
class OpenedModel:
    """A model, where its weights come from, and the line of code that creates it."""

    model: NamedModel
    weights: str
    code: str

    @property
    def said(self) -> str:
        return f"{self.model.name}: {self.weights}"


@dataclass(frozen=True)
class Place:
    """A run folder or a weights file that the command line named."""

    path: Path
    arch: str | None = None


class Models:
    """The models that the page may open. Names typed into the page are never used as paths.

    Args:
        places: run folders and weights files, by the name that the page shows.
        pretrained: whether weights may be downloaded; otherwise only those already on this machine are used.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        names: Sequence[str] = (),
        *,
        pretrained: bool = False,
        model_args: ModelArgs | None = None,
        size: int | None = None,
        weights: str = "best",
    ) -> None:
        self.places, self.pretrained = dict(places), pretrained
        self.model_args, self.size = dict(model_args or {}), size
        self.weights = weights
        self.names = list(dict.fromkeys([*names, *places])) or [USUAL]
        self._open: OrderedDict[str, OpenedModel] = OrderedDict()

    def first(self, say: Callable[[str], object]) -> str:
        """The name of the first model that opens, otherwise the default model with any available weights."""
        for name in [*self.names]:
            try:
                _ = self[name]
                return name
            except ValueError as problem:
                if name in self.places:  # a damaged file is an error; a missing network is not
                    raise
                say(f"Note: {problem}; the page opens {USUAL} instead.")
        self.names.insert(0, USUAL)
        return USUAL

    def __getitem__(self, name: str) -> OpenedModel:
        if name not in self._open:
            self._open[name] = self._opened(name)
        self._open.move_to_end(name)
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return self._open[name]

    def _opened(self, name: str) -> OpenedModel:
        if name in self.places:
            return self._of_place(name, self.places[name])
        model_args, size = (self.model_args, self.size) if name in self.names else ({}, None)
        if not name or not Path(name).exists():  # timm and transformers would open a folder of that name
            if HF_NAME.fullmatch(name):
                return open_huggingface(name, download=self.pretrained)
            if timm.is_model(name):
                return open_timm(name, download=self.pretrained, model_args=model_args, size=size)
        raise ValueError(f"unknown model {name[:60]!r}; write the name of a timm model, or OWNER/NAME of Hugging Face")

    def _of_place(self, name: str, place: Place) -> OpenedModel:
        _check_file(name, place, self.weights, self.model_args)
        if place.path.is_dir():
            subject = open_subject(place.path, weights=self.weights, size=self.size)
            said = f"{self.weights} weights of a run"
        else:
            subject = open_subject(place.path, model=place.arch, model_args=self.model_args, size=self.size)
            said = f"weights of {place.path.name}"
        return _opened(subject, name, said)


def places_of(models: Sequence[str], arch: str | None, runs: Sequence[Path]) -> tuple[dict[str, Place], list[str]]:
    """The named places, by short names, and the names of models that are not files. Published runs have no weights."""
    files = [each for each in models if Path(each).exists()]
    paths = [str(Path(each).resolve()) for each in (*files, *runs) if Path(each).exists()]  # "." has no name
    places = {
        name: Place(Path(path), arch if Path(path).is_file() else None)
        for name, path in zip(short_names(paths), paths, strict=True)
    }
    others = [each for each in models if each not in files]
    for each in others:
        if not HF_NAME.fullmatch(each) and not timm.is_model(each):
            raise ValueError(f"{each!r} is neither a run folder, a weights file, a timm model nor OWNER/NAME")
    if arch is not None and not any(Path(each).is_file() for each in files):
        raise ValueError("--arch needs a weights file; leave --arch out")
    return places, others


def open_timm(name: str, *, download: bool, model_args: ModelArgs, size: int | None) -> OpenedModel:
    """A timm model with published weights if they are available, otherwise with random ones."""
    _check_parameters(name, model_args)
    # The hub raises many kinds of errors without a network.
    with contextlib.suppress(Exception), downloads(allowed=download):
        subject = open_subject(name, model_args=model_args, pretrained=True, size=size)
        return _opened(subject, name, "timm's published weights")
    torch.manual_seed(0)
    try:
        subject = open_subject(name, model_args=model_args, size=size)
    except Exception as problem:
        raise ValueError(f"{name} cannot be built: {' '.join(str(problem).split())[:200]}") from None
    return _opened(subject, name, _without_weights(download))


def open_huggingface(name: str, *, download: bool) -> OpenedModel:
    """An image classifier of the Hugging Face hub."""
    hub = need("transformers")
    try:
        with downloads(allowed=download):
            config = hub.AutoConfig.from_pretrained(name, local_files_only=not download)
        with torch.device("meta"):
            count = _parameters(hub.AutoModelForImageClassification.from_config(config))
    except Exception:  # the hub raises many kinds of errors without a network
        raise ValueError(_not_here(name, download)) from None
    _check_count(name, count)  # before the weights are downloaded and loaded
    try:
        with downloads(allowed=download):
            model = hub.AutoModelForImageClassification.from_pretrained(name, local_files_only=not download)
            processor: Any = hub.AutoImageProcessor.from_pretrained(name, local_files_only=not download)
    except Exception:
        raise ValueError(_not_here(name, download)) from None
    size: Any = processor.size
    side = size.get("height") or size.get("shortest_edge")
    augmentation = Augmentation(side, mean=tuple(processor.image_mean), std=tuple(processor.image_std), crop_pct=1.0)
    classes = tuple(str(model.config.id2label[number]) for number in range(model.config.num_labels))
    without_dropout(model)
    code = f"model = transformers.AutoModelForImageClassification.from_pretrained({name!r})"
    found = NamedModel(name, model, augmentation, model.config.num_labels, classes)
    return OpenedModel(found, "published weights", code)


def _not_here(name: str, download: bool) -> str:
    hint = "is the network reachable?" if download else "--pretrained allows the download"
    return f"the Hugging Face model {name} is not on this machine; {hint}"


def _opened(subject: Subject, name: str, weights: str) -> OpenedModel:
    model = named_model(subject, name, trained=subject.trained)
    if not model.classes and model.outputs == 1000:
        info = ImageNetInfo()
        names = tuple(str(info.index_to_description(number)) for number in range(1000))
        model = dataclasses.replace(model, classes=tuple(each.partition(",")[0] for each in names))
    settings = "".join(f", {key}={value!r}" for key, value in subject.settings.items())
    code = f"model = timm.create_model({subject.config.model!r}{settings})"
    return OpenedModel(model, weights if subject.trained else _reason(weights), code)


def _reason(weights: str) -> str:
    return weights if weights.startswith("random") else RANDOM


def _without_weights(download: bool) -> str:
    why = "there is no network, and" if download else "--pretrained would download the published ones;"
    return f"{RANDOM} ({why} none are on this machine)"


def _check_parameters(name: str, model_args: ModelArgs) -> None:
    """Refuses models that are too large, before memory is allocated."""
    try:
        with torch.device("meta"):
            model: nn.Module = timm.create_model(name, **model_args)
    except Exception:  # not every model can be built without memory
        return
    _check_count(name, _parameters(model))


def _check_file(name: str, place: Place, weights: str, model_args: ModelArgs) -> None:
    """Refuses files of too many values, which their header counts, and too large models for files without one."""
    path = place.path
    if path.is_dir():
        run = Run(path)
        path = run.weights(weights) if run.exists else path / "model.safetensors"  # a run, or what was exported
    if path.suffix == ".safetensors" and path.is_file():
        with contextlib.suppress(SafetensorError):  # damaged; opening it says so
            _check_count(name, sum(metadata_and_sizes(path)[1]))
    if place.arch is not None:
        _check_parameters(place.arch, model_args)


def _parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def _check_count(name: str, count: int) -> None:
    if count > MOST_PARAMETERS:
        most = f"{MOST_PARAMETERS / 1e6:,.0f} million"
        raise ValueError(f"{name} has {count / 1e6:,.0f} million parameters; choose a model of at most {most}")
