"""Which methods work on which families of models, found by training a tiny model of each family."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import timm
import torch
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from timm.models.volo import VOLO
from torch import nn

from vitmix._learner import Learner, Output
from vitmix._registry import METHODS
from vitmix._text import create
from vitmix.lab.fitting import stand_in_maps
from vitmix.lab.settings import ModelArgs

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
    except ValueError:  # a token mask, which needs a model
        return False


class Family(NamedTuple):
    """A family of models: its package, the name of a model there with a setting if one is needed, and a tiny model.

    `package` must be installed, if it is not a dependency of this library.
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
    sizes: ModelArgs = dict(img_size=SIZE, patch_size=8, embed_dim=32, depth=3, num_heads=2)
    return _timm(name, **(sizes | settings))


def _pvt(name: str, **settings: Any) -> Family:
    sizes: ModelArgs = dict(embed_dims=(16, 16, 32, 32), num_heads=(1, 2, 2, 4), depths=(2, 1, 1, 2))
    return _timm(name, size=64, **sizes, **settings)


def _compact(name: str) -> Family:
    return _timm(name, source="vitmix", embed_dim=32, depth=3, num_heads=2)


def _built(name: str, kind: Callable[..., nn.Module], *, size: int = SIZE, **settings: Any) -> Family:
    return Family("timm", name, lambda: kind(img_size=size, num_classes=CLASSES, **settings), size=size)


def _mlp(name: str, **settings: Any) -> Family:
    return _built(name, MlpMixer, patch_size=8, num_blocks=3, embed_dim=32, **settings)


def _torchvision(name: str, kind: str, **settings: Any) -> Family:
    def build() -> nn.Module:
        import torchvision.models

        return getattr(torchvision.models, kind)(num_classes=CLASSES, **settings)

    return Family("torchvision", name, build)


def _swin2_of_torchvision() -> Family:
    def build() -> nn.Module:
        from torchvision.models import swin_transformer as swin

        kinds: ModelArgs = dict(block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2)
        return swin.SwinTransformer([4, 4], window_size=[4, 4], num_classes=CLASSES, **SWIN, **kinds)

    return Family("torchvision", "swin_v2_t", build)


def _transformers(kind: str, config: str, *, size: int = SIZE, **settings: Any) -> Family:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, kind)(
            getattr(transformers, config)(image_size=size, num_labels=CLASSES, **settings)
        )

    return Family("transformers", kind, build, "transformers", size)


def _two_towers(kind: str, config: str, **settings: Any) -> Family:
    """A model with the vision tower of an image-text model."""

    def build() -> nn.Module:
        import transformers

        towers = {
            "vision_config": dict(image_size=SIZE, **settings),
            "text_config": dict(bos_token_id=0, eos_token_id=1),  # SigLIP's usual ones are outside its vocabulary
        }
        return getattr(transformers, kind)(getattr(transformers, config)(**towers, num_labels=CLASSES))

    return Family("transformers", kind, build, "transformers")


HIDDEN: ModelArgs = dict(patch_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2)
SWIN: ModelArgs = dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4])
HF_PVT: ModelArgs = dict(
    hidden_sizes=[16, 16, 32, 32], num_attention_heads=[1, 2, 2, 4], depths=[2, 1, 1, 2], mlp_ratios=[2, 2, 2, 2]
)
HF_CONVNEXT: ModelArgs = dict(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 2, 1])
MVIT: ModelArgs = dict(depths=(2, 2), embed_dim=16, num_heads=1, stride_q=((1, 1), (2, 2)))
HIERA: ModelArgs = dict(q_pool=2, mask_unit_size=(4, 4), mask_unit_attn=(True, True, False))
VIT: ModelArgs = dict(image_size=SIZE, patch_size=8, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64)

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
    "ViT, relative positions": _plain("vit_relpos_base_patch16_224"),
    "NaFlexViT": _plain("naflexvit_base_patch16_gap", img_size=None),
    "CaiT": _plain("cait_xxs24_224"),
    "Swin": _timm("swin_tiny_patch4_window7_224", img_size=SIZE, patch_size=4, window_size=4, **SWIN),
    "Swin V2": _timm("swinv2_tiny_window8_256", img_size=SIZE, patch_size=4, window_size=4, **SWIN),
    "PVT v2": _pvt("pvt_v2_b1"),
    "PVT v2, linear": _pvt("pvt_v2_b2_li"),
    "PVT": _pvt("pvt_v1_small", source="vitmix", img_size=64),
    "PiT": _timm(
        "pit_s_224", img_size=SIZE, patch_size=8, stride=4, base_dims=(8, 8, 8), depth=(2, 1, 1), heads=(2, 4, 4)
    ),
    "Twins": _timm(
        "twins_svt_small",
        size=64,
        img_size=64,
        embed_dims=(16, 32),
        num_heads=(2, 4),
        depths=(2, 2),
        wss=(4, 3),
        sr_ratios=(4, 2),
        mlp_ratios=(2, 2),
    ),
    "TinyViT": _timm(
        "tiny_vit_5m_224",
        size=64,
        embed_dims=(8, 16, 32),
        depths=(1, 2, 2),
        num_heads=(1, 2, 4),
        window_sizes=(4, 3, 4),
    ),
    "MaxViT": _timm(
        "maxvit_tiny_tf_224",
        size=64,
        img_size=64,
        embed_dim=(16, 32),
        depths=(1, 1),
        stem_width=8,
        block_type=("M", "M"),
        transformer_dim_head=8,
        transformer_window_size=(4, 4),
    ),
    "CoAtNet": _timm(
        "coatnet_0_rw_224",
        size=64,
        img_size=64,
        embed_dim=(8, 16, 32),
        depths=(1, 2, 2),
        stem_width=8,
        block_type=("C", "T", "T"),
        transformer_dim_head=8,
    ),
    "LeViT": _timm(
        "levit_128", size=64, img_size=64, embed_dim=(16, 32), key_dim=8, depth=(2, 1), num_heads=(2, 4), stem_type="s8"
    ),
    "Hiera": _timm("hiera_tiny_224", size=64, img_size=(64, 64), embed_dim=8, num_heads=1, stages=(2, 2, 2), **HIERA),
    "MViT v2": _built("mvitv2_tiny", MultiScaleVit, cfg=MultiScaleVitCfg(**MVIT)),
    "VOLO": _built(
        "volo_d1_224, use_aux_head=False",
        VOLO,
        size=64,
        layers=(2, 2),
        embed_dims=(16, 32),
        num_heads=(2, 4),
        downsamples=(True, False),
        outlook_attention=(True, False),
        stem_hidden_dim=8,
        use_aux_head=False,
    ),
    "CCT": _compact("cct_7_3x1_32"),
    "CVT": _compact("cvt_7_4_32"),
    "ViT-Lite": _compact("vit_lite_7_4_32"),
    "torchvision ViT": _torchvision("vit_b_16", "VisionTransformer", **VIT),
    "torchvision Swin": _torchvision("swin_t", "SwinTransformer", patch_size=[4, 4], window_size=[4, 4], **SWIN),
    "torchvision Swin V2": _swin2_of_torchvision(),
    "Hugging Face ViT": _transformers("ViTForImageClassification", "ViTConfig", **HIDDEN),
    "Hugging Face DeiT": _transformers("DeiTForImageClassification", "DeiTConfig", **HIDDEN),
    "Hugging Face DeiT, distilled": _transformers("DeiTForImageClassificationWithTeacher", "DeiTConfig", **HIDDEN),
    "Hugging Face DINOv2": _transformers("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2, **HIDDEN),
    "Hugging Face DINOv2, registers": _transformers(
        "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", num_register_tokens=2, **HIDDEN
    ),
    "Hugging Face Swin": _transformers("SwinForImageClassification", "SwinConfig", patch_size=4, window_size=4, **SWIN),
    "Hugging Face Swin V2": _transformers(
        "Swinv2ForImageClassification", "Swinv2Config", patch_size=4, window_size=4, **SWIN
    ),
    "Hugging Face BEiT": _transformers(
        "BeitForImageClassification", "BeitConfig", use_relative_position_bias=True, **HIDDEN
    ),
    "Hugging Face CLIP": _two_towers("CLIPForImageClassification", "CLIPConfig", **HIDDEN),
    "Hugging Face SigLIP": _two_towers("SiglipForImageClassification", "SiglipConfig", **HIDDEN),
    "Hugging Face PVT v2": _transformers("PvtV2ForImageClassification", "PvtV2Config", size=64, **HF_PVT),
    "Hugging Face ConvNeXt": _transformers("ConvNextForImageClassification", "ConvNextConfig", size=64, **HF_CONVNEXT),
    "Hugging Face ConvNeXt V2": _transformers(
        "ConvNextV2ForImageClassification", "ConvNextV2Config", size=64, **HF_CONVNEXT
    ),
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
        learner = Learner(model, create(text, CLASSES), seed=0)
        images = torch.randn(4, 3, family.size, family.size)
        output = learner(images, torch.arange(4) % CLASSES, maps=stand_in_maps(learner.mixing, images))
        output.loss.backward()
    return learner, output


def table() -> tuple[list[list[str]], list[str]]:
    """The support table as rows of text, header first, and the reason for each dash.

    Methods that work on the same families share a column. Families whose package is not installed have question marks.
    """
    rows, reasons = [["family", "for example", "from"]], []
    marks: dict[str, list[str]] = {column: [] for column in columns()}
    for name, family in FAMILIES.items():
        rows.append([name, family.example, family.source])
        found = supported(family) if family.available else {}
        for column, mark in marks.items():
            mark.append("?" if not found else "yes" if found[column] is None else "-")
        reasons += [f"{name}, {column}: {reason}" for column, reason in found.items() if reason is not None]
    shared: dict[tuple[str, ...], list[str]] = {}
    for column, mark in marks.items():
        shared.setdefault(tuple(mark), []).append(column)
    for mark, methods in shared.items():
        for row, cell in zip(rows, [", ".join(methods), *mark], strict=True):
            row.append(cell)
    return rows, reasons
