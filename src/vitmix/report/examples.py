"""Mixed images with their targets, drawn anew from a run's configuration, data and seed, with its best weights."""

import base64
import dataclasses
import io
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitmix.data.augment import Augmentation
from vitmix.data.loader import TrainLoader
from vitmix.draws import generator_for
from vitmix.evaluate.subject import Subject
from vitmix.learner import Learner
from vitmix.mix import label_rows
from vitmix.train import prepare

BATCH = 16  # images mixed with one another here; a training's batch would take its time on a CPU
TRIES = 64  # batches looked at until every method of a switch was drawn


@dataclass(frozen=True)
class Example:
    """A mixed image between the two it was made of, and its target as (class, part) pairs, largest first."""

    method: str
    mixed: bytes
    own: bytes
    partner: bytes | None
    target: list[tuple[str, float]]


@torch.no_grad()
def draw_examples(subject: Subject, *, count: int) -> list[Example]:
    """As many examples for each method that the subject's run switches between."""
    # Dropout would make attention, and targets that follow it, a matter of chance.
    config = dataclasses.replace(subject.config, drop=0.0, drop_path=0.0, resident=False, pretrained=False)
    images, _, outputs = prepare.open_data(config)
    model, _ = prepare.build_model(config, outputs, initial_weights=False)
    model.load_state_dict(subject.model.state_dict())
    method = prepare.build_mixer(config, outputs)
    learner = Learner(model, method).train()  # mixing inside the network happens in training only
    augmentation = prepare.build_augmentation(config, model)
    batch = min(BATCH, len(images))
    loader = TrainLoader(images, augmentation, batch=batch, seed=config.seed, repeats=config.repeats)
    found: dict[int, list[Example]] = {}
    names = [*images.classes, *(str(number) for number in range(len(images.classes), outputs))]
    batches = loader.epoch(0)
    first = next(batches)
    frame = learner.mixing.frame(first.images)
    for step in range(TRIES):
        own, shared = generator_for(config.seed, step, 1), generator_for(config.seed, step, 0)
        draw = method.draw(frame, own, shared=shared)
        if draw.choice in found:
            continue
        mixed = learner.mixing.mix(first.images, first.labels, draw=draw)
        learner.model(mixed.images)
        targets = learner.mixing.targets(mixed)
        changed = (mixed.images != first.images).flatten(1).any(1) | (targets != label_rows(first.labels, outputs)).any(
            1
        )
        order = sorted(range(batch), key=lambda row: not changed[row])[:count]
        partner = mixed.mix.partner
        text = str(method.mixers[draw.choice])
        found[draw.choice] = [
            Example(
                text,
                _picture(mixed.images[row], augmentation),
                _picture(first.images[row], augmentation),
                _picture(first.images[int(partner[row])], augmentation) if bool(changed[row]) else None,
                _largest(targets[row], names),
            )
            for row in order
        ]
        if len(found) == len(method.mixers):
            break
    return [example for _, examples in sorted(found.items()) for example in examples]


def _largest(target: Tensor, names: list[str], least: float = 0.02, most: int = 3) -> list[tuple[str, float]]:
    """The classes that make up a target; what is left out (smoothing, mostly) comes last under the name of rest."""
    values, places = target.double().topk(min(most, len(target)))
    floor = max(least, 2.0 * float(target.min()))
    parts = [(names[int(place)], float(value)) for value, place in zip(values, places, strict=True) if value > floor]
    rest = float(target.double().sum()) - sum(value for _, value in parts)
    return [*parts, ("rest", rest)] if rest > 0.005 else parts


def _picture(image: Tensor, augmentation: Augmentation) -> bytes:
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (augmentation.mean, augmentation.std))
    return encoded(((image * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy())


def encoded(pixels: np.ndarray) -> bytes:
    """Pixels `(H, W, 3)` uint8 as a file: exact where there are few of them."""
    file = io.BytesIO()
    small = max(pixels.shape[:2]) <= 64
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, **({"format": "PNG"} if small else JPEG))
    return file.getvalue()


JPEG = {"format": "JPEG", "quality": 85}


def data_uri(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
