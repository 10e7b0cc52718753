"""A method as a value: a `Mixer`, or a `Switch` between several mixers."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from vitmix._checks import check_choice, check_count, check_fraction, check_positive
from vitmix._mix import Frame, check_label_rows, check_tensor
from vitmix._sampling import Draw, on_host
from vitmix.parts.base import ExtraLoss, HiddenMixing, Mask, Needs, Normalization, Pairing, Part, Share
from vitmix.parts.masks import NoMask
from vitmix.parts.pairing import Reversed
from vitmix.parts.shares import AreaShare

if TYPE_CHECKING:
    from vitmix._mixing import Mixing

__all__ = ["AnyMixer", "Mixer", "Switch"]


class _Method:
    """What a mixer and a switch have in common."""

    def attach(
        self,
        model: nn.Module,
        *,
        guide: nn.Module | None = None,
        seed: int | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> "Mixing":
        """Attaches the method to a model. Closing the result, or leaving its `with` block, removes the hooks.

        The arguments are those of `Mixing`.
        """
        from vitmix._mixing import Mixing

        assert isinstance(self, Mixer | Switch)
        return Mixing(self, model, guide=guide, seed=seed, rank=rank, step=step)

    def __call__(
        self,
        images: Tensor,
        labels: Any,
        *,
        maps: Tensor | None = None,
        generator: torch.Generator | None = None,
        draw: Draw | None = None,
    ) -> tuple[Tensor, Any]:
        """Mixed images and soft targets `(B, K)`, for methods that do not read the model.

        Label maps `(B, H, W)`, or a list of dicts with boxes, are mixed by the same pixels as the images, see
        `DenseMix`.
        """
        from vitmix._apply import mix_without_model
        from vitmix.dense.transforms import is_dense, mix_dense

        assert isinstance(self, Mixer | Switch)
        if is_dense(labels):
            return mix_dense(self, images, labels, generator, draw)
        return mix_without_model(self, images, labels, maps, generator, draw)

    def check_labels(self, labels: Tensor) -> None:
        """Raises an error for label rows `(B, K)` that one of the mixers does not support.

        Does nothing on a GPU, where checking values would stall the step.
        """
        check_tensor("labels", labels)
        if torch.compiler.is_compiling() or labels.device.type != "cpu":
            return
        assert isinstance(self, Mixer | Switch)
        if labels.ndim == 2 and labels.shape[1] == self.num_classes and labels.is_floating_point():
            for mixer in self.mixers:
                mixer.check_label_rows(labels)

    def __str__(self) -> str:
        from vitmix._text import to_text

        assert isinstance(self, Mixer | Switch)
        return to_text(self)


@dataclass(frozen=True)
class Mixer(_Method):
    """One mixing method: a mask, a share (label rule), extra losses, and mixing inside the network.

    Attributes:
        num_classes: number of classes of the classifier.
        mask: which cells come from the partner (default: none).
        share: the partner's part of the label (default: by area).
        extra: losses added to the main loss.
        inner: mixing inside the network.
        pairing: which samples are mixed with each other (default: the reversed batch).
        smoothing: label smoothing, applied before mixing.
        loss: the main loss: soft cross-entropy ("ce") or binary cross-entropy per class ("bce"). None means
            cross-entropy, or in a switch the loss of the other mixers.
    """

    num_classes: int
    mask: Mask = field(default_factory=NoMask)
    share: Share = field(default_factory=AreaShare)
    extra: tuple[ExtraLoss, ...] = ()
    inner: tuple[HiddenMixing, ...] = ()
    pairing: Pairing = field(default_factory=Reversed)
    smoothing: float = 0.0
    loss: Literal["ce", "bce"] | None = None

    def __post_init__(self) -> None:
        check_count("num_classes", self.num_classes)
        check_fraction("smoothing", self.smoothing)
        if self.loss is not None:
            check_choice("loss", self.loss, ("ce", "bce"))
        for name, kind in (("mask", Mask), ("share", Share), ("pairing", Pairing)):
            part = getattr(self, name)
            if not isinstance(part, kind):
                raise ValueError(f"{name} must be a vitmix.{kind.__name__}, of the library or your own, got {part!r}")
        for name, kind in (("extra", ExtraLoss), ("inner", HiddenMixing)):
            parts = getattr(self, name)
            if not isinstance(parts, tuple) or any(not isinstance(each, kind) for each in parts):
                raise ValueError(
                    f"{name} must be a tuple of {name} parts (vitmix.{kind.__name__}), written [...] in a string, "
                    f"got {parts!r}"
                )
        names = [part.name for part in self.extra]
        if taken := {"main", "loss"} & set(names):
            raise ValueError(f"{taken.pop()!r} is the name of a loss that every method has; rename the extra loss")
        _ = self.needs  # raises an error if the needs of two parts contradict
        for part in (*self.extra, *self.inner):
            if names.count(part.name) > 1 or self.inner.count(part) > 1:
                raise ValueError(f"{part.name} appears twice; a method may have each addition once")
        for part in self.parts:
            if (reason := part.conflict(self)) is not None:
                raise ValueError(reason)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Mask, share, extra losses and hidden mixing."""
        return self.mask, self.share, *self.extra, *self.inner

    @property
    def needs(self) -> Needs:
        """What its parts need besides mixed images and labels."""
        needs = Needs()
        for part in self.parts:
            needs = needs | part.needs
        return needs

    def check_label_rows(self, labels: Tensor) -> None:
        """Raises an error for label rows `(B, K)` that the loss or a part does not support."""
        # The guide's gradient is the gradient of a cross-entropy.
        parts = [part.name for part in self.parts if part.needs.one_label or part.needs.guide_gradient]
        if self.loss != "bce":
            check_label_rows(labels, "cross-entropy", "several labels per image need loss=bce")
        elif parts:
            check_label_rows(labels, parts[0], f"several labels per image need a method without {parts[0]}")
        else:
            check_label_rows(labels)

    def each(self, change: "Callable[[Mixer], Mixer]") -> "Mixer":
        """The same method with its mixers changed by a function."""
        return change(self)

    @property
    def mixers(self) -> tuple["Mixer", ...]:
        """The mixer itself, as the only choice."""
        return (self,)

    @property
    def looks_inside(self) -> bool:
        """Whether the method reads tokens or attention, so that the model needs a reader."""
        return self.needs.model or bool(self.inner)

    @property
    def input_only(self) -> bool:
        """Whether the method needs only images and labels, so that it can be called without a model."""
        return not (self.extra or self.inner or self.needs.model or self.needs.guide)

    def draw(
        self,
        frame: Frame,
        generator: torch.Generator | None = None,
        *,
        shared: torch.Generator | None = None,
    ) -> Draw:
        """Draws the choices for one batch. None uses torch's global CPU generator; `shared` is for switches."""
        with on_host():
            values = {"partner": self.pairing.draw(frame.batch, generator)}
            for place, part in self._drawing():
                values |= {f"{place}.{key}": value for key, value in part.draw(frame, generator).items()}
        return Draw(0, values)

    def ahead(self, images: Tensor, normalization: Normalization) -> dict[str, Tensor]:
        """What its parts can compute from the unmixed images alone, see `Part.ahead`, for `Draw.with_ahead`."""
        return _ahead([self], images, normalization)

    def _drawing(self) -> list[tuple[str, Part]]:
        """The parts in the order in which they draw, with the names under which their numbers are stored."""
        return [
            ("mask", self.mask),
            *((f"inner{number}", part) for number, part in enumerate(self.inner)),
            ("share", self.share),
            *((f"extra{number}", part) for number, part in enumerate(self.extra)),
        ]


@dataclass(frozen=True)
class Switch(_Method):
    """Draws one of several mixers, `choices`, for each batch, with probabilities proportional to `weights`.

    All mixers use the same main loss. A mixer without a loss takes the loss of the others, so MixUp alternating with
    TokenMix uses binary cross-entropy, as in TokenMix's paper. Two different explicit losses are an error.
    """

    choices: tuple[Mixer, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.choices) < 2 or len(self.choices) != len(self.weights):
            raise ValueError(
                "a switch needs at least two mixers and as many weights, "
                f"got {len(self.choices)} and {len(self.weights)}"
            )
        for weight in self.weights:
            check_positive("each weight", weight)
        classes = {mixer.num_classes for mixer in self.choices}
        if len(classes) > 1:
            raise ValueError(f"the mixers of a switch must have the same num_classes, got {sorted(classes)}")
        stated = {mixer.loss: mixer for mixer in self.choices if mixer.loss is not None}
        if len(stated) > 1:
            raise ValueError(
                "the mixers of a switch must have the same loss, because the losses differ in scale: "
                + ", ".join(f"{mixer} has {loss}" for loss, mixer in stated.items())
                + "; give all of them loss=ce or loss=bce"
            )
        if stated:
            (loss,) = stated
            if loss == "bce" and (silent := [str(mixer) for mixer in self.choices if mixer.loss is None]):
                warnings.warn(
                    f"{', '.join(silent)} will be trained with binary cross-entropy, the loss of {stated[loss]}; "
                    "add loss=bce to its settings to make this explicit",
                    stacklevel=3,
                )
            object.__setattr__(self, "choices", tuple(replace(mixer, loss=loss) for mixer in self.choices))

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The choices."""
        return self.choices

    @property
    def num_classes(self) -> int:
        return self.choices[0].num_classes

    @property
    def loss(self) -> Literal["ce", "bce"] | None:
        return self.choices[0].loss

    def each(self, change: Callable[[Mixer], Mixer]) -> "Switch":
        """The same switch with its mixers changed by a function."""
        return Switch(tuple(map(change, self.choices)), self.weights)

    @property
    def looks_inside(self) -> bool:
        return any(mixer.looks_inside for mixer in self.choices)

    @property
    def input_only(self) -> bool:
        return all(mixer.input_only for mixer in self.choices)

    def draw(
        self,
        frame: Frame,
        generator: torch.Generator | None = None,
        *,
        shared: torch.Generator | None = None,
    ) -> Draw:
        """Draws the choices for one batch. `shared` selects the mixer, so that every rank can select the same one."""
        with on_host():
            odds = torch.tensor(self.weights, dtype=torch.float64).cumsum(0)
            uniform = torch.rand((), generator=shared or generator, dtype=torch.float64)
        choice = min(int(torch.searchsorted(odds / odds[-1], uniform, right=True)), len(self.choices) - 1)
        return Draw(choice, self.choices[choice].draw(frame, generator).values)

    def ahead(self, images: Tensor, normalization: Normalization) -> dict[str, Tensor]:
        """The same for all of its mixers: which one will be drawn is not asked."""
        return _ahead(self.choices, images, normalization)


def _ahead(mixers: Sequence[Mixer], images: Tensor, normalization: Normalization) -> dict[str, Tensor]:
    return {
        f"{number}.{place}.{key}": value
        for number, mixer in enumerate(mixers)
        for place, part in mixer._drawing()
        for key, value in part.ahead(images, normalization).items()
    }


AnyMixer = Mixer | Switch
