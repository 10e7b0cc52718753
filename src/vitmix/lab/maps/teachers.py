"""Teachers for activation maps: what a classifier predicts at every location of an image, or plain saliency."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, pad

from vitmix.attention.readers import unwrap
from vitmix.lab.data.images import ImageSet

from .stored import TeacherFacts

SALIENCY = {"spectral": "Hou and Zhang's spectral residual"}
SPECTRAL_SIDE = 64  # pixels; the method is defined for this size
SPECTRAL_GRID = 16
LOCATIONS = 4096  # that go through the classifier at once


@dataclass(frozen=True)
class Teacher:
    """Something that computes a map for every class, or one map for any label.

    Args:
        module: from normalized images `(B, 3, H, W)` to logits `(B, K, h, w)`, or to logits `(B, K)` if it is a
            classifier with timm's `forward_features` and `forward_head`.
        size: height and width that images are scaled to, without cropping.
        any_class: the module computes a single map, which is taken for the image's label.
        classes: the names of its outputs, where they are known.
        objects: the map is a mask of the image's object, in 0..1.
        shown: what the module sees in place of the images.
    """

    name: str
    module: nn.Module
    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, ...] = IMAGENET_DEFAULT_STD
    any_class: bool = False
    classes: tuple[str, ...] | None = None
    objects: bool = False
    shown: Callable[[ImageSet], ImageSet] = lambda images: images

    def facts(self) -> TeacherFacts:
        """What decides the maps; they differ for different teachers."""
        weights = weights_checksum(self.module)
        norm = tuple(self.mean), tuple(self.std)
        return TeacherFacts(self.name, weights, self.any_class, self.size, *norm, objects=self.objects)

    @torch.inference_mode()
    def maps(self, pixels: Tensor) -> Tensor:
        """Maps `(B, K, h, w)` float32 of uint8 images `(B, 3, H, W)`."""
        mean, std = (pixels.new_tensor(each, dtype=torch.float32).view(3, 1, 1) for each in (self.mean, self.std))
        return dense_logits(self.module, (pixels.float() / 255 - mean) / std).float()


def saliency_teacher(kind: str) -> Teacher:
    """Classical saliency instead of a classifier."""
    if kind not in SALIENCY:
        raise ValueError(f"unknown saliency {kind!r}, known: {', '.join(SALIENCY)}; write saliency:spectral")
    sides = (SPECTRAL_SIDE, SPECTRAL_SIDE)
    return Teacher(f"saliency:{kind}", SpectralResidual(), size=sides, mean=(0.0,) * 3, std=(1.0,) * 3, any_class=True)


def dense_logits(model: nn.Module, images: Tensor) -> Tensor:
    """What the classifier predicts at each location of the final features, `(B, K, h, w)`.

    Unless the module returns such a tensor itself, its `forward_head` is applied to each location's features in place
    of the whole image's: pooling over equal vectors changes nothing, and whatever lies between pooling and classifier
    (norms, convolutions, activations) is applied as it was trained.
    """
    model = unwrap(model)
    if not (hasattr(model, "forward_features") and hasattr(model, "forward_head")):
        logits = model(images)
        if isinstance(logits, Tensor) and logits.ndim == 4:
            return logits
        raise ValueError(
            f"a {type(model).__name__} cannot be a teacher: it must have timm's forward_features and forward_head, "
            "or return logits (B, K, h, w) itself"
        )
    head: Any = model.forward_head
    features: Any = model.forward_features(images)  # pyright: ignore[reportCallIssue]
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        raise ValueError(f"the features of this {type(model).__name__} are not a grid of vectors; use another teacher")
    if features.ndim == 3:
        locations, (rows, columns), shape = _tokens(model, features, images)
    elif _channels_last(model, features):
        locations, (rows, columns), shape = features.flatten(1, 2), features.shape[1:3], (1, 1, features.shape[3])
    else:
        locations, (rows, columns), shape = features.flatten(2).mT, features.shape[2:], (features.shape[1], 1, 1)
    if features.ndim == 4:
        alone = locations.reshape(-1, *shape)
    else:
        alone = locations.reshape(-1, 1, shape[1]).expand(-1, *shape)
    logits = torch.cat([head(part) for part in alone.split(LOCATIONS)])
    return logits.unflatten(0, (len(images), rows, columns)).permute(0, 3, 1, 2)


def _tokens(model: Any, features: Tensor, images: Tensor) -> tuple[Tensor, tuple[int, int], tuple[int, ...]]:
    """Patches, their grid, and the shape of an image whose tokens, prefix included, are all one patch."""
    prefix = getattr(model, "num_prefix_tokens", None)
    ratio = images.shape[2] / images.shape[3]
    for guess in (prefix,) if prefix is not None else (0, 1, 2):
        count = features.shape[1] - guess
        rows = round(math.sqrt(count * ratio))
        if rows > 0 and count % rows == 0 and abs(count / rows * ratio - rows) < 1e-6:
            return features[:, guess:], (rows, count // rows), (guess + 1, features.shape[2])
    raise ValueError(
        f"the {features.shape[1]} tokens of this {type(model).__name__} are not a grid over the image; "
        "use another teacher"
    )


def _channels_last(model: Any, features: Tensor) -> bool:
    declared = getattr(model, "output_fmt", None)
    if declared is not None:
        return str(getattr(declared, "value", declared)).upper() == "NHWC"
    return features.shape[1] != model.num_features and features.shape[3] == model.num_features


def weights_checksum(module: nn.Module) -> str:
    """SHA-256 over the names and values of a module's state."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class SpectralResidual(nn.Module):
    """Saliency: the part of an image's spectrum that differs from the smooth average of all images."""

    def forward(self, images: Tensor) -> Tensor:
        """`(B, 1, 16, 16)` in 0..1 from images `(B, 3, H, W)`."""
        gray = interpolate(images.mean(1, keepdim=True), (SPECTRAL_SIDE, SPECTRAL_SIDE), mode="area")
        spectrum = torch.fft.fft2(gray)
        log = spectrum.abs().clamp_min(1e-8).log()
        smooth = avg_pool2d(pad(log, (1, 1, 1, 1), mode="circular"), 3, stride=1)
        residual = torch.polar((log - smooth).exp(), spectrum.angle())
        saliency = torch.fft.ifft2(residual).abs().square()
        offset = torch.arange(-6, 7, device=images.device)
        bell = torch.exp(-(offset**2) / (2 * 2.5**2))
        bell = bell / bell.sum()
        saliency = nn.functional.conv2d(saliency, bell.view(1, 1, 1, -1), padding=(0, 6))
        saliency = nn.functional.conv2d(saliency, bell.view(1, 1, -1, 1), padding=(6, 0))
        saliency = avg_pool2d(saliency, SPECTRAL_SIDE // SPECTRAL_GRID)
        return saliency / saliency.amax((2, 3), keepdim=True).clamp_min(1e-12)
