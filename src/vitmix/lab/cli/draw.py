"""`vitmix draw`: where models look."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitmix.lab.cli import _common
from vitmix.lab.cli._common import UNTRAINED, Figure, Image, ModelChoice, Place
from vitmix.lab.cli._parser import Command, Group
from vitmix.lab.cli.show import allowed_methods
from vitmix.lab.settings import Count, Name, option

if TYPE_CHECKING:
    from vitmix.lab.evaluation.subject import Subject
    from vitmix.lab.figures import Sheet, Sight
    from vitmix.lab.show import Picture

KINDS = {  # and the settings that a kind takes besides those of all
    "attention": ("Attention of the class token, or received, block by block", ("method", "blocks")),
    "rollout": ("Attention rolled out through all blocks", ("method",)),
    "heads": ("Attention of each head after mixing: HTM against none and against blended tokens", ("method", "block")),
    "gradcam": ("Grad-CAM of unmixed or mixed images (needs the extra eval)", ("method", "only_right")),
    "occlusion": ("Confidence under growing occlusion", ()),
    "labels": ("Aligned label maps: per-token labels, block by block", ("method", "blocks")),
    "gallery": ("What methods make of the same pairs", ("method",)),
}
OWN = ("method", "blocks", "block", "only_right")
Mixing = Annotated[str, "METHOD", lambda name, text: text == "manifold" or _common.check_method(name, text)]


@dataclass(frozen=True, kw_only=True)
class Draw(ModelChoice):
    models: tuple[Place, ...] = option((), f"models side by side (default: {UNTRAINED}, untrained)", positional=True)
    images: tuple[Image, ...] = option(
        (), "files, or shapes:N for built-in ones (default: two held-out images of the first run, or built-in ones)"
    )
    names: tuple[Name, ...] = option((), "what to call them; a class of the model is the image's label")
    method: tuple[Mixing, ...] = option(
        (),
        "mix pairs of neighboring images (default: heads: none manifold htm, labels: tl_align, gallery: all)",
    )
    blocks: tuple[int, ...] | None = option(None, "blocks to draw (default: all, of a deep model twelve)")
    block: int = option(-1, "block whose heads are drawn (default: -1, the last)")
    only_right: bool = option(False, "only images that all of the models classify correctly, unmixed")
    seed: int = option(0, "decides the random choices, the same for all models")
    dpi: Count = option(200, "dots per inch of a PNG")
    output: Figure = option(..., "figure as .png, .svg or .pdf")


def run(kind: str, settings: Draw) -> int:
    from vitmix.lab.figures import KINDS as DRAWN
    from vitmix.lab.figures import Subjects, draw_sheet
    from vitmix.lab.show.fonts import remarks_on
    from vitmix.lab.writing import write_file

    output = Path(settings.output)
    about, own = KINDS[kind]
    given, methods = {name: getattr(settings, name) for name in own if name != "method"}, [*settings.method]
    subjects, sights = _open_models(settings)
    side = max(max(sight.augmentation.sides) for sight in sights)
    pictures = _find_pictures(settings, side, subjects, sights)
    if kind == "gallery" and not methods:
        methods = [method for method in allowed_methods(sights[0].model)[0] if method != "vtm"]  # it mixes no images
    sheet = DRAWN[kind](Subjects(sights, pictures, methods, settings.seed), **given)
    write_file(output, draw_sheet(sheet, suffix=output.suffix.lower(), dpi=settings.dpi))
    print(f"{output}: {kind} of {', '.join(sight.name for sight in sights)}")
    words = f"{about.split(' (')[0]}: {', '.join(sight.name for sight in sights)}."
    _keep_copies(
        output.stem, words, sheet, [each for each in subjects if each.run and Path(each.weights).stem == "best"]
    )
    for remark in remarks_on([picture.name for picture in pictures]):
        print(remark)
    if not all(sight.trained for sight in sights):
        print("A model is untrained, so where it looks means nothing yet; name a run, or give --pretrained.")
    return 0


def _keep_copies(name: str, words: str, sheet: "Sheet", subjects: list["Subject"]) -> None:
    """A copy for the reports of each run that is drawn."""
    from vitmix.lab.figures import draw_sheet
    from vitmix.lab.figures.kept import DPI, keep_picture

    png = draw_sheet(sheet, dpi=DPI) if subjects else b""
    for each in subjects:
        assert each.run is not None
        try:
            keep_picture(each.run, name, png, words, each.sha256)
        except OSError as error:
            print(f"No copy for reports could be kept in {each.run}: {error.strerror}.")


def _open_models(settings: Draw) -> tuple[list["Subject"], list["Sight"]]:
    import torch

    from vitmix.lab.figures.sights import short_names, sight_of

    first, arch = _common.named_model(settings, settings.models[0] if settings.models else None)
    places = [*settings.models] or [first or UNTRAINED]
    subjects, sights = [], []
    for place, name in zip(places, short_names(places), strict=True):
        torch.manual_seed(settings.seed)  # of random weights
        subjects.append(_common.open_beside(settings, place, arch))
        sights.append(sight_of(subjects[-1], name, trained=subjects[-1].trained))
    return subjects, sights


def _find_pictures(settings: Draw, side: int, subjects: list["Subject"], sights: list["Sight"]) -> list["Picture"]:
    run = next((subject for subject in subjects if subject.run is not None), None)
    pictures = _held_out(run) if run is not None and not settings.images else _read(settings.images, side, sights)
    if not settings.names:
        return pictures
    if len(settings.names) != len(pictures):
        raise ValueError(f"there are {len(pictures)} images but {len(settings.names)} names; give one for each")
    return [replace(each, name=name) for each, name in zip(pictures, settings.names, strict=True)]


def _held_out(run: "Subject") -> list["Picture"]:
    from vitmix.lab.figures.held_out import held_out

    try:
        return held_out(run, 2)
    except (ValueError, OSError) as error:
        raise ValueError(f"no images of {run.run} can be drawn ({error}); give --images") from None


def _read(texts: tuple[str, ...], side: int, sights: list["Sight"]) -> list["Picture"]:
    """The named images, or built-in ones; one that lies in a folder named like a class shows that class."""
    from vitmix.lab.show.pictures import BUILT_IN, read_picture

    texts = texts or tuple(BUILT_IN)
    pictures = [read_picture(text, side) for text in texts]
    classes = {name for sight in sights for name in sight.classes}
    folders = [Path(text).resolve().parent.name for text in texts]
    return [
        replace(each, name=folder) if each.name not in classes and folder in classes else each
        for each, folder in zip(pictures, folders, strict=True)
    ]


COMMAND = Group(
    "Draw where models look: attention, Grad-CAM, label maps, galleries.",
    {
        kind: Command(
            Draw,
            partial(run, kind),
            about,
            without={*OWN} - {*own},
            defaults={"output": f"{kind}.png"},
        )
        for kind, (about, own) in KINDS.items()
    },
    epilog="Example: vitmix draw attention runs/a runs/b --images cat.jpg dog.jpg --output figure.pdf",
)
