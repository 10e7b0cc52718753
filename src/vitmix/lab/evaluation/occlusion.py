"""Changes of pixels that ignore the prediction: noise, and patches dropped at random or by saliency."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vitmix._checks import check_fraction, check_not_negative
from vitmix._mix import Grid
from vitmix._sampling import generator_for
from vitmix.attention.readers import read_model
from vitmix.attention.tap import AttentionTap

from .conditions import PixelClassifier

NOISE, ORDER = 0x4E4F4953, 0x4F524452  # separate these random numbers from others made from the same seed
GRID = (14, 14)  # for models without tokens, as in Naseer et al. 2021


def gaussian_noise(pixels: Tensor, labels: Tensor, indices: Tensor, *, sigma: float, seed: int = 0) -> Tensor:
    """Pixels `(B, 3, H, W)` in 0..1 with Gaussian noise, clipped to 0..1.

    The noise depends only on the index of the image and the seed; sigma only scales it.
    """
    check_not_negative("sigma", sigma)
    shape = pixels.shape[1:]
    noise = torch.stack([torch.randn(shape, generator=generator_for(NOISE, seed, index)) for index in indices.tolist()])
    return (pixels + sigma * noise.to(pixels)).clamp(0, 1)


def drop_patches(pixels: Tensor, rank: Tensor, *, share: float, grid: Grid) -> Tensor:
    """Pixels with a fraction of the patches set to zero: those of lowest rank `(B, n)`, so that the sets are nested."""
    check_fraction("share", share)
    count = round(share * grid[0] * grid[1])
    kept = (rank >= count).view(-1, 1, *grid).to(pixels)
    return pixels * interpolate(kept, size=pixels.shape[-2:], mode="nearest")


class PatchOrder:
    """The order in which patches are dropped, as ranks `(B, n)` on `grid`.

    Saliency is the attention of the class token in the last block or, without one, the attention that a patch receives
    there, on the unchanged image.
    """

    def __init__(self, classifier: PixelClassifier, size: Grid, *, order: str, seed: int = 0) -> None:
        self.order, self.seed = order, seed
        self.saliency, self.grid = None, grid_of(classifier, size)
        if order != "random":
            self.saliency, self.grid = saliency_of(classifier, size)
        self._known: dict[int, Tensor] = {}

    def __call__(self, pixels: Tensor, indices: Tensor) -> Tensor:
        places = indices.tolist()
        if any(place not in self._known for place in places):
            self._known.update(zip(places, self._ranks(pixels, places).cpu().short(), strict=True))
        return torch.stack([self._known[place] for place in places]).to(pixels.device)

    def drop(self, pixels: Tensor, labels: Tensor, indices: Tensor, *, share: float) -> Tensor:
        return drop_patches(pixels, self(pixels, indices), share=share, grid=self.grid)

    def _ranks(self, pixels: Tensor, places: list[int]) -> Tensor:
        if self.saliency is None:
            count = self.grid[0] * self.grid[1]
            return torch.stack([torch.randperm(count, generator=generator_for(ORDER, self.seed, at)) for at in places])
        saliency = self.saliency(pixels)
        return saliency.argsort(dim=1, descending=self.order == "salient-first", stable=True).argsort(dim=1)


def grid_of(classifier: PixelClassifier, size: Grid) -> Grid:
    """The grid on which patches are dropped: that of the model's final tokens, if it has any."""
    try:
        return saliency_of(classifier, size)[1]
    except ValueError:
        return (min(GRID[0], size[0]), min(GRID[1], size[1]))


def saliency_of(classifier: PixelClassifier, size: Grid) -> tuple[Callable[[Tensor], Tensor], Grid]:
    """A function from pixels to each patch's saliency `(B, n)`, and the grid of the patches."""
    reader = read_model(classifier.model)
    reader.need_attention("dropping patches by saliency")
    block = reader.resolve_patches(-1)

    @torch.no_grad()
    def saliency(pixels: Tensor) -> Tensor:
        with AttentionTap(classifier.model, saliency=[block]) as tap:
            classifier(pixels)
        return tap.saliency(block)

    return saliency, reader.grids(size)[block]
