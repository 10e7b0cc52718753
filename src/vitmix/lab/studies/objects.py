"""Where the objects are: known for the built-in data, boxes in arrays, or a folder of masks for image files."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitmix.lab.data.augment import Augmentation, eval_pixels
from vitmix.lab.data.decoding import check_pixels, open_image, reason_of
from vitmix.lab.data.images import ArrayImages, FileImages, ImageSet
from vitmix.lab.reading import open_regular

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
        if not masks.is_dir():
            raise ValueError(f"there is no mask folder {masks}")
        if not isinstance(images, FileImages):
            raise ValueError(f"a folder of masks needs image files; {images.description} has none")
        root = Path(images.root)
        return lambda indices: torch.stack([seen(read_mask(masks, root, images.name(each), value)) for each in indices])
    if value is not None:
        raise ValueError("a gray level of masks needs a folder of masks; give --masks FOLDER")
    if not isinstance(images, ArrayImages) or images.objects([0]) is None:
        return None
    return lambda indices: torch.stack([seen(mask) for mask in np.asarray(images.objects(indices))])


def read_mask(folder: Path, root: Path, name: str, value: int | None = None) -> np.ndarray:
    """The mask `(H, W)` below `folder` of an image below `root`: True on the object; see `object_finder`."""
    path = folder / Path(name).with_suffix(".png")
    try:
        with open_regular(path) as file, open_image(file) as image:
            check_pixels(image)
            levels = np.asarray(image if image.mode in ("L", "P", "1", "I;16") else image.convert("L"))
    except FileNotFoundError:
        raise ValueError(f"there is no mask {path} for the image {name}; give one for every image") from None
    except (OSError, ValueError) as problem:
        raise ValueError(f"the mask {path} cannot be read: {reason_of(problem)}") from None
    with open_regular(root / name) as file, open_image(file) as image:
        width, height = image.size
    if levels.shape != (height, width):
        found = f"{levels.shape[1]}x{levels.shape[0]}"
        raise ValueError(f"the mask {path} is {found} pixels and its image {width}x{height}; sizes must agree")
    return levels != 0 if value is None else levels == value
