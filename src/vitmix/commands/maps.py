"""`vitmix maps`: activation maps of a teacher, for TokenMix's labels."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix.commands._command import Command

if TYPE_CHECKING:
    from vitmix.teachers import Teacher


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Afterwards: vitmix train --data THE_SAME --method 'tokenmix(label=activation)' --maps FOLDER. A command that "
        "was stopped goes on where it was when it is run again."
    )
    add = parser.add_argument
    add("--data", required=True, help="the training data, written as for vitmix train")
    add("--split", default="train", choices=("train", "val", "test"), help="split to make maps of (default: train)")
    add("--teacher", required=True, help="name of a timm model, a run folder, or saliency:spectral")
    add("--output", metavar="FOLDER", required=True, help="where the maps go")
    add("--pretrained", action="store_true", help="take timm's published weights of the teacher")
    add("--checkpoint", metavar="FILE", help="take the teacher's weights from this file")
    add("--num-classes", type=int, metavar="N", help="outputs of the teacher in that file; found if not given")
    add("--size", type=int, metavar="N", help="side that pictures are scaled to; the teacher's own if not given")
    add("--classes", metavar="FILE", help="JSON: the teacher's class number for each class name of the data")
    add("--top", type=int, default=5, metavar="K", help="classes kept for each place (default: 5)")
    add("--batch", type=int, default=32, metavar="N", help="pictures at a time (default: 32)")
    add("--workers", type=int, default=2, metavar="N", help="processes that read pictures (default: 2)")
    add("--cpu", action="store_true", help="use the CPU even where there is a GPU")


def _run(namespace: argparse.Namespace) -> int:
    import torch

    from vitmix.data.sources import open_images
    from vitmix.make_maps import make_maps, read_classes

    images = open_images(namespace.data, namespace.split)
    teacher = _teacher(namespace, len(images.classes))
    classes = None if namespace.classes is None else read_classes(namespace.classes, images.classes)
    with _bar(images.description) as progress:
        remarks = make_maps(
            images,
            teacher,
            namespace.output,
            top=namespace.top,
            classes=classes,
            batch=namespace.batch,
            workers=namespace.workers,
            device="cuda" if torch.cuda.is_available() and not namespace.cpu else "cpu",
            progress=progress,
        )
    for remark in remarks:
        print(remark)
    used = sum(path.stat().st_size for path in Path(namespace.output).iterdir())
    print(f"Maps of {len(images)} images by {teacher.name} are in {namespace.output} ({used / 2**20:.1f} MiB).")
    print(f"Use them: vitmix train --method 'tokenmix(label=activation)' --maps {namespace.output}")
    return 0


def _teacher(namespace: argparse.Namespace, data_classes: int) -> "Teacher":
    from vitmix.loading import load_named, load_run
    from vitmix.teachers import saliency_teacher, timm_teacher

    name = namespace.teacher
    if name.startswith("saliency:"):
        return saliency_teacher(name.removeprefix("saliency:"))
    if Path(name).is_dir():
        if namespace.size is not None or namespace.pretrained or namespace.checkpoint is not None:
            raise ValueError("a run has its own size and weights; leave --size, --checkpoint and --pretrained out")
        loaded = load_run(name)
        own = loaded.augmentation
        return timm_teacher(loaded.name, loaded.model, size=own.sides[0], mean=own.mean, std=own.std)
    if not namespace.pretrained and namespace.checkpoint is None:
        raise ValueError(
            f"teacher {name!r} would have random weights; give --checkpoint FILE or --pretrained, "
            "or a run folder as teacher"
        )
    loaded = load_named(
        name,
        checkpoint=namespace.checkpoint,
        pretrained=namespace.pretrained,
        num_classes=namespace.num_classes,
        guesses=[data_classes],
        size=namespace.size,
    )
    return timm_teacher(loaded.name, loaded.model, size=namespace.size)


@contextmanager
def _bar(description: str) -> Iterator:
    """Shows how many pictures are done: a bar on a terminal, lines elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not sys.stdout.isatty():
        yield lambda done, total: print(f"{done}/{total} images", flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(description)
        yield lambda done, total: progress.update(task, completed=done, total=total)


COMMAND = Command("Make a teacher's activation maps, for TokenMix's labels.", _add_arguments, _run)
