"""Stand-ins for a teacher's maps, to find out whether a method works or what it costs."""

import torch
from torch import Tensor

from vitmix._mixing import Mixing


def stand_in_maps(mixing: Mixing, images: Tensor) -> Tensor | None:
    """Uniform maps of the kind that a method needs; None if it needs none."""
    needs = [mixer.needs for mixer in mixing.mixer.mixers]
    if any(each.label_maps for each in needs):
        grid, classes = mixing.frame(images).final_grid, mixing.mixer.num_classes
        assert grid is not None
        return torch.full((len(images), classes, *grid), 1 / classes, device=images.device)
    if any(each.maps for each in needs):
        return torch.ones(len(images), *images.shape[2:], device=images.device)
    return None
