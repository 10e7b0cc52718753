"""What several commands take: the answer to "which model?", data, methods, files to write."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from vitmix._checks import check_output_file
from vitmix.lab.cli._parser import note
from vitmix.lab.settings import Count, File, ModelArgs, Name, Settings, Split, option

if TYPE_CHECKING:
    from vitmix.lab.evaluation import Subject

UNTRAINED = "vit_tiny_patch16_224"  # for figures that need no trained model


def check_method(_: str, text: str) -> None:
    """A typo should show before a model is built."""
    from vitmix._text import create

    create(text, 2)


def check_figure(_: str, file: str) -> None:
    from vitmix.lab.plotting.canvas import check_suffix

    check_output_file(check_suffix(file))


Place = Annotated[str, "RUN|FILE|NAME"]
Image = Annotated[str, "IMAGE"]
Method = Annotated[str, "METHOD", check_method]
OutputFile = Annotated[str, "FILE", lambda _, file: check_output_file(file)]
Figure = Annotated[str, "FILE", check_figure]


@dataclass(frozen=True, kw_only=True)
class Architecture(Settings):
    """What a model is, its weights aside."""

    section = "Which model"

    model: Place | None = option(None, "run folder, weights file, or name of a timm model")
    arch: Name | None = option(None, "timm model of a weights file, if its header does not name it")
    model_args: ModelArgs = option({}, "settings of the timm model; 'vitmix models NAME' lists them")
    size: Count | None = option(None, "image side in pixels (default: the model's)")


@dataclass(frozen=True, kw_only=True)
class ModelChoice(Architecture):
    """A model with its weights."""

    section = Architecture.section

    weights: Literal["best", "last"] = option("best", "which weights of a run to use")
    pretrained: bool = option(False, "use timm's published weights")


@dataclass(frozen=True, kw_only=True)
class MeasuredModel(ModelChoice):
    """A model, as `--model` or without the flag, and the images it is measured on."""

    what: Place | None = option(None, "run folder, weights file, or name of a timm model", positional=True)
    data: str | None = option(None, "data, written as for vitmix train (default: the run's)")
    split: Split | None = option(None, "split to take images from (default: the run's, or test)")
    cpu: bool = option(False, "use the CPU even if there is a GPU")


@dataclass(frozen=True, kw_only=True)
class EarlierChoice(ModelChoice):
    """A model as two commands named it in version 0.1."""

    checkpoint: File | None = option(None, "weights file", now="--model FILE, with --arch for its timm name")
    num_classes: int | None = option(None, "outputs of that model", now="--model-args num_classes=N")


E = TypeVar("E", bound=EarlierChoice)


def in_new_words(settings: E, named: str | None) -> E:
    """Settings whose model is named by `--model`; `named` is the value of another flag for it."""
    if settings.model is not None and named is not None:
        raise ValueError("the model is named twice; give --model alone")
    model, arguments = settings.model or named, settings.model_args
    if settings.num_classes is not None:
        arguments = {**arguments, "num_classes": settings.num_classes}
    if settings.checkpoint is None:
        return replace(settings, model=model, model_args=arguments)
    if model is not None and Path(model).is_dir():
        raise ValueError(f"{model} is a run folder and has its own weights; remove --checkpoint")
    return replace(settings, model=settings.checkpoint, arch=settings.arch or model, model_args=arguments)


def place_and_arch(settings: Architecture, what: str | None = None) -> tuple[str | None, str | None]:
    """The place of the model, and the architecture of a weights file."""
    if what is not None and settings.model is not None:
        note("--model NAME beside a weights file is now --arch NAME")
        return what, settings.arch or settings.model
    return what or settings.model, settings.arch


def open_model(settings: ModelChoice, what: str | None = None) -> "Subject":
    """The named model with its weights."""
    from vitmix.lab.evaluation.subject import open_subject

    place, arch = place_and_arch(settings, what)
    if place is None:
        raise ValueError("no model is named; give a run folder, a weights file or the name of a timm model")
    given = {name: getattr(settings, name) for name in ("model_args", "pretrained", "weights", "size")}
    return open_subject(place, model=arch, **given)


def open_beside(settings: ModelChoice, place: str, arch: str | None) -> "Subject":
    """One of several models: it takes those of the flags that apply to it."""
    is_file, is_run = Path(place).is_file(), Path(place).is_dir()
    own = replace(
        settings,
        model=place,
        arch=arch if is_file else None,
        model_args={} if is_run else settings.model_args,
        pretrained=settings.pretrained and not is_file and not is_run,
    )
    return open_model(own)
