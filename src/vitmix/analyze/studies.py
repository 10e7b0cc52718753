"""The studies behind `vitmix analyze`, each with what it measures, on which methods, and what it needs."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

from vitmix.adapters import read_model
from vitmix.data.augment import Augmentation
from vitmix.data.images import ImageSet
from vitmix.data.loader import EvalLoader
from vitmix.draws import generator_for
from vitmix.inner import HTM
from vitmix.mixer import AnyMixer
from vitmix.spec import create
from vitmix.train.config import resolve

from . import accuracy, coverage, figures, fluctuation, hidden, labels, regions, saliency
from .objects import Finder
from .pairs import Pictures, one_mask_each
from .results import Table

MIXED = ("mixup", "cutmix", "tokenmix", "smmix")
ORDER = 7  # names a stream of random numbers: which images are looked at


class Batches(Iterable[Pictures]):
    """Some images of a set in an order of their own, as often as asked: data may be sorted by class."""

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        *,
        count: int,
        batch: int = 64,
        seed: int = 0,
        finder: Finder | None = None,
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> None:
        order = torch.randperm(len(images), generator=generator_for(seed, ORDER)).numpy()
        self.rows = order[: min(count, len(order))]
        self.images = images.subset(self.rows, f"{images.description}, {len(self.rows)} of them")
        self.loader = EvalLoader(self.images, augmentation, batch=batch, workers=workers)
        self.finder, self.device = finder, torch.device(device)

    def __iter__(self) -> Iterator[Pictures]:
        for batch in self.loader:
            objects = None if self.finder is None else self.finder(self.rows[batch.indices.numpy()].tolist())
            batch = batch.to(self.device)
            yield Pictures(batch.images, batch.labels, None if objects is None else objects.to(self.device))


@dataclass(frozen=True)
class Question:
    """What a study is asked about: a model in evaluation mode, batches, and methods by their text."""

    model: nn.Module
    batches: Iterable[Pictures]
    num_classes: int
    methods: tuple[str, ...] = ()
    run: Path | None = None
    size: tuple[int, int] = (0, 0)
    seed: int = 0

    def mixers(self, usual: Sequence[str] | Mapping[str, str]) -> dict[str, AnyMixer]:
        """The methods that were named, or else the usual ones, by their names or texts."""
        texts = usual if isinstance(usual, Mapping) and not self.methods else {t: t for t in self.methods or usual}
        return {name: one_mask_each(create(text, self.num_classes)) for name, text in texts.items()}


@dataclass(frozen=True)
class Study:
    """What a study measures, and how; `draw` makes its figure, where the papers have one."""

    about: str
    measure: Callable[[Question], list[Table]]
    draw: Callable[[Sequence[Table]], Figure] | None = None


def _accuracy(asked: Question) -> list[Table]:
    return [accuracy.mixed_accuracy(asked.model, asked.mixers(MIXED), asked.batches, seed=asked.seed)]


def _fluctuation(asked: Question) -> list[Table]:
    tables = []
    for name, method in asked.mixers(("cutmix",)).items():
        found = fluctuation.fluctuation_study(
            asked.model, method, asked.batches, num_classes=asked.num_classes, seed=asked.seed
        )
        tables += [_titled(table, name) for table in found]
    return tables


def _regions(asked: Question) -> list[Table]:
    return [regions.region_study(asked.model, asked.mixers(("cutmix", "smmix")), asked.batches, seed=asked.seed)]


def _presence(asked: Question) -> list[Table]:
    return [regions.presence_study(asked.model, asked.mixers(("cutmix",)), asked.batches, seed=asked.seed)]


def _sharpness(asked: Question) -> list[Table]:
    return [saliency.sharpness_study(asked.model, asked.batches)]


def _labels(asked: Question) -> list[Table]:
    rules = asked.mixers(labels.RULES)
    return labels.label_error_tables(labels.label_error(asked.model, rules, asked.batches, seed=asked.seed))


def _coverage(asked: Question) -> list[Table]:
    usual = ("cutmix", "smmix", "smmix(source=random, destination=random)")
    return [coverage.coverage_study(asked.model, asked.mixers(usual), asked.batches, seed=asked.seed)]


def _hidden(asked: Question) -> list[Table]:
    if asked.run is None:
        raise ValueError(f"{hidden.STUDY} is read from a run folder, and this is none; give one")
    config = resolve(file=asked.run / "config.yaml")
    method = create(config.method, asked.num_classes)
    parts = [part for mixer in method.mixers for part in mixer.inner if isinstance(part, HTM)]
    if not parts:
        raise ValueError(f"{hidden.STUDY} needs a run whose method has htm, and this one's is {config.method!r}")
    reader = read_model(asked.model)
    rows, columns = reader.grids(asked.size)[reader.resolve_patches(parts[0].block)]
    return [hidden.hidden_mixing(hidden.read_rows(asked.run), batch=config.batch, tokens=rows * columns)]


def _titled(table: Table, method: str) -> Table:
    return dataclasses.replace(table, title=f"{table.title}: {method}")


STUDIES: dict[str, Study] = {
    "accuracy": Study("top-1 and top-2 accuracy on mixed images (SMMix figure 5a)", _accuracy),
    "labels": Study("error of label rules against visible objects, by how much is cut", _labels),
    "fluctuation": Study(
        "shares per block beside token similarity; RMSE of area and aligned (TL-Align figures 3, 4)",
        _fluctuation,
        figures.draw_fluctuation,
    ),
    "regions": Study("attention between the two regions per block (SMMix tables A1, A2)", _regions),
    "presence": Study("presence of each token per block (TL-Align equation 2)", _presence),
    "sharpness": Study(
        "total variation and variance of saliency, attention and gradient (TokenMixup table 2)", _sharpness
    ),
    "coverage": Study("how much of the objects the pasted region takes and hides (SMMix)", _coverage),
    "htm": Study(
        "samples and tokens that HTM mixed, epoch by epoch (TokenMixup table 1)", _hidden, figures.draw_hidden
    ),
}
