"""A run's examples: mixed training images with their targets, and where its best weights look.

They are recomputed from the run's configuration, data and seed.
"""

import base64
import dataclasses
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitmix._learner import Learner
from vitmix._mixing import MixedBatch
from vitmix._sampling import generator_for
from vitmix.attention.readers import read_model
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.loader import TrainLoader
from vitmix.lab.figures.attention import chosen_blocks
from vitmix.lab.figures.images import held_out
from vitmix.lab.figures.kinds import attention_figure, labels_figure
from vitmix.lab.figures.layout import FigureInputs
from vitmix.lab.figures.models import named_model
from vitmix.lab.figures.samples import demonstrated, in_pixels
from vitmix.lab.plotting.grid import ImageGrid, as_pixels
from vitmix.lab.runs.examples import Example, Examples, StoredTile, Strips, TargetPart
from vitmix.lab.training import prepare
from vitmix.parts.base import Normalization

from .subject import Subject

COUNT = 8  # examples of each method
BATCH = 16  # images mixed with each other here; a whole training batch would be slow on a CPU
TRIES = 64  # batches to try until every method of a switch is drawn
MIXED_SIDE, SOURCE_SIDE, TILE_SIDE = 256, 96, 112  # pixels, at most: a page of many configurations must stay small
EXACT_SIDE = 64  # pixels up to which an image is stored exactly
MOST_CLASSES = 4  # of a target
LEAST_PART = 0.02  # of a class that is neither image's
HELD_OUT = 4  # images, which make two pairs
MOST_BLOCKS = 6
SEED = 0  # for mixing held-out images: the same for every run
Problems = (ValueError, OSError, RuntimeError)


def make_examples(subject: Subject) -> Examples:
    """All examples of a run, and a message for each that cannot be made."""
    device = next(subject.model.parameters()).device
    subject.model.cpu()  # a few images, in float32
    problems: list[str] = []
    mixed: list[Example] = []
    try:
        mixed = mixed_examples(subject)
    except Problems as error:
        problems.append(f"No mixed images: {_sentence(error)}")
    strips = _strips(subject, problems)
    subject.model.to(device)
    return Examples(mixed=tuple(mixed), strips=tuple(strips), problems=tuple(problems))


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


# Mixed images


@torch.no_grad()
def mixed_examples(subject: Subject, count: int = COUNT) -> list[Example]:
    """`count` examples for each method of the run's switch."""
    # With dropout, attention and the targets that depend on it would be random.
    config = dataclasses.replace(subject.config, drop=0.0, drop_path=0.0, resident=False, pretrained=False)
    images, _, outputs = prepare.open_data(config)
    model, _ = prepare.build_model(config, outputs, initial_weights=False)
    model.load_state_dict(subject.model.state_dict())
    method = prepare.build_mixer(config, outputs)
    guide = prepare.build_guide(config, method, outputs)
    # Hidden mixing acts in training mode only.
    learner = Learner(model, method.each(demonstrated), guide=guide, seed=0, step=0).train()
    augmentation = prepare.build_augmentation(config, model)
    learner.mixing.normalization = Normalization(augmentation.mean, augmentation.std)
    teacher = prepare.build_labels(config, images, learner, augmentation, torch.device("cpu"))
    settings = prepare.loader_settings(config, images, learner, augmentation, teacher)
    loader = TrainLoader(images, augmentation, batch=min(BATCH, len(images)), **settings)
    found: dict[int, list[Example]] = {}
    names = [*images.classes, *(str(number) for number in range(len(images.classes), outputs))]
    first = next(loader.epoch(0))
    labels = prepare.training_labels(config, teacher, first, first.indices)[0]
    frame = learner.mixing.frame(first.images)
    for step in range(TRIES):
        own, shared = generator_for(config.seed, step, 1), generator_for(config.seed, step, 0)
        draw = method.draw(frame, own, shared=shared)
        if draw.choice in found:
            continue
        mixed = learner.mixing.mix(first.images, labels, maps=first.maps, draw=draw)
        learner.model(mixed.images)
        targets = learner.mixing.targets(mixed)
        looks, sources = _sources(mixed, first.images)
        order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))[:count]
        found[draw.choice] = [
            Example(
                str(method.mixers[draw.choice]),
                _image(looks[row], augmentation, MIXED_SIDE),
                {
                    role: _image((mixed if role == "taken" else first).images[at], augmentation, SOURCE_SIDE)
                    for role, at in sources[row].items()
                },
                _parts(targets[row], [(role, int(first.labels[at])) for role, at in sources[row].items()], names),
            )
            for row in order
        ]
        if len(found) == len(method.mixers):
            break
    return [example for _, examples in sorted(found.items()) for example in examples]


def _sources(batch: MixedBatch, images: Tensor) -> tuple[Tensor, list[dict[str, int]]]:
    """The mixed images, with tokens taken by HTM shown as pixels, and the batch index of each source by role."""
    looks = batch.images
    mixed = (batch.images != images).flatten(1).any(1)
    sources = [{"own": row} for row in range(len(images))]
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


def _parts(target: Tensor, labels: list[tuple[str, int]], names: list[str]) -> tuple[TargetPart, ...]:
    """The classes of the sources in order, then other classes by size, then the rest (mostly smoothing)."""
    roles: dict[int, str] = {}
    for role, label in labels:
        roles.setdefault(label, role)
    values = target.double()
    floor = max(LEAST_PART, 2.0 * float(values.min()))
    largest = [int(place) for place in values.argsort(descending=True) if values[place] > floor]
    places = [*roles, *(place for place in largest if place not in roles)][:MOST_CLASSES]
    parts = [TargetPart(roles.get(place, "other"), names[place], float(values[place])) for place in places]
    rest = float(values.sum()) - sum(part.share for part in parts)
    return (*parts, TargetPart("rest", "rest", rest)) if rest > 0.005 else tuple(parts)


def _image(image: Tensor, augmentation: Augmentation, side: int) -> str:
    return data_uri(as_pixels(in_pixels(image, augmentation)), side)


def data_uri(pixels: np.ndarray, side: int) -> str:
    """Pixels `(H, W, 3)` in 0..1 as a file no larger than `side`; lossless for small images."""
    image = Image.fromarray((pixels * 255).round().astype(np.uint8))
    image.thumbnail((side, side))
    file = io.BytesIO()
    kind = "png" if max(image.size) <= EXACT_SIDE else "jpeg"
    image.save(file, kind, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


# Where the model looks


def _strips(subject: Subject, problems: list[str]) -> list[Strips]:
    """Attention and aligned label maps of a few held-out images; if there are none, `problems` says why."""
    try:
        images = held_out(subject, HELD_OUT)
        pairs = FigureInputs([named_model(subject, "")], images, seed=SEED)
        blocks = chosen_blocks(read_model(subject.model).depth, None, most=MOST_BLOCKS)
    except Problems as error:
        problems.append(f"No attention and label maps: {_sentence(error)}")
        return []
    alone, found = FigureInputs(pairs.models, images[:2]), []
    for what, figure, inputs in (("attention", attention_figure, alone), ("label maps", labels_figure, pairs)):
        try:
            found.append(Strips(what, tuple(_rows(figure(inputs, blocks=blocks)))))
        except Problems as error:
            problems.append(f"No {what}: {_sentence(error)}")
    return found


def _rows(grid: ImageGrid) -> list[tuple[StoredTile, ...]]:
    return [
        tuple(
            StoredTile(data_uri(tile.pixels, TILE_SIDE), (head, *tile.caption.splitlines()))
            for head, tile in zip(section.heads, row.tiles, strict=True)
        )
        for section in grid.sections
        for row in section.rows
    ]
