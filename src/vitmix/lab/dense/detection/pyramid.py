"""Feature maps of several strides from a timm model, as torchvision's detectors take them.

A plain ViT has one map of one stride. The simple feature pyramid of ViTDet (Li et al. 2022, arXiv:2203.16527) makes
the others from its last map: transposed convolutions for finer maps, pooling for coarser ones. Attention stays global;
ViTDet's windows save memory at 1024 pixels and are not needed at the sizes here. A model with four stages has maps of
its own, which torchvision's feature pyramid network joins. All norms are layer norms: no statistic depends on the
batch, so nothing has to be frozen or synchronized.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock

STRIDES = (4, 8, 16, 32)
WIDTH = 256  # channels of each map
PATCHES = (2, 4, 8, 16, 32)  # torchvision's detectors take maps whose strides are powers of two


class SimplePyramid(nn.Module):
    """From a map `(B, dim, H, W)` of stride `patch` to one map for each stride.

    A transposed convolution doubles the size and halves the channels; layer norm and GELU are between two of them.
    A 1x1 and a 3x3 convolution follow, without bias, each with a layer norm.
    """

    def __init__(self, dim: int, patch: int, strides: Sequence[int] = STRIDES, width: int = WIDTH) -> None:
        super().__init__()
        if patch not in PATCHES:
            raise ValueError(
                f"a simple feature pyramid needs patches of {', '.join(map(str, PATCHES))} pixels, got {patch}; "
                "choose a model with such patches"
            )
        self.levels = nn.ModuleList(_level(dim, patch, stride, width) for stride in strides)

    def forward(self, features: Tensor) -> list[Tensor]:
        return [level(features) for level in self.levels]


def _level(dim: int, patch: int, stride: int, width: int) -> nn.Sequential:
    steps: list[nn.Module] = []
    while patch > stride:
        steps += [LayerNorm2d(dim), nn.GELU()] if steps else []
        steps.append(nn.ConvTranspose2d(dim, dim // 2, kernel_size=2, stride=2))
        dim, patch = dim // 2, patch // 2
    if patch < stride:
        steps.append(nn.MaxPool2d(stride // patch))
    steps += [nn.Conv2d(dim, width, 1, bias=False), LayerNorm2d(width)]
    steps += [nn.Conv2d(width, width, 3, padding=1, bias=False), LayerNorm2d(width)]
    return nn.Sequential(*steps)


class PyramidBackbone(nn.Module):
    """A timm model with a pyramid over it: from images to a dictionary of maps, for torchvision's detectors.

    Args:
        model: of any input size; its classifier is removed.
        extra: makes coarser maps from the last one.
        strides, width: of the pyramid's maps; the width is their number of channels.
    """

    def __init__(
        self, model: nn.Module, extra: ExtraFPNBlock, strides: Sequence[int] = STRIDES, width: int = WIDTH
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.indices = stages(model, strides)
        self.plain = not self.indices
        if self.plain:
            self.indices = [len(self.model.feature_info) - 1]
            self.pyramid: Any = SimplePyramid(self.model.num_features, patch_size(model), strides, width)
        else:
            self.pyramid = NormedPyramid([self.model.feature_info[i]["num_chs"] for i in self.indices], width)
        # What no map needs would be without gradient, which DDP refuses. A plain ViT's map passes its final norm.
        # Pruning the head would also forget how it pools, which methods that read attention ask for.
        self.model.prune_intermediate_layers(self.indices, prune_norm=not self.plain, prune_head=False)
        self.model.reset_classifier(0)
        if isinstance(getattr(self.model, "fc_norm", None), nn.Module):
            self.model.fc_norm.requires_grad_(False)
        self.extra = extra
        self.out_channels = width

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        found = self.model.forward_intermediates(images, indices=self.indices, norm=self.plain, intermediates_only=True)
        maps = self.pyramid(found[0] if self.plain else found)
        results, names = self.extra(maps, maps, [str(number) for number in range(len(maps))])
        return OrderedDict(zip(names, results, strict=True))


class NormedPyramid(nn.Module):
    """torchvision's feature pyramid network over layer norms, since Swin's stages end without one."""

    def __init__(self, widths: Sequence[int], width: int = WIDTH) -> None:
        super().__init__()
        self.norms = nn.ModuleList(LayerNorm2d(each) for each in widths)
        self.fpn = FeaturePyramidNetwork(list(widths), width)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        normed = [norm(each) for norm, each in zip(self.norms, maps, strict=True)]
        return list(self.fpn(OrderedDict((str(number), each) for number, each in enumerate(normed))).values())


def stages(model: nn.Module, strides: Sequence[int] = STRIDES) -> list[int]:
    """The last stage of each stride; empty for a model of a single stride."""
    info: Any = getattr(model, "feature_info", None)
    if not info or not hasattr(model, "forward_intermediates"):
        raise ValueError(
            f"timm gives no feature maps of {type(model).__name__}; choose a model with forward_intermediates, "
            "such as DeiT, Swin or PVT"
        )
    last = {each["reduction"]: index for index, each in enumerate(info)}
    if len(last) == 1:
        return []
    if not set(strides) <= set(last):
        raise ValueError(
            f"detection needs feature maps of strides {list(strides)}, but {type(model).__name__} has {sorted(last)}"
        )
    return [last[stride] for stride in strides]


def patch_size(model: Any) -> int:
    height, width = model.patch_embed.patch_size
    if height != width:
        raise ValueError(f"a simple feature pyramid needs square patches, got {height} x {width}")
    return height
