"""Which cells come from the partner.

A mask is made in two steps: `draw` draws numbers on the host from a `torch.Generator`; `where` builds tensors from them
on the images' device.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vitmix._checks import as_blocks, check_choice, check_fraction, check_grid, check_positive, check_switch
from vitmix._mix import Frame, Grid
from vitmix._registry import register
from vitmix.parts.base import Blocks, Evidence, Mask, Needs, Paste, Shown, Unmixed, Values

__all__ = [
    "BlockMask",
    "BoxMask",
    "ConstantMask",
    "Destination",
    "NoMask",
    "Per",
    "SalientMask",
    "ScatteredMask",
    "Source",
    "best_window",
    "beta_share",
    "box_mask",
    "boxes_around",
    "draw_blocks",
    "draw_boxes",
    "draw_scattered",
    "random_window",
    "window_region",
    "window_sums",
]

Per = Literal["batch", "sample"]
Source = Literal["max", "min", "random"]
Destination = Literal["max", "min", "random", "same"]


# Drawing


def beta_share(count: int, alpha: float, *, generator: torch.Generator | None = None) -> Tensor:
    """Shares `(count,)` from Beta(alpha, alpha)."""
    # Gamma(alpha) is Gamma(alpha + 1) * uniform ** (1 / alpha). Its logarithm does not underflow for small alpha.
    above = torch.full((count, 2), alpha + 1, dtype=torch.float64)
    gamma = torch._standard_gamma(above, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
    uniform = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    log = gamma.log() + uniform.log() / alpha
    return (log[:, 0] - log[:, 1]).sigmoid()


def draw_boxes(size: Grid, share: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """CutMix boxes `(b, 4)` around uniform centers, see `boxes_around`."""
    sides = torch.tensor(size, dtype=torch.float64)
    center = (torch.rand(len(share), 2, generator=generator, dtype=torch.float64) * sides).floor().long()
    return boxes_around(center, size, share)


def boxes_around(center: Tensor, size: Grid, share: Tensor) -> Tensor:
    """Boxes `(b, 4)` as (top, bottom, left, right), ends exclusive, of about `share` `(b,)` of the area.

    A box extends `floor(side * sqrt(share)) // 2` cells in each direction from `center` `(b, 2)` and is clipped at the
    border, as in the code of CutMix and of the other papers and in torchvision. Sides are even before clipping, so the
    area can be smaller than `share`, and is zero for very small shares.
    """
    return boxes_within(center, size, box_reach(size, share))


def box_reach(size: Grid, share: Tensor) -> Tensor:
    """How many cells `(b, 2)` a box of about `share` `(b,)` of the area extends up and down, left and right."""
    side = share.to(torch.float64).sqrt()
    return torch.stack([((cells * side).floor() / 2).floor().long() for cells in size], dim=1)


def boxes_within(center: Tensor, size: Grid, reach: Tensor) -> Tensor:
    """Boxes `(b, 4)` that extend `reach` `(b or 1, 2)` cells from `center` `(b, 2)`, clipped at the border."""
    low, high = (center - reach).clamp_min(0), center + reach
    return torch.stack([low[:, 0], high[:, 0].clamp_max(size[0]), low[:, 1], high[:, 1].clamp_max(size[1])], dim=1)


def draw_blocks(grid: Grid, wanted: Tensor, *, smallest: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """Block masks `(b, rows, columns)` bool: rectangles are added until `wanted` `(b,)` tokens are covered.

    The area of a rectangle is between `smallest` and the number of missing tokens, its aspect ratio log-uniform in
    [0.3, 1 / 0.3]. It is accepted if it adds at least one token and not too many. Ten failures in a row end a mask
    before it is complete.
    """
    # NumPy, because torch is several times slower for many operations on few numbers.
    rows, columns = grid
    row, column = np.arange(rows), np.arange(columns)
    mask = np.zeros((len(wanted), rows, columns), dtype=bool)
    left_to_do, failures = wanted.detach().cpu().long().numpy().copy(), np.zeros(len(wanted), dtype=np.int64)
    largest = max(rows - 1, 1), max(columns - 1, 1)  # less than a side, except on a grid with one row or column
    while (active := (left_to_do > 0) & (failures < 10)).any():
        for uniform in torch.rand(8, len(wanted), 4, generator=generator, dtype=torch.float64).transpose(1, 2).numpy():
            area = np.maximum(smallest + uniform[0] * (left_to_do - smallest), 0)
            aspect = np.exp((2 * uniform[1] - 1) * math.log(1 / 0.3))
            height, width = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
            top = np.floor(uniform[2] * (rows - height + 1))[:, None]
            left = np.floor(uniform[3] * (columns - width + 1))[:, None]
            in_rows = (row >= top) & (row < top + height[:, None])
            in_columns = (column >= left) & (column < left + width[:, None])
            added = in_rows[:, :, None] & in_columns[:, None] & ~mask
            count = added.sum((1, 2))
            accepted = active & (height <= largest[0]) & (width <= largest[1]) & (count > 0) & (count <= left_to_do)
            mask |= added & accepted[:, None, None]
            left_to_do -= count * accepted
            failures = np.where(accepted, 0, failures + 1)
            active &= (left_to_do > 0) & (failures < 10)
    return torch.from_numpy(mask)


def draw_scattered(grid: Grid, wanted: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Masks `(b, rows, columns)` bool of exactly `wanted` `(b,)` single tokens at random positions."""
    noise = torch.rand(len(wanted), grid[0] * grid[1], generator=generator)
    rank = noise.argsort(1).argsort(1)
    return (rank < wanted.unsqueeze(1)).view(-1, *grid)


# Building


def box_mask(boxes: Tensor, size: Grid) -> Tensor:
    """Masks `(b, H, W)` bool that are True inside `boxes` `(b, 4)`."""
    row = torch.arange(size[0], device=boxes.device)
    column = torch.arange(size[1], device=boxes.device)
    top, bottom, left, right = boxes.unsqueeze(-1).unbind(1)
    in_rows = (row >= top) & (row < bottom)
    in_columns = (column >= left) & (column < right)
    return in_rows.unsqueeze(2) & in_columns.unsqueeze(1)


def window_sums(scores: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Sum of `scores` `(B, rows, columns)` over the window that starts at each cell; NaN if it leaves the grid.

    `height` and `width` are `(B or 1,)` tensors, so that another window size does not cause a recompilation.
    """
    batch, rows, columns = scores.shape
    exact = torch.float32 if scores.device.type == "mps" else torch.float64  # MPS has no float64
    integral = torch.nn.functional.pad(scores.to(exact).cumsum(1).cumsum(2), (1, 0, 1, 0))
    top = torch.arange(rows, device=scores.device).expand(batch, rows)
    left = torch.arange(columns, device=scores.device).expand(batch, columns)
    bottom, right = top + height.unsqueeze(1), left + width.unsqueeze(1)

    def corner(row: Tensor, column: Tensor) -> Tensor:
        picked = integral.gather(1, row.clamp_max(rows).unsqueeze(2).expand(-1, -1, columns + 1))
        return picked.gather(2, column.clamp_max(columns).unsqueeze(1).expand(-1, rows, -1))

    sums = corner(bottom, right) - corner(top, right) - corner(bottom, left) + corner(top, left)
    inside = (bottom <= rows).unsqueeze(2) & (right <= columns).unsqueeze(1)
    return sums.masked_fill(~inside, float("nan"))


def best_window(scores: Tensor, height: Tensor, width: Tensor, *, largest: bool) -> Tensor:
    """Top-left corner `(B, 2)` of the window with the largest or smallest total score; the first one if tied."""
    sums = window_sums(scores, height, width).flatten(1)
    worst = float("-inf") if largest else float("inf")
    sums = sums.nan_to_num(nan=worst)
    index = sums.argmax(1) if largest else sums.argmin(1)
    return torch.stack([index // scores.shape[2], index % scores.shape[2]], dim=1)


def random_window(uniform: Tensor, grid: Grid, height: Tensor, width: Tensor) -> Tensor:
    """Top-left corner `(B, 2)` of a window at a uniform position, from two uniform numbers per sample."""
    room = torch.stack([grid[0] - height + 1, grid[1] - width + 1], dim=-1)
    return torch.minimum((uniform * room).long(), room - 1)


def window_region(target: Tensor, source: Tensor, height: Tensor, width: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Mask `(B, rows, columns)` of the window at `target` `(B, 2)` and the partner's cells at `source` that fill it."""
    boxes = torch.stack([target[:, 0], target[:, 0] + height, target[:, 1], target[:, 1] + width], dim=1)
    row = torch.arange(grid[0], device=target.device) + (source - target)[:, :1]
    column = torch.arange(grid[1], device=target.device) + (source - target)[:, 1:]
    # Outside the window, shifted cells can lie outside the grid; they are not used.
    row, column = row.clamp(0, grid[0] - 1), column.clamp(0, grid[1] - 1)
    return box_mask(boxes, grid), (row.unsqueeze(2) * grid[1] + column.unsqueeze(1)).flatten(1)


# Settings


@register
@dataclass(frozen=True)
class NoMask(Mask):
    """No mixing at the input."""

    name: ClassVar[str] = "none"
    mixes: ClassVar[bool] = False

    def where(self, values: Values, batch: Unmixed) -> Paste:
        return Paste(torch.zeros(1, 1, 1, dtype=torch.bool, device=batch.partner.device))


@register
@dataclass(frozen=True)
class ConstantMask(Mask):
    """Blends whole images with a share from Beta(alpha, alpha): MixUp.

    Args:
        alpha: parameter of the Beta distribution; small values blend less.
        per: "batch" draws once per batch, "sample" once per image.
    """

    name: ClassVar[str] = "constant"
    alpha: float = 0.8
    per: Per = "batch"

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_choice("per", self.per, ("batch", "sample"))

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {"share": beta_share(_count(self.per, frame), self.alpha, generator=generator).float()}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        return Paste(values["share"].view(-1, 1, 1))


@register
@dataclass(frozen=True)
class BoxMask(Mask):
    """One rectangle with an area from Beta(alpha, alpha): CutMix.

    Args:
        alpha: parameter of the Beta distribution; 1 is uniform.
        per: "batch" draws once per batch, "sample" once per image.
        aligned: draws the box on the token grid instead of on pixels.
        grid: rows and columns of that grid (default: the attached model's).
    """

    name: ClassVar[str] = "box"
    alpha: float = 1.0
    per: Per = "batch"
    aligned: bool = False
    grid: Grid | None = None

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_choice("per", self.per, ("batch", "sample"))
        check_switch("aligned", self.aligned)
        check_grid("grid", self.grid)

    def _size(self, frame: Frame) -> Grid:
        return token_grid("an aligned box", self.grid, frame) if self.aligned else frame.size

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        share = beta_share(_count(self.per, frame), self.alpha, generator=generator)
        return {"box": draw_boxes(self._size(frame), share, generator=generator)}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        return Paste(box_mask(values["box"], self._size(batch.frame)))


@register
@dataclass(frozen=True)
class BlockMask(Mask):
    """Several rectangles of tokens: TokenMix.

    Args:
        share: fraction of the tokens to take from the partner.
        alpha: if given, the share is drawn from Beta(alpha, alpha) instead.
        preset: "separate" draws blocks of at least one token; "paper" of at least a fourteenth of the tokens;
            "released" is "separate" with a fourteenth of the tokens added to the count, as in the authors' code.
        per: "batch" draws once per batch, "sample" once per image.
        grid: rows and columns of tokens (default: the attached model's).
    """

    name: ClassVar[str] = "block"
    share: float = 0.5
    alpha: float | None = None
    preset: Literal["separate", "paper", "released"] = "separate"
    per: Per = "batch"
    grid: Grid | None = None

    def __post_init__(self) -> None:
        _check_token_count(self)
        check_choice("preset", self.preset, ("separate", "paper", "released"))

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        grid = token_grid("a block mask", self.grid, frame)
        wanted = _wanted(self, grid, frame, generator)
        # Fourteen tokens on the papers' grid of 14 x 14.
        fourteenth = max(1, round(grid[0] * grid[1] / 14))
        if self.preset == "released":
            wanted = (wanted + fourteenth).clamp_max(grid[0] * grid[1])
        smallest = fourteenth if self.preset == "paper" else 1
        return {"mask": draw_blocks(grid, wanted, smallest=smallest, generator=generator)}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        return Paste(values["mask"])


@register
@dataclass(frozen=True)
class ScatteredMask(Mask):
    """Single tokens at random positions, exactly as many as wanted.

    Args:
        share: fraction of the tokens to take from the partner.
        alpha: if given, the share is drawn from Beta(alpha, alpha) instead.
        per: "batch" draws once per batch, "sample" once per image.
        grid: rows and columns of tokens (default: the attached model's).
    """

    name: ClassVar[str] = "scattered"
    share: float = 0.5
    alpha: float | None = None
    per: Per = "batch"
    grid: Grid | None = None

    def __post_init__(self) -> None:
        _check_token_count(self)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        grid = token_grid("a scattered mask", self.grid, frame)
        wanted = _wanted(self, grid, frame, generator)
        return {"mask": draw_scattered(grid, wanted, generator=generator)}

    def where(self, values: Values, batch: Unmixed) -> Paste:
        return Paste(values["mask"])


@register
@dataclass(frozen=True)
class SalientMask(Mask):
    """Pastes a window of the partner over a window of the image, both chosen by attention scores: SMMix.

    Args:
        source: which window of the partner is cut out: "max" or "min" of the summed scores, or "random".
        destination: where it is pasted: "max", "min", "random", or "same", the position of the source.
        low, high: the window has `(floor(d * rows), floor(d * columns))` tokens with d uniform in [low, high].
        sizes: "paper" for that rule, "discrete" for one of the integer heights in that range, uniformly.
        blocks: whose attention scores are averaged, numbers or "all"; `[]` draws random scores.
        per: "batch" draws the size once per batch, "sample" once per image.
    """

    name: ClassVar[str] = "salient_box"
    moves_cells: ClassVar[bool] = True
    source: Source = "max"
    destination: Destination = "min"
    low: float = 0.25
    high: float = 0.75
    sizes: Literal["paper", "discrete"] = "paper"
    blocks: Blocks = (-1,)
    per: Per = "batch"

    def __post_init__(self) -> None:
        check_choice("source", self.source, ("max", "min", "random"))
        check_choice("destination", self.destination, ("max", "min", "random", "same"))
        check_fraction("low", self.low)
        check_fraction("high", self.high)
        if self.low > self.high:
            raise ValueError(f"low must not exceed high, got {self.low} and {self.high}")
        check_choice("sizes", self.sizes, ("paper", "discrete"))
        object.__setattr__(self, "blocks", as_blocks("blocks", self.blocks))
        check_choice("per", self.per, ("batch", "sample"))

    @property
    def needs(self) -> Needs:
        scored = {self.source, self.destination} & {"max", "min"} and self.blocks
        return Needs(model=True, guide_blocks=self.blocks) if scored else Needs()

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        grid = _final_grid(frame)
        uniform = torch.rand(_count(self.per, frame), generator=generator, dtype=torch.float64)
        if self.sizes == "discrete":
            first, last = math.floor(self.low * grid[0]), math.floor(self.high * grid[0])
            side = (first + (uniform * (last - first + 1)).floor()) / grid[0]
        else:
            side = self.low + uniform * (self.high - self.low)
        # An empty or a full window would leave one of the two regions without tokens. The 1e-9 compensates the rounding
        # of k / rows * rows, which must floor to k.
        window = [(side * cells + 1e-9).floor().long().clamp(1, max(cells - 1, 1)) for cells in grid]
        return {
            "window": torch.stack(window, 1),
            "place": torch.rand(2, frame.batch, 2, generator=generator),
            "scores": torch.rand(frame.batch, *grid, generator=generator) if not self.blocks else torch.empty(0),
        }

    def where(self, values: Values, batch: Unmixed) -> Paste:
        grid, partner = _final_grid(batch.frame), batch.partner
        height, width = values["window"].unbind(1)
        scores = batch.guidance.scores if self.blocks else values["scores"]

        theirs = scores[partner] if scores is not None else None
        source = _corner(self.source, theirs, values["place"][0], grid, height, width)
        target = source
        if self.destination != "same":
            target = _corner(self.destination, scores, values["place"][1], grid, height, width)
        return Paste(*window_region(target, source, height.expand(len(partner)), width.expand(len(partner)), grid))

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        scores = evidence.guidance.scores
        if scores is None:
            return ()
        partner = int(evidence.mix.partner[0])
        return Shown("own attention", scores[0]), Shown("partner's attention", scores[partner])


def _corner(place: str, scores: Tensor | None, uniform: Tensor, grid: Grid, height: Tensor, width: Tensor) -> Tensor:
    if place == "random" or scores is None:
        return random_window(uniform, grid, height, width)
    return best_window(scores, height, width, largest=place == "max")


def _count(per: Per, frame: Frame) -> int:
    return 1 if per == "batch" else frame.batch


def _check_token_count(mask: BlockMask | ScatteredMask) -> None:
    check_fraction("share", mask.share)
    if mask.alpha is not None:
        check_positive("alpha", mask.alpha)
    check_choice("per", mask.per, ("batch", "sample"))
    check_grid("grid", mask.grid)


def _wanted(mask: BlockMask | ScatteredMask, grid: Grid, frame: Frame, generator: torch.Generator | None) -> Tensor:
    count = _count(mask.per, frame)
    if mask.alpha is None:
        share = torch.full((count,), mask.share, dtype=torch.float64)
    else:
        share = beta_share(count, mask.alpha, generator=generator)
    return (share * (grid[0] * grid[1]) + 1e-9).floor().long()  # 0.29 * 100 is 28.999...


def _final_grid(frame: Frame) -> Grid:
    grid, size = frame.final_grid, frame.size
    if grid is None:
        raise ValueError("a salient box needs a model's token grid; attach the mixer to a model with attention")
    if frame.no_grid:  # cells of the image would be no patches
        raise ValueError(f"a salient box is drawn on the model's tokens: {frame.no_grid}")
    if grid == (1, 1):
        raise ValueError(
            f"a salient box needs several final tokens, but images of {size[0]}x{size[1]} give only one; enlarge them"
        )
    if size[0] % grid[0] or size[1] % grid[1]:
        raise ValueError(
            f"a salient box needs images that divide into the model's {grid[0]}x{grid[1]} final tokens, "
            f"got {size[0]}x{size[1]}; resize them"
        )
    return grid


def token_grid(what: str, given: Grid | None, frame: Frame) -> Grid:
    grid = given or frame.grid
    if grid is None and frame.no_grid:
        raise ValueError(f"{what} is drawn on the model's tokens: {frame.no_grid}")
    if grid is None:
        raise ValueError(
            f"{what} needs a token grid; attach the mixer to a model that has one, or pass grid=(rows, columns), in a "
            "text grid=[rows, columns]"
        )
    return grid
