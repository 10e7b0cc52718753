"""Attention statistics of selected blocks, read from outside while fused attention keeps running.

The readers of `vitmix.attention.readers` find each block's flow while it runs. The recorded statistics go to the slots
of a `Tape`, one per batch. Without a tape, the hooks do nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix.attention.flow import Flow
from vitmix.attention.readers import BlockReader, Reader, logits_of, read_model

__all__ = ["AttentionTap", "BlockHooks", "BlockSet", "COMPILED", "Phase", "Plan", "Recorder", "Tape", "recorded"]

BlockSet = frozenset[int]
#: What to do about a compiled model: its graph, also that of another model of the class, may be older than the hooks.
COMPILED = "attach before a compiled model first runs, or call torch.compiler.reset() after attaching"


@dataclass(frozen=True)
class Plan:
    """What to record in a forward pass, by block.

    Attributes:
        class_row, column_mean: blocks whose statistic is stored.
        saliency: blocks whose saliency is stored: the class row, or the column mean if no class token is read.
        carry: blocks whose attention carries the token shares; `residual` averages them with the incoming shares.
        layers: blocks whose flow is stored, for rollout.
        tokens: blocks whose input tokens are stored.
        final: whether the tokens after the final norm are stored.
        logits: whether the model's logits are stored, without gradient.
        bank: blocks at which extra keys and values may be appended (vertical TokenMixup).
        mixed: blocks whose input tokens may be replaced (horizontal TokenMixup).
    """

    class_row: BlockSet = frozenset()
    column_mean: BlockSet = frozenset()
    saliency: BlockSet = frozenset()
    carry: BlockSet = frozenset()
    residual: bool = True
    layers: BlockSet = frozenset()
    tokens: BlockSet = frozenset()
    final: bool = False
    logits: bool = False
    bank: BlockSet = frozenset()
    mixed: BlockSet = frozenset()

    def __or__(self, other: "Plan") -> "Plan":
        merged = {f.name: getattr(self, f.name) | getattr(other, f.name) for f in fields(self) if f.name != "residual"}
        return Plan(residual=self.residual and other.residual, **merged)

    @property
    def attention(self) -> BlockSet:
        """The blocks whose flow is needed."""
        return self.class_row | self.column_mean | self.saliency | self.carry | self.layers


class Phase(Enum):
    """The phase of a tape.

    OPEN: it records the forward pass of the batch.
    PASSING: other images run through the model in evaluation mode; the tape waits for the batch.
    CLOSED: it records nothing more. If activation checkpointing runs the blocks again in the backward pass, the stored
    decisions are applied again.
    """

    OPEN = 0
    PASSING = 1
    CLOSED = 2


@dataclass
class Tape:
    """The record of one forward pass. Slots are overwritten, never appended to.

    `token_share[-1]` is the share of each token at the input, `token_share[i]` the share after block i. `image_share`
    is the share of the whole image, for tokens that join later; `label_share` is the partner's part of the target.
    `actors` are the hidden mixings of this batch. A `brief` tape stores only those shares of the last block that the
    classifier reads. A `one_pass` tape raises an error for a second pass and for a number of images other than `batch`.
    `entered` is the last block that ran.
    """

    plan: Plan
    actors: tuple[Any, ...] = ()
    targets: Tensor | None = None
    size: Grid = (0, 0)
    brief: bool = False
    image_share: Tensor | None = None
    class_row: dict[int, Tensor] = field(default_factory=dict)
    column_mean: dict[int, Tensor] = field(default_factory=dict)
    saliency: dict[int, Tensor] = field(default_factory=dict)
    token_share: dict[int, Tensor] = field(default_factory=dict)
    layers: dict[int, Flow] = field(default_factory=dict)
    tokens: dict[int, Tensor] = field(default_factory=dict)
    bank_share: dict[int, Tensor] = field(default_factory=dict)
    final: Tensor | None = None
    logits: Tensor | None = None
    label_share: Tensor | None = None
    one_pass: bool = False
    batch: int = 0  # ignored in compiled models, which would recompile for each batch size
    entered: int = -1
    phase: Phase = Phase.OPEN

    @property
    def closed(self) -> bool:
        return self.phase is Phase.CLOSED

    def close(self) -> None:
        self.phase = Phase.CLOSED

    @property
    def ran(self) -> bool:
        """Whether the model ran; False if nothing was to be recorded."""
        return self.entered >= 0 or self.final is not None or self.logits is not None

    @property
    def asks(self) -> bool:
        """Whether the pass has to be recorded or changed."""
        # By length: torch.compile up to 2.11 cannot evaluate the truth value of a tuple.
        plan = self.plan
        return len(self.actors) > 0 or len(plan.attention | plan.tokens) > 0 or plan.final or plan.logits

    def is_other(self, images: int | None) -> bool:
        """Whether the number of images, if known, shows that a pass is not the batch."""
        return self.one_pass and images is not None and images != self.batch

    def takes(self, index: int, images: int | None, training: bool) -> bool:
        """Whether the pass that enters a block is the batch; other images may pass in evaluation mode."""
        other = self.is_other(images)
        self.phase = Phase.PASSING if other and not training else Phase.OPEN
        if self.phase is Phase.PASSING:
            return False
        if index <= self.entered:
            self.refuse_second_pass(training)
            return False
        if other:
            raise RuntimeError(
                f"the model got {images} images, but the mixed batch has {self.batch}; run it on the whole mixed batch "
                "at once, or mix smaller batches"
            )
        self.entered = index
        return True

    def refuse_second_pass(self, training: bool) -> None:
        """Closes the tape before a pass in evaluation mode. In training mode, the pass is ambiguous: an error."""
        if training:
            raise RuntimeError(
                "the model ran twice between mixing a batch and its loss, so the pass of the mixed batch is ambiguous; "
                "run other images after the loss or before mixing"
            )
        self.close()

    def share_before(self, block: int, reader: Reader) -> Tensor:
        """The token shares `(B, N)` at the input of a block; `block` = number of blocks means after the last."""
        last = block - 1
        while last >= 0 and last not in self.plan.carry:
            last -= 1
        share = recorded(self.token_share, "carried share", last)
        assert self.image_share is not None
        for index in range(last + 1, min(block, reader.last) + 1):
            share = reader.arrive(index, share, self.image_share, self.size)
            if index < block:
                share = reader.pass_by(index, share, self.size)
        return share

    def __reduce__(self) -> tuple[Any, ...]:
        # A tape belongs to one batch. Its tensors have autograd graphs, which cannot be copied.
        return Tape, (Plan(),)


class Recorder:
    """The hooks on one model for a plan, and the tape they currently write to."""

    def __init__(self, reader: Reader, plan: Plan) -> None:
        self.reader = reader
        self.tape: Tape | None = None
        self._handles: list[Any] = []
        try:
            self._install(plan)
        except BaseException:
            self.remove()
            raise

    def _install(self, plan: Plan) -> None:
        add = self._handles.append
        indices = sorted(plan.attention | plan.tokens | plan.bank | plan.mixed)
        if indices:
            self._handles += self.reader.hooks()
        for index in indices:
            block = self.reader.block(index)
            hooks = BlockHooks(self, block, index)
            add(block.module.register_forward_pre_hook(hooks.enter, with_kwargs=True))
            if index in plan.bank:
                add(block.norm.register_forward_pre_hook(hooks.extend))
                add(block.attention.register_forward_hook(hooks.shorten))
                self._handles += block.bank_hooks()
            if index in plan.attention:
                self._handles += block.listen(hooks)
        if plan.final:
            add(self.reader.final_module.register_forward_hook(self._final))
        if plan.logits:
            whole = self.reader.model if self.reader.whole is None else self.reader.whole
            add(whole.register_forward_hook(self._logits))

    @property
    def installed(self) -> bool:
        """Whether there is any hook."""
        return bool(self._handles)

    def remove(self) -> None:
        for handle in reversed(self._handles):
            handle.remove()
        self._handles.clear()
        self.tape = None

    def active(self) -> Tape | None:
        """The tape that hooks use now: an open one, or a closed one whose blocks run again in the backward pass."""
        tape = self.tape
        if tape is None or not tape.closed:
            return tape
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            return None
        return tape

    def _final(self, module: nn.Module, args: Any, output: Tensor) -> None:
        tape = self.active()
        if tape is None or not tape.plan.final or tape.phase is not Phase.OPEN:
            return
        if tape.is_other(_count((output,))) and not module.training:
            return
        if tape.final is not None:
            tape.refuse_second_pass(module.training)
        else:
            tape.final = self.reader.final_tokens(output)

    def _logits(self, module: nn.Module, args: Any, output: Any) -> None:
        tape = self.active()
        if tape is None or not tape.plan.logits or tape.phase is not Phase.OPEN or tape.closed:
            return
        logits = logits_of(output).detach()
        if tape.is_other(_count((logits,))) and not module.training:
            return
        if tape.logits is None:  # blocks refuse a second pass
            tape.logits = logits


class BlockHooks:
    """The hooks of one block. They are methods, not closures, so that a deep copy of the model uses its own hooks."""

    def __init__(self, recorder: Recorder, block: BlockReader, index: int) -> None:
        self.recorder, self.block, self.index = recorder, block, index

    @property
    def training(self) -> bool:
        return self.block.module.training

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tape = self.recorder.active()
        if tape is None:
            return None
        if tape.one_pass and tape.asks and not tape.closed:
            if not tape.takes(self.index, _count(args), self.training):
                return None
        if not (tape.actors or self.index in tape.plan.tokens):
            return None  # unchanged, to keep the memory layout of the tokens
        tokens = self.block.to_tokens(args[0])
        if self.training:
            for actor in tape.actors:
                tokens = actor.at_input(self.index, tokens, tape, args, kwargs)
                actor.acted = actor.acted or actor.block == self.index
        if self.index in tape.plan.tokens and not tape.closed:
            tape.tokens[self.index] = tokens
        return (self.block.from_tokens(tokens, args[0]), *args[1:]), kwargs

    def extend(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        tape, self.block.bank_places = self.recorder.active(), None
        if tape is None or not self.training:
            return None
        tokens, places = args[0], []
        for actor in tape.actors:
            bank = actor.bank(self.index, tape)
            if bank is not None:
                tokens = torch.cat([tokens, bank], dim=1)
                places.append(actor.bank_places(self.index))
        self.block.bank_places = torch.cat(places, dim=1) if places else None
        return (tokens, *args[1:])

    def shorten(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        tape, self.block.bank_places = self.recorder.active(), None
        extra = 0 if tape is None else self._extra(tape)
        if not extra:
            return None
        tokens = output[0] if isinstance(output, tuple) else output  # with or without attention weights
        tokens = tokens[:, : tokens.shape[1] - extra]
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    def _extra(self, tape: Tape) -> int:
        return sum(actor.bank_length(self.index, tape) for actor in tape.actors) if self.training else 0

    def wanted(self) -> bool:
        tape = self.recorder.active()
        return tape is not None and tape.phase is Phase.OPEN and self.index in tape.plan.attention

    def receive(self, flow: Flow) -> None:
        tape = self.recorder.active()
        assert tape is not None
        plan, index = tape.plan, self.index
        extra = self._extra(tape)
        if extra:
            flow = flow.with_bank(extra, tape.bank_share.get(index))
        if index in plan.layers:
            tape.layers[index] = flow
        if index in plan.class_row:
            tape.class_row[index] = flow.class_row()
        if index in plan.column_mean:
            tape.column_mean[index] = flow.column_mean()
        if index in plan.saliency:
            tape.saliency[index] = self.block.saliency(flow)
        if index in plan.carry:
            reader = self.recorder.reader
            share = tape.share_before(index, reader)
            last = tape.brief and index == reader.last and reader.readout == "class"
            rows = reader.read_tokens if last else None
            tape.token_share[index] = flow.update(share, residual=plan.residual, rows=rows)


class AttentionTap:
    """Records attention statistics of selected blocks inside a `with` block.

    Example::

        with AttentionTap(model, class_row=[-1]) as tap:
            logits = model(images)
        tap.class_row(-1)  # (B, n)

    Each forward pass overwrites the previous one. The statistics stay readable after the block.

    Args:
        class_row, column_mean: blocks whose statistic is recorded.
        saliency: blocks whose class row is recorded, or the column mean if the classifier reads no class token.
        attention: blocks whose attention matrix or flow is available, for analysis; computed on request.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        class_row: Iterable[int] = (),
        column_mean: Iterable[int] = (),
        saliency: Iterable[int] = (),
        attention: Iterable[int] = (),
    ) -> None:
        self.reader = read_model(model)
        self.reader.need_attention("an attention map")
        self._plan = Plan(
            class_row=frozenset(map(self.reader.resolve, class_row)),
            column_mean=frozenset(map(self.reader.resolve_patches, column_mean)),
            saliency=frozenset(map(self.reader.resolve, saliency)),
            layers=frozenset(map(self.reader.resolve, attention)),
        )
        for block in self._plan.class_row:
            if not (self.reader.block(block).prefix and getattr(self.reader.model, "has_class_token", True)):
                raise ValueError(
                    f"block {block} of this {self.reader.name} has no class token; use column_mean instead"
                )
        self._tape = Tape(self._plan)
        self._recorder: Recorder | None = None

    def __enter__(self) -> "AttentionTap":
        self._recorder = Recorder(self.reader, self._plan)
        self._recorder.tape = self._tape
        return self

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            self._recorder.remove()

    def class_row(self, block: int) -> Tensor:
        """Attention `(B, n)` of the class token to the patches."""
        return self._slot(self._tape.class_row, "class row", block)

    def column_mean(self, block: int) -> Tensor:
        """Mean attention `(B, n)` that each patch receives."""
        return recorded(self._tape.column_mean, "column mean", self.reader.resolve_patches(block))

    def saliency(self, block: int) -> Tensor:
        """Saliency `(B, n)` of the patches: the class row or the column mean."""
        return self._slot(self._tape.saliency, "saliency", block)

    def attention(self, block: int) -> Tensor:
        """Attention `(B, H, N, N)` after softmax."""
        return self.flow(block).maps()

    def flow(self, block: int) -> Flow:
        """The flow of a block, which acts on one number per token, for rollout."""
        return self._slot(self._tape.layers, "attention", block)

    def _slot(self, slots: dict[int, Any], what: str, block: int) -> Any:
        return recorded(slots, what, self.reader.resolve(block))


def _count(args: tuple[Any, ...]) -> int | None:
    """Number of images that enter a block; None in a compiled model, which would recompile for each number."""
    return len(args[0]) if args and not torch.compiler.is_compiling() else None


def recorded(slots: dict[int, Any], what: str, block: int) -> Any:
    """The value of a slot. Raises an error if the forward pass did not write it."""
    if block not in slots:
        raise RuntimeError(
            f"the {what} of block {block} was not recorded; run the model on the mixed batch first, request it when "
            f"attaching, and {COMPILED}"
        )
    return slots[block]
