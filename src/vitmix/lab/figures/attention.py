"""Where a model looks: attention of each block and head, attention rollout, aligned label maps."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix._mixing import MixedBatch, Mixing
from vitmix.attention.flow import Flow
from vitmix.attention.readers import Reader
from vitmix.attention.tap import AttentionTap
from vitmix.parts.base import on_grid


def chosen_blocks(depth: int, wanted: Sequence[int] | None, *, most: int = 12) -> list[int]:
    """The requested blocks, counted from either end (default: all, or `most` evenly spaced blocks of a deep model)."""
    if wanted is None:
        return sorted({round(step * (depth - 1) / max(min(most, depth) - 1, 1)) for step in range(min(most, depth))})
    for block in wanted:
        if not -depth <= block < depth:
            raise ValueError(f"block {block} is out of range: the model has {depth} blocks, 0..{depth - 1}")
    return sorted({block % depth for block in wanted})


def block_attention(model: nn.Module, images: Tensor, blocks: Sequence[int] | None = None) -> dict[int, Tensor]:
    """Attention `(B, h, w)` of blocks on their token grids: of the class token, otherwise received."""
    reader = AttentionTap(model).reader
    chosen = chosen_blocks(reader.depth, blocks)
    with AttentionTap(model, saliency=chosen) as tap, torch.no_grad():
        model(images)
    grids = reader.grids(_size(images))
    return {block: tap.saliency(block).float().view(-1, *grids[block]) for block in chosen}


def head_attention(model: nn.Module, images: Tensor, block: int = -1) -> Tensor:
    """The same `(B, H, h, w)` for each head of one block."""
    with AttentionTap(model, attention=[block]) as tap, torch.no_grad():
        model(images)
    index = tap.reader.resolve(block)
    grid = tap.reader.grids(_size(images))[index]
    class_token = tap.reader.block(index).class_token
    return tap.flow(index).head_saliency(class_token=class_token).float().unflatten(-1, grid)


def attention_rollout(model: nn.Module, images: Tensor) -> Tensor:
    """Attention rollout `(B, h, w)` on the grid of the first block; see `roll_out`."""
    reader = AttentionTap(model).reader
    with AttentionTap(model, attention=range(reader.depth)) as tap, torch.no_grad():
        model(images)
        return roll_out(reader, [tap.flow(block) for block in range(reader.depth)], _size(images))


def roll_out(reader: Reader, flows: Sequence[Flow], size: Grid) -> Tensor:
    """The part `(B, h, w)` of each of the first block's patches in what the classifier reads of the last block.

    Starts at the class token, or at the mean of the patches if the last block has none, and goes back through each
    block as `(A + I) / 2` and through each merge of tokens as a mean. So the rollout is the derivative of TL-Align's
    target with respect to the shares of the input tokens.
    """
    weight = flows[-1].asked(class_token=reader.block(len(flows) - 1).class_token)
    for index in reversed(range(len(flows))):
        weight = (flows[index].pull(weight) + weight) / 2
        if index:
            weight = _before_arrival(reader, index, weight, flows[index - 1].tokens, size)
    grid = reader.grids(size)[0]
    return weight[:, reader.block(0).prefix :].view(-1, *grid)


def _before_arrival(reader: Reader, index: int, weight: Tensor, tokens: int, size: Grid) -> Tensor:
    """Weights on the input tokens of a block as weights on the output tokens of the previous block."""
    joining = weight.new_zeros(len(weight))
    entering = weight.new_zeros(len(weight), tokens)
    back = torch.func.vjp(lambda share: reader.arrive(index, share, joining, size), entering)[1]
    return back(weight)[0]


@dataclass(frozen=True)
class LabelMap:
    """The partner's part of each patch `(h, w)` after a block (-1: at the input), and of the token that is read."""

    block: int
    grid: Tensor
    read: float


def label_maps(mixing: Mixing, batch: MixedBatch, blocks: Sequence[int] | None = None) -> list[LabelMap]:
    """TL-Align's token shares of the first image of a batch that the model has run on."""
    if batch.mixer.share.name != "aligned" or mixing.reader is None:
        raise ValueError(
            f"{batch.mixer} does not carry labels through the network; label maps need aligned shares: use tl_align, "
            "or mix(mask=..., share=aligned)"
        )
    reader, shares = mixing.reader, batch.tape.token_share
    grids = reader.grids(batch.frame.size)
    found = []
    for block in [-1, *chosen_blocks(reader.depth, blocks)]:
        if block in shares:
            share = shares[block][0].float()
            grid = reader.embed_grid(batch.frame.size) if block < 0 else grids[block]
            patches = on_grid(share, grid)
            by_class = reader.block(max(block, 0)).class_token
            found.append(LabelMap(block, patches, float(share[0] if by_class else patches.mean())))
    return found


def _size(images: Tensor) -> Grid:
    return images.shape[2], images.shape[3]
