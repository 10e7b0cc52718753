"""The studies behind `vitmix analyze`, each with what it measures, on which methods, and what it needs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from torch import nn

from vitmix._mixer import AnyMixer
from vitmix._text import create
from vitmix.attention.readers import read_model
from vitmix.lab.runs import Run, Table

from . import accuracy, coverage, figures, fluctuation, hidden, labels, regions, saliency
from .batches import Batches, Progress, Watched
from .pairs import one_mask_each, refusal


@dataclass(frozen=True)
class Question:
    """What a study is asked about: a model in evaluation mode, batches, and methods by their text."""

    model: nn.Module
    batches: Batches
    num_classes: int
    methods: tuple[str, ...] = ()
    run: Path | None = None
    size: tuple[int, int] = (0, 0)
    seed: int = 0
    progress: Progress = lambda done, total: None

    def mixers(self, usual: Sequence[str] | Mapping[str, str]) -> tuple[dict[str, AnyMixer], tuple[str, ...]]:
        """The methods that were named (default: the usual ones that this model allows), and notes on the others."""
        if self.methods:
            return {text: self._mixer(text) for text in self.methods}, ()
        texts = usual if isinstance(usual, Mapping) else {text: text for text in usual}
        mixers = {name: self._mixer(text) for name, text in texts.items()}
        refused = {name: refusal(self.model, mixer, self.size) for name, mixer in mixers.items()}
        if all(refused.values()):
            raise ValueError(next(iter(refused.values())))
        reasons = dict.fromkeys(filter(None, refused.values()))
        notes = tuple(
            f"Left out: {'; '.join(name for name in refused if refused[name] == reason)}, since {reason}."
            for reason in reasons
        )
        return {name: mixer for name, mixer in mixers.items() if not refused[name]}, notes

    def _mixer(self, text: str) -> AnyMixer:
        return one_mask_each(create(text, self.num_classes))

    def watched(self, times: int = 1) -> Watched:
        """The batches, to be iterated so many times."""
        return Watched(self.batches, times, self.progress)


@dataclass(frozen=True)
class Study:
    """What a study measures, and how; `plot` makes its figure."""

    about: str
    measure: Callable[[Question], list[Table]]
    plot: Callable[[Sequence[Table]], Figure]


ByMethod = Callable[..., Table]  # (model, methods, batches, *, seed)


def _by_method(study: ByMethod, usual: Sequence[str]) -> Callable[[Question], list[Table]]:
    """A study that iterates over the images once for each method."""

    def measure(asked: Question) -> list[Table]:
        methods, notes = asked.mixers(usual)
        return [_noted(study(asked.model, methods, asked.watched(len(methods)), seed=asked.seed), notes)]

    return measure


def _fluctuation(asked: Question) -> list[Table]:
    tables: list[Table] = []
    methods, notes = asked.mixers(("cutmix",))
    batches = asked.watched(len(methods))
    for name, method in methods.items():
        found = fluctuation.fluctuation_study(
            asked.model, method, batches, num_classes=asked.num_classes, seed=asked.seed
        )
        tables += [dataclasses.replace(table, title=f"{table.title}: {name}") for table in found]
    return [_noted(tables[0], notes), *tables[1:]]


def _sharpness(asked: Question) -> list[Table]:
    return [saliency.sharpness_study(asked.model, asked.watched())]


def _labels(asked: Question) -> list[Table]:
    rules, notes = asked.mixers(labels.RULES)
    first, *rest = labels.label_error_tables(labels.label_error(asked.model, rules, asked.watched(), seed=asked.seed))
    return [_noted(first, notes), *rest]


def _hidden(asked: Question) -> list[Table]:
    if asked.run is None:
        raise ValueError(f"{hidden.STUDY} is read from a run folder; give one")
    run = Run(asked.run)
    if not run.epochs:
        raise ValueError(f"{asked.run} has no metrics.jsonl yet; it is written with the first epoch")
    config = run.config
    method = create(config.method, asked.num_classes)
    parts = [part for mixer in method.mixers for part in mixer.inner if hidden.SAMPLES in part.count_names]
    if not parts:
        raise ValueError(f"{hidden.STUDY} needs a run whose method has htm; this one's is {config.method!r}")
    reader = read_model(asked.model)
    rows, columns = reader.grids(asked.size)[reader.resolve_patches(parts[0].block)]
    return [hidden.hidden_mixing(run.epochs, batch=config.batch, tokens=rows * columns)]


def _noted(table: Table, notes: tuple[str, ...]) -> Table:
    return dataclasses.replace(table, notes=table.notes + notes)


REGIONS = _by_method(regions.region_study, ("cutmix", "smmix"))
PRESENCE = _by_method(regions.presence_study, ("cutmix",))
ACCURACY = _by_method(accuracy.mixed_accuracy, ("mixup", "cutmix", "tokenmix", "smmix"))
COVERAGE = _by_method(coverage.coverage_study, ("cutmix", "smmix", "smmix(source=random, destination=random)"))

STUDIES: dict[str, Study] = {
    "accuracy": Study("top-1 and top-2 accuracy on mixed images (SMMix figure 5a)", ACCURACY, figures.plot_bars),
    "labels": Study("error of label rules against visible objects, by how much is cut", _labels, figures.plot_bars),
    "fluctuation": Study(
        "shares per block beside token similarity; RMSE of area and aligned (TL-Align figures 3, 4)",
        _fluctuation,
        figures.plot_fluctuation,
    ),
    "regions": Study(
        "attention between the two regions per block (SMMix tables A1, A2)",
        REGIONS,
        partial(figures.plot_blocks, measure="attention of a patch to a patch"),
    ),
    "presence": Study(
        "presence of each token per block (TL-Align equation 2)",
        PRESENCE,
        partial(figures.plot_blocks, measure="presence of a patch"),
    ),
    "sharpness": Study(
        "total variation and variance of saliency, attention and gradient (TokenMixup supplement, table 2)",
        _sharpness,
        figures.plot_bars,
    ),
    "coverage": Study("how much of the objects the pasted region takes and hides (SMMix)", COVERAGE, figures.plot_bars),
    "htm": Study(
        "samples and tokens that HTM mixed, epoch by epoch (TokenMixup supplement, table 1)",
        _hidden,
        figures.plot_hidden,
    ),
}
