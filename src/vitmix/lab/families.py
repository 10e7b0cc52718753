"""Which methods work on which families of models, found by training a tiny model of each family."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import timm
import torch
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from torch import nn

from vitmix._learner import Learner, Output
from vitmix._registry import METHODS
from vitmix._text import create

SIZE = 32  # pixels of most tiny models
CLASSES = 4


def columns() -> dict[str, str]:
    """The method texts to try, by column: the methods that need only images and labels share one."""
    texts = {name: text for name, text in METHODS.small().items() if name != "none"}
    anywhere = [name for name, text in texts.items() if _needs_no_model(text)]
    others = {name: text for name, text in texts.items() if name not in anywhere}
    return {", ".join(anywhere): " | ".join(texts[name] for name in anywhere), **others}


def _needs_no_model(text: str) -> bool:
    mixer = create(text, CLASSES)
    try:
        return mixer.input_only and bool(mixer(torch.zeros(2, 3, SIZE, SIZE), torch.arange(2)))
    except ValueError:  # a mask of tokens, which only a model has
        return False


class Family(NamedTuple):
    """A family of models: the package that has it, a model's name there, and a tiny model.

    `package` must be installed for it, beyond this library's own dependencies.
    """

    source: str
    example: str
    build: Callable[[], nn.Module]
    package: str | None = None
    size: int = SIZE

    @property
    def available(self) -> bool:
        return self.package is None or find_spec(self.package) is not None


def _timm(name: str, *, source: str = "timm", size: int = SIZE, **settings: Any) -> Family:
    return Family(source, name, lambda: timm.create_model(name, num_classes=CLASSES, **settings), size=size)


def _plain(name: str, **settings: Any) -> Family:
    sizes: dict[str, Any] = dict(img_size=SIZE, patch_size=8, embed_dim=32, depth=3, num_heads=2)
    return _timm(name, **(sizes | settings))


def _pvt(name: str, **settings: Any) -> Family:
    sizes: dict[str, Any] = dict(embed_dims=(16, 16, 32, 32), num_heads=(1, 2, 2, 4), depths=(2, 1, 1, 2))
    return _timm(name, size=64, **sizes, **settings)


def _compact(name: str) -> Family:
    return _timm(name, source="vitmix", embed_dim=32, depth=3, num_heads=2)


def _mlp(name: str, **settings: Any) -> Family:
    sizes: dict[str, Any] = dict(img_size=SIZE, patch_size=8, num_blocks=3, embed_dim=32, num_classes=CLASSES)
    return Family("timm", name, lambda: MlpMixer(**sizes, **settings))


def _torchvision(name: str, kind: str, **settings: Any) -> Family:
    def build() -> nn.Module:
        import torchvision.models

        return getattr(torchvision.models, kind)(num_classes=CLASSES, **settings)

    return Family("torchvision", name, build)


def _transformers(kind: str, config: str, **settings: Any) -> Family:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, kind)(
            getattr(transformers, config)(image_size=SIZE, num_labels=CLASSES, **settings)
        )

    return Family("transformers", kind, build, "transformers")


HIDDEN: dict[str, Any] = dict(
    patch_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2
)
SWIN: dict[str, Any] = dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4])
VIT: dict[str, Any] = dict(image_size=SIZE, patch_size=8, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64)

FAMILIES: dict[str, Family] = {
    "ViT, DeiT": _plain("deit_small_patch16_224"),
    "DeiT, distilled": _plain("deit_small_distilled_patch16_224"),
    "DeiT III": _plain("deit3_small_patch16_224"),
    "ViT with registers, pooled": _plain("vit_medium_patch16_reg4_gap_256"),
    "SigLIP": _plain("vit_base_patch16_siglip_224"),
    "DINOv2": _plain("vit_small_patch14_reg4_dinov2"),
    "DINOv3": _plain("vit_small_patch16_dinov3", num_heads=1),
    "EVA-02": _plain("eva02_tiny_patch14_224"),
    "BEiT": _plain("beit_base_patch16_224"),
    "CaiT": _plain("cait_xxs24_224"),
    "Swin": _timm("swin_tiny_patch4_window7_224", img_size=SIZE, patch_size=4, window_size=4, **SWIN),
    "PVT v2": _pvt("pvt_v2_b1"),
    "PVT v2, linear": _pvt("pvt_v2_b2_li"),
    "PVT": _pvt("pvt_v1_small", source="vitmix", img_size=64),
    "CCT": _compact("cct_7_3x1_32"),
    "CVT": _compact("cvt_7_4_32"),
    "ViT-Lite": _compact("vit_lite_7_4_32"),
    "torchvision ViT": _torchvision("vit_b_16", "VisionTransformer", **VIT),
    "torchvision Swin": _torchvision("swin_t", "SwinTransformer", patch_size=[4, 4], window_size=[4, 4], **SWIN),
    "Hugging Face ViT": _transformers("ViTForImageClassification", "ViTConfig", **HIDDEN),
    "Hugging Face DeiT": _transformers("DeiTForImageClassification", "DeiTConfig", **HIDDEN),
    "Hugging Face DeiT, distilled": _transformers("DeiTForImageClassificationWithTeacher", "DeiTConfig", **HIDDEN),
    "Hugging Face DINOv2": _transformers("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2, **HIDDEN),
    "Hugging Face DINOv2, registers": _transformers(
        "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", num_register_tokens=2, **HIDDEN
    ),
    "Hugging Face Swin": _transformers("SwinForImageClassification", "SwinConfig", patch_size=4, window_size=4, **SWIN),
    "MLP-Mixer": _mlp("mixer_b16_224"),
    "ResMLP": _mlp("resmlp_12_224", block_layer=ResBlock, norm_layer=Affine, mlp_ratio=4),
    "ConvNeXt": _timm("convnext_tiny", size=64, depths=(1, 1, 2, 1), dims=(8, 8, 16, 16)),
    "ResNet": _timm("resnet50", size=64, layers=(1, 1, 2, 1), channels=(8, 8, 16, 16)),
    "XCiT": _plain("xcit_nano_12_p16_224", depth=2),
}


def supported(family: Family) -> dict[str, str | None]:
    """For each column of the table, why its training step is refused on the family; None if it runs."""
    found: dict[str, str | None] = {}
    for column, text in columns().items():
        try:
            train_step(family, text)
            found[column] = None
        except ValueError as error:
            found[column] = str(error)
    return found


def train_step(family: Family, text: str) -> tuple[Learner, Output]:
    """One forward and backward pass of a method on a tiny model of a family, with large random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = family.build().train()
        with torch.no_grad():  # some heads and norms start at zero, which would stop every gradient
            for parameter in model.parameters():
                parameter.normal_(0, 0.1) if parameter.ndim > 1 else parameter.add_(0.1)
        learner = Learner(model, create(text, CLASSES))
        output = learner(torch.randn(4, 3, family.size, family.size), torch.arange(4) % CLASSES)
        output.loss.backward()
    return learner, output


def table() -> tuple[list[list[str]], list[str]]:
    """The support table as rows of text, header first, and the reason for each dash.

    Families whose package is not installed have question marks.
    """
    heads = columns()
    rows, reasons = [["family", "for example", "from", *heads]], []
    for name, family in FAMILIES.items():
        marks = ["?"] * len(heads)
        if family.available:
            found = supported(family)
            marks = ["yes" if reason is None else "-" for reason in found.values()]
            reasons += [f"{name}, {column}: {reason}" for column, reason in found.items() if reason is not None]
        rows.append([name, family.example, family.source, *marks])
    return rows, reasons
