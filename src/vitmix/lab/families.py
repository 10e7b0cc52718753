"""Which methods work on which families of models, found by trying: one tiny model of each family."""

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
PLAIN = dict(img_size=SIZE, patch_size=8, embed_dim=32, depth=3, num_heads=2, num_classes=CLASSES)


def columns() -> dict[str, str]:
    """The texts to try, by the methods they stand for: one for all that need images and labels alone."""
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
    """A family of models: who has it, a model's name there, and a tiny one.

    `package` is what must be installed for it beyond this library's own needs.
    """

    source: str
    example: str
    build: Callable[[], nn.Module]
    package: str | None = None
    size: int = SIZE

    @property
    def available(self) -> bool:
        return self.package is None or find_spec(self.package) is not None


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    settings.setdefault("num_classes", CLASSES)
    return lambda: timm.create_model(name, **settings)


def _plain(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return _timm(name, **(PLAIN | settings))


def _swin() -> dict[str, Any]:
    return dict(img_size=SIZE, patch_size=4, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4))


def _pvt() -> dict[str, Any]:
    return dict(embed_dims=(16, 16, 32, 32), num_heads=(1, 2, 2, 4), depths=(2, 1, 1, 2))


def _torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(SIZE, 8, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=CLASSES)


def _torchvision_swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    sizes: dict[str, Any] = dict(patch_size=[4, 4], window_size=[4, 4])
    return SwinTransformer(embed_dim=16, depths=[2, 2], num_heads=[2, 4], num_classes=CLASSES, **sizes)


def _mlp(**settings: Any) -> Callable[[], nn.Module]:
    sizes: dict[str, Any] = dict(img_size=SIZE, patch_size=8, num_blocks=3, embed_dim=32, num_classes=CLASSES)
    return lambda: MlpMixer(**sizes, **settings)


def _hugging_face(kind: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        sizes: dict[str, Any] = dict(image_size=SIZE, num_labels=CLASSES) | settings
        return getattr(transformers, kind)(getattr(transformers, config)(**sizes))

    return build


HIDDEN: dict[str, Any] = dict(
    patch_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2
)


def _transformers(kind: str, config: str, **settings: Any) -> Family:
    return Family("transformers", kind, _hugging_face(kind, config, **settings), "transformers")


FAMILIES: dict[str, Family] = {
    "ViT, DeiT": Family("timm", "deit_small_patch16_224", _plain("deit_small_patch16_224")),
    "DeiT, distilled": Family("timm", "deit_small_distilled_patch16_224", _plain("deit_small_distilled_patch16_224")),
    "DeiT III": Family("timm", "deit3_small_patch16_224", _plain("deit3_small_patch16_224")),
    "ViT with registers, pooled": Family(
        "timm", "vit_medium_patch16_reg4_gap_256", _plain("vit_medium_patch16_reg4_gap_256")
    ),
    "SigLIP": Family("timm", "vit_base_patch16_siglip_224", _plain("vit_base_patch16_siglip_224")),
    "DINOv2": Family("timm", "vit_small_patch14_reg4_dinov2", _plain("vit_small_patch14_reg4_dinov2")),
    "DINOv3": Family("timm", "vit_small_patch16_dinov3", _plain("vit_small_patch16_dinov3", num_heads=1)),
    "EVA-02": Family("timm", "eva02_tiny_patch14_224", _plain("eva02_tiny_patch14_224")),
    "BEiT": Family("timm", "beit_base_patch16_224", _plain("beit_base_patch16_224")),
    "CaiT": Family("timm", "cait_xxs24_224", _plain("cait_xxs24_224")),
    "Swin": Family("timm", "swin_tiny_patch4_window7_224", _timm("swin_tiny_patch4_window7_224", **_swin())),
    "PVT v2": Family("timm", "pvt_v2_b1", _timm("pvt_v2_b1", **_pvt()), size=64),
    "PVT v2, linear": Family("timm", "pvt_v2_b2_li", _timm("pvt_v2_b2_li", **_pvt()), size=64),
    "PVT": Family("vitmix", "pvt_v1_small", _timm("pvt_v1_small", img_size=64, **_pvt()), size=64),
    "CCT": Family("vitmix", "cct_7_3x1_32", _timm("cct_7_3x1_32", embed_dim=32, depth=3, num_heads=2)),
    "CVT": Family("vitmix", "cvt_7_4_32", _timm("cvt_7_4_32", embed_dim=32, depth=3, num_heads=2)),
    "ViT-Lite": Family("vitmix", "vit_lite_7_4_32", _timm("vit_lite_7_4_32", embed_dim=32, depth=3, num_heads=2)),
    "torchvision ViT": Family("torchvision", "vit_b_16", _torchvision_vit),
    "torchvision Swin": Family("torchvision", "swin_t", _torchvision_swin),
    "Hugging Face ViT": _transformers("ViTForImageClassification", "ViTConfig", **HIDDEN),
    "Hugging Face DeiT": _transformers("DeiTForImageClassification", "DeiTConfig", **HIDDEN),
    "Hugging Face DeiT, distilled": _transformers("DeiTForImageClassificationWithTeacher", "DeiTConfig", **HIDDEN),
    "Hugging Face DINOv2": _transformers("Dinov2ForImageClassification", "Dinov2Config", **HIDDEN | dict(mlp_ratio=2)),
    "Hugging Face DINOv2, registers": _transformers(
        "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", **HIDDEN | dict(num_register_tokens=2)
    ),
    "Hugging Face Swin": _transformers(
        "SwinForImageClassification",
        "SwinConfig",
        patch_size=4,
        window_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
    ),
    "MLP-Mixer": Family("timm", "mixer_b16_224", _mlp()),
    "ResMLP": Family("timm", "resmlp_12_224", _mlp(block_layer=ResBlock, norm_layer=Affine, mlp_ratio=4)),
    "ConvNeXt": Family(
        "timm", "convnext_tiny", _timm("convnext_tiny", depths=(1, 1, 2, 1), dims=(8, 8, 16, 16)), size=64
    ),
    "ResNet": Family("timm", "resnet50", _timm("resnet50", layers=(1, 1, 2, 1), channels=(8, 8, 16, 16)), size=64),
    "XCiT": Family("timm", "xcit_nano_12_p16_224", _plain("xcit_nano_12_p16_224", depth=2)),
}


def supported(family: Family) -> dict[str, str | None]:
    """For each column of the table, why a training step of it is refused on the family; None if it runs."""
    found: dict[str, str | None] = {}
    for column, text in columns().items():
        try:
            train_step(family, text)
            found[column] = None
        except ValueError as error:
            found[column] = str(error)
    return found


def train_step(family: Family, text: str) -> tuple[Learner, Output]:
    """One forward and backward pass of a method on a tiny model of a family, its weights drawn wide."""
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
    """The support table as rows of text, its head first, and the reason for each dash.

    Families whose package is absent have question marks.
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
