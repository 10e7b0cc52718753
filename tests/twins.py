"""How shares move through models with merges and convolutions, in plain steps and without the library's readers.

A `Twin` says how attention maps lie on the tokens, what share each token has at first, and what happens to shares
before and after the attention of a block. Shares are `(B, N)`, prefix tokens first.
"""

from typing import Any

import torch
from torch import Tensor

import dense


class Twin:
    """A sequence of equal blocks; a family overrides what differs."""

    prefix = 0
    reads_class = False
    final = 16  # patches after the last block

    def maps(self, model: Any, watched: list[Tensor]) -> list[Tensor]:
        """The attention `(B, H, queries, N)` of each block."""
        return watched

    def rows(self, number: int) -> Tensor | None:
        """The query that stands for each token of a block that merges tokens."""
        return None

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        """The shares `(B, h, w)` of the first patches, from those of the pixels."""
        raise NotImplementedError

    def enter(self, model: Any, number: int, share: Tensor) -> Tensor:
        """The shares at the input of a block."""
        return share

    def leave(self, model: Any, number: int, carried: Tensor, share: Tensor | None) -> Tensor:
        """The shares after a block, from those that attention carries and, if the residual counts, those before it."""
        return carried if share is None else (carried + share) / 2

    def read(self, share: Tensor) -> Tensor:
        return share[:, 0] if self.reads_class else share[:, self.prefix :].mean(1)


def as_grid(share: Tensor) -> Tensor:
    side = int(share.shape[1] ** 0.5)
    return share.reshape(len(share), side, side)


def convolved(grid: Tensor, conv: Any, padding: int) -> Tensor:
    """Means under the kernel of a convolution, weighted by its absolute weights; what lies outside does not count.

    `padding` is that above and to the left.
    """
    weight, stride = conv.weight.detach().abs().mean((0, 1)), conv.stride[0]
    side, kernel = grid.shape[-1], len(weight)
    out = grid.new_zeros(len(grid), -(-side // stride), -(-side // stride))
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            total = 0.0
            for a in range(kernel):
                for b in range(kernel):
                    row, column = i * stride - padding + a, j * stride - padding + b
                    if 0 <= row < side and 0 <= column < side:
                        out[:, i, j] += weight[a, b] * grid[:, row, column]
                        total += float(weight[a, b])
            out[:, i, j] /= total
    return out


class PiT(Twin):
    prefix, reads_class, final = 1, True, 4

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        return dense.under_kernel(pixels, 8, 4, 0)

    def enter(self, model: Any, number: int, share: Tensor) -> Tensor:
        if number not in (2, 3):
            return share
        return torch.cat([share[:, :1], dense.under_kernel(as_grid(share[:, 1:]), 3, 2, 1).flatten(1)], dim=1)


class Twins(Twin):
    final = 64

    def maps(self, model: Any, watched: list[Tensor]) -> list[Tensor]:
        cells = [dense.even_cells(16, 4), dense.even_cells(8, 2)]
        return [
            dense.spread_windows(watched[0].flatten(0, 1), (16, 16), (4, 4), (0, 0), False),
            dense.spread_cells(watched[1], (16, 16), (cells[0], cells[0])),
            dense.spread_windows(watched[2].flatten(0, 1), (8, 8), (3, 3), (0, 0), False),  # padded to 9 x 9
            dense.spread_cells(watched[3], (8, 8), (cells[1], cells[1])),
        ]

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        return dense.under_kernel(pixels, 4, 4, 0)

    def enter(self, model: Any, number: int, share: Tensor) -> Tensor:
        return dense.merge_cells(as_grid(share)).flatten(1) if number == 2 else share


class TinyViT(Twin):
    final = 16

    def maps(self, model: Any, watched: list[Tensor]) -> list[Tensor]:
        layout = [((8, 8), (3, 3)), ((8, 8), (3, 3)), ((4, 4), (4, 4)), ((4, 4), (4, 4))]  # 8 x 8 is padded to 9 x 9
        return [dense.spread_windows(each, *sizes, (0, 0), False) for each, sizes in zip(watched, layout, strict=True)]

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        grid = convolved(pixels, model.patch_embed.conv1.conv, 1)
        grid = convolved(grid, model.patch_embed.conv2.conv, 1)
        for block in model.stages[0].blocks:
            grid = (convolved(grid, block.conv2.conv, 1) + grid) / 2
        return convolved(grid, model.stages[1].downsample.conv2.conv, 1)

    def enter(self, model: Any, number: int, share: Tensor) -> Tensor:
        if number != 2:
            return share
        return convolved(as_grid(share), model.stages[2].downsample.conv2.conv, 1).flatten(1)

    def leave(self, model: Any, number: int, carried: Tensor, share: Tensor | None) -> Tensor:
        block = model.stages[1 + number // 2].blocks[number % 2]
        return convolved(as_grid(super().leave(model, number, carried, share)), block.local_conv.conv, 1).flatten(1)


def spread_strided(maps: Tensor, side: int, size: int) -> Tensor:
    """Attention between tokens at equal distances, `size` along each side, as `(B, H, N, N)`."""
    gap = side // size
    maps = maps.unflatten(0, (-1, gap * gap))
    dense_maps = maps.new_zeros(len(maps), maps.shape[2], side * side, side * side)
    for group in range(gap * gap):
        places = []
        for cell in range(size * size):
            row, column = cell // size * gap + group // gap, cell % size * gap + group % gap
            places.append(row * side + column)
        for i, query in enumerate(places):
            for j, key in enumerate(places):
                dense_maps[:, :, query, key] = maps[:, group, :, i, j]
    return dense_maps


class MaxViT(Twin):
    """With weights of TensorFlow, strided convolutions pad only below and to the right."""

    final = 64

    def maps(self, model: Any, watched: list[Tensor]) -> list[Tensor]:
        spread = []
        for number, side in enumerate((16, 16, 8, 8)):
            if number % 2 == 0:
                spread.append(dense.spread_windows(watched[number], (side, side), (4, 4), (0, 0), False))
            else:
                spread.append(spread_strided(watched[number], side, 4))
        return spread

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        grid = convolved(convolved(pixels, model.stem.conv1, 0), model.stem.conv2, 1)
        return self._mobile(grid, model.stages[0].blocks[0].conv)

    def _mobile(self, grid: Tensor, block: Any) -> Tensor:
        return (convolved(grid, block.conv2_kxk, 0) + dense.merge_cells(grid)) / 2

    def enter(self, model: Any, number: int, share: Tensor) -> Tensor:
        return self._mobile(as_grid(share), model.stages[1].blocks[0].conv).flatten(1) if number == 2 else share


def cells(side: int) -> Tensor:
    """The 2 x 2 cell of each token of a grid."""
    return torch.tensor([row // 2 * (side // 2) + column // 2 for row in range(side) for column in range(side)])


class Merging(Twin):
    """Blocks that merge 2 x 2 tokens, by number the side of their grid; `sides` are those of all blocks."""

    merging: dict[int, int]
    sides: tuple[int, ...]

    def rows(self, number: int) -> Tensor | None:
        if number not in self.merging:
            return None
        places = cells(self.merging[number])
        return torch.cat([torch.arange(self.prefix), places + self.prefix])

    def enter(self, model: Any, number: int, share: Tensor) -> Tensor:
        patches = share[:, self.prefix :]
        if patches.shape[1] == self.sides[number] ** 2:
            return share
        return self._joined(share, dense.merge_cells(as_grid(patches)))  # the block before was left out

    def leave(self, model: Any, number: int, carried: Tensor, share: Tensor | None) -> Tensor:
        if share is not None and number in self.merging:
            share = self._joined(share, self.pooled(as_grid(share[:, self.prefix :])))
        return super().leave(model, number, carried, share)

    def pooled(self, grid: Tensor) -> Tensor:
        """The shares that the residual connection carries to the merged tokens."""
        return dense.merge_cells(grid)

    def _joined(self, share: Tensor, patches: Tensor) -> Tensor:
        return torch.cat([share[:, : self.prefix], patches.flatten(1)], dim=1)


class CoAtNet(Merging):
    """The first attention of a stage acts on tokens that are means of 2 x 2 cells."""

    final, merging, sides = 16, {0: 16, 2: 8}, (16, 8, 8, 4)

    def maps(self, model: Any, watched: list[Tensor]) -> list[Tensor]:
        spread = list(watched)
        for number, side in self.merging.items():
            halves = dense.even_cells(side, 2)
            spread[number] = dense.spread_cells(watched[number], (side, side), (halves, halves))
        return spread

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        grid = convolved(convolved(pixels, model.stem.conv1, 1), model.stem.conv2, 1)
        halved = dense.merge_cells(grid)
        return (convolved(halved, model.stages[0].blocks[0].conv2_kxk, 1) + halved) / 2


class LeViT(Merging):
    """Merging attention has no residual connection."""

    final, merging, sides = 16, {2: 8}, (8, 8, 8, 4)

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        for conv in (model.stem.conv1, model.stem.conv2, model.stem.conv3):
            pixels = convolved(pixels, conv.linear, 1)
        return pixels

    def leave(self, model: Any, number: int, carried: Tensor, share: Tensor | None) -> Tensor:
        return super().leave(model, number, carried, None if number == 2 else share)


class Hiera(Merging):
    """The model keeps its tokens in another order: the first of every cell, then the second, and so on."""

    final, merging, sides = 16, {2: 16, 4: 8}, (16, 16, 16, 8, 8, 4)

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        return dense.under_kernel(pixels, 7, 4, 3)

    def maps(self, model: Any, watched: list[Tensor]) -> list[Tensor]:
        order = model.unroll(torch.arange(256).view(1, 256, 1)).flatten().tolist()
        spread = []
        for number, maps in enumerate(watched):
            side, after = self.sides[number], order
            if number in self.merging:
                after = [
                    order[place] // side // 2 * (side // 2) + order[place] % side // 2
                    for place in range(len(order) // 4)
                ]
            units = maps if maps.ndim == 5 else maps.unsqueeze(2)  # (B, H, units, queries, keys)
            count, queries, keys = units.shape[2:]
            full = maps.new_zeros(*units.shape[:2], len(after), len(order))
            for unit in range(count):
                for i in range(queries):
                    for j in range(keys):
                        full[:, :, after[i * count + unit], order[j * count + unit]] = units[:, :, unit, i, j]
            spread.append(full)
            order = after
        return spread


class MViT(Merging):
    """Keys are means under a kernel of three, with a stride; so is the residual connection of merging blocks."""

    final, merging, sides = 16, {2: 8}, (8, 8, 8, 4)
    strides = (4, 4, 2, 2)

    def __init__(self, prefix: int) -> None:
        self.prefix, self.reads_class = prefix, prefix > 0

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        return dense.under_kernel(pixels, 7, 4, 3)

    def pooled(self, grid: Tensor) -> Tensor:
        return dense.under_kernel(grid, 3, 2, 1)

    def maps(self, model: Any, watched: list[Tensor]) -> list[Tensor]:
        spread = []
        for maps, side, stride in zip(watched, self.sides, self.strides, strict=True):
            reach = [range(max(i * stride - 1, 0), min(i * stride + 2, side)) for i in range(-(-side // stride))]
            patches = dense.spread_cells(maps[..., self.prefix :], (side, side), (reach, reach))
            spread.append(torch.cat([maps[..., : self.prefix], patches], dim=-1))
        return spread


class VOLO(Twin):
    """Outlook attention: every token is in up to four windows of 3 x 3 with a stride of two, whose results add up."""

    prefix, reads_class = 1, True

    def start(self, model: Any, pixels: Tensor) -> Tensor:
        conv = model.patch_embed.conv
        grid = convolved(convolved(convolved(pixels, conv[0], 3), conv[3], 1), conv[6], 1)
        return dense.under_kernel(grid, 4, 4, 0)

    def enter(self, model: Any, number: int, share: Tensor) -> Tensor:
        return dense.merge_cells(as_grid(share)).flatten(1) if number == 2 else share

    def maps(self, model: Any, watched: list[Tensor]) -> list[Tensor]:
        return [outlooked(maps, 8) if maps.ndim == 5 else maps for maps in watched]


def outlooked(maps: Tensor, side: int) -> Tensor:
    full = maps.new_zeros(*maps.shape[:2], side * side, side * side)
    for window in range(maps.shape[2]):
        top, left = 2 * (window // (side // 2)) - 1, 2 * (window % (side // 2)) - 1
        for i in range(9):
            for j in range(9):
                query, key = (top + i // 3, left + i % 3), (top + j // 3, left + j % 3)
                if min(*query, *key) >= 0:
                    place = query[0] * side + query[1], key[0] * side + key[1]
                    full[:, :, place[0], place[1]] += maps[:, :, window, i, j]
    return full / full.mean(1).sum(-1)[:, None, :, None]


TWINS: dict[str, Twin] = {
    "VOLO": VOLO(),
    "PiT": PiT(),
    "Twins": Twins(),
    "TinyViT": TinyViT(),
    "MaxViT": MaxViT(),
    "CoAtNet": CoAtNet(),
    "LeViT": LeViT(),
    "Hiera": Hiera(),
    "MViT v2": MViT(prefix=0),
}
