"""Where the objects are: known for the built-in data, boxes in arrays, or a folder of masks for image files."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitmix.lab.data.augment import Augmentation, eval_pixels
from vitmix.lab.data.images import ArrayImages, ImageSet
from vitmix.lab.data.object_masks import MaskFolder, file_images

Finder = Callable[[Sequence[int]], Tensor]  # places in the dataset → (n, H, W) bool, as the model sees them


def object_finder(
    images: ImageSet, augmentation: Augmentation, *, masks: Path | None = None, value: int | None = None
) -> Finder | None:
    """A function that finds the objects of these images; None if they are not known.

    Args:
        masks: a folder with a mask for each image, of the same size, under the same name with the ending .png.
        value: the gray level that marks the object (default: every level but 0).
    """
    # Resampled like the image, then thresholded at one half, so that mask and image stay aligned.
    smooth = dataclasses.replace(augmentation, interpolation="bilinear")

    def seen(mask: np.ndarray) -> Tensor:
        image = Image.fromarray((mask * np.uint8(255)).astype(np.uint8)).convert("RGB")
        return eval_pixels(image, smooth)[0] >= 128

    if masks is not None:
        folder = MaskFolder(masks, file_images(images, masks), value)
        return lambda indices: torch.stack([seen(folder.read(each)) for each in indices])
    if value is not None:
        raise ValueError("a gray level of masks needs a folder of masks; give --masks FOLDER")
    if not isinstance(images, ArrayImages) or images.objects([0]) is None:
        return None
    return lambda indices: torch.stack([seen(mask) for mask in np.asarray(images.objects(indices))])
