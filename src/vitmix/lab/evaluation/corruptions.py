"""ImageNet-C (Hendrycks and Dietterich 2019): its corruptions for any images, and errors relative to a reference.

Generated corruptions act on the pixels that the model would see, after scaling and cropping, as ImageNet-C was made;
unlike ImageNet-C, they are not stored as JPEG afterwards.
"""

import contextlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates

from vitmix import __version__
from vitmix.lab.data.augment import Augmentation, eval_pixels, global_generators_kept, seed_global_generators
from vitmix.lab.data.images import ImageSet
from vitmix.lab.extras import need, version_of
from vitmix.lab.reading import read_json
from vitmix.lab.suite import COMMON, SEVERITIES, check_corruption, check_severity

from .subject import NotPossible

DETERMINISTIC = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
DETERMINISTIC += ("gaussian_blur", "saturate")
OWN = ("frost", "elastic_transform")  # our own, as in ImageNet-C; those of the package differ
LEAST_SIDE = 32  # pixels, of the package

# AlexNet's errors, the mean over severities, as published with ImageNet-C.
ALEXNET = dict(
    zip(
        COMMON,
        (
            *(0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360),
            *(0.866816, 0.826572, 0.819324, 0.564592, 0.853204, 0.646056, 0.717840, 0.606500),
        ),
        strict=True,
    )
)

Corrupt = Callable[[np.ndarray, int], np.ndarray]
"""From pixels `(H, W, 3)` uint8 and a seed to such pixels."""


def corruption(name: str, severity: int) -> Corrupt:
    """One of ImageNet-C's corruptions; random ones are a function of the seed."""
    check_corruption("name", name)
    check_severity("severity", severity)
    need("imagecorruptions")
    import cv2

    cv2.setNumThreads(0)  # its threads do not survive the fork of worker processes
    corrupt = partial(_corrupt, name, severity)
    if name == "glass_blur":
        corrupt(np.zeros((LEAST_SIDE, LEAST_SIDE, 3), np.uint8), 0)  # compiled here, once, and not in every worker
    return corrupt


def maker(name: str) -> str:
    """The package and its version, which determine the pixels of a corruption."""
    return f"vitmix {__version__}" if name in OWN else version_of("imagecorruptions")


def _corrupt(name: str, severity: int, pixels: np.ndarray, seed: int) -> np.ndarray:
    package = need("imagecorruptions")
    if name in DETERMINISTIC:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it worked around
            return package.corrupt(pixels, severity=severity, corruption_name=name)
    # Two of them have their own generators.
    settings = {"seed": seed % 2**32} if name in ("glass_blur", "impulse_noise") else {}
    with global_generators_kept(), contextlib.redirect_stdout(io.StringIO()):
        seed_global_generators(seed)
        if name == "frost":
            return _frosted(pixels, severity)
        if name == "elastic_transform":
            return _elastic(pixels, severity)
        return package.corrupt(pixels, severity=severity, corruption_name=name, **settings)


FROST = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # of each severity: of the image, of the frost


def _frosted(pixels: np.ndarray, severity: int) -> np.ndarray:
    """A part of one of ImageNet-C's five photographs of frost, unscaled; the package has a sixth, and enlarges them."""
    frost = _frost_image(np.random.randint(5), *pixels.shape[:2])
    top, left = (np.random.randint(0, frost.shape[axis] - pixels.shape[axis]) for axis in (0, 1))
    part = frost[top : top + pixels.shape[0], left : left + pixels.shape[1], ::-1]
    own, frosts = FROST[severity - 1]
    return np.clip(own * pixels + frosts * part, 0, 255).astype(np.uint8)


@cache
def _frost_image(number: int, height: int, width: int) -> np.ndarray:
    """A photograph of frost (blue, green, red), enlarged only if it is smaller than that."""
    import cv2

    file = f"frost{number + 1}.{'png' if number < 3 else 'jpg'}"
    with as_file(files("imagecorruptions") / "frost" / file) as place:
        frost: Any = cv2.imread(str(place))
    scale = max((height + 1) / frost.shape[0], (width + 1) / frost.shape[1])
    if scale <= 1:
        return frost
    sides = (math.ceil(frost.shape[1] * scale), math.ceil(frost.shape[0] * scale))
    return cv2.resize(frost, dsize=sides, interpolation=cv2.INTER_CUBIC)


# Of each severity, in units of 244 pixels on an image of 224: how far pixels are moved before that is smoothed, the
# width of the smoothing, how far the corners of a triangle are moved.
ELASTIC = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))


def _elastic(pixels: np.ndarray, severity: int) -> np.ndarray:
    """ImageNet-C's: the image is sheared with a triangle whose corners move, then pixels move with their neighbors.

    The package leaves the shearing out. Displacements scale with the side of the image: smoothing divides them by its
    width, hence the square.
    """
    sides = np.array(pixels.shape[:2])
    scale = sides.min() / 224
    before, width, corner = (244 * value for value in ELASTIC[severity - 1])
    grid = np.stack(np.meshgrid(*map(np.arange, sides), indexing="ij"), axis=-1).astype(np.float64)
    corners = sides // 2 + sides.min() // 3 * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + np.random.uniform(-corner * scale, corner * scale, corners.shape)
    back = np.linalg.solve(np.c_[moved, np.ones(3)], corners)  # where the pixels of the sheared image come from
    sheared = _sampled(pixels, grid @ back[:2] + back[2], mode="mirror")
    noise = np.random.uniform(-1, 1, (2, *sides))
    smooth = [gaussian_filter(each, width * scale, mode="reflect", truncate=3.0) for each in noise]
    elastic = _sampled(sheared, grid + before * scale**2 * np.stack(smooth, axis=-1), mode="reflect")
    return np.clip(elastic, 0, 255).astype(np.uint8)


def _sampled(pixels: np.ndarray, places: np.ndarray, *, mode: str) -> np.ndarray:
    """The (H, W, 3) pixels at (H, W, 2) places between them, linearly."""
    channels = [pixels[..., channel].astype(np.float64) for channel in range(3)]
    where = np.moveaxis(places, -1, 0)
    return np.stack([map_coordinates(each, where, order=1, mode=mode) for each in channels], axis=-1)


class CorruptedImages(ImageSet):
    """Images as the model sees them, each changed by `corrupt`."""

    def __init__(self, original: ImageSet, augmentation: Augmentation, corrupt: Corrupt, *, seed: int = 0) -> None:
        super().__init__(original.labels, original.classes, f"{original.description}, corrupted")
        self.original, self.augmentation, self.corrupt, self.seed = original, augmentation, corrupt, seed

    def read(self, index: int) -> Image.Image:
        image, _ = self.original[index]
        pixels = eval_pixels(image, self.augmentation).permute(1, 2, 0).contiguous().numpy()
        return Image.fromarray(self.corrupt(pixels, self.seed * 2**32 + index))

    def name(self, index: int) -> str:
        return self.original.name(index)

    def subset(self, rows: np.ndarray, description: str) -> NoReturn:
        raise NotImplementedError("corruptions depend on the index of an image; take the subset first")


def check_sides(augmentation: Augmentation) -> None:
    if min(augmentation.sides) < LEAST_SIDE:
        raise NotPossible(
            f"corruptions are made for images of at least {LEAST_SIDE} pixels, this model takes "
            f"{augmentation.sides[0]} x {augmentation.sides[1]}; give a larger --size"
        )


Errors = Mapping[str, Sequence[float]]
"""For each corruption: an error per severity, or their mean."""


def divisors(reference: Errors | None, names: Sequence[str], severities: int) -> dict[str, float]:
    """What each corruption's mean error is divided by: the reference's mean error, or 1 without a reference.

    The ratio of the means is that of the sums over severities, which defines the corruption error.
    """
    if reference is None:
        return dict.fromkeys(names, 1.0)
    for name in names:
        row = reference.get(name)
        if row is None:
            raise ValueError(f"the reference errors lack {name!r}; they have {', '.join(reference)}")
        if len(row) != severities and not (len(row) == 1 and severities == len(SEVERITIES)):
            raise ValueError(
                f"the reference has {len(row)} errors of {name!r} for {severities} severities; give as many"
            )
        if not np.mean(row) > 0:
            raise ValueError(f"the reference error of {name!r} is 0: cannot normalize by 0; leave {name} out")
    return {name: float(np.mean(reference[name])) for name in names}


def read_reference(text: str) -> Errors:
    """Reference errors: `"alexnet"`, or a JSON file, of this command or `{corruption: error or [five errors]}`."""
    if text == "alexnet":
        return {name: [error] for name, error in ALEXNET.items()}
    try:
        values = read_json(Path(text))
    except (OSError, ValueError) as problem:
        raise ValueError(f"reference errors are 'alexnet' or a JSON file; {text!r} is neither ({problem})") from None
    if isinstance(values, dict) and "corruption_errors" in values:
        values = values["corruption_errors"]
    try:
        found = {name: [float(each) for each in np.atleast_1d(value)] for name, value in values.items()}
        if any(not 0 <= each <= 1 for row in found.values() for each in row) or not found:
            raise ValueError
    except (AttributeError, ValueError, TypeError, OverflowError):
        raise ValueError(
            f'{text} must hold errors in 0..1, as {{"fog": 0.82}} or {{"fog": [five]}}, or come from this command'
        ) from None
    return found
