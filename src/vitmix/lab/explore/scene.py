"""What a method does to a pair of images, as typed values: masks, images, attention, shares, targets, predictions."""

import dataclasses
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitmix._mixer import Mixer
from vitmix._mixing import MixedBatch, Mixing
from vitmix._sampling import on_host
from vitmix._text import create
from vitmix.attention.readers import Reader, logits_of
from vitmix.attention.tap import Plan, Recorder, Tape
from vitmix.lab.figures.images import NamedImage
from vitmix.lab.figures.models import NamedModel, without_dropout
from vitmix.lab.figures.samples import mixing_pair
from vitmix.lab.maps.teachers import dense_logits
from vitmix.lab.show import MethodResult, method_result
from vitmix.parts.base import Shown, on_grid

from .photos import UPLOADED
from .rules import Bar, Rule, bar_of, plan_for, rules_of

MOST_KEPT = 24  # pairs and scenes in memory


@dataclass(frozen=True)
class Prediction:
    """A class and its probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class Block:
    """One block of the model: its attention to each token, the share that each token carries after it, and the share
    that a classifier would read there."""

    number: int
    attention: Tensor | None
    share: Tensor | None
    read: float | None


@dataclass(frozen=True)
class Pair:
    """Two images as a model sees them, and its predictions for them unmixed.

    Attributes:
        pixels: `(2, 3, H, W)` in 0..1.
        labels: the classes they are named after, otherwise the predicted ones.
        maps: `(2, h, w)` activation maps of the labels; None if the model has none.
    """

    images: tuple[NamedImage, NamedImage]
    pixels: Tensor
    inputs: Tensor
    logits: Tensor
    labels: tuple[int, int]
    maps: Tensor | None


@dataclass(frozen=True)
class Scene:
    """Everything that the page shows about one method on one pair.

    Attributes:
        drawn: the method that a switch chose, with its odds; empty without a switch.
        method: mask, mixed image, what the method reads, target.
        blocks: attention and carried shares through the depth.
        bars: the target by every label rule.
        predictions: the five likeliest classes of original, partner and mixed image.
        losses: the parts of the loss.
        names: what the two images are called in the target.
        seconds: how long it took.
    """

    text: str
    drawn: str
    pair: Pair
    method: MethodResult
    blocks: tuple[Block, ...]
    bars: tuple[Bar, ...]
    predictions: tuple[tuple[Prediction, ...], ...]
    losses: dict[str, float]
    names: tuple[str, str]
    seconds: float


class Stage:
    """Runs methods on pairs, one at a time, because hooks serve one batch. Caches recent pairs and scenes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: OrderedDict[Any, Pair] = OrderedDict()
        self._scenes: OrderedDict[Any, Scene] = OrderedDict()

    def scene(self, model: NamedModel, images: Sequence[NamedImage], text: str, seed: int = 0) -> Scene:
        """What the method of a text does to two images."""
        with self._lock:
            key = (weakref.ref(model.model), *map(_identity, images), text, seed)
            return _remembered(self._scenes, key, lambda: play(model, self._pair(model, images), text, seed))

    def pair(self, model: NamedModel, images: Sequence[NamedImage]) -> Pair:
        with self._lock:
            return self._pair(model, images)

    def run(self, function: Any, *arguments: Any) -> Any:
        """Runs another function of the model while no scene runs."""
        with self._lock:
            return function(*arguments)

    def _pair(self, model: NamedModel, images: Sequence[NamedImage]) -> Pair:
        key = (weakref.ref(model.model), *map(_identity, images))
        return _remembered(self._pairs, key, lambda: make_pair(model, images))


def make_pair(model: NamedModel, images: Sequence[NamedImage]) -> Pair:
    """Runs the model on two unmixed images."""
    if len(images) != 2:
        raise ValueError(f"methods mix two images, got {len(images)}; choose two")
    without_dropout(model.model)
    pixels = model.pixels(images)
    inputs = model.inputs(pixels)
    with torch.no_grad():
        logits = logits_of(model.model(inputs))
        known = [model.known(image) for image in images]
        first, second = (
            int(guess) if label is None else label for label, guess in zip(known, logits.argmax(1), strict=True)
        )
        try:
            dense = dense_logits(model.model, inputs)
            maps = torch.stack([dense[0, first], dense[1, second]])
        except ValueError:  # its features are not a grid
            maps = None
    return Pair((images[0], images[1]), pixels, inputs, logits, (first, second), maps)


def play(model: NamedModel, pair: Pair, text: str, seed: int = 0) -> Scene:
    """One method on one pair. In a switch, the seed draws one of the methods."""
    start = time.perf_counter()
    mixer, drawn = _drawn(text, model.outputs, seed)
    classes = _distinct(pair.labels, model.outputs)
    acting = mixing_pair(model.model, mixer, pair.inputs, pair.labels, seed, classes=classes)
    with torch.no_grad(), acting as (mixing, batch):
        rules = rules_of(mixing, batch, pair.maps)
        plan, rules = plan_for(mixing, batch, rules)
        batch, seen, logits = _run(model, mixing, batch, plan, rules)
        losses = {name: float(value) for name, value in mixing.losses(logits, batch).items()}
        blocks = _blocks(mixing, batch, seen)
        shown = _last_attention(mixing, blocks)
        method = method_result(model, mixing, batch, title=str(batch.mixer), classes=classes, attention=shown)
        bars = tuple(bar_of(rule, seen, batch) for rule in rules)
    names = tuple(_called(model, image, label) for image, label in zip(pair.images, pair.labels, strict=True))
    predictions = tuple(_likeliest(model, row) for row in torch.cat([pair.logits, logits[:1]]))
    seconds = time.perf_counter() - start
    return Scene(text, drawn, pair, method, blocks, bars, predictions, losses, (names[0], names[1]), seconds)


def _distinct(labels: tuple[int, int], outputs: int) -> tuple[int, int]:
    """Two classes, so that the target shows both parts even if the images have the same class."""
    first, second = labels
    return (first, second) if first != second else (first, (first + 1) % outputs)


def _drawn(text: str, outputs: int, seed: int) -> tuple[Mixer, str]:
    with warnings.catch_warnings(action="ignore"):  # of a switch, which has one loss for all; the page shows the loss
        found = create(text, outputs)
    if isinstance(found, Mixer):
        return found, ""
    with on_host():
        weights = torch.tensor(found.weights, dtype=torch.float64)
        choice = int(torch.multinomial(weights, 1, generator=torch.Generator().manual_seed(seed)))
    return found.choices[
        choice
    ], f"{found.choices[choice]} ({found.weights[choice] / sum(found.weights):.0%} of batches)"


def _run(
    model: NamedModel, mixing: Mixing, batch: MixedBatch, plan: Plan, rules: Sequence[Rule]
) -> tuple[MixedBatch, Tape, Tensor]:
    """Runs the model on the mixed batch: the batch with its tape, the tape of the comparison, and the logits.

    One pass serves both, unless the method mixes inside the network: rules are compared on the mixed images.
    """
    tape = Tape(plan, size=batch.frame.size, targets=batch.tape.targets)
    tape.label_share = batch.tape.label_share
    for rule in rules:
        if not rule.missing:
            rule.share.start(dataclasses.replace(rule.evidence, tape=tape))
    if batch.tape.actors:
        logits = logits_of(model.model(batch.images))
        mixing.targets(batch)
        _record(model, mixing, batch, tape)
        return batch, tape, logits
    mixing.forget()  # its own tape, of which the other one records everything
    return dataclasses.replace(batch, tape=tape), tape, _record(model, mixing, batch, tape)


def _record(model: NamedModel, mixing: Mixing, batch: MixedBatch, tape: Tape) -> Tensor:
    if mixing.reader is None:
        return logits_of(model.model(batch.images))
    recorder = Recorder(mixing.reader, tape.plan)
    recorder.tape = tape
    try:
        return logits_of(model.model(batch.images))
    finally:
        recorder.remove()
        tape.close()


def _last_attention(mixing: Mixing, blocks: Sequence[Block]) -> tuple[Shown, ...]:
    reader = mixing.reader
    maps = [block.attention for block in blocks if block.attention is not None]
    if reader is None or not maps:
        return ()
    return (Shown(reader.block(reader.resolve(-1)).saliency_name, maps[-1]),)


def _blocks(mixing: Mixing, batch: MixedBatch, tape: Tape) -> tuple[Block, ...]:
    reader = mixing.reader
    if reader is None:
        return ()
    grids = reader.grids(batch.frame.size)
    found = []
    for number, grid in enumerate(grids[: reader.depth]):
        attention, share = tape.saliency.get(number), tape.token_share.get(number)
        found.append(
            Block(
                number,
                None if attention is None else on_grid(attention[0], grid),
                None if share is None else on_grid(share[0], grid),
                None if share is None else _read_share(reader, share),
            )
        )
    return tuple(found)


def _read_share(reader: Reader, share: Tensor) -> float | None:
    if reader.readout == "sequence" or reader.pooling is not None:  # a weighting that only the last tokens have
        return float(share[0].mean())
    return float(reader.read_share(share, None)[0])


def _likeliest(model: NamedModel, logits: Tensor, count: int = 5) -> tuple[Prediction, ...]:
    found = logits.float().softmax(-1).topk(min(count, len(logits)))
    return tuple(
        Prediction(model.class_name(int(label)), float(value))
        for value, label in zip(found.values, found.indices, strict=True)
    )


def _called(model: NamedModel, image: NamedImage, label: int) -> str:
    """The name of the image; for an upload, the predicted class."""
    return image.name if image.name != UPLOADED else model.class_name(label)


def _identity(image: NamedImage) -> tuple[str, int]:
    return image.name, hash(image.image.tobytes()) if image.image.width * image.image.height < 10**6 else id(
        image.image
    )


def _remembered(kept: OrderedDict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    if key not in kept:
        kept[key] = make()
    kept.move_to_end(key)
    while len(kept) > MOST_KEPT:
        kept.popitem(last=False)
    return kept[key]
