"""`vitmix figure`: where models look."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitmix.lab.cli import _common
from vitmix.lab.cli._common import UNTRAINED, Figure, Image, ModelChoice, Place
from vitmix.lab.cli._parser import Command, CommandGroup
from vitmix.lab.settings import Count, Name, option

if TYPE_CHECKING:
    from vitmix.lab.evaluation.subject import Subject
    from vitmix.lab.figures import NamedImage, NamedModel
    from vitmix.lab.plotting import ImageGrid

KINDS = {  # and the settings that a kind takes besides those of all
    "attention": ("Attention of the class token (or received by each patch), block by block", ("method", "blocks")),
    "rollout": ("Attention rolled out through all blocks", ("method",)),
    "heads": ("Attention of each head without mixing, with blended tokens and with HTM", ("method", "block")),
    "gradcam": ("Grad-CAM of unmixed or mixed images (needs the extra eval)", ("method", "only_right")),
    "gradient": ("Gradient of the loss at each pixel, beside attention", ()),
    "occlusion": ("Confidence under growing occlusion", ()),
    "labels": ("Aligned label maps: per-token labels, block by block", ("method", "blocks")),
    "gallery": ("The same pairs, mixed by each method", ("method",)),
}
OWN = ("method", "blocks", "block", "only_right")
MixingMethod = Annotated[str, "METHOD", lambda name, text: text == "manifold" or _common.check_method(name, text)]


@dataclass(frozen=True, kw_only=True)
class FigureSettings(ModelChoice):
    models: tuple[Place, ...] = option((), f"models side by side (default: {UNTRAINED}, untrained)", positional=True)
    images: tuple[Image, ...] = option(
        (), "files, or shapes:N for built-in ones (default: two held-out images of the first run, or built-in ones)"
    )
    names: tuple[Name, ...] = option((), "names of the images; a class name of the model is used as the label")
    method: tuple[MixingMethod, ...] = option(
        (),
        "mix pairs of neighboring images (default: heads: none manifold htm, labels: tl_align, gallery: all)",
    )
    blocks: tuple[int, ...] | None = option(None, "blocks to show (default: all, but at most twelve)")
    block: int = option(-1, "block whose heads are shown (default: -1, the last)")
    only_right: bool = option(False, "only images that all models classify correctly without mixing")
    seed: int = option(0, "random seed, the same for all models")
    dpi: Count = option(200, "dots per inch of a PNG")
    output: Figure = option(..., "figure as .png, .svg or .pdf")


def run(kind: str, settings: FigureSettings) -> int:
    from vitmix.lab.figures import KINDS as FIGURES
    from vitmix.lab.figures import FigureInputs
    from vitmix.lab.fitting import fitting_methods
    from vitmix.lab.plotting import render_grid
    from vitmix.lab.plotting.text import font_remarks
    from vitmix.lab.writing import write_file

    output = Path(settings.output)
    about, own = KINDS[kind]
    given, methods = {name: getattr(settings, name) for name in own if name != "method"}, [*settings.method]
    subjects, models = _open_models(settings)
    side = max(max(model.augmentation.sides) for model in models)
    images = _find_images(settings, side, subjects, models)
    if kind == "gallery" and not methods:
        methods, _ = fitting_methods(models[0].model, models[0].augmentation.sides)
        methods = [method for method in methods if method != "vtm"]  # it mixes no images
    grid = FIGURES[kind](FigureInputs(models, images, methods, settings.seed), **given)
    write_file(output, render_grid(grid, suffix=output.suffix.lower(), dpi=settings.dpi))
    print(f"{output}: {kind} of {', '.join(model.name for model in models)}")
    words = f"{about.split(' (')[0]}: {', '.join(model.name for model in models)}."
    _keep_copies(output.stem, words, grid, [each for each in subjects if each.which == "best"])
    for remark in font_remarks([image.name for image in images]):
        print(remark)
    if not all(model.trained for model in models):
        print("A model is untrained, so its maps mean nothing yet; name a run, or give --pretrained.")
    return 0


def _keep_copies(name: str, words: str, grid: "ImageGrid", subjects: list["Subject"]) -> None:
    """Stores a copy with each run, for reports."""
    from vitmix.lab.figures.stored import DPI, store_figure
    from vitmix.lab.plotting import render_grid

    png = render_grid(grid, dpi=DPI) if subjects else b""
    for each in subjects:
        assert each.run is not None
        try:
            store_figure(each.run, name, png, words, each.sha256)
        except OSError as error:
            print(f"No copy for reports could be kept in {each.run}: {error.strerror}.")


def _open_models(settings: FigureSettings) -> tuple[list["Subject"], list["NamedModel"]]:
    import torch

    from vitmix.lab.figures.models import named_model, short_names

    first, arch = _common.place_and_arch(settings, settings.models[0] if settings.models else None)
    places = [*settings.models] or [first or UNTRAINED]
    subjects, models = [], []
    for place, name in zip(places, short_names(places), strict=True):
        torch.manual_seed(settings.seed)  # of random weights
        subjects.append(_common.open_beside(settings, place, arch))
        models.append(named_model(subjects[-1], name, trained=subjects[-1].trained))
    return subjects, models


def _find_images(
    settings: FigureSettings, side: int, subjects: list["Subject"], models: list["NamedModel"]
) -> list["NamedImage"]:
    run = next((subject for subject in subjects if subject.run is not None), None)
    images = _held_out(run) if run is not None and not settings.images else _read(settings.images, side, models)
    if not settings.names:
        return images
    if len(settings.names) != len(images):
        raise ValueError(f"there are {len(images)} images but {len(settings.names)} names; give one for each")
    return [replace(each, name=name) for each, name in zip(images, settings.names, strict=True)]


def _held_out(run: "Subject") -> list["NamedImage"]:
    from vitmix.lab.figures.images import held_out

    try:
        return held_out(run, 2)
    except (ValueError, OSError) as error:
        raise ValueError(f"no images of {run.run} can be read ({error}); give --images") from None


def _read(texts: tuple[str, ...], side: int, models: list["NamedModel"]) -> list["NamedImage"]:
    """The named images, or built-in ones. The folder of an image names its class, if it is a class of the model."""
    from vitmix.lab.figures.images import BUILT_IN, read_image

    texts = texts or tuple(BUILT_IN)
    images = [read_image(text, side) for text in texts]
    classes = {name for model in models for name in model.classes}
    folders = [Path(text).resolve().parent.name for text in texts]
    return [
        replace(each, name=folder) if each.name not in classes and folder in classes else each
        for each, folder in zip(images, folders, strict=True)
    ]


COMMAND = CommandGroup(
    "Plot where models look: attention, Grad-CAM, label maps, galleries.",
    {
        kind: Command(
            FigureSettings,
            partial(run, kind),
            about,
            without={*OWN} - {*own},
            defaults={"output": f"{kind}.png"},
        )
        for kind, (about, own) in KINDS.items()
    },
    epilog="Example: vitmix figure attention runs/a runs/b --images cat.jpg dog.jpg --output figure.pdf",
)
