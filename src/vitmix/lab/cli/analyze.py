"""`vitmix analyze`: what labels, attention and tokens do on mixed images."""

import argparse
import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitmix.lab.cli import _subject
from vitmix.lab.cli._bar import bar
from vitmix.lab.cli._command import Command
from vitmix.lab.cli._robustness import workers
from vitmix.lab.reading import read_json

if TYPE_CHECKING:
    from vitmix.lab.studies.studies import Question

FOLDER = "analysis"
IMAGES, BATCH, SEED = 1024, 16, 0
NAMES = ("accuracy", "labels", "fluctuation", "regions", "presence", "sharpness", "coverage", "htm")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Example: vitmix analyze runs/NAME --study fluctuation labels. Without --study: all that apply."
    add = parser.add_argument
    add("what", metavar="RUN|FILE|NAME", nargs="?", help="run folder, file of weights, or name of a timm model")
    add("--study", nargs="+", metavar="NAME", help=f"what to measure: {', '.join(NAMES)}; --list explains them")
    add("--list", action="store_true", help="list the studies")
    add("--method", nargs="+", metavar="METHOD", help="methods to look at; each study has its own if none")
    _subject.add_arguments(parser)
    add("--masks", metavar="FOLDER", help="masks of the objects: a .png for each image, at the same place below FOLDER")
    add("--mask-value", type=int, metavar="N", help="gray level of the object in those masks; all but 0 if none")
    add("--images", type=int, default=IMAGES, metavar="N", help=f"images to look at, at most (default: {IMAGES})")
    add(
        "--batch",
        type=int,
        default=BATCH,
        metavar="N",
        help=f"images per batch, which are mixed in pairs (default: {BATCH})",
    )
    add("--workers", type=int, metavar="N", help="processes that load images; a run's own if none")
    add(
        "--seed",
        type=int,
        default=SEED,
        metavar="N",
        help=f"of the choice of images and of the mixing (default: {SEED})",
    )
    add("--cpu", action="store_true", help="use the CPU even where there is a GPU")
    add("--figure", choices=("png", "svg", "pdf"), default="png", help="kind of the figures (default: png)")
    add(
        "--output",
        metavar="FOLDER",
        help="where JSON, tables and figures go; RUN/analysis for a run's best weights on its own data with the usual "
        "methods, images, batch and seed, or else analysis",
    )


def _run(namespace: argparse.Namespace) -> int:
    from vitmix._checks import check_choice
    from vitmix.lab.evaluation.text import head
    from vitmix.lab.studies.studies import STUDIES
    from vitmix.lab.training.checkpoints import make_folder, write_file
    from vitmix.lab.training.runs import RunFolder

    if namespace.list:
        width = max(map(len, STUDIES))
        print("\n".join(f"{name:<{width}}  {study.about}" for name, study in STUDIES.items()))
        return 0
    for name in namespace.study or ():
        check_choice("study", name, STUDIES)
    if namespace.what is None:
        raise ValueError("what to analyze is missing; give a run folder, a file of weights or a timm model, or --list")
    question, facts = _question(namespace)
    own = _own(namespace, question, facts)
    folder = Path(namespace.output or (own or Path()) / FOLDER)
    if not namespace.output and own is None and RunFolder(Path()).exists:
        raise ValueError("this folder is a run, whose analysis is of its own weights and data; add --output FOLDER")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; --output names a folder")
    print("\n".join([*head(facts, facts), ""]), flush=True)
    left_out, written = [], []
    try:
        for name in dict.fromkeys(namespace.study or STUDIES):
            if own is not None and not (namespace.study or namespace.output or namespace.masks):
                known = _known(folder, name, facts, namespace.figure)
                if known is not None:
                    written.append(name)
                    print(known, end="\n\n", flush=True)
                    continue
            try:
                files, text = _measured(name, question, facts, namespace.figure)
            except ValueError as error:
                if namespace.study:
                    raise
                left_out.append(f"Left out: {name}, since {error}.")
                continue
            make_folder(folder)
            for suffix, content in files.items():
                write_file(folder / f"{name}.{suffix}", content)
            written.append(name)
            print(text, end="\n\n", flush=True)
    except KeyboardInterrupt:
        print(f"Stopped. Studies that were finished are in {folder}: {', '.join(written) or 'none'}.", file=sys.stderr)
        print("".join(f"{each}\n" for each in left_out), end="")
        return 130
    if written:
        print(
            "After ± and in brackets: the interval of 95 %. n counts images; those mixed of the same two count as one"
        )
        print("in the interval. JSON also has the standard deviations.")
        print(f"{folder}: {', '.join(written)}, each as .json, .txt and .{namespace.figure}")
        if question.run is not None and own is None and not namespace.output:
            print(
                f"Not in {question.run / FOLDER}, which is for the run's best weights on its own data with the usual "
                "methods, images, batch and seed."
            )
    print("".join(f"{each}\n" for each in left_out), end="")
    return 0


def _own(namespace: argparse.Namespace, question: "Question", facts: dict[str, Any]) -> Path | None:
    """The run in whose folder the studies belong: of its best weights, as every run is studied unless one says other.

    A folder of masks is no other data: it says where the objects of the same images are.
    """
    other = namespace.data or namespace.split or namespace.size or namespace.method
    usual = (namespace.images, namespace.batch, namespace.seed) == (IMAGES, BATCH, SEED)
    best = Path(facts["weights"]).stem == "best"  # a file of a run can be named by itself
    return question.run if usual and best and not other else None


def _known(folder: Path, name: str, facts: dict[str, Any], suffix: str) -> str | None:
    """A study's text, if an earlier command made it of the same weights in the same way, and the training is over."""
    from vitmix.lab.training.runs import RunFolder

    try:
        stored = read_json(folder / f"{name}.json")
        same = all(stored[key] == value for key, value in facts.items() if key != "weights")  # whose path may differ
        over = RunFolder(folder.parent).read_summary() is not None
        drawn = (folder / f"{name}.{suffix}").is_file()
        text = (folder / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return text if same and over and drawn and stored.get("masks") is None else None


def _measured(name: str, question: "Question", facts: dict[str, Any], suffix: str) -> tuple[dict[str, bytes], str]:
    """What a study's files hold, by their endings, and its tables as text."""
    from vitmix.lab.plotting.canvas import figure_bytes
    from vitmix.lab.studies.studies import STUDIES

    study = STUDIES[name]
    with bar() as report:
        tables = study.measure(dataclasses.replace(question, progress=partial(report, name)))
    about = {"study": name, "about": study.about, **facts, "tables": [table.plain() for table in tables]}
    text = "\n\n".join(table.text() for table in tables)
    return {
        "json": (json.dumps(about, indent=1, allow_nan=False) + "\n").encode(),
        "txt": f"{text}\n".encode(),
        suffix: figure_bytes(study.plot(tables), suffix=f".{suffix}", dpi=150),
    }, text


def _question(namespace: argparse.Namespace) -> "tuple[Question, dict]":
    from vitmix import __version__
    from vitmix._checks import check_count, check_workers
    from vitmix._text import create
    from vitmix.lab.evaluation import stored
    from vitmix.lab.studies.objects import object_finder
    from vitmix.lab.studies.studies import Batches, Question

    check_count("images", namespace.images, least=2)
    check_count("batch", namespace.batch, least=2)
    if namespace.workers is not None:
        check_workers(namespace.workers)
    for method in namespace.method or ():
        create(method, 2)  # a typo should show before a model is built
    found = _subject.open_named(namespace)
    images, remarks = found.fit_labels(stored.own_images(found, data=namespace.data, split=namespace.split))
    running = stored.running_of(found, images, cpu=namespace.cpu)
    augmentation = found.augmentation
    masks = None if namespace.masks is None else Path(namespace.masks)
    batches = Batches(
        images,
        augmentation,
        count=namespace.images,
        batch=namespace.batch,
        seed=namespace.seed,
        finder=object_finder(images, augmentation, masks=masks, value=namespace.mask_value),
        device=running.device,
        workers=min(running.workers, workers(None)) if namespace.workers is None else namespace.workers,
    )
    question = Question(
        found.model.to(running.device),
        batches,
        num_classes=found.settings["num_classes"],
        methods=tuple(namespace.method or ()),
        run=found.run,
        size=augmentation.sides,
        seed=namespace.seed,
    )
    facts = {
        "weights": found.weights,
        "weights_sha256": found.sha256,
        "model": found.config.model,
        "data": images.description,
        "images": len(batches.rows),
        "batch": namespace.batch,
        "seed": namespace.seed,
        "methods": namespace.method,
        "remarks": remarks,
        "vitmix": __version__,
    }
    if masks is not None:
        facts["masks"] = masks.name
    return question, facts


COMMAND = Command("Measure what labels, attention and tokens do on mixed images.", _add_arguments, _run)
