"""`vitmix analyze`: what labels, attention and tokens do on mixed images."""

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from vitmix._checks import check_choice, check_count
from vitmix.lab.cli._bar import bar
from vitmix.lab.cli._common import MeasuredModel, Method, open_model
from vitmix.lab.cli._parser import Command
from vitmix.lab.cli._robustness import workers
from vitmix.lab.columns import aligned
from vitmix.lab.settings import Folder, Workers, option, usual

if TYPE_CHECKING:
    from vitmix.lab.evaluation import Subject
    from vitmix.lab.runs import Analysis
    from vitmix.lab.studies.studies import Question

FOLDER = "analysis"
Pairable = Annotated[int, partial(check_count, least=2)]


def _check_study(_: str, name: str) -> None:
    from vitmix.lab.studies.studies import STUDIES

    check_choice("study", name, STUDIES)


@dataclass(frozen=True, kw_only=True)
class Analyze(MeasuredModel):
    """Measure what labels, attention and tokens do on mixed images."""

    epilog = (
        "Example: vitmix analyze runs/NAME --study fluctuation labels. Without --study, all studies that apply are run."
    )

    study: tuple[Annotated[str, "NAME", _check_study], ...] = option((), "studies to run; --list explains them")
    list: bool = option(False, "list the studies")
    method: tuple[Method, ...] = option((), "methods to compare (default: the study's)")
    masks: Folder | None = option(None, "object masks: a .png for each image, at the same path below FOLDER")
    mask_value: int | None = option(None, "gray level of the object in these masks (default: every level but 0)")
    images: Pairable = option(1024, "largest number of images")
    batch: Pairable = option(16, "images per batch; images are mixed within a batch")
    workers: Workers | None = option(None, "processes that load images (default: the run's)")
    seed: int = option(0, "random seed of the choice of images and of mixing")
    figure: Literal["png", "svg", "pdf"] = option("png", "format of the figures")
    output: Folder | None = option(
        None,
        "where JSON, tables and figures go (default: RUN/analysis for a run's best weights on its own data with the "
        "default methods, images, batch and seed, otherwise analysis)",
    )


def run(settings: Analyze) -> int:
    from vitmix.lab.evaluation.describe import head
    from vitmix.lab.runs import Run
    from vitmix.lab.studies.studies import STUDIES
    from vitmix.lab.writing import make_folder, write_file

    if settings.list:
        print(aligned((name, study.about) for name, study in STUDIES.items()))
        return 0
    subject = open_model(settings, settings.what)
    question, facts = _question(settings, subject)
    own = _own(settings, subject)
    folder = Path(settings.output or (own or Path()) / FOLDER)
    if not settings.output and own is None and Run(Path()).exists:
        raise ValueError(
            "the current folder is a run folder, which stores only studies of its own weights; add --output FOLDER"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; --output names a folder")
    print("\n".join([*head(facts.weights, facts.model, facts.data, facts.remarks), ""]), flush=True)
    left_out, written = [], []
    try:
        for name in dict.fromkeys(settings.study or STUDIES):
            if own is not None and not (settings.study or settings.output or settings.masks):
                known = _known(own, name, facts)
                if known is not None and (folder / f"{name}.{settings.figure}").is_file():
                    written.append(name)
                    print(_text(known), end="\n\n", flush=True)
                    continue
            try:
                found, figure = _measured(name, question, facts, settings.figure)
            except ValueError as error:
                if settings.study:
                    raise
                left_out.append(f"Left out: {name}, because {error}.")
                continue
            make_folder(folder)
            contents = {"json": found.encoded(1), "txt": f"{_text(found)}\n".encode(), settings.figure: figure}
            for suffix, content in contents.items():
                write_file(folder / f"{name}.{suffix}", content)
            written.append(name)
            print(_text(found), end="\n\n", flush=True)
    except KeyboardInterrupt:
        print(f"Stopped. Finished studies are in {folder}: {', '.join(written) or 'none'}.", file=sys.stderr)
        print("".join(f"{each}\n" for each in left_out), end="")
        return 130
    if written:
        print("After ± and in brackets: the 95 % interval. n counts images; those mixed from the same two count as one")
        print("in the interval. JSON also has the standard deviations.")
        print(f"{folder}: {', '.join(written)}, each as .json, .txt and .{settings.figure}")
        if question.run is not None and own is None and not settings.output:
            print(
                f"Not in {question.run / FOLDER}, which is for the run's best weights on its own data with the default "
                "methods, images, batch and seed."
            )
    print("".join(f"{each}\n" for each in left_out), end="")
    return 0


def _text(found: "Analysis") -> str:
    """The headline, and the tables."""
    from vitmix.lab.studies.studies import headline

    return f"{headline(found)}\n\n{found.text()}"


def _own(settings: Analyze, subject: "Subject") -> Path | None:
    """The run whose folder the studies belong in: its best weights, studied with the defaults.

    A folder of masks does not count as other data: it says where the objects of the same images are.
    """
    other = settings.data or settings.split or settings.size or settings.method
    default = all(getattr(settings, name) == usual(Analyze, name) for name in ("images", "batch", "seed"))
    return subject.run if default and subject.which == "best" and not other else None


def _known(place: Path, name: str, facts: "Analysis") -> "Analysis | None":
    """The study that an earlier command made of the same weights in the same way, if the run is finished."""
    from vitmix.lab.runs import Run

    run = Run(place)
    found = run.analyses.get(name)
    if found is None or run.summary is None:
        return None
    same = replace(found, study="", about="", weights=facts.weights, tables=()) == facts  # the weights may have moved
    return found if same else None


def _measured(name: str, question: "Question", facts: "Analysis", suffix: str) -> "tuple[Analysis, bytes]":
    """A study and its figure."""
    from vitmix.lab.plotting.canvas import figure_bytes
    from vitmix.lab.studies.studies import STUDIES

    study = STUDIES[name]
    with bar() as report:
        tables = study.measure(replace(question, progress=partial(report, name)))
    found = replace(facts, study=name, about=study.about, tables=tuple(tables))
    return found, figure_bytes(study.plot(tables), suffix=f".{suffix}", dpi=150)


def _question(settings: Analyze, found: "Subject") -> "tuple[Question, Analysis]":
    """What the studies are asked about, and what all of their results say."""
    from vitmix import __version__
    from vitmix.lab.runs import Analysis
    from vitmix.lab.studies.batches import Batches
    from vitmix.lab.studies.objects import object_finder
    from vitmix.lab.studies.studies import Question

    images, remarks = found.fit_labels(found.evaluation_images(data=settings.data, split=settings.split))
    running = found.running(images, cpu=settings.cpu)
    augmentation = found.augmentation
    masks = None if settings.masks is None else Path(settings.masks)
    batches = Batches(
        images,
        augmentation,
        count=settings.images,
        batch=settings.batch,
        seed=settings.seed,
        finder=object_finder(images, augmentation, masks=masks, value=settings.mask_value),
        device=running.device,
        workers=min(running.workers, workers(None)) if settings.workers is None else settings.workers,
    )
    question = Question(
        found.model.to(running.device),
        batches,
        num_classes=found.outputs,
        methods=settings.method,
        run=found.run,
        size=augmentation.sides,
        seed=settings.seed,
    )
    facts = Analysis(
        study="",
        weights=found.weights,
        weights_sha256=found.sha256,
        model=found.config.model,
        data=images.description,
        images=len(batches.rows),
        batch=settings.batch,
        seed=settings.seed,
        methods=settings.method or None,
        remarks=tuple(remarks),
        vitmix=__version__,
        masks=None if masks is None else masks.name,
        tables=(),
    )
    return question, facts


COMMAND = Command(Analyze, run)
