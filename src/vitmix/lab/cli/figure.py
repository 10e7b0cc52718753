"""`vitmix figure`: where models look."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix.lab.cli._command import Command
from vitmix.lab.cli.show import MODEL, allowed_methods
from vitmix.lab.cli.train import key_and_value

if TYPE_CHECKING:
    from vitmix.lab.evaluation.subject import Subject
    from vitmix.lab.figures import NamedImage, NamedModel
    from vitmix.lab.plotting import ImageGrid

KINDS = {
    "attention": "attention of the class token, or received, block by block",
    "rollout": "attention rolled out through all blocks",
    "heads": "attention of each head after mixing: HTM against none and against blended tokens",
    "gradcam": "Grad-CAM of unmixed or mixed images (needs the extra eval)",
    "occlusion": "confidence under growing occlusion",
    "labels": "aligned label maps: whose each token is, block by block",
    "gallery": "what methods make of the same pairs",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Example: vitmix figure attention runs/a runs/b --images cat.jpg dog.jpg --output figure.pdf"
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", dest="kind", required=True)
    for name, words in KINDS.items():
        kind = kinds.add_parser(name, help=words, description=f"A figure of {words}.", allow_abbrev=False)
        kind.set_defaults(parser=kind)
        _add_kind(kind, name)


def _add_kind(parser: argparse.ArgumentParser, name: str) -> None:
    add = parser.add_argument
    add("models", nargs="*", metavar="RUN|FILE|NAME", help=f"models side by side (default: {MODEL}, untrained)")
    add(
        "--images",
        nargs="+",
        metavar="IMAGE",
        help="image files; shapes:N is built-in image N (default: two of the first run's held-out images, or "
        "built-in ones)",
    )
    add("--names", nargs="+", metavar="NAME", help="what to call them; a class of the model is the image's label")
    if name != "occlusion":
        usual = {
            "heads": "none manifold htm",
            "labels": "tl_align",
            "gallery": "all that the first model allows and that change images",
        }
        words = f"default: {usual[name]}" if name in usual else "default: images are not mixed"
        add("--method", nargs="+", metavar="METHOD", help=f"mix pairs of neighboring images ({words})")
    if name in ("attention", "labels"):
        add("--blocks", nargs="+", type=int, metavar="N", help="blocks to show (default: all, of a deep model twelve)")
    if name == "heads":
        add("--block", type=int, default=-1, metavar="N", help="block whose heads are shown (default: -1, the last)")
    if name == "gradcam":
        add("--only-right", action="store_true", help="only images that all models classify correctly, unmixed")
    add("--pretrained", action="store_true", help="timm's published weights of the named models")
    add("--model", metavar="NAME", help="timm model that files of weights belong to, where they do not say")
    add("--model-args", nargs="+", metavar="KEY=VALUE", default=[], help="settings of named models and of that one")
    add("--size", type=int, metavar="N", help="image side in pixels; the model's own if none")
    add("--seed", type=int, default=0, metavar="N", help="of the random choices, the same for all (default: 0)")
    add("--dpi", type=int, default=200, metavar="N", help="dots per inch of a PNG (default: 200)")
    add("--output", metavar="FILE", default=f"{name}.png", help=f"figure as .png, .svg or .pdf (default: {name}.png)")


def _run(namespace: argparse.Namespace) -> int:
    from vitmix._checks import check_count, check_output_file
    from vitmix._text import create
    from vitmix.lab.figures import KINDS as FIGURES
    from vitmix.lab.figures import FigureInputs
    from vitmix.lab.figures.samples import MANIFOLD
    from vitmix.lab.plotting import render_grid
    from vitmix.lab.plotting.canvas import check_suffix
    from vitmix.lab.plotting.text import font_remarks
    from vitmix.lab.training.checkpoints import write_file

    kind, output = namespace.kind, check_suffix(namespace.output)
    check_output_file(output)
    check_count("dpi", namespace.dpi)
    methods = getattr(namespace, "method", None) or []
    for method in methods:
        if not (kind == "heads" and method == MANIFOLD):
            create(method, 2)  # a typo should show before a model is built
    subjects, models = _open_models(namespace)
    side = max(max(model.augmentation.sides) for model in models)
    images = _find_images(namespace, side, subjects, models)
    if kind == "gallery" and not methods:
        methods = [method for method in allowed_methods(models[0].model)[0] if method != "vtm"]  # changes no image
    names = ("blocks", "block", "only_right")
    settings = {name: getattr(namespace, name) for name in names if hasattr(namespace, name)}
    grid = FIGURES[kind](FigureInputs(models, images, methods, namespace.seed), **settings)
    write_file(output, render_grid(grid, suffix=output.suffix.lower(), dpi=namespace.dpi))
    print(f"{output}: {kind} of {', '.join(model.name for model in models)}")
    _keep(namespace, output.stem, grid, subjects, models)
    for remark in font_remarks([image.name for image in images]):
        print(remark)
    if not all(model.trained for model in models):
        print("A model is untrained, so where it looks means nothing yet; name a run, or give --pretrained.")
    return 0


def _keep(
    namespace: argparse.Namespace, name: str, grid: "ImageGrid", subjects: list["Subject"], models: list["NamedModel"]
) -> None:
    """Stores a copy with each run, for reports."""
    from vitmix.lab.figures.stored import DPI, store_figure
    from vitmix.lab.plotting import render_grid

    runs = [(Path(place), each.sha256) for place, each in zip(namespace.models, subjects, strict=False)]
    runs = [(place, weights) for place, weights in runs if place.is_dir()]
    if not runs:
        return
    what = KINDS[namespace.kind].split(" (")[0]
    words = f"{what[0].upper()}{what[1:]}: {', '.join(model.name for model in models)}."
    png = render_grid(grid, dpi=DPI)
    for run, weights in runs:
        try:
            store_figure(run, name, png, words, weights)
        except OSError as error:
            print(f"No copy for reports could be kept in {run}: {error.strerror}.")


def _open_models(namespace: argparse.Namespace) -> tuple[list["Subject"], list["NamedModel"]]:
    import torch

    from vitmix.lab.evaluation.subject import open_subject
    from vitmix.lab.figures.models import named_model, short_names

    places = namespace.models or [MODEL]
    subjects, models = [], []
    for place, name in zip(places, short_names(places), strict=True):
        torch.manual_seed(namespace.seed)  # of weights that are nobody's
        is_file, is_place = Path(place).is_file(), Path(place).exists()
        subject = open_subject(
            place,
            model=namespace.model if is_file else None,
            model_args={} if is_place and not is_file else dict(map(key_and_value, namespace.model_args)),
            pretrained=namespace.pretrained and not is_place,
            size=namespace.size,
        )
        subjects.append(subject)
        models.append(named_model(subject, name, trained=is_place or namespace.pretrained))
    return subjects, models


def _find_images(
    namespace: argparse.Namespace, side: int, subjects: list["Subject"], models: list["NamedModel"]
) -> list["NamedImage"]:
    from dataclasses import replace

    run = next((subject for subject in subjects if subject.run is not None), None)
    images = _held_out(run) if run is not None and not namespace.images else _read(namespace.images, side, models)
    if namespace.names is None:
        return images
    if len(namespace.names) != len(images):
        raise ValueError(f"there are {len(images)} images but {len(namespace.names)} names; give one for each")
    return [replace(each, name=name) for each, name in zip(images, namespace.names, strict=True)]


def _held_out(run: "Subject") -> list["NamedImage"]:
    from vitmix.lab.figures.images import held_out

    try:
        return held_out(run, 2)
    except (ValueError, OSError) as error:
        raise ValueError(f"no images of {run.run} can be read ({error}); give --images") from None


def _read(texts: list[str] | None, side: int, models: list["NamedModel"]) -> list["NamedImage"]:
    """The named images, or built-in ones; the folder of an image may name its class."""
    from dataclasses import replace

    from vitmix.lab.figures.images import BUILT_IN, read_image

    texts = texts or list(BUILT_IN)
    images = [read_image(text, side) for text in texts]
    classes = {name for model in models for name in model.classes}
    folders = [Path(text).resolve().parent.name for text in texts]
    return [
        replace(each, name=folder) if each.name not in classes and folder in classes else each
        for each, folder in zip(images, folders, strict=True)
    ]


COMMAND = Command("Plot where models look: attention, Grad-CAM, label maps, galleries.", _add_arguments, _run)
