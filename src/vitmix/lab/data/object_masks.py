"""A folder of object masks: one for each image file, of the same size, under the same name with the ending .png."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitmix.lab.reading import open_regular

from .decoding import check_pixels, open_image, reason_of
from .images import FileImages, ImageSet


def file_images(images: ImageSet, masks: Path) -> FileImages:
    """The images, which must be files, because masks are found by name."""
    if not masks.is_dir():
        raise ValueError(f"there is no mask folder {masks}")
    if not isinstance(images, FileImages):
        raise ValueError(f"a folder of masks needs image files; {images.description} has none")
    return images


@dataclass(frozen=True)
class MaskFolder:
    """The masks of some image files.

    Args:
        value: the gray level that marks the object (default: every level but 0).
    """

    folder: Path
    images: FileImages
    value: int | None = None

    def place(self, index: int) -> Path:
        """The file of an image's mask."""
        return self.folder / Path(self.images.name(index)).with_suffix(".png")

    def missing(self, index: int) -> str:
        """The error if an image has no mask."""
        return f"there is no mask {self.place(index)} for the image {self.images.name(index)}; give one for every image"

    def read(self, index: int) -> np.ndarray:
        """The mask `(H, W)` of an image: True on the object."""
        path = self.place(index)
        try:
            with open_regular(path) as file, open_image(file) as image:
                check_pixels(image)
                levels = np.asarray(image if image.mode in ("L", "P", "1", "I;16") else image.convert("L"))
        except FileNotFoundError:
            raise ValueError(self.missing(index)) from None
        except (OSError, ValueError) as problem:
            raise ValueError(f"the mask {path} cannot be read: {reason_of(problem)}") from None
        with open_regular(Path(self.images.root) / self.images.name(index)) as file, open_image(file) as image:
            width, height = image.size
        if levels.shape != (height, width):
            found = f"{levels.shape[1]}x{levels.shape[0]}"
            raise ValueError(f"the mask {path} is {found} pixels and its image {width}x{height}; sizes must agree")
        return levels != 0 if self.value is None else levels == self.value
