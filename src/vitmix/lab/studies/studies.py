"""The studies of `vitmix analyze`: what each one measures, on which methods, and what it needs."""

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
from vitmix.lab.fitting import refusal
from vitmix.lab.runs import Analysis, Run, Table

from . import accuracy, coverage, figures, fluctuation, hidden, labels, regions, saliency
from .batches import Batches, Progress, Watched
from .headlines import Headline
from .pairs import need_reader, needs_maps, one_mask_each


@dataclass(frozen=True)
class Question:
    """The input of a study: a model in evaluation mode, batches, and methods by their text."""

    model: nn.Module
    batches: Batches
    num_classes: int
    methods: tuple[str, ...] = ()
    run: Path | None = None
    size: tuple[int, int] = (0, 0)
    seed: int = 0
    progress: Progress = lambda done, total: None

    def mixers(self, usual: Sequence[str] | Mapping[str, str]) -> tuple[dict[str, AnyMixer], tuple[str, ...]]:
        """The named methods (default: the usual ones that this model supports), and notes on the others."""
        if self.methods:
            return {text: self._mixer(text) for text in self.methods}, ()
        texts = usual if isinstance(usual, Mapping) else {text: text for text in usual}
        mixers = {name: self._mixer(text) for name, text in texts.items()}
        refused = {name: self._refusal(mixer) for name, mixer in mixers.items()}
        if all(refused.values()):
            raise ValueError(next(iter(refused.values())))
        reasons = dict.fromkeys(filter(None, refused.values()))
        notes = tuple(
            f"Left out: {'; '.join(name for name in refused if refused[name] == reason)}, because {reason}."
            for reason in reasons
        )
        return {name: mixer for name, mixer in mixers.items() if not refused[name]}, notes

    def _refusal(self, method: AnyMixer) -> str | None:
        check = partial(need_reader, self.model) if needs_maps(method) else None
        return refusal(self.model, method, self.size, check)

    def _mixer(self, text: str) -> AnyMixer:
        return one_mask_each(create(text, self.num_classes))

    def watched(self, times: int = 1) -> Watched:
        """The batches, to be iterated this many times."""
        return Watched(self.batches, times, self.progress)


@dataclass(frozen=True)
class Study:
    """What a study measures, and how; `plot` makes its figure."""

    about: str
    measure: Callable[[Question], list[Table]]
    plot: Callable[[Sequence[Table]], Figure]
    headline: Headline


def _of_methods(
    study: Callable[..., Table | list[Table]], usual: Sequence[str] | Mapping[str, str], *, together: bool = False
) -> Callable[[Question], list[Table]]:
    """A study from a function of (model, methods, batches, *, seed), which iterates once per method, or once."""

    def measure(asked: Question) -> list[Table]:
        methods, notes = asked.mixers(usual)
        batches = asked.watched(1 if together else len(methods))
        found = study(asked.model, methods, batches, seed=asked.seed)
        first, *rest = [found] if isinstance(found, Table) else found
        return [dataclasses.replace(first, notes=first.notes + notes), *rest]

    return measure


def _sharpness(asked: Question) -> list[Table]:
    return [saliency.sharpness_study(asked.model, asked.watched())]


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
        raise ValueError(
            f"{hidden.STUDY} needs a run with htm in its method; the method of this run is {config.method!r}"
        )
    reader = read_model(asked.model)
    rows, columns = reader.grids(asked.size)[reader.resolve_patches(parts[0].block)]
    return [hidden.hidden_mixing(run.epochs, batch=config.batch, tokens=rows * columns)]


STUDIES: dict[str, Study] = {
    "accuracy": Study(
        "top-1 and top-2 accuracy on mixed images (SMMix figure 5a)",
        _of_methods(accuracy.mixed_accuracy, ("mixup", "cutmix", "tokenmix", "smmix")),
        figures.plot_bars,
        Headline("Accuracy", "top-1", "images mixed by {method} are recognized best: one of two classes {value}"),
    ),
    "labels": Study(
        "error of label rules against visible objects, also by hidden part, area and object size",
        _of_methods(labels.label_error_study, labels.RULES, together=True),
        figures.plot_label_error,
        Headline("Label error", "error", "the labels of '{rule}' are closest to the visible objects: {value}", min),
    ),
    "fluctuation": Study(
        "shares per block beside token similarity; RMSE of area and aligned (TL-Align figures 3, 4)",
        _of_methods(fluctuation.fluctuation_study, ("cutmix",)),
        figures.plot_fluctuation,
        Headline("RMSE", "of shares", "{labels} labels differ by {value} (RMSE of shares)"),
    ),
    "regions": Study(
        "attention between the two regions per block (SMMix tables A1, A2)",
        _of_methods(regions.region_study, ("cutmix", "smmix")),
        partial(figures.plot_blocks, measure="attention of a patch to a patch"),
        Headline(
            "Attention",
            "partner to partner",
            "in the last block, pasted patches attend most to each other with {method}: {value}",
            last=True,
        ),
    ),
    "presence": Study(
        "presence of each token per block (TL-Align equation 2)",
        _of_methods(regions.presence_study, ("cutmix",)),
        partial(figures.plot_blocks, measure="presence of a patch"),
        Headline("Presence", "deviation", "in the last block, presence deviates by {value} ({method})", last=True),
    ),
    "sharpness": Study(
        "total variation and variance of saliency, attention and gradient (TokenMixup supplement, table 2)",
        _sharpness,
        figures.plot_bars,
        Headline("Sharpness", "TV, L1", "{saliency} is sharpest in block {block}: total variation {value}"),
    ),
    "coverage": Study(
        "how much of the objects the pasted region takes and hides (SMMix)",
        _of_methods(coverage.coverage_study, ("cutmix", "smmix", "smmix(source=random, destination=random)")),
        figures.plot_bars,
        Headline("Objects", "pasted", "{method} shows most of the partner's object: {value}"),
    ),
    "htm": Study(
        "samples and tokens that HTM mixed, epoch by epoch (TokenMixup supplement, table 1)",
        _hidden,
        figures.plot_hidden,
        Headline("What HTM", "samples", "in epoch {epoch}, the last, HTM mixed {value} of the samples", last=True),
    ),
}


def headline(analysis: Analysis) -> str:
    """`accuracy: images mixed by smmix are ...`, or what the study measures."""
    known = STUDIES.get(analysis.study)
    return f"{analysis.study}: {(known and known.headline.text(analysis.tables)) or analysis.about}"
