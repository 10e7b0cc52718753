"""Object masks in place of a teacher's maps, for OA-CutMix: the part of each cell that the object covers."""

from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor, nn

from vitmix.lab.data.images import FileImages, ImageSet
from vitmix.lab.data.object_masks import MaskFolder, file_images

from .teachers import Teacher

SIDE = 56  # cells, by default


def mask_teacher(folder: Path, *, value: int | None = None, side: int = SIDE) -> Teacher:
    """What fills a folder of maps with the masks of a folder, on `side` by `side` cells; see `MaskFolder`."""
    level = "" if value is None else f", level {value}"
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "any_class": True, "objects": True}
    shown = partial(MaskImages, folder=folder, value=value, side=side)
    return Teacher(f"the masks in {folder.name}{level}", _OneChannel(), size=(side, side), shown=shown, **plain)


class _OneChannel(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images[:, :1]


class MaskImages(FileImages):
    """The masks of image files as images: white where the object is."""

    def __init__(self, images: ImageSet, folder: Path, value: int | None, side: int) -> None:
        files = file_images(images, folder)
        super().__init__(files.root, files.files, files.labels, files.classes, files.description)
        self.rows, self.masks, self.side = files.rows, MaskFolder(folder, files, value), side
        for index in range(len(files)):
            if not self.masks.place(index).is_file():
                raise ValueError(self.masks.missing(index))

    def read(self, index: int) -> Image.Image:
        mask = Image.fromarray(self.masks.read(index).astype(np.uint8) * np.uint8(255))
        return mask.resize((self.side, self.side), Image.Resampling.BOX)
