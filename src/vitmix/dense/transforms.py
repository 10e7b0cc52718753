"""Mixing of whole batches with dense targets, in a training loop or in the `collate_fn` of a data loader."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitmix._apply import apply_mask
from vitmix._checks import check_fraction
from vitmix._mix import Frame, Mix
from vitmix._mixer import AnyMixer, Mixer
from vitmix._sampling import Draw, Stream
from vitmix.attention.readers import frame_of
from vitmix.dense.boxes import Target, mix_boxes
from vitmix.dense.guides import DenseGuide
from vitmix.dense.masks import check_masks, mix_masks
from vitmix.dense.pasting import copy_paste, draw_objects
from vitmix.dense.wrapping import plain, plain_target, stack_images, wrap_images, wrap_like, wrap_target
from vitmix.parts.base import Guidance, Pairing, Unmixed
from vitmix.parts.pairing import Reversed

__all__ = ["CopyPaste", "DenseBatch", "DenseMix", "is_dense", "mix_dense"]


class DenseBatch(NamedTuple):
    """Mixed `images`, their `targets`, and the `mix`: partner, mask and source."""

    images: Any
    targets: Any
    mix: Mix


class _BatchTransform:
    """What the transforms of batches have in common: draws that are functions of (seed, step, rank), and `collate`."""

    def __init__(self, seed: int | None, rank: int | None, step: int | None) -> None:
        self.stream = Stream(seed, step, rank)

    @property
    def step(self) -> int:
        """Number of batches drawn so far; set it to resume."""
        return self.stream.step

    @step.setter
    def step(self, value: int) -> None:
        self.stream.step = value

    def state_dict(self) -> dict[str, Any]:
        """The seed and the step, with which a resumed training continues."""
        return {"draws": self.stream.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state_dict` was called."""
        self.stream.load(state["draws"])

    def generators(self) -> tuple[torch.Generator | None, torch.Generator | None]:
        """The generators of the next batch, of this process and of all; in a loader's worker, torch's own generator."""
        if torch.utils.data.get_worker_info() is not None:  # each worker counts its own steps, so they would repeat
            return None, None
        return self.stream.next(self, str(self))

    def collate(self, samples: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
        """Mixed images and targets of (image, target) samples: a `collate_fn` of `torch.utils.data.DataLoader`."""
        images, targets = zip(*samples, strict=True)
        stacked, like = stack_images(images)
        if all(isinstance(each, Tensor) for each in targets):
            masks, first = stack_images(targets)
            return self(wrap_like(stacked, like[0]), wrap_like(masks, first[0]))
        return self(wrap_like(stacked, like[0]), list(targets))

    def __call__(self, images: Any, targets: Any) -> tuple[Any, Any]:
        raise NotImplementedError


class DenseMix(_BatchTransform):
    """Mixes images with their label maps, or with their boxes and instance masks, by the mask of any method.

    `images, targets = DenseMix("cutmix")(images, targets)`. Only the mask and the pairing of the method are used: each
    pixel brings its own label. A method that reads the model needs it: `DenseMix("smmix", model=model)`.

    Args:
        method: a mixer or the text of one.
        model: whose tokens and attention the mask uses: one that `Mixer.attach` supports, or one that contains it, such
            as a segmentation model. Its hooks are removed by `close` or at the end of a `with` block.
        num_classes: number of classes of label maps; needed to blend them.
        ignore_index: label of pixels without a class.
        min_visible, min_size, carried: which objects are kept, see `functional.mix_boxes`.
        seed, step, rank: determine every draw, as in `Mixer.attach`.
    """

    def __init__(
        self,
        method: str | AnyMixer,
        *,
        model: nn.Module | None = None,
        num_classes: int | None = None,
        ignore_index: int = 255,
        min_visible: float = 0.25,
        min_size: float = 1.0,
        carried: Sequence[str] = (),
        seed: int | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(seed, rank, step)
        self.mixer = dense_mixer(method, num_classes)
        self.num_classes = num_classes if isinstance(method, str) else self.mixer.num_classes
        self.ignore_index = ignore_index
        self.objects: dict[str, Any] = dict(min_visible=min_visible, min_size=min_size, carried=tuple(carried))
        self.guide = None if model is None else DenseGuide(self.mixer, model, ignore_index)
        if model is None:
            _check_without_model(self.mixer)

    def __enter__(self) -> "DenseMix":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes every hook."""
        if self.guide is not None:
            self.guide.close()

    def __str__(self) -> str:
        return f"DenseMix({str(self.mixer)!r})"

    def __call__(self, images: Any, targets: Any) -> tuple[Any, Any]:
        """Mixed images and targets, in the form in which they are given.

        Args:
            images: `(B, C, H, W)`, or a list of B images of one size.
            targets: label maps, see `functional.mix_masks`, or a list of dicts with boxes, see `functional.mix_boxes`.
                Tensors of `torchvision.tv_tensors` keep their class, boxes their format.
        """
        batch = self.mix(images, targets)
        return batch.images, batch.targets

    def mix(
        self, images: Any, targets: Any, *, generator: torch.Generator | None = None, draw: Draw | None = None
    ) -> DenseBatch:
        """The same, with the mix. `generator` or `draw` replace the draws of (seed, step, rank)."""
        pixels, like = stack_images(images)
        frame = frame_of(pixels, None) if self.guide is None else self.guide.frame(pixels)
        if draw is None:
            own, shared = self.generators() if generator is None else (generator, None)
            draw = self.mixer.draw(frame, own, shared=shared)
        bare = bare_targets(targets, frame, self.num_classes, self.ignore_index)
        draw = draw.to(pixels.device)
        guidance = Guidance() if self.guide is None else self.guide.look(pixels, bare, draw.choice)
        mixed, mix = _mixed_images(self.mixer.mixers[draw.choice], pixels, frame, guidance, draw)
        if isinstance(bare, Tensor):
            found = mix_masks(mix, bare, num_classes=self.num_classes, ignore_index=self.ignore_index)
            return DenseBatch(wrap_images(mixed, like), wrap_like(found, targets), mix)
        boxes = mix_boxes(mix, bare, size=frame.size, **self.objects)
        wrapped = [wrap_target(each, first) for each, first in zip(boxes, targets, strict=True)]
        return DenseBatch(wrap_images(mixed, like), wrapped, mix)


class CopyPaste(_BatchTransform):
    """Pastes objects of the partner by their outlines: simple copy-paste (Ghiasi et al., 2021).

    Images and targets are those of `DenseMix`, with instance masks. The paper resizes and crops both images at random
    before; do this in the data set.

    Args:
        probability: of each object of the partner to be pasted.
        pairing: the partners (default: the reversed batch).
        min_visible, min_size, carried: which covered objects are kept, see `functional.mix_boxes`.
        seed, step, rank: determine every draw, as in `Mixer.attach`.
    """

    def __init__(
        self,
        probability: float = 0.5,
        *,
        pairing: Pairing | None = None,
        min_visible: float = 0.25,
        min_size: float = 1.0,
        carried: Sequence[str] = (),
        seed: int | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(seed, rank, step)
        check_fraction("probability", probability)
        self.probability, self.pairing = probability, pairing or Reversed()
        self.objects: dict[str, Any] = dict(min_visible=min_visible, min_size=min_size, carried=tuple(carried))

    def __call__(self, images: Any, targets: Any) -> tuple[Any, Any]:
        """Mixed images and targets, in the form in which they are given."""
        pixels, like = stack_images(images)
        frame = frame_of(pixels, None)
        bare = bare_targets(targets, frame, None, 255)
        if isinstance(bare, Tensor):
            raise ValueError("copy-paste needs a list of dicts with boxes, labels and masks, got label maps")
        generator, _ = self.generators()
        partner = self.pairing.draw(frame.batch, generator)
        counts = [len(bare[other].get("boxes", ())) for other in partner.tolist()]
        chosen = draw_objects(counts, self.probability, generator=generator)
        mixed, found = copy_paste(pixels, bare, partner.to(pixels.device), chosen, **self.objects)
        wrapped = [wrap_target(each, first) for each, first in zip(found, targets, strict=True)]
        return wrap_images(mixed, like), wrapped


def is_dense(targets: object) -> bool:
    """Whether targets are label maps or dicts of boxes, not labels of whole images."""
    if isinstance(targets, Tensor):
        return targets.ndim > 2
    return isinstance(targets, Sequence) and len(targets) > 0 and all(isinstance(each, Mapping) for each in targets)


def mix_dense(
    mixer: AnyMixer, images: Any, targets: Any, generator: torch.Generator | None, draw: Draw | None
) -> tuple[Any, Any]:
    """`DenseMix` for one batch, with draws of `generator`, by default torch's."""
    transform = DenseMix(mixer, seed=0)
    if draw is None:
        draw = transform.mixer.draw(frame_of(stack_images(images)[0], None), generator)
    batch = transform.mix(images, targets, draw=draw)
    return batch.images, batch.targets


def dense_mixer(method: str | AnyMixer, num_classes: int | None) -> AnyMixer:
    """The masks and pairings of a method, without what concerns labels of whole images."""
    from vitmix._text import create

    if isinstance(method, str):  # one loss for all mixers of a switch: it is not used
        method = create(method, num_classes or 1, defaults={"loss": "ce"})
    return method.each(_mask_only)


def _mask_only(mixer: Mixer) -> Mixer:
    inner = [part.name for part in mixer.inner if not part.applies_mask]  # masks act on pixels here
    if inner:
        raise ValueError(
            f"{inner[0]} mixes inside the network, which dense targets cannot follow; use a method that mixes images"
        )
    if not mixer.mask.pastes_partner:
        raise ValueError(
            f"a {mixer.mask.name} mask pastes other images than the partner, whose dense targets are not kept; use "
            "another mask, such as resized"
        )
    return Mixer(mixer.num_classes, mask=mixer.mask, pairing=mixer.pairing)


def _check_without_model(mixer: AnyMixer) -> None:
    for each in mixer.mixers:
        if not each.input_only:
            raise ValueError(f"a {each.mask.name} mask reads the model; use vitmix.DenseMix(method, model=model)")


def bare_targets(targets: Any, frame: Frame, num_classes: int | None, ignore_index: int) -> Tensor | list[Target]:
    """Checked label maps of the images' size, or targets with boxes, without torchvision's classes."""
    if isinstance(targets, Tensor):
        masks = plain(targets)
        check_masks(masks, num_classes, ignore_index)
        if tuple(masks.shape[-2:]) != frame.size:
            raise ValueError(
                f"masks must have the images' size {frame.size[0]}x{frame.size[1]}, got "
                f"{masks.shape[-2]}x{masks.shape[-1]}; resize them by the nearest pixel"
            )
        return masks
    if not isinstance(targets, Sequence) or not all(isinstance(each, Mapping) for each in targets):
        raise ValueError(
            "targets must be label maps (B, H, W) or a list of dicts with boxes and labels, got "
            f"{type(targets).__name__}"
        )
    return [plain_target(each, frame.size) for each in targets]


def _mixed_images(mixer: Mixer, images: Tensor, frame: Frame, guidance: Guidance, draw: Draw) -> tuple[Tensor, Mix]:
    rows = images.new_ones(frame.batch, 1, dtype=frame.dtype)  # the labels of whole images, which no mask reads
    mixed, mix = apply_mask(mixer, Unmixed(images, rows, draw.values["partner"], frame, guidance), draw)
    if mixer.mask.moves_pixels and mix.moves is None:
        raise ValueError(
            f"the mask {mixer.mask.name} moves pixels without saying which, so targets cannot follow; return "
            "vitmix.Composed(..., moves=...)"
        )
    return mixed, mix
