"""CCT, CVT and ViT-Lite: equal to the authors' programs, and at home in timm."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import timm.optim
import torch
from timm.layers import Attention
from torch import nn

from support import golden_cases, golden_compact, load
from vitmix.models import CompactTransformer, checkpoint_filter_fn, sine_positions
from vitmix.models.cct import default_cfgs

NAMES = sorted(default_cfgs)
NAMES_32 = [name for name in NAMES if name.endswith("_32")]
# README_tokenmixup.md: the stored values are float64; float32 rounding over a few layers reaches 1e-5
TOLERANCE = {torch.float64: dict(atol=1e-9, rtol=1e-9), torch.float32: dict(atol=5e-5, rtol=1e-4)}
POSITION = "sd.classifier.positional_emb"


def assert_golden(actual: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual.detach().numpy(), expected, **TOLERANCE[actual.dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", golden_cases("cct_*", "block_out"))
def test_golden_model(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    model = golden_compact(data).to(dtype)
    image = torch.from_numpy(data["image"]).to(dtype).requires_grad_()

    assert_golden(model.patch_embed(image), data["patch_tokens"])
    features, blocks = model.forward_intermediates(image, output_fmt="NLC", return_prefix_tokens=True)
    if model.has_class_token:
        blocks = [torch.cat((prefix, patches), dim=1) for patches, prefix in blocks]
    assert_golden(torch.stack(blocks), data["block_out"])
    assert_golden(model.forward_head(features, pre_logits=True), data["pooled"])
    logits = model(image)
    assert_golden(logits, data["logits"])
    (gradient,) = torch.autograd.grad((logits * torch.from_numpy(data["cotangent"]).to(dtype)).sum(), image)
    assert_golden(gradient, data["grad_image"])


@pytest.mark.parametrize("case", [c for c in golden_cases("cct_*", POSITION) if load(c)["pos_emb"] == "sine"])
def test_golden_sine_table(case: str) -> None:
    data = load(case)
    expected = data[POSITION]
    # the stored table was built in float32
    np.testing.assert_allclose(sine_positions(*expected.shape[1:]).numpy(), expected, atol=1e-5, rtol=0)
    assert not golden_compact(data).pos_embed.requires_grad


@pytest.mark.parametrize("case", golden_cases("*", "eval_logits"))
def test_golden_tokenmixup_checkpoint(case: str) -> None:
    """Weights with separate query, key and value and with score nets load, and give the plain model's logits."""
    data = load(case)
    assert_golden(golden_compact(data)(torch.from_numpy(data["image"])), data["eval_logits"])


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [
        ("cct_7_3x1_32", 10, 3_760_139),
        ("cct_7_3x1_32", 100, 3_783_269),
        ("cct_14_7x2_224", 1000, 22_367_273),  # 22.36 M in the paper, which cut the rest off
        ("vit_lite_7_4_32", 10, 3_716_874),
        ("vit_lite_7_4_32", 100, 3_740_004),
    ],
)
def test_parameter_count(name: str, classes: int, count: int) -> None:
    model = timm.create_model(name, num_classes=classes)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.fixture
def on_meta() -> Iterator[None]:
    with torch.device("meta"):
        yield


# Millions of parameters of the paper's tables and (three decimals) the authors' repository, which leaves positions out
# for two of them.
PUBLISHED = [
    ("cct_2_3x2_32", "learnable", "0.284"),
    ("cct_4_3x2_32", "learnable", "0.482"),
    ("cct_6_3x1_32", "none", "3.168"),
    ("cct_6_3x2_32", "learnable", "3.327"),
    ("cct_7_3x1_32", "learnable", "3.760"),
    ("cct_7_3x2_32", "learnable", "3.853"),
    ("cct_14_7x2_224", "none", "22.29"),
    ("cct_14_7x2_384", "learnable", "22.51"),
    ("cvt_6_4_32", "learnable", "3.190"),
    ("cvt_7_4_32", "learnable", "3.717"),
    ("cvt_7_8_32", "learnable", "3.74"),
    ("vit_lite_6_4_32", "learnable", "3.191"),
    ("vit_lite_7_4_32", "learnable", "3.717"),
    ("vit_lite_7_8_32", "learnable", "3.74"),
    ("vit_lite_7_16_32", "learnable", "3.89"),
]


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize(("name", "positions", "millions"), PUBLISHED)
def test_published_parameter_counts(name: str, positions: str, millions: str) -> None:
    model = timm.create_model(name, positional_embedding=positions)
    decimals = len(millions.partition(".")[2])
    assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.{decimals}f}" == millions


def expected_classes(kind: str, depth: str, side: str, options: list[str]) -> int:
    if "c100" in options:
        return 100
    if "fl" in options or (kind, depth, side) == ("cct", "7", "224"):
        return 102
    return 10 if side == "32" else 1000


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize("name", NAMES)
def test_every_name_builds_with_its_documented_shape(name: str) -> None:
    kind, *parts = re.split(r"_(?=\d)", name, maxsplit=3)
    depth, _, (side, *options) = parts[0], parts[1], parts[2].split("_")
    model = timm.create_model(name)
    cfg = model.pretrained_cfg
    assert isinstance(model, CompactTransformer)
    assert len(model.blocks) == int(depth)
    assert cfg["input_size"] == (3, int(side), int(side))
    assert cfg["num_classes"] == model.num_classes == expected_classes(kind, depth, side, options)
    assert model.positional_embedding == ("sine" if "sine" in options else "learnable")
    assert model.pos_embed.requires_grad == ("sine" not in options)
    assert cfg["first_conv"] + ".weight" in model.state_dict()
    assert model.has_class_token == (kind == "vit_lite") == (model.num_prefix_tokens == 1)
    assert model.global_pool == ("token" if kind == "vit_lite" else "seqpool")
    assert all(type(block.attn) is Attention for block in model.blocks)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.blocks]
    np.testing.assert_allclose(rates, np.linspace(0, 0.1, int(depth)))

    images = torch.empty(2, *cfg["input_size"])
    tokens = model.patch_embed(images)
    assert model.patch_embed.grid_size == model.patch_embed.dynamic_feat_size(images.shape[-2:])
    assert tokens.shape[1] == model.patch_embed.num_patches == np.prod(model.patch_embed.grid_size)
    assert model.feature_info[-1]["reduction"] * model.patch_embed.grid_size[0] == int(side)
    assert model(images).shape == (2, cfg["num_classes"])


def test_every_variant_of_the_authors_is_there() -> None:
    """The names their programs register, with vit_lite for their vit."""
    small_patches = {f"{kind}_{depth}_4_32" for kind in ("cvt", "vit_lite") for depth in (2, 4, 6, 7)}
    cct = {"2_3x2_32", "4_3x2_32", "6_3x1_32", "6_3x2_32", "7_3x1_32", "7_3x2_32", "7_7x2_224"}
    twice = small_patches | {f"cct_{name}" for name in cct}
    once = {"7_3x1_32_c100", "7_3x1_32_sine_c100", "14_7x2_224", "14_7x2_384", "14_7x2_384_fl"}
    of_the_paper = {"cvt_7_8_32", "vit_lite_7_8_32", "vit_lite_7_16_32"}
    expected = twice | {f"{name}_sine" for name in twice} | {f"cct_{name}" for name in once} | of_the_paper
    assert set(NAMES) == expected


def test_names_are_listed_and_the_star_import_works() -> None:
    assert set(NAMES) <= set(timm.list_models(module="cct"))
    namespace: dict[str, object] = {}
    exec("from vitmix.models.cct import *", namespace)
    assert set(NAMES) <= set(namespace)


def small(name: str = "cct_2_3x2_32", **settings) -> CompactTransformer:
    """Returns a model without randomness in its forward pass."""
    return timm.create_model(name, attn_drop_rate=0.0, drop_path_rate=0.0, **settings)


BOTH_POOLS = pytest.mark.parametrize("name", ["cct_2_3x2_32", "vit_lite_7_8_32"])


@pytest.mark.parametrize("name", NAMES_32)
def test_trains(name: str) -> None:
    model = timm.create_model(name)
    images = torch.randn(2, 3, 32, 32)
    assert not torch.equal(model(images), model(images))  # attention dropout and drop path are on
    model(images).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_initial_weights() -> None:
    model = timm.create_model("vit_lite_7_4_32")
    assert model.pos_embed.shape == (1, 65, 256)
    assert model.pos_embed.std().item() == pytest.approx(0.2, rel=0.05)
    assert not model.cls_token.any()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert module.bias is None or not module.bias.any()
    conv = timm.create_model("cct_7_3x1_32").patch_embed.convs[0].weight
    assert conv.std().item() == pytest.approx((2 / 27) ** 0.5, rel=0.1)  # fan in 3 * 3 * 3


@BOTH_POOLS
def test_reset_classifier(name: str) -> None:
    model = small(name).eval()
    images = torch.randn(2, 3, 32, 32)
    pooled = model.forward_head(model.forward_features(images), pre_logits=True)
    model.reset_classifier(5)
    assert model.num_classes == 5 and model.get_classifier() is model.head
    torch.testing.assert_close(model(images), model.head(pooled))
    model.reset_classifier(0)
    torch.testing.assert_close(model(images), pooled)
    model.reset_classifier(0, "")
    torch.testing.assert_close(model(images), model.forward_features(images))
    native = "token" if model.has_class_token else "seqpool"
    model.double().reset_classifier(3, native)
    assert model(images.double()).shape == (2, 3)
    with pytest.raises(ValueError, match="global_pool must be"):
        model.reset_classifier(3, "seqpool" if model.has_class_token else "token")


def test_features_without_head_or_pooling() -> None:
    assert timm.create_model("cct_2_3x2_32", num_classes=0)(torch.randn(1, 3, 32, 32)).shape == (1, 128)
    unpooled = timm.create_model("cct_2_3x2_32", num_classes=0, global_pool="")
    assert unpooled(torch.randn(1, 3, 32, 32)).shape == (1, 64, 128)
    assert unpooled.attention_pool is None


def test_sequence_pool_weights() -> None:
    model = small().eval()
    tokens = model.forward_features(torch.randn(3, 3, 32, 32))
    weights = model.sequence_pool_weights(tokens)
    assert weights.shape == tokens.shape[:2]
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(3))
    expected = torch.stack([sum(w * t for w, t in zip(*row, strict=True)) for row in zip(weights, tokens, strict=True)])
    torch.testing.assert_close(model.pool(tokens), expected)
    with pytest.raises(ValueError, match="seqpool"):
        small("vit_lite_7_8_32").sequence_pool_weights(tokens)


@BOTH_POOLS
def test_forward_intermediates(name: str) -> None:
    model = small(name, img_size=(32, 64)).eval()
    images = torch.randn(2, 3, 32, 64)
    rows, columns = model.patch_embed.grid_size
    ran: list[int] = []
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, i=i: ran.append(i))

    features, maps = model.forward_intermediates(images)
    torch.testing.assert_close(features, model.forward_features(images))
    assert [tuple(m.shape) for m in maps] == [(2, model.embed_dim, rows, columns)] * len(model.blocks)
    tokens = model.forward_intermediates(images, indices=[0, -1], output_fmt="NLC", intermediates_only=True, norm=True)
    assert len(tokens) == 2
    torch.testing.assert_close(tokens[-1], features[:, model.num_prefix_tokens :])
    torch.testing.assert_close(maps[0].flatten(2).transpose(1, 2), model.get_intermediate_layers(images, n=[0])[0])

    ran.clear()
    (first,) = model.forward_intermediates(images, indices=[0], stop_early=True, intermediates_only=True)
    assert ran == [0]
    torch.testing.assert_close(first, maps[0])

    result = model.forward_intermediates(images, return_prefix_tokens=True, output_dict=True)
    torch.testing.assert_close(result["image_features"], features)
    pairs = model.get_intermediate_layers(images, n=1, reshape=True, return_prefix_tokens=True)
    if model.has_class_token:
        assert result["image_intermediates_prefix"][0].shape == (2, 1, model.embed_dim)
        assert pairs[0][1].shape == (2, 1, model.embed_dim)
    else:
        assert "image_intermediates_prefix" not in result
        torch.testing.assert_close(pairs[0], maps[-1])
    with pytest.raises(ValueError, match="output_fmt"):
        model.forward_intermediates(images, output_fmt="NHWC")


def test_features_only() -> None:
    model = timm.create_model("cct_4_3x2_32", features_only=True, out_indices=(1, -1)).eval()
    assert [tuple(m.shape) for m in model(torch.randn(1, 3, 32, 32))] == [(1, 128, 8, 8)] * 2
    assert model.feature_info.reduction() == [4, 4]


@BOTH_POOLS
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    model = small(name)
    images = torch.randn(2, 3, 32, 32)

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))

    plain = gradients(model(images).square().sum())
    plain_features = gradients(model.forward_intermediates(images)[0].square().sum())
    model.set_grad_checkpointing()
    assert model.grad_checkpointing
    torch.testing.assert_close(gradients(model(images).square().sum()), plain)
    torch.testing.assert_close(gradients(model.forward_intermediates(images)[0].square().sum()), plain_features)


@pytest.mark.parametrize("positions", ["learnable", "sine", "none"])
@BOTH_POOLS
def test_state_dict_round_trip(name: str, positions: str) -> None:
    first = small(name, positional_embedding=positions, img_size=(32, 16)).eval()
    second = small(name, positional_embedding=positions, img_size=(32, 16)).eval()
    second.load_state_dict(checkpoint_filter_fn(first.state_dict(), second))
    images = torch.randn(2, 3, 32, 16)
    assert torch.equal(first(images), second(images))
    assert ("pos_embed" in first.state_dict()) == (positions != "none")


@BOTH_POOLS
def test_positions_of_another_grid_are_resampled(name: str, tmp_path: Path) -> None:
    source = small(name)
    path = tmp_path / "weights.pth"
    torch.save(source.state_dict(), path)
    overlay = dict(file=str(path))
    target = small(name, img_size=64, pretrained=True, pretrained_cfg_overlay=overlay).eval()
    prefix = source.num_prefix_tokens
    assert torch.equal(target.pos_embed[:, :prefix], source.pos_embed[:, :prefix])

    def grid(model: CompactTransformer) -> torch.Tensor:
        return model.pos_embed.detach()[:, prefix:].transpose(1, 2).unflatten(2, model.patch_embed.grid_size)

    expected = nn.functional.interpolate(grid(source), grid(target).shape[-2:], mode="bicubic", antialias=True)
    torch.testing.assert_close(grid(target), expected)
    assert target(torch.randn(1, 3, 64, 64)).shape == (1, 10)


def test_fixed_positions_of_another_grid_are_computed_anew() -> None:
    source, target = small("cct_2_3x2_32_sine"), small("cct_2_3x2_32_sine", img_size=64)
    target.load_state_dict(checkpoint_filter_fn(source.state_dict(), target))
    torch.testing.assert_close(target.pos_embed.detach(), sine_positions(256, 128))


def test_authors_file_loads_through_timm(tmp_path: Path) -> None:
    """A file with the authors' names fills a model of other classes and other input channels, as timm promises."""
    ours = timm.create_model("cct_2_3x2_32").state_dict()
    renames = [(".mlp.fc", ".linear"), (".attn.", ".self_attn."), (".norm1.", ".pre_norm."), (".norm2.", ".norm1.")]
    theirs = {}
    for key, value in ours.items():
        key = "classifier." + key.replace("pos_embed", "positional_emb").replace("head.", "fc.")
        for new, old in renames:
            key = key.replace(new, old)
        if "patch_embed" in key:
            key = key.replace("classifier.patch_embed.convs.", "tokenizer.conv_layers.").replace(".weight", ".0.weight")
        theirs[key] = value
    torch.save(theirs, tmp_path / "weights.pth")
    overlay = dict(file=str(tmp_path / "weights.pth"))
    model = timm.create_model("cct_2_3x2_32", pretrained=True, pretrained_cfg_overlay=overlay)
    torch.testing.assert_close(dict(model.state_dict()), dict(ours))
    other = timm.create_model(
        "cct_2_3x2_32", pretrained=True, pretrained_cfg_overlay=overlay, num_classes=7, in_chans=1
    )
    torch.testing.assert_close(other.blocks[1].attn.qkv.weight, model.blocks[1].attn.qkv.weight)
    assert other(torch.randn(1, 1, 32, 32)).shape == (1, 7)


@BOTH_POOLS
def test_wrong_image_size_is_refused(name: str) -> None:
    model = small(name)
    for call in (model, model.forward_intermediates):
        with pytest.raises(ValueError, match=r"expected .* \(32, 32\), got \(32, 48\).*img_size=\(32, 48\)"):
            call(torch.randn(1, 3, 32, 48))


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="'learnable', 'sine' or 'none', got 'rotary'"):
        timm.create_model("cct_2_3x2_32", positional_embedding="rotary")
    with pytest.raises(ValueError, match="global_pool must be 'seqpool' or ''"):
        timm.create_model("cct_2_3x2_32", global_pool="token")


@pytest.mark.parametrize("name", ["cct_7_3x1_32", "vit_lite_7_8_32"])
def test_all_but_vectors_are_decayed_as_by_the_authors(name: str) -> None:
    model = timm.create_model(name)
    optimizer = timm.optim.create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.06)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decay[id(p)] for name, p in model.named_parameters()} == {
        name: 0.06 if p.ndim > 1 else 0.0 for name, p in model.named_parameters()
    }


def test_optimizer_groups() -> None:
    model = timm.create_model("vit_lite_7_8_32")
    groups = timm.optim.param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.5)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    scales = sorted({group["lr_scale"] for group in groups})
    assert scales == [0.5**i for i in reversed(range(len(scales)))]
    assert len(scales) >= len(model.blocks) + 1  # the stem, then each block
