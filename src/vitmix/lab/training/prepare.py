"""From a configuration to the parts of a training: images, model, mixer, augmentation."""

import dataclasses
import difflib
import hashlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from vitmix import models as models  # its import registers names with timm
from vitmix._learner import Learner
from vitmix._mix import expand_mask
from vitmix._mixer import AnyMixer, Mixer, Switch
from vitmix._text import create
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.images import ImageSet
from vitmix.lab.data.loader import EvalLoader, TrainLoader
from vitmix.lab.data.resident import ResidentEvalLoader, ResidentLoader
from vitmix.lab.data.sources import open_images
from vitmix.lab.maps.stored import read_label_maps
from vitmix.lab.network import downloads
from vitmix.lab.training.config import FIELDS, TrainConfig
from vitmix.lab.training.weights import load_weights
from vitmix.parts.masks import NoMask
from vitmix.parts.shares import AreaShare


def open_data(config: TrainConfig) -> tuple[ImageSet, ImageSet, int]:
    """The training images, those to evaluate on, and the number of classes."""
    train, held_out = open_images(config.data, "train"), open_images(config.data, config.eval_split)  # pyright: ignore
    classes = len(train.classes)
    if classes < 2:
        raise ValueError(f"{train.description} has {classes} class; a classifier needs at least two")
    if config.num_classes is not None and config.num_classes < classes:
        raise ValueError(
            f"num_classes is {config.num_classes}, but the labels of {train.description} reach {classes - 1}; "
            f"give at least {classes}, or leave it out"
        )
    return train, held_out, config.num_classes or classes


def model_settings(config: TrainConfig, num_classes: int) -> dict[str, Any]:
    """What timm's `create_model` needs besides the name to build the model that a checkpoint fits."""
    if "num_classes" in config.model_args:
        raise ValueError("set num_classes with --num-classes, not in model_args")
    settings: dict[str, Any] = {"num_classes": num_classes, **config.model_args}
    try:
        cfg = timm.models.get_pretrained_cfg(config.model, allow_unregistered=True)
    except RuntimeError as error:
        raise ValueError(f"unknown model {config.model!r}: {error}") from None
    if config.size is not None and cfg is not None and cfg.fixed_input_size:
        settings["img_size"] = config.size
    return settings


def check_model(model: str) -> None:
    """Refuses a name that timm does not know."""
    name = model.split(".")[0]
    if ":" not in name and not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown model {model!r}, timm.list_models() lists the known ones{hint}")


def build_model(config: TrainConfig, num_classes: int, *, initial_weights: bool = True) -> tuple[nn.Module, list[str]]:
    """The model, with its initial weights unless a checkpoint will replace them, and what there is to say of them."""
    check_model(config.model)
    settings = model_settings(config, num_classes)
    for key, value in (("drop_rate", config.drop), ("drop_path_rate", config.drop_path)):
        if value is not None:
            settings[key] = value
    pretrained = config.pretrained and initial_weights
    reached = True
    try:
        with _published(config.model) if pretrained else nullcontext(True) as reached:
            model = timm.create_model(config.model, pretrained=pretrained, **settings)
    except Exception as error:  # timm asserts, divides and looks up; the network and the hub fail in many classes
        reason = " ".join(str(error).split()) or type(error).__name__
        if not reached and isinstance(error, OSError):  # as the errors of connections and of missing files are
            reason = "they are not in the cache and cannot be downloaded here; connect, or give --checkpoint FILE"
        if pretrained:
            raise ValueError(f"cannot get the published weights of {config.model}: {reason}") from None
        raise ValueError(f"model_args do not fit {config.model}: {reason}") from None
    if config.grad_checkpointing:
        switch = getattr(model, "set_grad_checkpointing", None)
        if switch is None:
            raise ValueError(f"{config.model} has no activation checkpointing; leave grad_checkpointing out")
        switch(True)
    remarks = []
    if config.checkpoint is not None and initial_weights:
        changed = load_weights(model, config.checkpoint)
        new = "; the classifier is new, since the number of classes differs" if changed.left_out else ""
        resampled = f"; resampled, since sizes differ: {', '.join(changed.resampled)}" if changed.resampled else ""
        remarks.append(f"Starting from {config.checkpoint}{new}{resampled}.")
    return model, remarks


def _published(model: str) -> AbstractContextManager[bool]:
    """Where timm may download the weights of a model from."""
    cfg = None if ":" in model else timm.models.get_pretrained_cfg(model, allow_unregistered=True)
    return downloads(cfg.url if cfg is not None and not cfg.hf_hub_id else None)  # pyright: ignore


def check_size(learner: Learner, augmentation: Augmentation) -> None:
    """Refuses an image size that the model or the method's grid does not take, by mixing one batch of nothing."""
    size = augmentation.sides
    frame = learner.mixing.frame(torch.empty(1, 3, *size))
    if any(0 in grid for grid in frame.grids):
        raise ValueError(f"images of {size[0]} × {size[1]} pixels are smaller than one patch; raise --size")
    learner.mixing.check_guide(size)
    for mixer in learner.mixer.mixers:
        values = mixer.draw(frame, torch.Generator()).part("mask")
        mask = values.get("mask")
        if mask is not None:
            expand_mask(mask, size)


def build_mixer(config: TrainConfig, num_classes: int) -> AnyMixer:
    """The method, with the configuration's loss in every mixer of it, and its smoothing where the text has none."""
    defaults = {"smoothing": config.smoothing} | ({} if config.loss is None else {"loss": config.loss})
    method = create(config.method, num_classes, defaults=defaults)

    def finished(mixer: Mixer) -> Mixer:
        if mixer.needs.maps and config.maps is None:
            raise ValueError(
                f"{mixer} needs a teacher's activation maps with every image; make them with 'vitmix maps' and give "
                "--maps FOLDER, or use label=area"
            )
        return mixer if config.loss is None else dataclasses.replace(mixer, loss=config.loss)  # pyright: ignore

    if config.maps is not None and not any(mixer.needs.maps for mixer in method.mixers):
        raise ValueError(
            f"maps are given, but {config.method!r} does not use them; choose a method with activation labels, "
            "such as 'tokenmix(label=activation)', or leave maps out"
        )
    return method.each(finished)


def build_guide(config: TrainConfig, method: AnyMixer, num_classes: int) -> nn.Module | None:
    """The frozen model that SMMix asks about unmixed images instead of the one in training, if any is named."""
    if config.guide is None:
        return None
    classifies = any(mixer.needs.guide_logits or mixer.needs.guide_gradient for mixer in method.mixers)
    if not any(mixer.needs.guide for mixer in method.mixers):
        raise ValueError(
            f"a guide is given, but {config.method!r} uses none; choose a method such as smmix, or leave it out"
        )
    from vitmix.lab.evaluation.subject import open_subject  # which builds on this module

    subject = open_subject(config.guide, pretrained=not Path(config.guide).exists())
    outputs = subject.settings["num_classes"]
    if classifies and outputs != num_classes:
        raise ValueError(f"the guide {config.guide} has {outputs} classes, but the data has {num_classes}")
    return subject.model.requires_grad_(False)


def map_settings(config: TrainConfig, images: ImageSet, learner: Learner, augmentation: Augmentation) -> dict[str, Any]:
    """The activation maps that travel with the training images, and the grid they end on.

    That grid is the masks' where all of them have one; elsewhere, as for boxes of pixels, maps keep the images' size.
    """
    if config.maps is None:
        return {}
    frame = learner.mixing.frame(torch.empty(1, 3, *augmentation.sides))
    masks = [
        mixer.draw(frame, torch.Generator()).part("mask").get("mask")
        for mixer in learner.mixer.mixers
        if mixer.needs.maps
    ]
    grids = {None if mask is None else (mask.shape[-2], mask.shape[-1]) for mask in masks}
    return {"maps": read_label_maps(config.maps, images), "map_grid": grids.pop() if len(grids) == 1 else None}


def without_image_mixing(method: AnyMixer) -> AnyMixer:
    """The method with its images left alone: what follows `mixing_off_epoch`. Mixing inside the network goes on."""
    return method.each(lambda mixer: dataclasses.replace(mixer, mask=NoMask(), share=AreaShare(), extra=()))


def all_mixers(config: TrainConfig, method: AnyMixer, quiet: AnyMixer) -> AnyMixer:
    """What the learner must know: the method's mixers, then those of `quiet` where mixing is switched off one day."""
    if config.mixing_off_epoch is None:
        return method
    mixers = tuple(dict.fromkeys((*method.mixers, *quiet.mixers)))  # each once: every one is compiled by itself
    if len(mixers) == 1:
        return mixers[0]
    return Switch(mixers, (1.0,) * len(mixers))  # weights without a meaning: the trainer draws which mixer


def loss_parts(method: AnyMixer) -> list[str]:
    """The names of the parts that the method's loss can have; none where it has only one."""
    extra = {part.name for mixer in method.mixers for part in mixer.extra}
    added = dict.fromkeys(name for mixer in method.mixers for part in mixer.inner for name in part.loss_weights)
    found = ["main", *sorted(extra), *added]
    return found if len(found) > 1 else []


def counted(method: AnyMixer) -> list[str]:
    """The names of what is counted while the method mixes: `Mixing.counts`."""
    return list(dict.fromkeys(name for mixer in method.mixers for part in mixer.inner for name in part.count_names))


def build_augmentation(config: TrainConfig, model: nn.Module) -> Augmentation:
    """The augmentation; what the configuration leaves open is the model's own."""
    cfg: dict[str, Any] = getattr(model, "pretrained_cfg", {})
    given = {field.name: getattr(config, field.name, None) for field in dataclasses.fields(Augmentation)}
    own = {name: cfg[name] for name in ("mean", "std", "crop_pct") if cfg.get(name) is not None}
    own["size"] = config.model_args.get("img_size") or cfg.get("input_size", (3, 224, 224))[-1]
    open_fields = {name for name in own if given[name] is None}
    settings: dict[str, Any] = {name: own[name] if name in open_fields else given[name] for name in given}
    return Augmentation(**settings)


def make_loaders(
    config: TrainConfig,
    images: ImageSet,
    eval_images: ImageSet,
    augmentation: Augmentation,
    batch: int,
    place: tuple[torch.device, int, int],
    maps: dict[str, Any],
) -> tuple[TrainLoader | ResidentLoader, EvalLoader | ResidentEvalLoader]:
    """Batches to train and to evaluate on: read one by one, or from device memory.

    `place` is device, rank and world; `maps` is what `map_settings` gave.
    """
    device, rank, world = place
    training: dict[str, Any] = {"batch": batch, "seed": config.seed, "repeats": config.repeats}
    training |= {"rank": rank, "world": world, **maps}
    evaluation: dict[str, Any] = {"batch": config.eval_batch or batch, "rank": rank, "world": world}
    if config.resident:
        return (
            ResidentLoader(images, augmentation, device=device, compile=config.compile, **training),
            ResidentEvalLoader(eval_images, augmentation, device=device, **evaluation),
        )
    return (
        TrainLoader(images, augmentation, workers=config.workers, **training),
        EvalLoader(eval_images, augmentation, workers=config.workers, **evaluation),
    )


# What processes must have alike


def other_settings(first: TrainConfig, other: TrainConfig) -> str:
    names = [name for name in FIELDS if getattr(first, name) != getattr(other, name)]
    return f"it was started with another {', '.join(names)}; give every process the same settings"


def describe(images: ImageSet) -> tuple[int, int, str]:
    """Enough of a data set to tell it from another: images, classes, and a number made from labels and names."""
    content = hashlib.sha256(images.labels.tobytes() + "\n".join(images.classes).encode()).hexdigest()
    return len(images), len(images.classes), content


def other_data(first: list[tuple[int, int, str]], other: list[tuple[int, int, str]]) -> str:
    one, two = next((one, two) for one, two in zip(first, other, strict=True) if one != two)
    return (
        f"its data has {two[0]} images of {two[1]} classes instead of {one[0]} of {one[1]}, or other labels; "
        "every node needs the same files"
    )
