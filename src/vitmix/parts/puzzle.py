"""Puzzle Mix: blocks of both images chosen by a minimum cut of their saliency, then moved to where they are visible."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vitmix._checks import check_count, check_fraction, check_not_negative, check_positive, check_switch
from vitmix._mix import Frame, Grid, Moves, Pixels
from vitmix._registry import register
from vitmix.parts.base import Composed, Evidence, Mask, Needs, Shown, Unmixed, Values
from vitmix.parts.masks import beta_share
from vitmix.parts.peak import check_normalization

__all__ = ["Costs", "PuzzleMask", "block_saliency", "move_blocks", "puzzle_costs", "puzzle_mix", "transport_plan"]


class Costs(NamedTuple):
    """The energy of a labeling: `unary` `(B, n, n, L)`, and weights of squared differences `down` and `right`.

    Label j takes the part j / (L - 1) of each block from the partner.
    """

    unary: Tensor
    down: Tensor
    right: Tensor


def block_saliency(saliency: Tensor, grid: Grid) -> Tensor:
    """The part `(B, *grid)` of each image's saliency `(B, H, W)` that lies in each block."""
    blocks = _pooled(saliency.unsqueeze(1), (saliency.shape[1] // grid[0], saliency.shape[2] // grid[1])).squeeze(1)
    return blocks / blocks.sum((1, 2), keepdim=True).clamp_min(torch.finfo(blocks.dtype).tiny)


def puzzle_costs(
    saliency: Tensor,
    images: Tensor,
    partner: Tensor,
    share: float,
    *,
    blocks: int,
    labels: int,
    beta: float,
    gamma: float,
    eta: float,
    neighborhood: int,
) -> Costs:
    """Puzzle Mix's costs of taking a block from the partner.

    The saliency that is lost, plus the jump in color at borders between blocks, minus the log-probability of the label
    if each of L - 1 coins takes the partner with probability `share`.

    Args:
        saliency: `(B, H, W)`.
        images: `(B, C, H, W)` with colors in 0..1.
        share: the partner's part that the prior prefers.
    """
    mine = block_saliency(saliency.double(), (blocks, blocks))
    lost = [mine[partner], mine]  # if the original, or the partner, is taken
    b = beta / (16 * blocks)
    jumps = _jumps(images.double(), partner, blocks, neighborhood)
    edges = []
    for side, jump in enumerate(jumps):
        jump = b * gamma * jump  # (B, 2, 2, ...): who is before and who is after the border, 0 the original
        before, after = _ends(lost[0].shape, side)
        for taken in (0, 1):
            lost[taken] = lost[taken].clone()
            lost[taken][before] += (jump[:, taken, 0] + jump[:, taken, 1]) / 2
            lost[taken][after] += (jump[:, 0, taken] + jump[:, 1, taken]) / 2
        edge = (jump[:, 0, 1] + jump[:, 1, 0] - jump[:, 0, 0] - jump[:, 1, 1]) / 2 + b
        edges.append(edge.clamp_min(0))  # below 0 for colors outside 0..1 alone; the cut would not be minimal then
    parts = [j / (labels - 1) for j in range(labels)]
    chance = [math.comb(labels - 1, j) * (1 - share) ** (labels - 1 - j) * share**j for j in range(labels)]
    prior = [-eta / blocks**2 * math.log(each + 1e-8) for each in chance]
    unary = [(1 - part) * lost[0] + part * lost[1] + cost for part, cost in zip(parts, prior, strict=True)]
    return Costs(torch.stack(unary, -1), *edges)


def _ends(shape: torch.Size, side: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The blocks before and after each border, below each other (side 0) or next to each other (side 1)."""
    whole = [slice(None)] * len(shape)
    before, after = list(whole), list(whole)
    before[1 + side], after[1 + side] = slice(None, -1), slice(1, None)
    return tuple(before), tuple(after)


def _jumps(images: Tensor, partner: Tensor, blocks: int, neighborhood: int) -> tuple[Tensor, Tensor]:
    """Mean color differences across the borders of blocks, `(B, 2, 2, n - 1, n)` and `(B, 2, 2, n, n - 1)`.

    The two axes of length 2 say whether the original (0) or the partner (1) is before and after the border.
    """
    high, wide = images.shape[2] // blocks, images.shape[3] // blocks
    cell = (math.gcd(min(neighborhood, high), high), math.gcd(min(neighborhood, wide), wide))
    own = _pooled(images, cell)
    pair = [own, own[partner]]
    rows, columns = high // cell[0], wide // cell[1]
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for before in pair:
        for after in pair:
            down = (before[:, :, rows - 1 : -1 : rows] - after[:, :, rows::rows]).abs().mean(1)
            right = (before[:, :, :, columns - 1 : -1 : columns] - after[:, :, :, columns::columns]).abs().mean(1)
            found[0].append(down.unflatten(2, (blocks, columns)).mean(3))
            found[1].append(right.unflatten(1, (blocks, rows)).mean(2))
    down, right = (torch.stack(each, 1).unflatten(1, (2, 2)) for each in found)
    return down, right


def transport_plan(saliency: Tensor, visible: Tensor, *, cost: float) -> Tensor:
    """Which block goes where, `(B, N, N)` bool [from, to]: salient blocks move to near places that are visible.

    In each of n rounds every block bids for its cheapest place. A place goes to the lowest cost; losers pay 1 more
    there. The winners of the last round move.

    Args:
        saliency: `(B, n, n)` the part of each block.
        visible: `(B, n, n)` bool, the places that the mask shows.
        cost: of a move, times the squared distance as a part of the squared side.
    """
    side = saliency.shape[1]
    place = torch.arange(side * side, device=saliency.device)
    row, column = place // side, place % side
    distance = (row.unsqueeze(1) - row).square() + (column.unsqueeze(1) - column).square()
    total = cost * (distance.to(torch.float32) / max(side - 1, 1) ** 2)  # float32, as the authors have it
    total = total - saliency.flatten(1).unsqueeze(2) * visible.flatten(1).unsqueeze(1)
    won = torch.zeros_like(total, dtype=torch.bool)
    for _ in range(side):
        wanted = total.argmin(2, keepdim=True)
        bids = torch.zeros_like(total).scatter(2, wanted, total.gather(2, wanted))  # zero without a bid
        wins = bids.argmin(1).gather(1, wanted.squeeze(2)) == place
        won = torch.zeros_like(won).scatter(2, wanted, wins.unsqueeze(2))
        total = total.scatter_add(2, wanted, (~wins).to(total.dtype).unsqueeze(2))
    return won


def move_blocks(images: Tensor, plan: Tensor) -> Tensor:
    """Images `(B, C, H, W)` with blocks moved as `plan` `(B, N, N)` says; places without a block are zero."""
    side = math.isqrt(plan.shape[1])
    high, wide = images.shape[2] // side, images.shape[3] // side
    blocks = images.unflatten(3, (side, wide)).unflatten(2, (side, high)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    origin, filled = plan.int().argmax(1), plan.any(1)
    moved = blocks.gather(1, origin[:, :, None, None, None].expand_as(blocks))
    moved = torch.where(filled[:, :, None, None, None], moved, 0)
    return moved.unflatten(1, (side, side)).permute(0, 3, 1, 4, 2, 5).reshape(images.shape)


def _pooled(images: Tensor, cell: Grid) -> Tensor:
    return functional.avg_pool2d(images, cell)


def _enlarged(grid: Tensor, size: Grid) -> Tensor:
    return grid.repeat_interleave(size[0] // grid.shape[1], 1).repeat_interleave(size[1] // grid.shape[2], 2)


def puzzle_labels(costs: Costs) -> Tensor:
    """The labels `(B, n, n)` of the smallest energy, found on the host."""
    from vitmix.parts.cuts import batch_labels

    found = batch_labels(*(each.detach().cpu().numpy() for each in costs))
    return torch.from_numpy(found).to(costs.unary.device)


def _numbered(pixel: Tensor, width: int) -> Pixels:
    """Rows and columns of pixels that are numbered row by row; -1 has row -1."""
    return Pixels(torch.div(pixel, width, rounding_mode="floor").long(), (pixel % width).long())


@torch.library.custom_op("vitmix::puzzle_mix", mutates_args=())
def puzzle_mix(
    images: Tensor,
    saliency: Tensor,
    partner: Tensor,
    share: Tensor,
    blocks: Tensor,
    colors: list[float],
    weights: list[float],
    sizes: list[int],
    transport: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Puzzle Mix's mixed images, the partner's part `(B, H, W)` of each pixel, and which pixels are shown.

    The last is `(2, B, H, W)`, the number of the pixel of the original and of the partner; -1 for places without any.

    This is a custom operator, so that `torch.compile` does not trace it: the cut runs on the host.

    Args:
        share, blocks: scalars, the drawn share and number of blocks per side.
        colors: mean and standard deviation of the three channels.
        weights: beta, gamma, eta and the cost of transport.
        sizes: number of labels, neighborhood, and pixels of a transported block (0 for whole blocks).
    """
    channels = images.shape[1]
    mean, std = (saliency.new_tensor(each).view(-1, 1, 1) for each in (colors[:channels], colors[channels:]))
    count, size = int(blocks), (images.shape[2], images.shape[3])
    costs = puzzle_costs(
        saliency,
        images * std + mean,
        partner,
        float(share),
        blocks=count,
        labels=sizes[0],
        beta=weights[0],
        gamma=weights[1],
        eta=weights[2],
        neighborhood=sizes[1],
    )
    part = puzzle_labels(costs).to(saliency.dtype) / (sizes[0] - 1)
    pair = [images, images[partner]]
    number = torch.arange(size[0] * size[1], dtype=torch.int32, device=images.device).view(1, 1, *size)
    shown = torch.empty(2, len(images), *size, dtype=torch.int32, device=images.device)
    shown[:] = number[0]
    if transport:
        cell = sizes[2] if 0 < sizes[2] < size[0] // count and size[0] == size[1] else size[0] // count
        grid = size[0] // cell
        mine, fine = block_saliency(saliency, (grid, grid)), _enlarged(part, (grid, grid))
        salient, visible = (mine, mine[partner]), (fine < 1, fine > 0)
        plans = [transport_plan(each, seen, cost=weights[3]) for each, seen in zip(salient, visible, strict=True)]
        pair = [move_blocks(each, plan) for each, plan in zip(pair, plans, strict=True)]
        for image, plan in enumerate(plans):
            shown[image] = move_blocks((number + 1).expand(len(images), 1, *size), plan).squeeze(1) - 1
    mask = _enlarged(part, size)
    weight = mask.to(images.dtype).unsqueeze(1)
    return ((1 - weight) * pair[0] + weight * pair[1]).contiguous(), mask, shown


@puzzle_mix.register_fake
def _(
    images: Tensor,
    saliency: Tensor,
    partner: Tensor,
    share: Tensor,
    blocks: Tensor,
    colors: list[float],
    weights: list[float],
    sizes: list[int],
    transport: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    shown = torch.empty(2, *saliency.shape, dtype=torch.int32, device=saliency.device)
    return images.new_empty(images.shape), saliency.new_empty(saliency.shape), shown


@register
@dataclass(frozen=True)
class PuzzleMask(Mask):
    """Blocks chosen by an exact minimum cut of both images' gradient saliency, then transported: Puzzle Mix.

    Args:
        alpha: the share that the prior prefers is drawn from Beta(alpha, alpha), once per batch.
        blocks: numbers of blocks per side, one is drawn per batch; those that do not divide the image are left out.
        labels: number of steps of a block, from the original (0) to the partner; with 3, a block can be half of each.
        beta: weight of smooth borders; `gamma` is the part of it for jumps in color.
        eta: weight of the prior.
        neighborhood: pixels over which colors are averaged.
        transport: whether hidden salient blocks move to visible places; `cost` is the price of distance.
        cell: pixels of a transported block, if it is smaller and images are square (default: the blocks of the mask).
        mean, std: with which the images were normalized (default: as in the training's or the model's configuration, or
            else ImageNet's).
    """

    name: ClassVar[str] = "puzzle"
    alpha: float = 1.0
    blocks: tuple[int, ...] = (2, 4, 8, 16)
    labels: int = 3
    beta: float = 1.2
    gamma: float = 0.5
    eta: float = 0.2
    neighborhood: int = 4
    transport: bool = True
    cost: float = 0.8
    cell: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        if not isinstance(self.blocks, tuple) or not self.blocks:
            raise ValueError(f"blocks must be numbers such as [2, 4, 8], got {self.blocks!r}")
        for each in self.blocks:
            check_count("blocks", each, least=2)
        check_count("labels", self.labels, least=2)
        check_not_negative("beta", self.beta)
        check_fraction("gamma", self.gamma)
        check_not_negative("eta", self.eta)
        check_count("neighborhood", self.neighborhood)
        check_switch("transport", self.transport)
        check_not_negative("cost", self.cost)
        if self.cell is not None:
            check_count("cell", self.cell)
        check_normalization(self.mean, self.std)

    @property
    def moves_pixels(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether blocks are transported."""
        return self.transport

    @property
    def needs(self) -> Needs:
        return Needs(guide_gradient=True)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        height, width = frame.size
        fitting = [each for each in self.blocks if height % each == 0 and width % each == 0]
        if not fitting:
            raise ValueError(
                f"images of {height}x{width} do not divide into {' or '.join(map(str, self.blocks))} blocks per side; "
                "resize them, or set blocks"
            )
        for block in (height // each for each in fitting if height == width and self.transport):
            if self.cell and self.cell < block and block % self.cell:
                raise ValueError(
                    f"cells of {self.cell} pixels do not divide blocks of {block}; set cell to a divisor, or leave it "
                    "out"
                )
        chosen = fitting[int(torch.randint(len(fitting), (), generator=generator))]
        return {"share": beta_share(1, self.alpha, generator=generator)[0].float(), "blocks": torch.tensor(chosen)}

    def where(self, values: Values, batch: Unmixed) -> Composed:
        images, saliency = batch.images, batch.guidance.gradient
        assert saliency is not None
        mean, std = self.mean or batch.normalization.mean, self.std or batch.normalization.std
        if images.shape[1] != len(mean):
            raise ValueError(f"mean and std are of {len(mean)} channels, but images have {images.shape[1]}; set both")
        mixed, mask, shown = puzzle_mix(
            images,
            saliency.to(batch.frame.dtype),
            batch.partner,
            values["share"],
            values["blocks"],
            [*mean, *std],
            [self.beta, self.gamma, self.eta, self.cost],
            [self.labels, self.neighborhood, self.cell or 0],
            self.transport,
        )
        own, other = (_numbered(each, images.shape[3]) for each in shown)
        return Composed(mask, mixed, moves=Moves(other, own) if self.transport else None)

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        saliency, partner = evidence.guidance.gradient, int(evidence.mix.partner[0])
        assert saliency is not None
        return Shown("own gradient", saliency[0].float()), Shown("partner's gradient", saliency[partner].float())
