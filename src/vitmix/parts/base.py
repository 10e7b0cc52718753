"""What every part of a method answers, so that mixer, mixing and laboratory never ask for its class.

A part is a frozen dataclass with a `name`. It says what it needs, draws its random numbers, computes its contribution,
names what it cannot be combined with, and can be shown. Your own part derives from `Mask`, `Share`, `ExtraLoss` or
`HiddenMixing` and overrides what differs from the defaults here; `vitmix.register` puts it into texts and listings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitmix._mix import Frame, Grid, Mix, area_share, mix_targets, smooth_rows
from vitmix.attention.tap import Plan, Tape

if TYPE_CHECKING:
    from vitmix._mixer import Mixer
    from vitmix.attention.readers.base import Reader

__all__ = [
    "Actor",
    "Blocks",
    "Evidence",
    "Exchange",
    "ExtraLoss",
    "Guidance",
    "HiddenMixing",
    "Mask",
    "Needs",
    "Pairing",
    "Part",
    "Paste",
    "Share",
    "Shown",
    "Unmixed",
    "Values",
    "Weights",
]

Values = Mapping[str, Tensor]
Blocks = tuple[int, ...] | Literal["all"]  # as a setting


@dataclass(frozen=True)
class Needs:
    """What a part needs besides mixed images and labels. What it needs of each block is its `plan`.

    Attributes:
        model: a model whose tokens or attention can be read.
        maps: an activation map of each image's label, given with the batch.
        guide_blocks: blocks of the guide whose attention to the unmixed images is wanted, averaged; None for none.
        guide_logits: the guide's logits of the unmixed images.
        guide_gradient: the gradient of the guide's loss with respect to the unmixed images.
        preview: the final tokens of a pass without hidden mixing, ahead of the pass with it.
        one_label: label rows that sum to one; its formula has no meaning for images with several labels.
    """

    model: bool = False
    maps: bool = False
    guide_blocks: Blocks | None = None
    guide_logits: bool = False
    guide_gradient: bool = False
    preview: bool = False
    one_label: bool = False

    def __or__(self, other: "Needs") -> "Needs":
        asked = [each.guide_blocks for each in (self, other) if each.guide_blocks is not None]
        if len(set(asked)) > 1:
            raise ValueError(
                f"two parts ask the guide for the attention of different blocks, {asked[0]} and {asked[1]}; "
                "give both the same blocks"
            )
        return Needs(**{each.name: getattr(self, each.name) or getattr(other, each.name) for each in fields(self)})

    @property
    def guide(self) -> bool:
        """Whether a pass over the unmixed images is needed."""
        return self.guide_blocks is not None or self.guide_logits or self.guide_gradient


@dataclass(frozen=True)
class Guidance:
    """What the guide pass found on the unmixed images, as far as a part asked for it.

    Attributes:
        scores: `(B, rows, columns)` attention that each final token receives.
        logits: `(B, K)`.
        gradient: `(B, H, W)` root mean square over the channels of the loss's gradient at each pixel.
    """

    scores: Tensor | None = None
    logits: Tensor | None = None
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Unmixed:
    """A batch before it is mixed, as masks see it.

    Attributes:
        images: `(B, C, H, W)`.
        frame: batch size, image size and token grids.
        guidance: what the guide pass found, as far as a part needs it.
        rows: targets `(B, K)` of the unmixed images, without smoothing.
        partner: `(B,)` the batch row each image will be mixed with.
        module: what the mask's `module` returned.
    """

    images: Tensor
    rows: Tensor
    partner: Tensor
    frame: Frame
    guidance: Guidance = field(default_factory=Guidance)
    module: nn.Module | None = None


@dataclass(frozen=True)
class Evidence:
    """A mixed batch, as shares, extra losses and figures see it.

    Attributes:
        mix: partner, mask and source.
        frame: batch size, image size and token grids.
        smoothing: of the labels.
        reader: of the model; None where it cannot be read.
        guidance: what the guide pass found, as far as a part needs it.
        tape: what was recorded while the model ran on the mixed images.
        maps: `(B, h, w)` activation map of each image's label, where given.
        rows: targets `(B, K)` of the unmixed images, without smoothing.
        values: the random numbers that the part drew.
        module: what the part's `module` returned.
    """

    mix: Mix
    frame: Frame
    tape: Tape
    rows: Tensor
    smoothing: float = 0.0
    reader: "Reader | None" = None
    maps: Tensor | None = None
    guidance: Guidance = field(default_factory=Guidance)
    values: Values = field(default_factory=dict)
    module: nn.Module | None = None

    @property
    def model(self) -> "Reader":
        """The model's reader, for parts that need a model."""
        assert self.reader is not None
        return self.reader

    @property
    def area(self) -> Tensor:
        """The partner's part `(B,)` of each image's area."""
        return area_share(self.mix.mask, dtype=self.frame.dtype).expand(self.frame.batch)

    @property
    def smooth_rows(self) -> Tensor:
        """Targets `(B, K)` of the unmixed images, smoothed."""
        return smooth_rows(self.rows, self.smoothing)

    @property
    def final_tokens(self) -> Tensor:
        """The tokens `(B, N, d)` after the final norm, for parts whose plan asks for them."""
        if self.tape.final is None:
            raise RuntimeError(
                "the final tokens were not recorded: a part that reads them returns Plan(final=True) from `plan` and "
                "Needs(model=True) from `needs`, and the model must run on the mixed batch before its loss"
            )
        return self.tape.final

    @property
    def final_share(self) -> Tensor:
        """The partner's part `(B or 1, n)` of each final patch token, by the input mask."""
        return self.model.patch_share(self.mix.mask, self.area, self.frame.size)


@dataclass(frozen=True)
class Shown:
    """A `grid` `(h, w)` of numbers with a `caption`; `kind` says what they are: "attention", or "share" in 0..1."""

    caption: str
    grid: Tensor
    kind: Literal["attention", "share"] = "attention"


class Part:
    """What all kinds of parts answer."""

    kind: ClassVar[str]
    name: ClassVar[str]

    @property
    def needs(self) -> Needs:
        """What the part needs besides mixed images and labels."""
        return Needs()

    def plan(self, reader: "Reader") -> Plan:
        """What to record while the model runs on the mixed images; refuses models that do not have it."""
        return Plan()

    @property
    def module_name(self) -> str:
        """Under which name the part's module is kept; parts of a switch with one name share one module."""
        return f"{self.kind}_{self.name}"

    def module(self, reader: "Reader | None", num_classes: int) -> nn.Module | None:
        """Parameters and buffers of the part's own: they are trained, saved and moved with the model."""
        return None

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        """The random numbers for one batch, on the host."""
        return {}

    def conflict(self, mixer: "Mixer") -> str | None:
        """Why the part cannot be combined with the others of a mixer; None if it can."""
        return None

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        """What the part looked at, for the first image of a batch."""
        return ()


class Paste(NamedTuple):
    """Where the partner is pasted: `mask` and `source` as in `Mix`; without source, cells stay in their place."""

    mask: Tensor
    source: Tensor | None = None


class Mask(Part):
    """Which cells come from the partner."""

    kind: ClassVar[str] = "mask"
    mixes: ClassVar[bool] = True  # whether images change at all

    def where(self, values: Values, batch: Unmixed) -> Paste:
        """Where the partner is pasted, from the drawn numbers."""
        raise NotImplementedError


class Weights(NamedTuple):
    """The weights `(B,)` of the own and of the partner's label; they add up to one, except by activation shares."""

    own: Tensor
    partner: Tensor


class Share(Part):
    """How much of the target is the partner's. `before_forward`: whether that is known before the model runs."""

    kind: ClassVar[str] = "share"
    before_forward: ClassVar[bool] = True

    def start(self, evidence: Evidence) -> None:
        """Called before the model runs, for rules that put something on the tape."""

    def weights(self, evidence: Evidence) -> Weights:
        """The weights of the two labels of each sample."""
        raise NotImplementedError

    def conflict(self, mixer: "Mixer") -> str | None:
        movers = [part.name for part in mixer.inner if part.moves_tokens and not part.sets_targets]
        if self.before_forward or not movers:
            return None
        return (
            f"{self.name} shares follow tokens from where the mask put them, and {movers[0]} moves them inside the "
            "network; use area or activation shares"
        )

    def targets(self, rows: Tensor, partner: Tensor, weights: Weights, smoothing: float) -> Tensor:
        """Soft targets `(B, K)` of rows `(B, K)`; this one is for weights that add up to one."""
        return mix_targets(smooth_rows(rows, smoothing), partner, weights.partner)


class ExtraLoss(Part):
    """A loss that is added to the main one, times its `weight`; a part that declares the field makes it a setting."""

    kind: ClassVar[str] = "extra"
    weight: float = 1.0

    def value(self, logits: Tensor, targets: Tensor, evidence: Evidence) -> Tensor:
        """The loss, a scalar, of the logits of the mixed images and their targets, both `(B, K)`."""
        raise NotImplementedError


class HiddenMixing(Part):
    """Mixing inside the network, at the input of one block, in training only.

    Attributes:
        moves_tokens: tokens change places, so that the input mask no longer says whose they are.
        adds_tokens: keys and values are added, which have no place in the image.
        sets_targets: it changes the targets during the forward pass, so the share must be known before it.
        count_names: what its actors count, for the log.
    """

    kind: ClassVar[str] = "inner"
    block: int
    moves_tokens: ClassVar[bool] = False
    adds_tokens: ClassVar[bool] = False
    sets_targets: ClassVar[bool] = False
    count_names: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> Needs:
        return Needs(model=True)

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """The names of the losses that its actors add, with their weights."""
        return {}

    @property
    def module_name(self) -> str:
        return f"{self.name}_{self.block}".replace("-", "last")

    def plan(self, reader: "Reader") -> Plan:
        """Its block's input may change and, if it adds tokens, its keys and values grow."""
        block = reader.resolve_patches(self.block)
        if self.adds_tokens and (reason := reader.block(block).no_bank) is not None:
            raise ValueError(f"{self.name} cannot act at block {block} of this {reader.name}: {reason}")
        at = frozenset([block])
        return Plan(mixed=at, bank=at if self.adds_tokens else frozenset())

    def conflict(self, mixer: "Mixer") -> str | None:
        if self.sets_targets and not mixer.share.before_forward:
            return (
                f"{self.name} needs its incoming labels before the forward pass, and {mixer.share.name} shares are "
                "known only after it; use area or activation shares"
            )
        return None

    def actor(self, reader: "Reader", values: Values, module: nn.Module | None) -> "Actor":
        """What carries the mixing out on one batch."""
        raise NotImplementedError

    def demonstrated(self) -> "HiddenMixing":
        """The same mixing, so that it acts on every image: for figures, where nothing is trained."""
        return self


class Exchange(NamedTuple):
    """Tokens that changed places: from whom `(B,)`, and which `(B, n)`."""

    partner: Tensor
    take: Tensor


class Actor:
    """One hidden mixing on one batch. It remembers its decision: activation checkpointing runs a block twice.

    Args:
        settings: the `HiddenMixing` it carries out.
        reader: of the model.
        values: the numbers that `settings` drew for this batch, on the device.
        module: what `settings.module` returned.
    """

    def __init__(self, settings: Any, reader: "Reader", values: Values, module: nn.Module | None = None) -> None:
        self.settings, self.reader, self.values, self.module = settings, reader, values, module
        self.block = reader.resolve_patches(settings.block)
        self.preview: Tensor | None = None
        self.acted = False

    def at_input(self, index: int, tokens: Tensor, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The tokens `(B, N, d)` that a block gets; `args` and `kwargs` are its arguments as they were."""
        return self.change(tokens, tape) if index == self.block else tokens

    def change(self, tokens: Tensor, tape: Tape) -> Tensor:
        """The changed tokens `(B, N, d)` of the mixing's block; may set `tape.targets`."""
        return tokens

    def bank(self, index: int, tape: Tape) -> Tensor | None:
        """Tokens `(B, k, d)` that a block's keys and values also see; `bank_length` says how many, k."""
        return None

    def bank_length(self, index: int, tape: Tape) -> int:
        """How many tokens `bank` returns for a block."""
        return 0

    def losses(self) -> dict[str, Tensor]:
        """Losses to add, by name, already times their weight."""
        return {}

    def counts(self) -> dict[str, Tensor]:
        """Fractions for the log, by `count_names`."""
        return {}

    @property
    def exchange(self) -> Exchange | None:
        """The tokens that changed places, if any could."""
        return None

    @property
    def borrowed(self) -> Tensor | None:
        """How often `(B, n)` each patch was added to the keys and values."""
        return None

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        """What the mixing looked at, for the first image of a batch."""
        return ()

    def at_rate(self, rate: float) -> HiddenMixing:
        """The settings that would mix this part of the batch, after a pass; for measuring what mixing costs."""
        return self.settings


class Pairing:
    """Who is mixed with whom: a partner in the batch for each sample; a lone sample is its own."""

    kind: ClassVar[str] = "pairing"
    name: ClassVar[str]

    def draw(self, batch: int, generator: torch.Generator | None) -> Tensor:
        """Partners `(B,)`, batch rows."""
        raise NotImplementedError


def on_grid(values: Tensor, grid: Grid) -> Tensor:
    """One number per patch as a grid; tokens before the patches are left out."""
    return values[len(values) - grid[0] * grid[1] :].view(grid).float()
