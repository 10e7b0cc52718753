"""The interface of the parts of a method. Because of it, no other code checks the class of a part.

A part is a frozen dataclass with a `name`. It declares what it needs, draws its random numbers, computes its
contribution, names the parts it cannot be combined with, and can be shown in figures. To write your own, derive from
`Mask`, `Share`, `ExtraLoss` or `HiddenMixing` and override what differs from the defaults; `vitmix.register` makes it
available in method strings and listings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitmix._mix import Frame, Grid, Mix, Moves, area_share, mix_targets, smooth_rows
from vitmix.attention.tap import COMPILED, Plan, Tape

if TYPE_CHECKING:
    from vitmix._mixer import Mixer
    from vitmix.attention.readers.base import Reader

__all__ = [
    "Actor",
    "Blocks",
    "Composed",
    "Evidence",
    "Exchange",
    "ExtraLoss",
    "Guidance",
    "HiddenMixing",
    "Mask",
    "Needs",
    "Normalization",
    "Observer",
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
    """What a part needs besides mixed images and labels. Its `plan` says what it needs from each block.

    The guide is the model that runs on the unmixed images before mixing.

    Attributes:
        model: a model whose tokens or attention can be read.
        maps: an activation map `(B, h, w)` of each image's label, given with the batch.
        objects: a mask of each image's object as `maps`, and not an activation map.
        label_maps: a teacher's probabilities `(B, K, h, w)` for each final token, given with the batch as `maps`.
        guide_blocks: blocks of the guide whose attention on the unmixed images is averaged; None for no attention.
        guide_logits: the guide's logits of the unmixed images.
        guide_gradient: the gradient of the guide's loss with respect to the unmixed images.
        guide_features: the channel mean of the guide's final tokens on the unmixed images.
        guide_observer: the part's own pass of the guide, see `Mask.observer`.
        preview: the final tokens of a pass without hidden mixing, before the pass with it.
        one_label: label rows that sum to one, because the formula is undefined for several labels per image.
        one_class: one class per image, not a soft label.
    """

    model: bool = False
    maps: bool = False
    objects: bool = False
    label_maps: bool = False
    guide_blocks: Blocks | None = None
    guide_logits: bool = False
    guide_gradient: bool = False
    guide_features: bool = False
    guide_observer: bool = False
    preview: bool = False
    one_label: bool = False
    one_class: bool = False

    def __or__(self, other: "Needs") -> "Needs":
        asked = [each.guide_blocks for each in (self, other) if each.guide_blocks is not None]
        if len(set(asked)) > 1:
            raise ValueError(
                f"two parts need the guide's attention in different blocks, {asked[0]} and {asked[1]}; "
                "give both the same blocks"
            )
        both = Needs(**{each.name: getattr(self, each.name) or getattr(other, each.name) for each in fields(self)})
        if both.maps and both.label_maps:
            raise ValueError(
                "two parts need different maps with each batch, one of the label, one of all classes; use one of them"
            )
        return both

    @property
    def guide(self) -> bool:
        """Whether a pass on the unmixed images is needed."""
        others = (self.guide_logits, self.guide_gradient, self.guide_features, self.guide_observer)
        return self.guide_blocks is not None or any(others)


@dataclass(frozen=True)
class Guidance:
    """Results of the guide pass on the unmixed images, if a part needs them.

    Attributes:
        scores: `(B, rows, columns)` attention that each final token receives.
        logits: `(B, K)`.
        gradient: `(B, H, W)` gradient of the loss at each pixel, as the root mean square over channels.
        features: `(B, rows, columns)` channel mean of the final tokens, on the guide's grid.
        observed: the result of the mask's `observer`.
    """

    scores: Tensor | None = None
    logits: Tensor | None = None
    gradient: Tensor | None = None
    features: Tensor | None = None
    observed: Tensor | None = None


class Observer:
    """A pass of the guide that a part runs itself: from unmixed images `(B, C, H, W)` to one tensor.

    It is called in evaluation mode and without gradient. A plain object, so that learners can be copied and pickled.
    """

    def __call__(self, images: Tensor) -> Tensor:
        raise NotImplementedError


class Normalization(NamedTuple):
    """How images were normalized, as (colors - mean) / std with colors in 0..1.

    Attributes:
        mean: of each channel (default: ImageNet's).
        std: of each channel (default: ImageNet's).
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Unmixed:
    """A batch before mixing, as masks see it.

    Attributes:
        images: `(B, C, H, W)`.
        frame: batch size, image size and token grids.
        guidance: results of the guide pass, if a part needs them.
        rows: targets `(B, K)` of the unmixed images, without smoothing.
        partner: `(B,)` the batch index of the image that each image will be mixed with.
        module: the result of the mask's `module`.
        normalization: of the images; ImageNet's if it is not known.
    """

    images: Tensor
    rows: Tensor
    partner: Tensor
    frame: Frame
    guidance: Guidance = field(default_factory=Guidance)
    module: nn.Module | None = None
    normalization: Normalization = Normalization()


@dataclass(frozen=True)
class Evidence:
    """A mixed batch, as shares, extra losses and figures see it.

    Attributes:
        mix: partner, mask and source.
        frame: batch size, image size and token grids.
        smoothing: label smoothing.
        reader: the reader of the model; None if it has none.
        guidance: results of the guide pass, if a part needs them.
        tape: what was recorded while the model ran on the mixed images.
        maps: `(B, h, w)` activation map of each image's label or `(B, K, h, w)` label maps, if given.
        rows: targets `(B, K)` of the unmixed images, without smoothing.
        values: the random numbers that the part drew.
        module: the result of the part's `module`.
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
    def share(self) -> Tensor:
        """The partner's part `(B,)` of the target, for extra losses."""
        assert self.tape.label_share is not None
        return self.tape.label_share

    @property
    def logits(self) -> Tensor:
        """The logits `(B, K)` of the mixed images, without gradient, for parts whose plan contains them."""
        if self.tape.logits is None:
            raise RuntimeError(
                "the logits were not recorded; run the model on the mixed batch before its targets, return "
                f"Plan(logits=True) from the part's `plan` and Needs(model=True) from its `needs`, and {COMPILED}"
            )
        return self.tape.logits

    @property
    def smooth_rows(self) -> Tensor:
        """Targets `(B, K)` of the unmixed images, with smoothing."""
        return smooth_rows(self.rows, self.smoothing)

    @property
    def final_tokens(self) -> Tensor:
        """The tokens `(B, N, d)` after the final norm, for parts whose plan contains them."""
        if self.tape.final is None:
            raise RuntimeError(
                "the final tokens were not recorded; run the model on the mixed batch before its loss, return "
                f"Plan(final=True) from the part's `plan` and Needs(model=True) from its `needs`, and {COMPILED}"
            )
        return self.tape.final

    @property
    def final_share(self) -> Tensor:
        """The partner's part `(B or 1, n)` of each final patch token, according to the input mask."""
        return self.model.patch_share(self.mix.mask, self.area, self.frame.size)


@dataclass(frozen=True)
class Shown:
    """A `grid` `(h, w)` of numbers with a `caption`; `kind` says what they are: "attention", or "share" in 0..1."""

    caption: str
    grid: Tensor
    kind: Literal["attention", "share"] = "attention"


class Part:
    """The interface of all kinds of parts."""

    kind: ClassVar[str]
    name: ClassVar[str]

    @property
    def needs(self) -> Needs:
        """What the part needs besides mixed images and labels."""
        return Needs()

    def plan(self, reader: "Reader") -> Plan:
        """What to record while the model runs on the mixed images. Raises an error if the model does not have it."""
        return Plan()

    @property
    def module_name(self) -> str:
        """The name of the part's module. Parts of a switch with the same name share one module."""
        return f"{self.kind}_{self.name}"

    def module(self, reader: "Reader | None", num_classes: int) -> nn.Module | None:
        """Parameters and buffers of the part. They are trained, saved and moved with the model."""
        return None

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Draws the random numbers for one batch, on the host."""
        return {}

    def ahead(self, images: Tensor, normalization: Normalization) -> dict[str, Tensor]:
        """Numbers `(B, ...)` that depend on the unmixed images alone.

        `vitmix train` computes them in the loader's workers. The part finds them among its `values`, and must compute
        them itself if they are missing.
        """
        return {}

    def conflict(self, mixer: "Mixer") -> str | None:
        """Why the part cannot be combined with the other parts of a mixer; None if it can."""
        return None

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        """What the part read, for the first image of a batch."""
        return ()


class Paste(NamedTuple):
    """Where the partner is pasted: `mask` and `source` as in `Mix`. Without `source`, cells keep their position."""

    mask: Tensor
    source: Tensor | None = None


class Composed(NamedTuple):
    """Mixed `images` `(B, C, H, W)` that a mask makes itself, for example because it resizes the partner.

    `mask` as in `Mix`. `rows` `(B, K)` are the labels of what is pasted, if it is not the partner alone. `moves` says
    which pixels are shown, so that label maps and boxes can follow.
    """

    mask: Tensor
    images: Tensor
    rows: Tensor | None = None
    moves: Moves | None = None


class Mask(Part):
    """Which cells come from the partner.

    Attributes:
        mixes: whether images change.
        moves_pixels: it moves or resizes pixels in a way that `source` does not describe.
        moves_cells: it pastes cells elsewhere than it cuts them, as `source` describes.
        pastes_partner: what it pastes is the partner alone; otherwise `Composed.rows` has the labels.
    """

    kind: ClassVar[str] = "mask"
    mixes: ClassVar[bool] = True
    moves_pixels: ClassVar[bool] = False
    moves_cells: ClassVar[bool] = False
    pastes_partner: ClassVar[bool] = True

    def observer(self, reader: "Reader") -> Observer | None:
        """The mask's own pass of the guide, if `needs.guide_observer`. Raises an error if the guide is not suited."""
        return None

    def where(self, values: Values, batch: Unmixed) -> Paste | Composed:
        """Computes where the partner is pasted, or the mixed images themselves, from the drawn numbers."""
        raise NotImplementedError


class Weights(NamedTuple):
    """The weights `(B,)` of the original label (`own`) and of the partner's label (`partner`).

    They sum to one, except for activation shares.
    """

    own: Tensor
    partner: Tensor


class Share(Part):
    """The partner's part of the target.

    Attributes:
        before_forward: it is known before the model runs.
        looks_up_partner: it looks up values of the partner at the positions that are pasted.
    """

    kind: ClassVar[str] = "share"
    before_forward: ClassVar[bool] = True
    looks_up_partner: ClassVar[bool] = False

    def start(self, evidence: Evidence) -> None:
        """Called before the model runs, for rules that write to the tape."""

    def weights(self, evidence: Evidence) -> Weights:
        """The weights of the two labels of each sample."""
        raise NotImplementedError

    def conflict(self, mixer: "Mixer") -> str | None:
        mask = mixer.mask
        if self.looks_up_partner and (mask.moves_pixels or not mask.pastes_partner):
            return (
                f"{self.name} shares look up the partner at the pasted positions, which a {mask.name} mask does not "
                "keep; use area, attention or aligned shares"
            )
        movers = [part.name for part in mixer.inner if part.moves_tokens and not part.sets_targets]
        if self.before_forward or not movers:
            return None
        return (
            f"{self.name} shares follow the tokens of the mask, but {movers[0]} moves tokens inside the network; "
            "use area or activation shares"
        )

    def targets(self, rows: Tensor, partner: Tensor, weights: Weights, smoothing: float) -> Tensor:
        """Soft targets `(B, K)` from rows `(B, K)`, for weights that sum to one."""
        return mix_targets(smooth_rows(rows, smoothing), partner, weights.partner)


class ExtraLoss(Part):
    """A loss added to the main loss, times its `weight`. Declare the field `weight` to make it a setting.

    Attributes:
        uses_partner: it uses the label or the logits of the partner, so what is pasted must be the partner alone.
    """

    kind: ClassVar[str] = "extra"
    uses_partner: ClassVar[bool] = False
    weight: float = 1.0

    def conflict(self, mixer: "Mixer") -> str | None:
        if self.uses_partner and not mixer.mask.pastes_partner:
            return (
                f"{self.name} needs one partner per image, but a {mixer.mask.name} mask pastes mixed images; drop one"
            )
        return None

    def value(self, logits: Tensor, targets: Tensor, evidence: Evidence) -> Tensor:
        """The loss, a scalar, from the logits and targets of the mixed images, both `(B, K)`."""
        raise NotImplementedError


class HiddenMixing(Part):
    """Mixing inside the network, at the input of one block, in training only.

    Attributes:
        moves_tokens: it moves tokens between samples, so the input mask no longer says where they come from.
        adds_tokens: it adds keys and values that have no position in the image.
        sets_targets: it changes the targets during the forward pass, so the share must be known before.
        applies_mask: it applies the mask, so that images stay as they are.
        count_names: names of the counts of its actors, for the log.
    """

    kind: ClassVar[str] = "inner"
    block: int
    moves_tokens: ClassVar[bool] = False
    adds_tokens: ClassVar[bool] = False
    sets_targets: ClassVar[bool] = False
    applies_mask: ClassVar[bool] = False
    count_names: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> Needs:
        return Needs(model=True)

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """The losses that its actors add: weight by name."""
        return {}

    @property
    def module_name(self) -> str:
        return f"{self.name}_{self.block}".replace("-", "last")

    def plan(self, reader: "Reader") -> Plan:
        """By default: the input of its block may change and, if it adds tokens, so may the keys and values."""
        block = reader.resolve_patches(self.block)
        if self.adds_tokens and (reason := reader.block(block).no_bank) is not None:
            raise ValueError(f"{self.name} cannot act at block {block} of this {reader.name}: {reason}")
        at = frozenset([block])
        return Plan(mixed=at, bank=at if self.adds_tokens else frozenset())

    def conflict(self, mixer: "Mixer") -> str | None:
        if self.sets_targets and not mixer.share.before_forward:
            return (
                f"{self.name} needs the labels before the forward pass, but {mixer.share.name} shares are known only "
                "after it; use area or activation shares"
            )
        return None

    def actor(self, reader: "Reader", values: Values, module: nn.Module | None) -> "Actor":
        """The object that performs the mixing on one batch."""
        raise NotImplementedError

    def demonstrated(self) -> "HiddenMixing":
        """The same mixing with settings that mix every image, for figures."""
        return self


class Exchange(NamedTuple):
    """Exchanged tokens: the partner `(B,)` they come from, and which tokens are taken `(B, n)`."""

    partner: Tensor
    take: Tensor


class Actor:
    """Performs one hidden mixing on one batch. It stores its decision, because checkpointing runs a block twice.

    Args:
        settings: the `HiddenMixing` that it performs.
        reader: the reader of the model.
        values: the numbers that `settings` drew for this batch, on the device.
        module: the result of `settings.module`.
    """

    def __init__(self, settings: Any, reader: "Reader", values: Values, module: nn.Module | None = None) -> None:
        self.settings, self.reader, self.values, self.module = settings, reader, values, module
        self.block = reader.resolve_patches(settings.block)
        self.mix: Mix | None = None  # of the batch
        self.preview: Tensor | None = None
        self.acted = False

    @property
    def training(self) -> bool:
        """Whether the block at which it acts is in training mode."""
        return self.reader.block(self.block).module.training

    def at_images(self, images: Tensor) -> Tensor:
        """The changed input images `(B, C, H, W)` of the model; must change nothing in evaluation mode."""
        return images

    def at_input(self, index: int, tokens: Tensor, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The input tokens `(B, N, d)` of a block; `args` and `kwargs` are its original arguments."""
        return self.change(tokens, tape) if index == self.block else tokens

    def change(self, tokens: Tensor, tape: Tape) -> Tensor:
        """The changed input tokens `(B, N, d)` of its block; may set `tape.targets`."""
        return tokens

    def bank(self, index: int, tape: Tape) -> Tensor | None:
        """Tokens `(B, k, d)` to add to the keys and values of a block; k is `bank_length`."""
        return None

    def bank_places(self, index: int) -> Tensor:
        """The positions `(B, k)` that the tokens of `bank` had in the blocks they come from."""
        raise NotImplementedError

    def bank_length(self, index: int, tape: Tape) -> int:
        """Number of tokens that `bank` returns for a block."""
        return 0

    def losses(self) -> dict[str, Tensor]:
        """Losses to add, by name, including their weight."""
        return {}

    def counts(self) -> dict[str, Tensor]:
        """Fractions for the log, by `count_names`."""
        return {}

    @property
    def exchange(self) -> Exchange | None:
        """The exchanged tokens, if the mixing exchanges any."""
        return None

    @property
    def borrowed(self) -> Tensor | None:
        """How often `(B, n)` each patch was added to the keys and values."""
        return None

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        """What the mixing read, for the first image of a batch."""
        return ()

    def at_rate(self, rate: float) -> HiddenMixing:
        """After a pass: the settings that would mix this fraction of the batch, for benchmarks."""
        return self.settings


class Pairing:
    """Chooses a partner in the batch for each sample. A single sample is its own partner."""

    kind: ClassVar[str] = "pairing"
    name: ClassVar[str]

    def draw(self, batch: int, generator: torch.Generator | None) -> Tensor:
        """Draws partners `(B,)`, as batch indices."""
        raise NotImplementedError


def on_grid(values: Tensor, grid: Grid) -> Tensor:
    """One number per patch as a grid, without the tokens before the patches."""
    return values[len(values) - grid[0] * grid[1] :].view(grid).float()
