"""What a method does to one pair of pictures, as plain grids that can be drawn."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn
from torch.nn import functional

from vitmix._mixer import Mixer
from vitmix._mixing import MixedBatch, Mixing
from vitmix._text import create
from vitmix.attention.tap import AttentionTap
from vitmix.lab.data.augment import Augmentation, eval_pixels, normalize
from vitmix.lab.maps.teachers import dense_logits
from vitmix.lab.show.pictures import Picture
from vitmix.parts.base import Shown, on_grid


@dataclass(frozen=True)
class View:
    """One method on one pair.

    Attributes:
        origin: `(h, w)` how much of each cell is the partner's.
        bank: `(h, w)` in how many earlier blocks VTM took this token, if at all.
        moved_from: (top, bottom, left, right) as parts of the picture, where what was pasted lay in the partner.
        mixed: `(3, H, W)` in 0..1.
        used: whether the method itself looks at `statistics`.
        own, partner: their parts of the target.
    """

    title: str
    origin: Tensor
    mixed: Tensor
    statistics: tuple[Shown, ...]
    used: bool
    own: float
    partner: float
    bank: Tensor | None = None
    moved_from: tuple[float, float, float, float] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scene:
    """The pair as the model sees it, `(2, 3, H, W)` in 0..1, and every method on it."""

    pictures: Tensor
    names: tuple[str, str]
    views: tuple[View, ...]


def observe(
    model: nn.Module,
    augmentation: Augmentation,
    pictures: Sequence[Picture],
    methods: Sequence[str],
    *,
    classes: Sequence[str] | None = None,
    seed: int = 0,
) -> Scene:
    """Each method, and each choice of a switch, on the same pair with the same random numbers.

    HTM's score net is trained with the model and is not part of its weights, so every sample counts as easy here.

    Args:
        classes: names of the model's outputs; where a picture is named like one, that is its label.
    """
    if len(pictures) != 2:
        raise ValueError(f"mixing is shown on two pictures, got {len(pictures)}; give two")
    shown = dataclasses.replace(augmentation, crop_pct=1.0)
    pixels = torch.stack([eval_pixels(picture.image, shown) for picture in pictures])
    images = normalize(pixels, shown)
    without_dropout(model)
    with torch.no_grad():
        logits = model(images)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2:
            raise ValueError(f"this {type(model).__name__} is no classifier of two classes or more; use another model")
        labels = _labels(logits, [picture.name for picture in pictures], classes or [])
        views = []
        for method in methods:
            mixer = create(method, logits.shape[1])
            for number, arm in enumerate(mixer.mixers):
                title = method if len(mixer.mixers) == 1 else str(arm)
                odds = None if len(mixer.mixers) == 1 else _odds(mixer, number)
                views.append(_view(model, arm, title, odds, images, labels, shown, seed))
    return Scene(pixels.float() / 255, (pictures[0].name, pictures[1].name), tuple(views))


def _view(
    model: nn.Module,
    mixer: Mixer,
    title: str,
    odds: str | None,
    images: Tensor,
    labels: list[int],
    augmentation: Augmentation,
    seed: int,
) -> View:
    with mixing_pair(model, mixer, images, labels, seed) as (mixing, batch):
        model(batch.images)
        target = mixing.targets(batch)[0]  # also closes the tape: passes from here on are plain
        found, used = _statistics(model, mixing, batch)
    origin, _ = _origin(batch)
    return View(
        title=title,
        origin=origin,
        mixed=mixed_pixels(batch, augmentation),
        statistics=found,
        used=used,
        own=float(target[0]),
        partner=float(target[1]),
        bank=_bank(batch),
        moved_from=_moved_from(batch),
        notes=tuple(filter(None, (odds, _unchanged(batch)))),
    )


@contextmanager
def mixing_pair(
    model: nn.Module, mixer: Mixer, images: Tensor, labels: Sequence[int], seed: int
) -> Iterator[tuple[Mixing, MixedBatch]]:
    """A method at work on two images, which stand for classes 0 and 1, so that the target tells them apart.

    What runs the model on the batch's images inside this sees the method act.

    Args:
        labels: what the images show, for activation labels.
    """
    inner = tuple(part.demonstrated() for part in mixer.inner)
    maps = None
    if mixer.needs.maps:
        maps = torch.stack([each[label] for each, label in zip(dense_logits(model, images), labels, strict=True)])
    with dataclasses.replace(mixer, inner=inner).attach(model, seed=seed, rank=0) as mixing:
        generator = torch.Generator().manual_seed(seed)
        maps = _fitting(maps, mixing, images)
        yield mixing, mixing.mix(images, torch.tensor([0, 1]), maps=maps, generator=generator)


def mixed_pixels(batch: MixedBatch, augmentation: Augmentation) -> Tensor:
    """The first mixed image `(3, H, W)` in 0..1, with the tokens that HTM took as if they were pixels."""
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (augmentation.mean, augmentation.std))
    return (_origin(batch)[1] * std + mean).clamp(0, 1)


def _statistics(model: nn.Module, mixing: Mixing, batch: MixedBatch) -> tuple[tuple[Shown, ...], bool]:
    """What the method read, and True; or the attention that it did not ask for, and False."""
    evidence, mixer = mixing.evidence(batch), batch.mixer
    for part in (*batch.tape.actors, mixer.mask, mixer.share, *mixer.extra):
        if found := part.shown(evidence):
            return found, True
    reader = mixing.reader
    if reader is None or not reader.has_attention:
        return (), False
    last = reader.resolve(-1)
    with AttentionTap(model, saliency=[last]) as tap:
        model(batch.images)
    grid = reader.grids(batch.frame.size)[last]
    return (Shown(reader.block(last).saliency_name, on_grid(tap.saliency(last)[0], grid)),), False


def _origin(batch: MixedBatch) -> tuple[Tensor, Tensor]:
    """How much of each cell of the first picture's mix comes from the second, and the mix; HTM's taking included."""
    mask = batch.mix.mask.float()
    mask = mask.expand(2, *mask.shape[1:])
    mixed = batch.images[0]
    paired = batch.mix.partner != torch.arange(2)
    first, second = mask[0] * paired[0], 1 - mask[1] * paired[1]
    for actor in batch.tape.actors:
        if actor.exchange is not None:
            grid = batch.frame.grids[actor.block]
            take = actor.exchange.take[0].view(1, *grid)
            if int(actor.exchange.partner[0]) == 1:
                coarse = [functional.adaptive_avg_pool2d(each.unsqueeze(0), grid)[0] for each in (first, second)]
                first = torch.where(take[0], coarse[1], coarse[0])
                taken = functional.interpolate(take.float().unsqueeze(0), batch.frame.size, mode="nearest")[0]
                mixed = torch.where(taken > 0, batch.images[1], mixed)
    return first, mixed


def _unchanged(batch: MixedBatch) -> str | None:
    """A word where hidden mixing found no token of the other image worth taking."""
    exchanges = {actor.settings.name: actor.exchange for actor in batch.tape.actors if actor.exchange is not None}
    if any(int(each.partner[0]) == 1 and bool(each.take[0].any()) for each in exchanges.values()):
        return None
    return f"{next(iter(exchanges)).upper()} exchanged nothing" if exchanges else None


def _bank(batch: MixedBatch) -> Tensor | None:
    for actor in batch.tape.actors:
        if actor.borrowed is not None:
            return actor.borrowed[0].view(batch.frame.grids[actor.block])
    return None


def _moved_from(batch: MixedBatch) -> tuple[float, float, float, float] | None:
    source, mask = batch.mix.source, batch.mix.mask
    if source is None:
        return None
    rows, columns = mask.shape[-2:]
    cells = source[0][mask[0].flatten().bool()]
    if not len(cells):
        return None
    row, column = cells // columns, cells % columns
    edges = (row.min() / rows, (row.max() + 1) / rows, column.min() / columns, (column.max() + 1) / columns)
    top, bottom, left, right = map(float, edges)
    return top, bottom, left, right


def _fitting(maps: Tensor | None, mixing: Mixing, images: Tensor) -> Tensor | None:
    """Maps on the token grid, so that any mask fits them."""
    if maps is None:
        return None
    grid = mixing.frame(images).grid or (images.shape[2], images.shape[3])
    return functional.interpolate(maps.unsqueeze(1), grid, mode="bilinear", antialias=True).squeeze(1)


def _labels(logits: Tensor, names: list[str], classes: Sequence[str]) -> list[int]:
    """The class that each picture's name says, or else the one the model sees in it."""
    found = logits.argmax(1).tolist()
    return [list(classes).index(name) if name in classes else seen for name, seen in zip(names, found, strict=True)]


def _odds(mixer: object, number: int) -> str:
    weights = getattr(mixer, "weights", (1.0,))
    return f"{weights[number] / sum(weights):.0%} of batches"


def without_dropout(model: nn.Module) -> None:
    """Training mode, for mixing inside the network, which happens only there; nothing else of that mode is wanted."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, DropPath):
            module.drop_prob = 0.0
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
