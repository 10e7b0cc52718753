"""A method as one value: a `Mixer`, or a `Switch` between several."""

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from vitmix._checks import check_choice, check_count, check_fraction, check_positive
from vitmix.mix import Frame
from vitmix.parts.hidden import HTM, Inner
from vitmix.parts.losses import Extra, Region
from vitmix.parts.masks import Mask, NoMask
from vitmix.parts.pairing import Pairing, Reversed
from vitmix.parts.shares import AreaShare, Share
from vitmix.sampling import Draw, on_host

if TYPE_CHECKING:
    from vitmix.mixing import Mixing


class _Method:
    """What can be done with a mixer and with a switch alike."""

    def attach(
        self, model: nn.Module, *, guide: nn.Module | None = None, seed: int = 0, rank: int | None = None
    ) -> "Mixing":
        """The method at work on a model; hooks live until the returned object is closed or its `with` block ends."""
        from vitmix.mixing import Mixing

        assert isinstance(self, Mixer | Switch)
        return Mixing(self, model, guide=guide, seed=seed, rank=rank)

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        maps: Tensor | None = None,
        generator: torch.Generator | None = None,
        draw: Draw | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mixed images and soft targets `(B, K)`, for methods that need no model."""
        from vitmix.mixing import mix_without_model

        assert isinstance(self, Mixer | Switch)
        return mix_without_model(self, images, labels, maps, generator, draw)

    def __str__(self) -> str:
        from vitmix.text import to_text

        assert isinstance(self, Mixer | Switch)
        return to_text(self)


@dataclass(frozen=True)
class Mixer(_Method):
    """One mixing method: where (mask), what label (share), extra losses, and mixing inside the network.

    Attributes:
        smoothing: label smoothing, applied before mixing.
        loss: the main loss: soft cross-entropy ("ce") or binary cross-entropy per class ("bce"). None is cross-entropy,
            or in a switch the loss that the other mixers state.
    """

    num_classes: int
    mask: Mask = field(default_factory=NoMask)
    share: Share = field(default_factory=AreaShare)
    extra: tuple[Extra, ...] = ()
    inner: tuple[Inner, ...] = ()
    pairing: Pairing = field(default_factory=Reversed)
    smoothing: float = 0.0
    loss: Literal["ce", "bce"] | None = None

    def __post_init__(self) -> None:
        check_count("num_classes", self.num_classes)
        check_fraction("smoothing", self.smoothing)
        if self.loss is not None:
            check_choice("loss", self.loss, ("ce", "bce"))
        for name, verb in (("mask", "region"), ("share", "weights"), ("pairing", "draw")):
            part = getattr(self, name)
            if not hasattr(part, verb):
                raise ValueError(f"{name} must be one of the library's {name} settings or one like them, got {part!r}")
        for name, kinds in (("extra", Extra), ("inner", Inner)):
            parts = getattr(self, name)
            if not isinstance(parts, tuple) or any(not isinstance(each, kinds) for each in parts):
                raise ValueError(f"{name} must be a tuple of {name} parts, written [...] in a text, got {parts!r}")
        kinds_of_loss = [part.name for part in self.extra]
        for part in (*self.extra, *self.inner):
            if kinds_of_loss.count(part.name) > 1 or self.inner.count(part) > 1:
                raise ValueError(f"{part.name} is there twice; a method has each addition once")
        if not any(isinstance(part, HTM) for part in self.inner):
            return
        if not self.share.before_forward:
            raise ValueError(
                f"htm needs its incoming labels before the forward pass, and {self.share.name} shares are known only "
                "after it; use area or activation shares"
            )
        if any(isinstance(part, Region) for part in self.extra):
            raise ValueError("the region loss labels tokens by the input mask, which htm changes; use one or the other")

    @property
    def mixers(self) -> tuple["Mixer", ...]:
        return (self,)

    @property
    def looks_inside(self) -> bool:
        """Whether the method looks at tokens or attention, so that the model must be one that can be read."""
        regions = any(isinstance(part, Region) for part in self.extra)
        return bool(self.share.needs_model or regions or self.inner or self.mask.guide_blocks is not None)

    @property
    def input_only(self) -> bool:
        """Whether the method needs nothing but images and labels, so that it can be called without a model."""
        return not (self.looks_inside or self.extra)

    def draw(
        self,
        frame: Frame,
        generator: torch.Generator | None = None,
        *,
        shared: torch.Generator | None = None,
    ) -> Draw:
        """The choices for one batch; None draws from torch's global CPU generator. `shared` is for switches."""
        with on_host():
            values = {"partner": self.pairing.draw(frame.batch, generator)}
            values |= {f"mask.{key}": value for key, value in self.mask.draw(frame, generator).items()}
            for number, part in enumerate(self.inner):
                values |= {f"inner{number}.{key}": value for key, value in part.draw(frame, generator).items()}
        return Draw(0, values)


@dataclass(frozen=True)
class Switch(_Method):
    """One of several mixers for each batch, drawn with odds proportional to `weights`.

    All of them are trained with one main loss: a mixer that states none takes that of the others, so MixUp switched
    with TokenMix has binary cross-entropy as in TokenMix's paper. Two different stated losses are refused.
    """

    choices: tuple[Mixer, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.choices) < 2 or len(self.choices) != len(self.weights):
            raise ValueError(
                "a switch needs two mixers or more and as many weights, "
                f"got {len(self.choices)} and {len(self.weights)}"
            )
        for weight in self.weights:
            check_positive("each of weights", weight)
        classes = {mixer.num_classes for mixer in self.choices}
        if len(classes) > 1:
            raise ValueError(f"the mixers of a switch must have the same num_classes, got {sorted(classes)}")
        stated = {mixer.loss: mixer for mixer in self.choices if mixer.loss is not None}
        if len(stated) > 1:
            raise ValueError(
                "the mixers of a switch must have one loss, since the two kinds differ in scale: "
                + ", ".join(f"{mixer} has {loss}" for loss, mixer in stated.items())
                + "; give all of them loss=ce or all of them loss=bce"
            )
        if stated:
            (loss,) = stated
            if loss == "bce" and (silent := [str(mixer) for mixer in self.choices if mixer.loss is None]):
                warnings.warn(
                    f"{', '.join(silent)} will be trained with binary cross-entropy, the loss of {stated[loss]}; "
                    "write loss=bce beside its settings to say so",
                    stacklevel=3,
                )
            object.__setattr__(self, "choices", tuple(replace(mixer, loss=loss) for mixer in self.choices))

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return self.choices

    @property
    def num_classes(self) -> int:
        return self.choices[0].num_classes

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
        """The choices for one batch. `shared` draws which mixer, so that every rank can draw the same one."""
        with on_host():
            odds = torch.tensor(self.weights, dtype=torch.float64).cumsum(0)
            uniform = torch.rand((), generator=shared or generator, dtype=torch.float64)
        choice = min(int(torch.searchsorted(odds / odds[-1], uniform, right=True)), len(self.choices) - 1)
        return Draw(choice, self.choices[choice].draw(frame, generator).values)


AnyMixer = Mixer | Switch
