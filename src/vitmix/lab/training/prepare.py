"""From a configuration to the parts of a training run: images, model, mixer, augmentation."""

import dataclasses
import difflib
import functools
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypedDict

import timm
import torch
from timm.layers.patch_embed import PatchEmbed
from torch import Tensor, nn

from vitmix import models as models  # its import registers names with timm
from vitmix._learner import Learner
from vitmix._mix import Grid, expand_mask
from vitmix._mixer import AnyMixer, Mixer
from vitmix._text import create
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.images import ImageSet
from vitmix.lab.data.loader import Ahead, Batch
from vitmix.lab.data.sources import open_images
from vitmix.lab.maps.labels import TeacherLabels
from vitmix.lab.maps.stored import read_label_maps
from vitmix.lab.network import downloads
from vitmix.lab.settings import ModelArgs, SettingValues
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.weights import load_weights
from vitmix.parts.masks import NoMask
from vitmix.parts.shares import AreaShare

IMAGE_GRID = (7, 7)  # cells whose mean is the label of an image, for models without tokens


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


def model_settings(config: TrainConfig, num_classes: int) -> ModelArgs:
    """What timm's `create_model` needs besides the name to build the model that a checkpoint fits."""
    if "num_classes" in config.model_args:
        raise ValueError("set num_classes with --num-classes, not in model_args")
    settings = {"num_classes": num_classes, **config.model_args}
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


def _check_size(model: nn.Module, config: TrainConfig) -> None:
    """A ViT that takes any size takes whole patches alone, and none takes less than one."""
    embedding = getattr(model, "patch_embed", None)
    if config.size is None or not isinstance(embedding, PatchEmbed):
        return
    patch = int(max(embedding.patch_size))  # pyright: ignore[reportArgumentType]
    rest = config.size % patch and not embedding.strict_img_size and not embedding.dynamic_img_pad
    if config.size < patch or rest:
        whole = max(config.size // patch, 1) * patch
        raise ValueError(
            f"size must be a multiple of the patches of {config.model}, {patch} pixels, got {config.size}; "
            f"use {whole} or {whole + patch}"
        )


def build_model(config: TrainConfig, num_classes: int, *, initial_weights: bool = True) -> tuple[nn.Module, list[str]]:
    """The model, with its initial weights unless a checkpoint will replace them, and a message about them."""
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
        if not reached and isinstance(error, OSError):  # like errors of connections and of missing files
            reason = "they are not in the cache and cannot be downloaded here; connect, or give --checkpoint FILE"
        if pretrained:
            raise ValueError(f"cannot get the published weights of {config.model}: {reason}") from None
        raise ValueError(f"model_args do not fit {config.model}: {reason}") from None
    _check_size(model, config)
    if config.grad_checkpointing:
        checkpoint_activations(model, config.model)
    remarks = []
    if pretrained:
        cfg = getattr(model, "pretrained_cfg", {})
        differs = cfg.get("num_classes") != num_classes
        if config.reset_head and not differs:
            model.reset_classifier(num_classes)  # pyright: ignore[reportCallIssue]
        new = "; the classifier is new" if config.reset_head or differs else ""
        remarks.append(f"Starting from timm's published weights of {config.model}{new}.")
    if config.checkpoint is not None and initial_weights:
        changed = load_weights(model, config.checkpoint, reset_head=config.reset_head)
        why = "" if config.reset_head else ", because the number of classes differs"
        new = f"; the classifier is new{why}" if changed.left_out else ""
        resampled = f"; resampled, because sizes differ: {', '.join(changed.resampled)}" if changed.resampled else ""
        remarks.append(f"Starting from {config.checkpoint}{new}{resampled}.")
    return model, remarks


def checkpoint_activations(model: nn.Module, name: str) -> None:
    """Lets the backward pass recompute activations; refuses models that cannot."""
    try:
        model.set_grad_checkpointing(True)  # pyright: ignore[reportCallIssue]
    except (AttributeError, AssertionError):
        raise ValueError(f"{name} has no activation checkpointing; leave grad_checkpointing out") from None


def _published(model: str) -> AbstractContextManager[bool]:
    """Where timm may download the weights of a model from."""
    cfg = None if ":" in model else timm.models.get_pretrained_cfg(model, allow_unregistered=True)
    return downloads(cfg.url if cfg is not None and not cfg.hf_hub_id else None)  # pyright: ignore


def check_size(learner: Learner, size: tuple[int, int]) -> None:
    """Refuses an image size that the model or the method's grid does not support, by mixing one batch of zeros."""
    if any(0 in grid for grid in learner.mixing.frame(torch.empty(1, 3, *size)).grids):
        raise ValueError(f"images of {size[0]} × {size[1]} pixels are smaller than one patch; raise --size")
    learner.mixing.check_guide(size)
    for mask in drawn_masks(learner, size).values():
        if mask is not None:
            expand_mask(mask, size)


def drawn_masks(learner: Learner, size: tuple[int, int]) -> dict[Mixer, Tensor | None]:
    """A drawn mask of each mixer for an image size; None for mixers that draw boxes on pixels."""
    frame = learner.mixing.frame(torch.empty(1, 3, *size))
    return {mixer: mixer.draw(frame, torch.Generator()).part("mask").get("mask") for mixer in learner.mixer.mixers}


def build_mixer(config: TrainConfig, num_classes: int) -> AnyMixer:
    """The method, with the configured loss in every mixer, and the configured smoothing if the text has none."""
    defaults = {"smoothing": config.smoothing} | ({} if config.loss is None else {"loss": config.loss})
    method = create(config.method, num_classes, defaults=defaults)

    def finished(mixer: Mixer) -> Mixer:
        if mixer.needs.objects and config.maps is None:
            raise ValueError(
                f"{mixer} needs a mask of every image's object; make maps with 'vitmix maps --masks FOLDER' and give "
                "--maps FOLDER, or use share=area"
            )
        if mixer.needs.maps and config.maps is None:
            raise ValueError(
                f"{mixer} needs a teacher's activation maps with every image; make them with 'vitmix maps' and give "
                "--maps FOLDER, or use label=area"
            )
        if mixer.needs.label_maps and config.maps is None:
            raise ValueError(
                f"{mixer} needs a teacher's labels of every token; make maps with 'vitmix maps' and give --maps FOLDER"
            )
        return mixer if config.loss is None else dataclasses.replace(mixer, loss=config.loss)  # pyright: ignore

    _check_maps(config, method)
    return method.each(finished)


def _check_maps(config: TrainConfig, method: AnyMixer) -> None:
    """Refuses maps that nothing uses, or that two mixers use in two ways."""
    activation, all_classes = (
        any(getattr(each.needs, name) for each in method.mixers) for name in ("maps", "label_maps")
    )
    if config.maps is None and config.labels == "teacher":
        raise ValueError("the teacher's labels come from its maps; make them with 'vitmix maps' and give --maps FOLDER")
    if config.maps is not None and not (activation or teaches(config, method)):
        raise ValueError(
            f"maps are given, but {config.method!r} does not use them; use a method with activation labels, such as "
            "'tokenmix(label=activation)', oa_cutmix, token_labeling or labels=teacher, or remove maps"
        )
    if activation and (all_classes or config.labels == "teacher"):
        raise ValueError(
            f"{config.method!r} has labels by activation maps or object masks, which cannot be combined with the "
            "teacher's labels of all classes; use one of them"
        )
    if teaches(config, method) and config.labels != "data" and any(each.needs.one_class for each in method.mixers):
        raise ValueError(
            f"{config.method!r} needs one class per image, but the teacher's labels are soft; use labels=data"
        )


def teaches(config: TrainConfig, method: AnyMixer) -> bool:
    """Whether the teacher's labels of all classes are used, for tokens or for images."""
    return config.labels == "teacher" or any(mixer.needs.label_maps for mixer in method.mixers)


def build_guide(config: TrainConfig, method: AnyMixer, num_classes: int) -> nn.Module | None:
    """The frozen model for SMMix's guide pass, instead of the model in training; None if none is named."""
    if config.guide is None:
        return None
    classifies = any(mixer.needs.guide_logits or mixer.needs.guide_gradient for mixer in method.mixers)
    if not any(mixer.needs.guide for mixer in method.mixers):
        raise ValueError(
            f"a guide is given, but {config.method!r} uses none; choose a method such as smmix, or leave it out"
        )
    from vitmix.lab.evaluation.subject import open_subject  # which builds on this module

    subject = open_subject(config.guide, pretrained=not Path(config.guide).exists())
    if classifies and subject.outputs != num_classes:
        raise ValueError(f"the guide {config.guide} has {subject.outputs} classes, but the data has {num_classes}")
    return subject.model.requires_grad_(False)


class LoaderSettings(TypedDict):
    """What decides the samples of an epoch, besides their places in batches.

    `maps` are the activation maps or object masks of the images, if the method needs them. Their `map_grid` is that of
    the masks if all have one; otherwise, as for boxes of pixels, maps keep the size of the images.
    """

    seed: int
    repeats: int
    balance: bool
    maps: Tensor | None
    map_grid: Grid | None
    place_grid: Grid | None


def loader_settings(
    config: TrainConfig, images: ImageSet, learner: Learner, augmentation: Augmentation, teacher: TeacherLabels | None
) -> LoaderSettings:
    needs, maps, grids = [mixer.needs for mixer in learner.mixer.mixers], None, set[Grid | None]()
    if config.maps is not None and any(each.maps for each in needs):
        maps = read_label_maps(config.maps, images, objects=any(each.objects for each in needs))
        masks = [mask for mixer, mask in drawn_masks(learner, augmentation.sides).items() if mixer.needs.maps]
        grids = {None if mask is None else (mask.shape[-2], mask.shape[-1]) for mask in masks}
    return {
        "seed": config.seed,
        "repeats": config.repeats,
        "balance": config.balance,
        "maps": maps,
        "map_grid": grids.pop() if len(grids) == 1 else None,
        "place_grid": None if teacher is None else teacher.place_grid(augmentation.sides),
    }


def ahead_of(learner: Learner, size: tuple[int, int]) -> Ahead | None:
    """What the loader's workers compute for the method, if there is anything."""
    ahead = functools.partial(learner.mixer.ahead, normalization=learner.mixing.normalization)
    return ahead if ahead(torch.zeros(1, 3, *size)) else None


def build_labels(
    config: TrainConfig, images: ImageSet, learner: Learner, augmentation: Augmentation, device: torch.device
) -> TeacherLabels | None:
    """The teacher's labels, if the run uses them: for each final token, or on a coarse grid for whole images.

    They are kept where the loader keeps the indices of its batches.
    """
    if config.maps is None or not teaches(config, learner.mixer):
        return None
    frame = learner.mixing.frame(torch.empty(1, 3, *augmentation.sides))
    grid = frame.final_grid or IMAGE_GRID
    place = device if config.resident else "cpu"
    return TeacherLabels.read(config.maps, images, grid, learner.mixer.num_classes, place)


def training_labels(
    config: TrainConfig, teacher: TeacherLabels | None, batch: Batch, indices: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The labels of the images, and the maps that go with them: the data's or the teacher's.

    Args:
        indices: those of the batch, where the loader left them.
    """
    if teacher is None:
        return batch.labels, batch.maps
    assert batch.places is not None
    rows, maps = teacher.of(batch.places, indices)
    return batch.labels if config.labels == "data" else rows, maps


def without_image_mixing(method: AnyMixer) -> AnyMixer:
    """The method without image mixing, used from `mixing_off_epoch` on. Mixing inside the network continues."""
    return method.each(_unmixed)


def _unmixed(mixer: Mixer) -> Mixer:
    inner = tuple(part for part in mixer.inner if not part.applies_mask)
    return dataclasses.replace(mixer, mask=NoMask(), share=AreaShare(), extra=(), inner=inner)


def logged(method: AnyMixer) -> list[str]:
    """The names of logged values: the parts of the loss, if there are several, and the method's counts."""
    inner = [part for mixer in method.mixers for part in mixer.inner]
    extra = {part.name for mixer in method.mixers for part in mixer.extra}
    added = dict.fromkeys(name for part in inner for name in part.loss_weights)
    losses = ["main", *sorted(extra), *added] if extra or added else []
    return [*losses, *dict.fromkeys(name for part in inner for name in part.count_names)]


def build_augmentation(config: TrainConfig, model: nn.Module) -> Augmentation:
    """The augmentation; settings that are not given are the model's."""
    cfg: Any = getattr(model, "pretrained_cfg", {})
    own = {name: cfg.get(name) for name in ("mean", "std", "crop_pct")}
    own["size"] = config.model_args.get("img_size") or cfg.get("input_size", (3, 224, 224))[-1]
    given = {field.name: getattr(config, field.name, None) for field in dataclasses.fields(Augmentation)}
    settings: SettingValues = {name: own.get(name) if value is None else value for name, value in given.items()}
    return Augmentation(**settings)
