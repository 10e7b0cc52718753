"""Mixed images with their targets, drawn anew from a run's configuration, data and seed, with its best weights."""

import base64
import dataclasses
import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitmix._learner import Learner
from vitmix._mixer import AnyMixer
from vitmix._mixing import MixedBatch
from vitmix._sampling import generator_for
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.loader import TrainLoader
from vitmix.lab.evaluation.subject import Subject
from vitmix.lab.training import prepare

BATCH = 16  # images mixed with one another here; a training's batch would take its time on a CPU
TRIES = 64  # batches looked at until every method of a switch was drawn
MIXED_SIDE, SOURCE_SIDE = 256, 96  # pixels, at most: a page of many configurations must stay small
MOST_CLASSES = 4  # of a target

Role = Literal["own", "partner", "taken", "other", "rest"]
"""Of a source: the image itself, the one mixed into it, the one (as mixed) whose tokens HTM put in. Of a part of the
target also a class of none of them, and what smoothing spreads over all others."""


@dataclass(frozen=True)
class Part:
    """A class's part of a target."""

    role: Role
    name: str
    share: float


@dataclass(frozen=True)
class Example:
    """A mixed image, the images that it was made of, and its target in the same order."""

    method: str
    mixed: bytes
    sources: dict[Role, bytes]
    target: list[Part]


@torch.no_grad()
def draw_examples(subject: Subject, *, count: int) -> list[Example]:
    """As many examples for each method that the subject's run switches between."""
    # Dropout would make attention, and targets that follow it, a matter of chance.
    config = dataclasses.replace(subject.config, drop=0.0, drop_path=0.0, resident=False, pretrained=False)
    images, _, outputs = prepare.open_data(config)
    model, _ = prepare.build_model(config, outputs, initial_weights=False)
    model.load_state_dict(subject.model.state_dict())
    method = prepare.build_mixer(config, outputs)
    guide = prepare.build_guide(config, method, outputs)
    learner = Learner(model, _all_easy(method), guide=guide).train()  # mixing inside the network: in training only
    augmentation = prepare.build_augmentation(config, model)
    maps = prepare.map_settings(config, images, learner, augmentation)
    batch = min(BATCH, len(images))
    loader = TrainLoader(images, augmentation, batch=batch, seed=config.seed, repeats=config.repeats, **maps)
    found: dict[int, list[Example]] = {}
    names = [*images.classes, *(str(number) for number in range(len(images.classes), outputs))]
    first = next(loader.epoch(0))
    frame = learner.mixing.frame(first.images)
    for step in range(TRIES):
        own, shared = generator_for(config.seed, step, 1), generator_for(config.seed, step, 0)
        draw = method.draw(frame, own, shared=shared)
        if draw.choice in found:
            continue
        mixed = learner.mixing.mix(first.images, first.labels, maps=first.maps, draw=draw)
        learner.model(mixed.images)
        targets = learner.mixing.targets(mixed)
        looks, sources = _sources(mixed, first.images)
        order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))[:count]
        found[draw.choice] = [
            Example(
                str(method.mixers[draw.choice]),
                _picture(looks[row], augmentation, MIXED_SIDE),
                {
                    role: _picture((mixed if role == "taken" else first).images[at], augmentation, SOURCE_SIDE)
                    for role, at in sources[row].items()
                },
                _parts(targets[row], [(role, int(first.labels[at])) for role, at in sources[row].items()], names),
            )
            for row in order
        ]
        if len(found) == len(method.mixers):
            break
    return [example for _, examples in sorted(found.items()) for example in examples]


def _all_easy(method: AnyMixer) -> AnyMixer:
    """HTM's score net is trained with the model and is no part of its weights, so every sample counts as easy."""

    return method.each(
        lambda mixer: dataclasses.replace(mixer, inner=tuple(part.demonstrated() for part in mixer.inner))
    )


def _sources(batch: MixedBatch, images: Tensor) -> tuple[Tensor, list[dict[Role, int]]]:
    """The mixed images, with the tokens that HTM took as if they were pixels, and the rows that each is made of."""
    looks = batch.images
    mixed = (batch.images != images).flatten(1).any(1)
    sources: list[dict[Role, int]] = [{"own": row} for row in range(len(images))]
    for row in mixed.nonzero().flatten().tolist():
        sources[row]["partner"] = int(batch.mix.partner[row])
    for actor in batch.tape.actors:
        if actor.exchange is not None:
            partner, take = actor.exchange
            cells = take.view(len(take), 1, *batch.frame.grids[actor.block]).float()
            taken = torch.nn.functional.interpolate(cells, batch.frame.size, mode="nearest-exact") > 0
            looks = torch.where(taken, batch.images[partner], looks)
            for row in take.any(1).nonzero().flatten().tolist():
                sources[row]["taken"] = int(partner[row])
    return looks, sources


def _parts(target: Tensor, labels: list[tuple[Role, int]], names: list[str], least: float = 0.02) -> list[Part]:
    """The classes of the sources in their order, then other ones by their size, then the rest (smoothing, mostly)."""
    roles: dict[int, Role] = {}
    for role, label in labels:
        roles.setdefault(label, role)
    values = target.double()
    floor = max(least, 2.0 * float(values.min()))
    largest = [int(place) for place in values.argsort(descending=True) if values[place] > floor]
    places = [*roles, *(place for place in largest if place not in roles)][:MOST_CLASSES]
    parts = [Part(roles.get(place, "other"), names[place], float(values[place])) for place in places]
    rest = float(values.sum()) - sum(part.share for part in parts)
    return [*parts, Part("rest", "rest", rest)] if rest > 0.005 else parts


def _picture(image: Tensor, augmentation: Augmentation, side: int) -> bytes:
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (augmentation.mean, augmentation.std))
    return encoded(((image * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy(), side)


def encoded(pixels: np.ndarray, side: int) -> bytes:
    """Pixels `(H, W, 3)` uint8 as a file, no larger than `side`: exact where there are few of them."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, **({"format": "PNG"} if max(image.size) <= 64 else JPEG))
    return file.getvalue()


JPEG = {"format": "JPEG", "quality": 85}


def data_uri(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
