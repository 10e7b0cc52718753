"""`vitmix maps`: a teacher's maps for TokenMix's labels, token labeling and ReLabel, or object masks for OA-CutMix."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix.lab.cli._bar import bar
from vitmix.lab.cli._common import EarlierChoice, Place, Split, in_new_words, open_model
from vitmix.lab.cli._parser import Command, flag
from vitmix.lab.settings import File, Folder, option

if TYPE_CHECKING:
    from vitmix.lab.maps.teachers import Teacher

SALIENCY = "saliency:"


@dataclass(frozen=True, kw_only=True)
class Maps(EarlierChoice):
    """Make a teacher's maps, for TokenMix's labels, token labeling and ReLabel, or store object masks for OA-CutMix."""

    epilog = (
        "--model names the teacher; saliency:spectral needs none. Afterwards: vitmix train --data THE_SAME --method "
        "'tokenmix(label=activation)' or token_labeling --maps FOLDER, with --masks: --method oa_cutmix. A stopped "
        "command resumes when rerun."
    )

    data: str = option(..., "the training data, written as for vitmix train")
    split: Split = option("train", "split for which to compute maps")
    output: Folder = option(..., "output folder")
    classes: File | None = option(None, "JSON: the teacher's class number for each class name of the data")
    masks: Folder | None = option(
        None, "object masks in place of a teacher: a .png for each image, at the same path below FOLDER"
    )
    mask_value: int | None = option(None, "gray level of the object in these masks (default: every level but 0)")
    top: int = option(5, "number of classes to keep per location")
    batch: int = option(32, "images per batch")
    workers: int = option(2, "processes that read images")
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    teacher: Place | None = option(None, "the teacher", now="--model")


def run(settings: Maps) -> int:
    import torch

    from vitmix.lab.data.sources import open_images
    from vitmix.lab.maps.making import make_maps, read_classes

    images = open_images(settings.data, settings.split)
    teacher = _teacher(in_new_words(settings, settings.teacher))
    classes = None if settings.classes is None else read_classes(settings.classes, images.classes)
    with bar() as report:
        remarks = make_maps(
            images,
            teacher,
            settings.output,
            top=settings.top,
            classes=classes,
            batch=settings.batch,
            workers=settings.workers,
            device="cuda" if torch.cuda.is_available() and not settings.cpu else "cpu",
            progress=lambda done, total: report(images.description, done, total),
        )
    for remark in remarks:
        print(remark)
    used = sum(path.stat().st_size for path in Path(settings.output).iterdir())
    print(f"Maps of {len(images)} images by {teacher.name} are in {settings.output} ({used / 2**20:.1f} MiB).")
    method = "oa_cutmix" if teacher.objects else "'tokenmix(label=activation)'"
    print(f"Use them: vitmix train --method {method} --maps {settings.output}")
    if not teacher.any_class:
        print(f"Or: vitmix train --method token_labeling --maps {settings.output}")
    return 0


def _teacher(settings: Maps) -> "Teacher":
    from vitmix.lab.maps.objects import SIDE, mask_teacher
    from vitmix.lab.maps.teachers import Teacher, saliency_teacher

    model = settings.model
    if settings.masks is not None:
        _refuse(settings, "masks of objects need no teacher", "model", "arch", "pretrained", "model_args", "classes")
        return mask_teacher(Path(settings.masks), value=settings.mask_value, side=settings.size or SIDE)
    if settings.mask_value is not None:
        raise ValueError("a gray level of masks needs a folder of masks; give --masks FOLDER")
    if model is None:
        raise ValueError("no teacher is named; give --model RUN|FILE|NAME, or --model saliency:spectral")
    if model.startswith(SALIENCY):
        names = ("arch", "pretrained", "model_args", "size", "classes")
        _refuse(settings, "saliency has no weights, classes or size", *names)
        return saliency_teacher(model.removeprefix(SALIENCY))
    loaded = open_model(settings)
    if not loaded.trained:
        raise ValueError(
            f"teacher {model!r} would have random weights; give a weights file or a run folder, or add --pretrained"
        )
    own = loaded.augmentation
    return Teacher(
        loaded.config.model, loaded.model, size=own.sides, mean=own.mean, std=own.std, classes=loaded.classes
    )


def _refuse(settings: Maps, reason: str, *names: str) -> None:
    given = [flag(name) for name in names if getattr(settings, name)]
    if given:
        raise ValueError(f"{reason}; remove {', '.join(given)}")


COMMAND = Command(Maps, run)
