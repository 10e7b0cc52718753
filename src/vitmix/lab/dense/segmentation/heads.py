"""Segmentation models: an encoder, a decoder of segmentation-models-pytorch (or SETR's), and a classifier of pixels."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from vitmix.lab.dense.backbone import Encoder
from vitmix.lab.extras import need
from vitmix.lab.settings import SettingValues

AUXILIARY = 0.4  # weight of UPerNet's second loss, on the third map


class Segmenter(nn.Module):
    """From images `(B, 3, H, W)` to logits `(B, K, H, W)`.

    Attributes:
        head_name: which head it is.
        auxiliary: a second head, on the third map, for training alone.
    """

    def __init__(
        self, encoder: Encoder, decoder: nn.Module, channels: int, classes: int, name: str, *, auxiliary: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head_name = encoder, decoder, name
        self.classifier = nn.Conv2d(channels, classes, 1)
        self.auxiliary = _fcn(encoder.channels[2], classes) if auxiliary else None

    def forward(self, images: Tensor) -> Tensor:
        return self._logits(*self.encoder.with_prefix(images), images)

    def weighted_logits(self, images: Tensor) -> list[tuple[Tensor, float]]:
        """The logits of each head with the weight of its loss."""
        maps, prefix = self.encoder.with_prefix(images)
        found = [(self._logits(list(maps), prefix, images), 1.0)]
        if self.auxiliary is not None:
            found.append((_resized(self.auxiliary(maps[2]), images), AUXILIARY))
        return found

    def _logits(self, maps: list[Tensor], prefix: list[Tensor | None], images: Tensor) -> Tensor:
        return _resized(self.classifier(self.decoder(maps, prefix)), images)


def _resized(logits: Tensor, images: Tensor) -> Tensor:
    return functional.interpolate(logits, images.shape[-2:], mode="bilinear", align_corners=False)


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True))


def _fcn(channels: int, classes: int, width: int = 256) -> nn.Sequential:
    return nn.Sequential(_convolution(channels, width), nn.Dropout2d(0.1), nn.Conv2d(width, classes, 1))


# Decoders: from four maps and their prefix tokens to one map


class Dpt(nn.Module):
    """DPT's decoder, for plain ViTs."""

    def __init__(self, encoder: Encoder, **settings: Any) -> None:
        super().__init__()
        decoder = need("segmentation_models_pytorch.decoders.dpt.decoder").DPTDecoder
        settings = {"readout": "cat" if encoder.prefix else "ignore", **settings}
        self.channels = settings.get("fusion_channels", 256)
        self.fusion = decoder(encoder.channels, encoder.strides, bool(encoder.prefix), **settings)
        self.last = nn.Sequential(_convolution(self.channels, self.channels), nn.Dropout(0.1))

    def forward(self, maps: list[Tensor], prefix: list[Tensor | None]) -> Tensor:
        return self.last(self.fusion(maps, prefix))


class Pyramid(nn.Module):
    """Maps of a plain ViT brought to strides of a quarter, a half, one and two of the patch size, as in BEiT."""

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        first, second, _, _ = channels
        self.levels = nn.ModuleList(
            [
                nn.Sequential(_doubled(first), nn.BatchNorm2d(first), nn.GELU(), _doubled(first)),
                _doubled(second),
                nn.Identity(),
                nn.MaxPool2d(2),
            ]
        )

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        return [level(each) for level, each in zip(self.levels, maps, strict=True)]


def _doubled(channels: int) -> nn.Module:
    return nn.ConvTranspose2d(channels, channels, 2, stride=2)


class FromPyramid(nn.Module):
    """A decoder of smp on four maps of strides 4 to 32, as a pyramid has them and a plain ViT is brought to."""

    def __init__(self, encoder: Encoder, make: Callable[..., nn.Module], channels: int, **settings: Any) -> None:
        super().__init__()
        self.channels = channels
        self.levels = Pyramid(encoder.channels) if encoder.is_plain else nn.Identity()
        # smp counts the image and a map of stride 2 among its features; its decoders do not read them here.
        self.decoder = make([3, 0, *encoder.channels], encoder_depth=5, **settings)

    def forward(self, maps: list[Tensor], prefix: list[Tensor | None]) -> Tensor:
        found = self.levels(maps)
        return self.decoder([found[0], found[0], *found])


class Setr(nn.Module):
    """SETR's progressive upsampling of the last map: a convolution and a doubling, four times."""

    def __init__(self, encoder: Encoder, channels: int = 256) -> None:
        super().__init__()
        self.channels = channels
        widths = [encoder.channels[-1], *[channels] * 4]
        steps = [_convolution(inputs, outputs) for inputs, outputs in zip(widths, widths[1:], strict=False)]
        self.steps = nn.ModuleList(steps)

    def forward(self, maps: list[Tensor], prefix: list[Tensor | None]) -> Tensor:
        found = maps[-1]
        for step in self.steps:
            found = functional.interpolate(step(found), scale_factor=2, mode="bilinear", align_corners=False)
        return found


def _upernet(encoder: Encoder, channels: int = 512) -> nn.Module:
    make = need("segmentation_models_pytorch.decoders.upernet.decoder").UPerNetDecoder
    return FromPyramid(encoder, make, channels, decoder_channels=channels)


def _fpn(encoder: Encoder, channels: int = 128, pyramid_channels: int = 256, dropout: float = 0.1) -> nn.Module:
    make = need("segmentation_models_pytorch.decoders.fpn.decoder").FPNDecoder
    settings = {"pyramid_channels": pyramid_channels, "segmentation_channels": channels, "dropout": dropout}
    return FromPyramid(encoder, make, channels, **settings)


DECODERS: dict[str, Callable[..., Any]] = {"dpt": Dpt, "upernet": _upernet, "fpn": _fpn, "setr": Setr}


def fitting_head(encoder: Encoder) -> str:
    """DPT for plain ViTs, FPN for pyramids."""
    return "dpt" if encoder.is_plain else "fpn"


def build_segmenter(encoder: Encoder, head: str, classes: int, settings: SettingValues) -> Segmenter:
    """The model with a new head."""
    name = fitting_head(encoder) if head == "auto" else head
    if name in ("dpt", "setr") and not encoder.is_plain:
        raise ValueError(f"the head {name} needs maps of one resolution, as of a ViT; use upernet or fpn")
    if name in ("upernet", "fpn") and not encoder.is_plain and encoder.strides != [4, 8, 16, 32]:
        raise ValueError(f"the head {name} needs maps of strides 4, 8, 16 and 32, got {encoder.strides}")
    settings = dict(settings)
    auxiliary = bool(settings.pop("auxiliary", name == "upernet"))
    try:
        decoder = DECODERS[name](encoder, **settings)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise ValueError(f"head_args do not fit {name}: {problem}") from None
    return Segmenter(encoder, decoder, decoder.channels, classes, name, auxiliary=auxiliary)
