"""A slow twin of dense mixing: images that tell where each pixel comes from, and plain loops over what they tell.

A tracer image has one channel for every pixel of the batch, so each pixel of a mixed tracer tells the weights of all
original pixels in it. Nothing is taken from the library but the mixed images.
"""

from typing import Any

import torch
from torch import Tensor, nn

import vitmix
from support import tiny_vit

CLASSES, IGNORED = 5, 255
HARD = {  # mask: a text of it that pastes pixels whole
    "none": "none",
    "box": "mix(mask=box(per=sample))",
    "block": "mix(mask=block(grid=[4, 4], per=sample))",
    "scattered": "mix(mask=scattered(grid=[4, 4], per=sample))",
    "salient_box": "smmix",
    "fourier": "fmix(per=sample)",
    "resized": "resizemix",
    "lattice": "gridmix",
    "peak_box": "mix(mask=peak_box)",
    "cells": "mix(mask=cells(tokens=2, grid=[4, 4]))",
    "top_cells": "mix(mask=top_cells(scores=attention, cells=5))",
    "merged": "mix(mask=merged)",
    "switch": "cutmix | mix(mask=block(grid=[4, 4]))",
}
SOFT = {
    "constant": "mixup(per=sample)",
    "fourier": "mix(mask=fourier(max_soft=0.3))",
    "puzzle": "puzzle, cost=0.01, beta=0.1, eta=0.01",
    "still puzzle": "puzzle, transport=false",
    "switch": "mixup | mix(mask=fourier(max_soft=0.2))",
}
READS = ("smmix", "top_cells", "merged", "puzzle")
Told = list[list[dict[tuple[int, int, int], float]]]  # [row][column] of one image: weight by (image, row, column)


def tracers(batch: int, height: int, width: int) -> Tensor:
    """Images `(B, B * H * W, H, W)` whose channels number the pixels of the batch."""
    return torch.eye(batch * height * width, dtype=torch.float64).view(batch, height, width, -1).permute(0, 3, 1, 2)


def told(mixed: Tensor, height: int, width: int) -> list[Told]:
    """What mixed tracers tell."""
    stories = []
    for image in mixed:
        story: Told = [[{} for _ in range(width)] for _ in range(height)]
        for channel, row, column in image.nonzero().tolist():
            origin = (channel // (height * width), channel // width % height, channel % width)
            story[row][column][origin] = float(image[channel, row, column])
        stories.append(story)
    return stories


def numbered(batch: int, height: int, width: int) -> Tensor:
    """Images `(B, 3, H, W)` whose colors are the number of the image, the row and the column."""
    image, row, column = torch.meshgrid(*(torch.arange(side) for side in (batch, height, width)), indexing="ij")
    return torch.stack([image, row, column], dim=1).double()


def told_by_colors(mixed: Tensor) -> list[Told]:
    """What mixed `numbered` images tell, if no pixel is blended."""
    stories = []
    for image in mixed:
        colors = image.permute(1, 2, 0).tolist()
        stories.append([[{(int(a), int(b), int(c)): 1.0} for a, b, c in row] for row in colors])
    return stories


def hard_labels(story: Told, masks: Tensor, ignore_index: int) -> Tensor:
    """The label map `(H, W)` of an image that is not blended."""
    found = torch.full((len(story), len(story[0])), ignore_index)
    for row, line in enumerate(story):
        for column, cell in enumerate(line):
            for image, r, c in cell:
                found[row, column] = masks[image, r, c]
    return found


def soft_labels(story: Told, masks: Tensor, classes: int, ignore_index: int) -> Tensor:
    """The weights `(K, H, W)` of the classes of a blended image."""
    found = torch.zeros(classes, len(story), len(story[0]), dtype=torch.float64)
    for row, line in enumerate(story):
        for column, cell in enumerate(line):
            for (image, r, c), weight in cell.items():
                label = int(masks[image, r, c])
                if label != ignore_index:
                    found[label, row, column] += weight
    return found


def visible_object(story: Told, image: int, member: Any, parts: int) -> tuple[float, int, list[float], Tensor]:
    """Of the object of `image` that has the sub-pixels for which `member(row, column)`: what a mixed image shows.

    Each pixel is cut into `parts` x `parts` sub-pixels.

    Returns:
        The visible area in pixels, by weight and by number, the box around it, and the visible sub-pixels.
    """
    weight, count, box = 0.0, 0, [float("inf"), float("inf"), float("-inf"), float("-inf")]
    shown = torch.zeros(len(story) * parts, len(story[0]) * parts, dtype=torch.bool)
    for row, line in enumerate(story):
        for column, cell in enumerate(line):
            for (origin, r, c), part in cell.items():
                for down in range(parts):
                    for along in range(parts):
                        if origin != image or not member(r * parts + down, c * parts + along):
                            continue
                        y, x = row * parts + down, column * parts + along
                        weight, count = weight + part, count + 1
                        shown[y, x] = True
                        box = [min(box[0], x), min(box[1], y), max(box[2], x + 1), max(box[3], y + 1)]
    return weight / parts**2, count, [edge / parts for edge in box], shown


class Segmenter(nn.Module):
    """A tiny ViT whose tokens become logits of pixels."""

    def __init__(self, channels: int, classes: int, size: int = 16) -> None:
        super().__init__()
        self.encoder = tiny_vit(in_chans=channels, img_size=size)
        self.head = nn.Conv2d(24, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder.forward_features(images)[:, 1:]  # pyright: ignore[reportCallIssue]
        maps = tokens.transpose(1, 2).unflatten(2, (images.shape[2] // 4, images.shape[3] // 4))
        return nn.functional.interpolate(self.head(maps), images.shape[-2:], mode="bilinear")


def labels(batch: int, height: int, width: int) -> Tensor:
    """Label maps with every class and ignored pixels."""
    found = torch.randint(0, CLASSES + 1, (batch, height, width))
    return torch.where(found == CLASSES, IGNORED, found)


def transform(text: str, channels: int, size: int, seed: int = 1) -> vitmix.DenseMix:
    if text.startswith("puzzle"):
        colors = f"mean={[0.0] * channels}, std={[1.0] * channels}"
        text = f"mix(mask=puzzle(blocks=[2, 4], {colors}{text.removeprefix('puzzle')}))"
    model = Segmenter(channels, CLASSES, size).double() if any(name in text for name in READS) else None
    mix = vitmix.DenseMix(text, model=model, num_classes=CLASSES, seed=seed)
    if "puzzle" in text:  # many peaks, some of which the other image hides, so that blocks have to move
        assert mix.guide is not None
        mix.guide.gradient = lambda images, masks: torch.rand(len(images), size, size, dtype=torch.float64) ** 12
    return mix
