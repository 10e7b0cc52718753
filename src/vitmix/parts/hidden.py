"""Mixing inside the network: horizontal TokenMixup (HTM) and vertical TokenMixup (VTM). Both act in training only.

Settings are frozen. The `actor` of a batch performs the mixing and stores its decision, so that a block that activation
checkpointing runs twice is mixed in the same way twice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitmix._checks import check_choice, check_count, check_integer, check_not_negative, check_switch
from vitmix._mix import Frame, mix_targets
from vitmix._registry import register
from vitmix.attention.flow import Flow, rollout_saliency
from vitmix.attention.summaries import forget_casts
from vitmix.attention.tap import Plan, Tape
from vitmix.parts.assignment import assign_partners
from vitmix.parts.base import Actor, Evidence, Exchange, HiddenMixing, Needs, Shown, Values, on_grid
from vitmix.parts.losses import sample_cross_entropy, soft_cross_entropy
from vitmix.parts.pairing import random_derangement

if TYPE_CHECKING:
    from vitmix.attention.readers.base import Reader

__all__ = [
    "ALWAYS_EASY",
    "HTM",
    "Horizontal",
    "HorizontalMix",
    "RANDOM_SAMPLES",
    "ScoreNet",
    "VTM",
    "Vertical",
    "check_replay",
    "exchange_tokens",
    "horizontal_mix",
    "own_weight",
    "pick_tokens",
    "sample_difficulty",
    "take_salient",
    "top_tokens",
]

ALWAYS_EASY = 1e9  # as tau
RANDOM_SAMPLES = 5  # per batch, in the random baseline of TokenMixup's supplement, table 5

# Formulas


class HorizontalMix(NamedTuple):
    """HTM's decision: easy samples `(B,)`, partners `(B,)`, tokens taken `(B, n)`, weight of the original label `(B,)`.

    A sample that is not easy is its own partner, takes no tokens and has weight 1.
    """

    easy: Tensor
    partner: Tensor
    take: Tensor
    own: Tensor


def sample_difficulty(score_logits: Tensor, targets: Tensor) -> Tensor:
    """Difficulty `(B,)`: a tenth of the score net's cross-entropy with the incoming targets."""
    return sample_cross_entropy(score_logits, targets) / 10


def take_salient(saliency: Tensor, partner: Tensor, easy: Tensor, rho: float) -> Tensor:
    """Tokens `(B, n)` that easy samples take: those where the partner is more salient by more than rho."""
    return (saliency[partner] - saliency > rho) & easy.unsqueeze(1)


def own_weight(saliency: Tensor, partner: Tensor, take: Tensor) -> Tensor:
    """Weight of the original label `(B,)`: (own saliency kept) / (own saliency kept + partner's saliency taken)."""
    kept = saliency.masked_fill(take, 0).sum(1)
    taken = saliency[partner].masked_fill(~take, 0).sum(1)
    return kept / (kept + taken)


def horizontal_mix(saliency: Tensor, easy: Tensor, *, rho: float) -> HorizontalMix:
    """HTM's decision from the saliency `(B, n)` of the unmixed tokens and the easy samples `(B,)`."""
    partner = assign_partners(saliency, easy, rho)
    take = take_salient(saliency, partner, easy, rho)
    return HorizontalMix(easy, partner, take, own_weight(saliency, partner, take))


class _Exchange(torch.autograd.Function):
    """`mix_tokens` for partners that are all different: its gradient is a look-up too, without atomic additions."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, take: Tensor, partner: Tensor, taker: Tensor) -> Tensor:
        ctx.save_for_backward(take, taker)
        return torch.where(take, tokens[partner], tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (take, taker) = gradients, ctx.saved_tensors
        given = take[taker] & (taker != torch.arange(len(taker), device=taker.device)).view(-1, 1, 1)
        kept = torch.where(take, gradient.new_zeros(()), gradient)
        return kept + torch.where(given, gradient[taker], gradient.new_zeros(())), None, None, None


def exchange_tokens(tokens: Tensor, mix: HorizontalMix, *, prefix: int = 0) -> Tensor:
    """Tokens `(B, N, d)` after easy samples took patches from their partners; each sample gives to at most one."""
    take = torch.cat([mix.take.new_zeros(len(mix.take), prefix), mix.take], dim=1) if prefix else mix.take
    rows = torch.arange(len(tokens), device=tokens.device)
    # The sample that takes from each sample: easy samples write their index at their partner, others to an extra row.
    places = torch.where(mix.easy, mix.partner, torch.full_like(rows, len(rows)))
    taker = torch.cat([rows, rows[:1]]).scatter(0, places, rows)[: len(rows)]
    return _Exchange.apply(tokens, take.unsqueeze(-1), mix.partner, taker)


def top_tokens(saliency: Tensor, count: int) -> Tensor:
    """Positions `(B, count)` of the most salient patches, most salient first."""
    _check_picked(count, saliency.shape[1])
    return saliency.topk(count, dim=1).indices


def pick_tokens(tokens: Tensor, positions: Tensor) -> Tensor:
    """Tokens `(B, k, d)` of `tokens` `(B, N, d)` at `positions` `(B, k)`."""
    return tokens.gather(1, positions.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


class ScoreNet(nn.Module):
    """HTM's small classifier, on the class token or on patches pooled with one learned linear score."""

    def __init__(self, width: int, num_classes: int, *, class_token: bool, prefix: int = 0) -> None:
        super().__init__()
        self.prefix = prefix
        self.pool = None if class_token else nn.Linear(width, 1)
        self.head = nn.Linear(width, num_classes)
        for layer in (self.pool, self.head):
            if layer is not None:
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.pool is None:
            return self.head(tokens[:, 0])
        tokens = tokens[:, self.prefix :]
        weight = self.pool(tokens).softmax(1)
        return self.head((weight * tokens).sum(1))


# Settings


@register
@dataclass(frozen=True)
class HTM(HiddenMixing):
    """Horizontal TokenMixup at the input of one block: easy samples take a partner's more salient tokens.

    Args:
        block: the block at whose input tokens are exchanged.
        tau: a sample is easy if its difficulty (a tenth of the cross-entropy) is at most this.
        rho: how much more salient the partner's token must be.
        score_weight: weight of the score net's loss; `stop_gradient` keeps its gradient from the tokens.
        choose: "salient" is the method. "random_samples" mixes five random samples instead of the easy ones.
            "random_tokens" pairs at random and takes random tokens, as many as are salient on average.
        score_at: "block", or "last" to measure difficulty after the last block of an extra, unmixed pass.
        rollout: number of earlier blocks through which saliency is rolled out.
    """

    name: ClassVar[str] = "htm"
    moves_tokens: ClassVar[bool] = True
    sets_targets: ClassVar[bool] = True
    count_names: ClassVar[tuple[str, ...]] = ("htm_samples", "htm_tokens")
    block: int = 2
    tau: float = 0.2
    rho: float = 0.005
    score_weight: float = 0.001
    stop_gradient: bool = False
    choose: Literal["salient", "random_samples", "random_tokens"] = "salient"
    score_at: Literal["block", "last"] = "block"
    rollout: int = 0

    def __post_init__(self) -> None:
        check_integer("block", self.block)
        check_not_negative("tau", self.tau)
        check_not_negative("rho", self.rho)
        check_not_negative("score_weight", self.score_weight)
        check_switch("stop_gradient", self.stop_gradient)
        check_choice("choose", self.choose, ("salient", "random_samples", "random_tokens"))
        check_choice("score_at", self.score_at, ("block", "last"))
        check_count("rollout", self.rollout, least=0)

    def plan(self, reader: "Reader") -> Plan:
        reader.need_attention("htm")
        block = reader.resolve_patches(self.block)
        _check_rollout(self.rollout, block, reader)
        return Plan(mixed=frozenset([block]), layers=frozenset(range(block - self.rollout, block)))

    @property
    def needs(self) -> Needs:
        return Needs(model=True, preview=self.score_at == "last", one_label=True)

    @property
    def loss_weights(self) -> Mapping[str, float]:
        return {"score": self.score_weight}

    @property
    def module_name(self) -> str:
        at = "_last" if self.score_at == "last" else ""
        return f"{self.name}{at}_{self.block}".replace("-", "last")

    def module(self, reader: "Reader | None", num_classes: int) -> nn.Module:
        assert reader is not None
        block = reader.block(reader.resolve_patches(self.block))
        width, class_token, prefix = block.width, block.class_token, block.prefix
        if self.score_at == "last":
            width, class_token, prefix = reader.width, reader.readout == "class", reader.prefix
        return ScoreNet(width, num_classes, class_token=class_token, prefix=prefix)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        if self.choose == "random_samples":
            return {"easy": torch.randperm(frame.batch, generator=generator) < RANDOM_SAMPLES}
        if self.choose == "random_tokens":
            rows, columns = frame.grids[self.block]
            noise = torch.rand(frame.batch, rows * columns, generator=generator)
            return {"pairs": random_derangement(frame.batch, generator=generator), "noise": noise}
        return {}

    def actor(self, reader: "Reader", values: Values, module: nn.Module | None) -> "Horizontal":
        assert module is not None
        return Horizontal(self, reader, values, module)

    def demonstrated(self) -> "HTM":
        return replace(self, tau=ALWAYS_EASY)


@register
@dataclass(frozen=True)
class VTM(HiddenMixing):
    """Vertical TokenMixup: adds the most salient tokens of every earlier block to the keys and values of one block.

    In models with stages, these are the earlier blocks of the same stage, whose tokens have the same width.

    Args:
        block: the block whose keys and values grow.
        tokens: number of tokens from each earlier block (the paper's kappa).
        choose: "salient" is the method; "random" takes random tokens.
        rollout: number of earlier blocks through which each saliency is rolled out, at most as many as there are.
    """

    name: ClassVar[str] = "vtm"
    adds_tokens: ClassVar[bool] = True
    block: int = 2
    tokens: int = 5
    choose: Literal["salient", "random"] = "salient"
    rollout: int = 0

    def __post_init__(self) -> None:
        check_integer("block", self.block)
        check_count("tokens", self.tokens)
        check_choice("choose", self.choose, ("salient", "random"))
        check_count("rollout", self.rollout, least=0)

    def plan(self, reader: "Reader") -> Plan:
        reader.need_attention("vtm")
        block = reader.resolve_patches(self.block)
        if block == 0:
            raise ValueError(
                "vertical mixing at block 0 has no earlier block to take tokens from; use block 1 or later"
            )
        at = reader.block(block)
        if at.no_bank is not None:
            raise ValueError(f"vertical mixing cannot act at block {block} of this {reader.name}: {at.no_bank}")
        earlier = frozenset(_same_stage(reader, block))
        if not earlier:
            raise ValueError(
                f"vertical mixing at block {block} of this {reader.name} has no earlier block of the same stage to "
                "take tokens from, and those of other stages have another width; use a later block"
            )
        plan = Plan(bank=frozenset([block]), tokens=earlier)
        if self.choose == "random":
            return plan
        if self.rollout:
            return plan | Plan(layers=earlier)
        return plan | Plan(saliency=earlier)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        if frame.grids:
            _check_picked(self.tokens, math.prod(frame.grids[self.block]))
        if self.choose == "salient":
            return {}
        rows, columns = frame.grids[self.block]
        shape = (self.block % len(frame.grids), frame.batch, rows * columns)
        return {"noise": torch.rand(shape, generator=generator)}

    def actor(self, reader: "Reader", values: Values, module: nn.Module | None) -> "Vertical":
        return Vertical(self, reader, values)


# Actors: one per batch


class Horizontal(Actor):
    """Performs HTM on one batch. If there is a `preview`, difficulty is measured on it."""

    settings: HTM
    module: nn.Module

    def __init__(self, settings: HTM, reader: "Reader", values: Values, module: nn.Module) -> None:
        super().__init__(settings, reader, values, module)
        self.saliency: Tensor | None = None
        self.scored: Tensor | None = None
        self.incoming: Tensor | None = None
        self.decision: HorizontalMix | None = None
        self.entered: Tensor | None = None

    def at_input(self, index: int, tokens: Tensor, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The mixed tokens `(B, N, C)` of a block that was called with `args` and `kwargs`."""
        if index != self.block:
            return tokens
        if self.decision is None:
            block = self.reader.block(index)
            with torch.no_grad():
                flow = block.attend(block.from_tokens(tokens, args[0]), args[1:], kwargs)
            self._decide(tokens, tape, flow)
            self.entered = tokens.detach()
        check_replay(tokens, self.entered)
        assert self.decision is not None
        return exchange_tokens(tokens, self.decision, prefix=self.reader.block(index).prefix)

    def _decide(self, tokens: Tensor, tape: Tape, flow: Flow) -> None:
        settings = self.settings
        self.scored = tokens if self.preview is None else self.preview
        self.incoming = tape.targets
        assert self.incoming is not None
        with torch.no_grad():
            flows = [*(tape.layers[b] for b in range(self.block - settings.rollout, self.block)), flow]
            saliency = rollout_saliency(flows, class_token=self.reader.block(self.block).class_token)
            if settings.choose == "random_samples":
                easy = self.values["easy"]
            else:
                easy = sample_difficulty(self.module(self.scored), self.incoming) <= settings.tau
            if settings.choose == "random_tokens":
                self.decision = self._random_tokens(saliency, easy)
            else:
                self.decision = horizontal_mix(saliency, easy, rho=settings.rho)
            self.saliency = saliency
            share = 1 - self.decision.own
            tape.targets = mix_targets(self.incoming, self.decision.partner, share)
        forget_casts()

    def _random_tokens(self, saliency: Tensor, easy: Tensor) -> HorizontalMix:
        partner = torch.where(easy, self.values["pairs"], torch.arange(len(easy), device=easy.device))
        salient = take_salient(saliency, partner, easy, self.settings.rho).sum()
        count = (salient / easy.sum().clamp_min(1)).round()
        rank = self.values["noise"].argsort(1).argsort(1)
        take = (rank < count) & easy.unsqueeze(1)
        return HorizontalMix(easy, partner, take, own_weight(saliency, partner, take))

    def losses(self) -> dict[str, Tensor]:
        """The score net's loss, computed outside the blocks so that checkpointing does not run it twice."""
        if self.scored is None or self.incoming is None:
            return {}
        tokens = self.scored.detach() if self.settings.stop_gradient else self.scored
        return {"score": self.settings.score_weight * soft_cross_entropy(self.module(tokens), self.incoming)}

    def counts(self) -> dict[str, Tensor]:
        """The fraction of easy samples, and the fraction of all tokens that was taken.

        Fractions can be averaged over batches and processes.
        """
        if self.decision is None:
            return {}
        return {"htm_samples": self.decision.easy.float().mean(), "htm_tokens": self.decision.take.float().mean()}

    @property
    def exchange(self) -> Exchange | None:
        return None if self.decision is None else Exchange(self.decision.partner, self.decision.take)

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        if self.saliency is None:
            return ()
        grid, words = evidence.frame.grids[self.block], ("own saliency", "partner's saliency")
        return tuple(Shown(word, on_grid(row, grid)) for word, row in zip(words, self.saliency, strict=False))

    def at_rate(self, rate: float) -> HTM:
        assert self.scored is not None and self.incoming is not None
        difficulty = sample_difficulty(self.module(self.scored), self.incoming)
        return replace(self.settings, tau=float(difficulty.float().quantile(rate)))


class Vertical(Actor):
    """Performs VTM on one batch."""

    settings: VTM

    def __init__(self, settings: VTM, reader: "Reader", values: Values) -> None:
        super().__init__(settings, reader, values)
        self.sources = _same_stage(reader, self.block)
        self.positions: list[Tensor] | None = None
        self.entered: Tensor | None = None

    def at_input(self, index: int, tokens: Tensor, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if index == self.block:
            if self.entered is None:
                self.entered = tokens.detach()
            check_replay(tokens, self.entered)
        return tokens

    def bank(self, index: int, tape: Tape) -> Tensor | None:
        if index != self.block:
            return None
        if self.positions is None:
            with torch.no_grad():
                self.positions = [
                    top_tokens(self._saliency(b, tape), self.settings.tokens) + self.reader.block(b).prefix
                    for b in self.sources
                ]
                if index in tape.plan.carry:
                    taken = zip(self.sources, self.positions, strict=True)
                    shares = [tape.share_before(b, self.reader).gather(1, p) for b, p in taken]
                    others = [tape.bank_share[index]] if index in tape.bank_share else []  # from another VTM
                    tape.bank_share[index] = torch.cat([*others, *shares], dim=1)
        taken = zip(self.sources, self.positions, strict=True)
        return torch.cat([pick_tokens(tape.tokens[b], p) for b, p in taken], dim=1)

    def bank_places(self, index: int) -> Tensor:
        assert self.positions is not None
        return torch.cat(self.positions, dim=1)

    def bank_length(self, index: int, tape: Tape) -> int:
        return self.settings.tokens * len(self.sources) if index == self.block else 0

    def _saliency(self, index: int, tape: Tape) -> Tensor:
        if self.settings.choose == "random":
            return self.values["noise"][index]
        if self.settings.rollout:
            first = max(self.sources[0], index - self.settings.rollout)
            flows = [tape.layers[b] for b in range(first, index + 1)]
            return rollout_saliency(flows, class_token=self.reader.block(index).class_token)
        return tape.saliency[index]

    @property
    def borrowed(self) -> Tensor | None:
        if self.positions is None:
            return None
        assert self.entered is not None
        prefix = self.reader.block(self.block).prefix
        taken = torch.cat(self.positions, dim=1) - prefix
        counts = taken.new_zeros(len(taken), self.entered.shape[1] - prefix)
        return counts.scatter_add_(1, taken, torch.ones_like(taken))

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        if not evidence.tape.saliency:
            return ()
        block = max(evidence.tape.saliency)
        grid = evidence.frame.grids[block]
        return (Shown(f"saliency, block {block}", on_grid(evidence.tape.saliency[block][0], grid)),)


def _same_stage(reader: "Reader", block: int) -> list[int]:
    """The earlier blocks of the same stage."""
    return [index for index in range(block) if reader.block(index).stage == reader.block(block).stage]


def check_replay(tokens: Tensor, entered: Tensor | None) -> None:
    """Raises an error if checkpointing reruns a block of another batch, to which the decision does not apply."""
    if torch.compiler.is_compiling() or entered is None or tokens.data_ptr() == entered.data_ptr():
        return
    if tokens.shape != entered.shape or not torch.allclose(tokens, entered, rtol=1e-2, atol=1e-2):
        raise RuntimeError(
            "activation checkpointing reran a block of an earlier batch; with htm or vtm, run backward for each mixed "
            "batch before mixing the next"
        )


def _check_picked(count: int, patches: int) -> None:
    if count > patches:
        raise ValueError(f"cannot pick {count} tokens out of {patches} patches; reduce tokens")


def _check_rollout(rollout: int, block: int, reader: "Reader") -> None:
    if rollout > block or reader.block(block - rollout).stage != reader.block(block).stage:
        raise ValueError(
            f"saliency at block {block} cannot be rolled out through {rollout} earlier blocks of the same stage; "
            "reduce rollout"
        )
