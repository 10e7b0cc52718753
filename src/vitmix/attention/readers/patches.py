"""The token grid of models that cannot be read: masks need no more of a model than the size of its patches."""

import math
from typing import Any

from torch import nn

from vitmix._mix import Grid
from vitmix.attention.readers.base import Reader, check_divides

__all__ = ["cell_of", "grid_by_patches", "rest_of_patches"]


def grid_by_patches(model: nn.Module, size: Grid) -> Grid | None:
    """Rows and columns of the tokens on which masks are drawn; None if the model has no patches that can be found."""
    cell = cell_of(model)
    if cell is None:
        return None
    check_divides(size, cell)
    return size[0] // cell[0], size[1] // cell[1]


def rest_of_patches(reader: Reader, size: Grid) -> str | None:
    """Why token masks cannot be drawn if images leave pixels at the right or the bottom that no patch has."""
    first = next((each for each in reader.model.modules() if isinstance(each, nn.Conv2d)), None)
    patch = None if first is None or first.padding not in ((0, 0), "valid") else _by_convolution(first)
    if patch is None or not (size[0] % patch[0] or size[1] % patch[1]):
        return None
    rows, columns = reader.embed_grid(size)
    seen = rows * patch[0], columns * patch[1]
    if seen[0] >= size[0] and seen[1] >= size[1]:  # padded
        return None
    return (
        f"images of {size[0]}x{size[1]} leave a rest beside patches of {patch[0]}x{patch[1]}; use a model for images "
        f"of {seen[0]}x{seen[1]}"
    )


def cell_of(model: nn.Module) -> Grid | None:
    """Height and width in pixels of such a token: a patch, or in pyramids a token of the second-to-last stage."""
    first = next((each for each in model.modules() if isinstance(each, nn.Conv2d) and each.in_channels <= 4), None)
    for find in (_by_feature_info, _by_config, _by_patch_size, _by_convolution):
        for module in (model, *model.modules()):
            cell = find(module)
            if cell is not None and (find is _by_feature_info or first is None or _can_be_patches(cell, first)):
                return cell
    return None


def _can_be_patches(cell: Grid, first: nn.Conv2d) -> bool:
    """Whether tokens of this size can come out of the first convolution: "patch size" also names other things.

    CvT calls its kernels so, which overlap, and MobileViT the patches of its features.
    """
    strided, kernel = _pair(first.stride), _pair(first.kernel_size)
    assert strided is not None and kernel is not None
    begins_stem = kernel != strided and max(strided) < 4
    whole = not (cell[0] % strided[0] or cell[1] % strided[1])
    return whole and not (begins_stem and cell == strided)


def _by_feature_info(module: Any) -> Grid | None:
    """timm: the reduction of each stage."""
    info = getattr(module, "feature_info", None)
    if not isinstance(info, list) or not all(isinstance(each, dict) and "reduction" in each for each in info):
        return None
    stages = sorted({each["reduction"] for each in info})
    return _pair(stages[-2] if len(stages) > 1 else stages[0]) if stages else None


def _by_config(module: Any) -> Grid | None:
    """Hugging Face: the configuration, whose stages each halve the grid."""
    config: Any = getattr(module, "config", None)
    strides = getattr(config, "strides", None)
    if isinstance(strides, list | tuple) and len(strides) > 1 and all(isinstance(each, int) for each in strides):
        return _pair(math.prod(strides[:-1]))
    patch = _pair(getattr(config, "patch_size", None))
    if patch is None:
        return None
    depths = getattr(config, "depths", None)
    merges = max(len(depths) - 2, 0) if isinstance(depths, list | tuple) else 0
    return patch[0] << merges, patch[1] << merges


def _by_patch_size(module: Any) -> Grid | None:
    return _pair(getattr(module, "patch_size", None))


def _by_convolution(module: nn.Module) -> Grid | None:
    """A convolution over patches that do not overlap."""
    if not isinstance(module, nn.Conv2d) or module.kernel_size != module.stride or module.kernel_size == (1, 1):
        return None
    return _pair(module.kernel_size) if module.in_channels <= 4 else None  # of pixels


def _pair(side: Any) -> Grid | None:
    sides = (side, side) if isinstance(side, int) else side
    if not isinstance(sides, list | tuple) or len(sides) != 2:
        return None
    height, width = sides
    whole = all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in sides)
    return (height, width) if whole else None
