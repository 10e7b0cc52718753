"""A mixing decision (partner, mask, source) and how to apply it to pixels, tokens and targets."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitmix._checks import check_choice

__all__ = [
    "Frame",
    "Grid",
    "Mix",
    "Moves",
    "Pixels",
    "area_share",
    "cell_pixels",
    "check_label_range",
    "check_tensor",
    "expand_mask",
    "initial_token_share",
    "label_rows",
    "mix_images",
    "mix_targets",
    "mix_tokens",
    "resample_mask",
    "smooth_rows",
]

Grid = tuple[int, int]


@dataclass(frozen=True)
class Frame:
    """What a mask needs to know about a batch.

    Attributes:
        size: height and width in pixels.
        grid: rows and columns on which token masks are drawn, if the model has tokens.
        dtype: of shares and targets.
        grids: rows and columns of the tokens in each block whose queries are patches.
        no_grid: why a model with tokens has no grid for images of this size.
    """

    batch: int
    size: Grid
    grid: Grid | None = None
    dtype: torch.dtype = torch.float32
    grids: tuple[Grid, ...] = ()
    no_grid: str = ""

    @property
    def final_grid(self) -> Grid | None:
        """Rows and columns of the final tokens."""
        return self.grids[-1] if self.grids else self.grid


class Pixels(NamedTuple):
    """Which pixel of an image each pixel of the mixed image shows.

    `row` and `column` are long and broadcast to `(B, H, W)`. Where a row is -1, the image shows nothing.
    """

    row: Tensor
    column: Tensor


class Moves(NamedTuple):
    """Where a mask takes pixels from, if it moves or resizes them.

    Attributes:
        partner: which of the partner's pixels is pasted here.
        own: which pixel of the original image is here; None means the same pixel.
        zoom: `(B,)` the area of what is pasted relative to its area in the partner; None means 1.
    """

    partner: Pixels
    own: Pixels | None = None
    zoom: Tensor | None = None


@dataclass(frozen=True)
class Mix:
    """The mixing decision of one batch.

    Attributes:
        partner: `(B,)` long, the batch index of the sample that each sample is mixed with.
        mask: `(B or 1, h, w)`, the partner's part of each cell: bool if cells are pasted whole, float in 0..1 if they
            are blended. `(h, w)` may be pixels, tokens or `(1, 1)`; a leading 1 applies to the whole batch.
        source: `(B, h * w)` long, which of the partner's cells is pasted here; None means the same cell.
        rows: `(B, K)` labels of what is pasted, if it is not the partner alone.
        moves: which pixels are shown, if they moved in a way that `source` does not describe.
    """

    partner: Tensor
    mask: Tensor
    source: Tensor | None = None
    rows: Tensor | None = None
    moves: Moves | None = None


def mix_images(images: Tensor, mask: Tensor, partner: Tensor, source: Tensor | None = None) -> Tensor:
    """Mixed images `(B, C, H, W)`; the input is not modified."""
    other = _take_rows(images, partner)
    if source is not None:
        other = _move_cells(other, source, (mask.shape[-2], mask.shape[-1]))
    weight = expand_mask(mask, (images.shape[-2], images.shape[-1])).unsqueeze(1)
    if mask.dtype == torch.bool:
        if images.requires_grad or torch.compiler.is_compiling():
            return torch.where(weight, other, images)
        return torch.where(weight, other, images, out=other)  # reuses `other`: no third copy of the batch
    if not images.is_floating_point():
        raise ValueError(f"blending images needs floating-point pixels, got {images.dtype}; convert them first")
    return torch.lerp(images, other, weight.to(images.dtype))


def mix_tokens(tokens: Tensor, mask: Tensor, partner: Tensor, *, prefix: int = 0) -> Tensor:
    """Tokens `(B, N, d)` with the patches in `mask` `(B, n)` taken from the partner; prefix tokens do not change."""
    if prefix:
        mask = torch.cat([mask.new_zeros(mask.shape[0], prefix), mask], dim=1)
    return torch.where(mask.unsqueeze(-1), tokens[partner], tokens)


def label_rows(labels: Tensor, num_classes: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Targets `(B, K)` of unmixed labels: one-hot rows of `(B,)` integers, or unchanged `(B, K)` rows."""
    check_tensor("labels", labels)
    if labels.ndim == 2 and labels.shape[1] == num_classes and labels.is_floating_point():
        return labels.to(dtype)
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        hint = ""
        if labels.ndim == 2 and labels.shape[1] == 1:
            hint = "; flatten them"
        elif labels.ndim == 2:
            right = labels.shape[1] == num_classes
            hint = "; convert them to float" if right else f"; pass num_classes={labels.shape[1]}?"
        elif labels.ndim > 2:
            hint = "; label maps are mixed by vitmix.DenseMix(method, model=model)"
        raise ValueError(
            f"labels must be (B,) integers or (B, {num_classes}) probabilities, "
            f"got {tuple(labels.shape)} {labels.dtype}{hint}"
        )
    check_label_range(labels, num_classes)
    rows = torch.zeros(labels.shape[0], num_classes, dtype=dtype, device=labels.device)
    return rows.scatter_(1, labels.long().unsqueeze(1), 1)


def check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}; use torch.as_tensor")


def check_label_range(labels: Tensor, num_classes: int) -> None:
    """Raises an error for integers outside 0..num_classes - 1, except on a GPU.

    Checking values would stall a GPU; a bad label ends in a device-side assertion there.
    """
    if labels.device.type != "cpu" or labels.is_floating_point() or torch.compiler.is_compiling() or not labels.numel():
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        raise ValueError(f"labels must lie in 0..{num_classes - 1}, got {wrong}; check num_classes={num_classes}")


def check_label_rows(labels: Tensor, one_label_for: str | None = None, hint: str = "") -> None:
    """Checks that label rows `(B, K)` lie in 0..1 and, if `one_label_for` names a part, that they sum to one."""
    spare = max(1e-3, 4 * torch.finfo(labels.dtype).eps)
    rows = labels.detach().double()
    outside = rows[~((rows >= -spare) & (rows <= 1 + spare))]
    if len(outside):
        raise ValueError(f"label rows must lie in 0..1, got {outside[0]:g}; give the probability of each class")
    sums = rows.sum(1)
    wrong = sums[(sums - 1).abs() > spare]
    if one_label_for is not None and len(wrong):
        raise ValueError(f"label rows must sum to 1 for {one_label_for}, got one that sums to {wrong[0]:g}; {hint}")


def smooth_rows(rows: Tensor, smoothing: float) -> Tensor:
    """Label smoothing: `1 - s + s/K` for the class and `s/K` for the others."""
    return rows * (1 - smoothing) + smoothing / rows.shape[1] if smoothing else rows


def mix_targets(rows: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Soft targets `(1 - share) * own + share * partner's`."""
    return torch.lerp(rows, rows[partner], share.to(rows.dtype).unsqueeze(1))


def area_share(mask: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The partner's part `(B or 1,)` of the mask's area."""
    return mask.sum((1, 2), dtype=dtype) / (mask.shape[1] * mask.shape[2])


def expand_mask(mask: Tensor, size: Grid) -> Tensor:
    """A coarse mask enlarged to `size` by repeating cells; `(1, 1)` stays, because it broadcasts."""
    rows, columns = mask.shape[-2:]
    if (rows, columns) == size or (rows, columns) == (1, 1):
        return mask
    tall, wide = _cell(size, (rows, columns))
    cells = mask[:, :, None, :, None].expand(-1, rows, tall, columns, wide)
    return cells.reshape(-1, rows * tall, columns * wide)


def resample_mask(mask: Tensor, grid: Grid, *, rule: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """A mask on another grid, `(B or 1, rows, columns)`.

    Args:
        rule: "area" averages over each cell; "nearest" takes the value at its top-left corner.
    """
    rows, columns = mask.shape[-2:]
    if (rows, columns) == (1, 1):
        return mask.expand(-1, *grid)
    if rows <= grid[0] and columns <= grid[1]:
        return expand_mask(mask, grid)
    tall, wide = _cell((rows, columns), grid)
    check_choice("rule", rule, ("area", "nearest"))
    if rule == "nearest":
        return mask[:, ::tall, ::wide]
    if mask.dtype == torch.bool:
        mask = mask.to(dtype)
    return mask.unflatten(2, (grid[1], wide)).unflatten(1, (grid[0], tall)).mean((2, 4))


def _cell(size: Grid, grid: Grid) -> Grid:
    if size[0] % grid[0] or size[1] % grid[1]:
        raise ValueError(
            f"{size[0]}x{size[1]} does not divide into a {grid[0]}x{grid[1]} grid; "
            "resize the images or choose a grid that divides them"
        )
    return size[0] // grid[0], size[1] // grid[1]


def _take_rows(images: Tensor, partner: Tensor) -> Tensor:
    if images.requires_grad or torch.compiler.is_compiling():
        return images[partner]
    # index_select alone would return channels-last batches in the default layout.
    return torch.index_select(images, 0, partner, out=torch.empty_like(images))


def cell_pixels(source: Tensor, grid: Grid, size: Grid) -> Pixels:
    """The pixels that are shown if each cell of `grid` shows the cell `source` `(B, cells)`."""
    tall, wide = _cell(size, grid)
    source = source.view(-1, *grid)
    row = torch.arange(tall, device=source.device)[None, None, :, None, None]
    column = torch.arange(wide, device=source.device)[None, None, None, None, :]
    top = (source // grid[1])[:, :, None, :, None] * tall
    left = (source % grid[1])[:, :, None, :, None] * wide
    whole = (len(source), grid[0], tall, grid[1], wide)
    return Pixels(*((start + step).expand(whole).reshape(-1, *size) for start, step in ((top, row), (left, column))))


def _move_cells(images: Tensor, source: Tensor, grid: Grid) -> Tensor:
    """Images in which each cell shows cell `source` of the same image."""
    batch, channels, height, width = images.shape
    row, column = cell_pixels(source, grid, (height, width))
    pixel = (row * width + column).reshape(batch, 1, height * width)
    moved = images.flatten(2).gather(2, pixel.expand(-1, channels, -1)).view(images.shape)
    if not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last):
        return moved.contiguous(memory_format=torch.channels_last)
    return moved


def initial_token_share(patch_share: Tensor, share: Tensor, *, prefix: int) -> Tensor:
    """Token shares `(B, prefix + n)` before the first block: prefix tokens get the image's share."""
    return torch.cat([share.unsqueeze(1).expand(-1, prefix), patch_share], dim=1)
