"""`vitmix maps`: activation maps of a teacher, for TokenMix's labels."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix.lab.cli._bar import bar
from vitmix.lab.cli._command import Command

if TYPE_CHECKING:
    from vitmix.lab.maps.teachers import Teacher


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

    from vitmix.lab.data.sources import open_images
    from vitmix.lab.maps.making import make_maps, read_classes

    images = open_images(namespace.data, namespace.split)
    teacher = _teacher(namespace)
    classes = None if namespace.classes is None else read_classes(namespace.classes, images.classes)
    with bar() as report:
        remarks = make_maps(
            images,
            teacher,
            namespace.output,
            top=namespace.top,
            classes=classes,
            batch=namespace.batch,
            workers=namespace.workers,
            device="cuda" if torch.cuda.is_available() and not namespace.cpu else "cpu",
            progress=lambda done, total: report(images.description, done, total),
        )
    for remark in remarks:
        print(remark)
    used = sum(path.stat().st_size for path in Path(namespace.output).iterdir())
    print(f"Maps of {len(images)} images by {teacher.name} are in {namespace.output} ({used / 2**20:.1f} MiB).")
    print(f"Use them: vitmix train --method 'tokenmix(label=activation)' --maps {namespace.output}")
    return 0


def _teacher(namespace: argparse.Namespace) -> "Teacher":
    from vitmix.lab.evaluation.subject import open_subject
    from vitmix.lab.maps.teachers import Teacher, saliency_teacher

    name = namespace.teacher
    if name.startswith("saliency:"):
        flags = ("checkpoint", "pretrained", "num_classes", "size", "classes")
        given = [f"--{flag.replace('_', '-')}" for flag in flags if getattr(namespace, flag) not in (None, False)]
        if given:
            raise ValueError(f"saliency has no weights, classes or size of its own; leave {', '.join(given)} out")
        return saliency_teacher(name.removeprefix("saliency:"))
    if Path(name).is_dir():
        if namespace.pretrained or any(
            each is not None for each in (namespace.size, namespace.checkpoint, namespace.num_classes)
        ):
            raise ValueError(
                "a run has its own size, weights and classes; "
                "leave --size, --checkpoint, --pretrained and --num-classes out"
            )
        loaded = open_subject(name)
    elif not namespace.pretrained and namespace.checkpoint is None:
        raise ValueError(
            f"teacher {name!r} would have random weights; give --checkpoint FILE or --pretrained, "
            "or a run folder as teacher"
        )
    else:
        settings = {} if namespace.num_classes is None else {"num_classes": namespace.num_classes}
        what, model = (name, None) if namespace.checkpoint is None else (namespace.checkpoint, name)
        loaded = open_subject(
            what, model=model, model_args=settings, pretrained=namespace.pretrained, size=namespace.size
        )
    own = loaded.augmentation
    return Teacher(
        loaded.config.model, loaded.model, size=own.sides, mean=own.mean, std=own.std, classes=loaded.classes
    )


COMMAND = Command("Make a teacher's activation maps, for TokenMix's labels.", _add_arguments, _run)
