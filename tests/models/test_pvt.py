"""PVT v1: equal to the authors' model, and at home in timm."""

import copy
import math
import pickle
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import timm
import timm.optim
import torch
from timm.layers import set_fused_attn
from timm.models import group_parameters
from torch import Tensor, nn

from vitmix.models import PvtAttention, PvtBlock, PyramidVisionTransformer
from vitmix.models.pvt import checkpoint_filter_fn, default_cfgs

NAMES = sorted(default_cfgs)
TINY = dict(depths=(1, 2, 1, 2), embed_dims=(8, 16, 40, 64), img_size=64, num_classes=5)


def tiny(**settings) -> PyramidVisionTransformer:
    """A PVT of about 0.2 M parameters on 64 px images; its last grid has 2 x 2 cells, as have all the reduced ones."""
    return timm.create_model("pvt_v1_tiny", **(TINY | settings))


def authors_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    def rename(match: re.Match[str]) -> str:
        return f"{match[2].replace('blocks', 'block')}{int(match[1]) + 1}"

    return {re.sub(r"^stages\.(\d+)\.(patch_embed|pos_embed|blocks)", rename, key): w for key, w in weights.items()}


def noise(key: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers that depend on a name alone; NumPy keeps this generator's stream the same for ever."""
    return torch.from_numpy(np.random.RandomState(zlib.crc32(key.encode())).standard_normal(shape))


def loaded_with_noise(**settings) -> PyramidVisionTransformer:
    """A float64 model whose weights are noise, by the authors' names of them."""
    model = tiny(**settings).double().eval()
    weights = {}
    for key, old in authors_names(model.state_dict()).items():
        if key.endswith("weight") and old.ndim > 1:
            weights[key] = noise(key, old.shape) * 3 / math.prod(old.shape[1:]) ** 0.5
        else:
            weights[key] = noise(key, old.shape) / 2 + float("norm" in key and key.endswith("weight"))
    model.load_state_dict(checkpoint_filter_fn(weights, model))
    return model


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize(
    ("size", "expected", "tolerance"),
    [
        ((64, 64), [-1.9835897341, 1.4133272565, -0.3412389982, 0.8108504416, 1.2556116247], 1e-9),
        # timm interpolates positions in float32
        ((32, 64), [1.5498882006, -1.1636650349, 0.4526885584, 1.8877728011, 3.1999166990], 3e-6),
    ],
)
def test_golden_logits(size: tuple[int, int], expected: list[float], tolerance: float, fused: bool) -> None:
    """The logits of the authors' forward pass, computed once with their modules less dropout and initialization."""
    model = loaded_with_noise()
    for module in model.modules():
        if isinstance(module, PvtAttention):
            module.fused_attn = fused
    logits = model(noise("image", (1, 3, *size)))[0]
    np.testing.assert_allclose(logits.detach().numpy(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("name", "count", "millions"),
    [
        ("pvt_v1_tiny", 13_229_288, "13.2"),
        ("pvt_v1_small", 24_485_864, "24.5"),
        ("pvt_v1_medium", 44_208_104, "44.2"),
        ("pvt_v1_large", 61_369_320, "61.4"),
    ],
)
def test_published_parameter_counts(name: str, count: int, millions: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    assert sum(p.numel() for p in model.parameters()) == count
    assert f"{count / 1e6:.1f}" == millions


def test_names_are_listed_and_the_star_import_works() -> None:
    assert set(NAMES) == set(timm.list_models(module="pvt"))
    namespace: dict[str, object] = {}
    exec("from vitmix.models.pvt import *", namespace)
    assert set(NAMES) <= set(namespace)


def test_shape_of_a_published_model() -> None:
    with torch.device("meta"):
        model = timm.create_model("pvt_v1_small", drop_path_rate=0.3)
        images = torch.empty(2, 3, 224, 224)
        assert model(images).shape == (2, 1000)
        assert model.forward_features(images).shape == (2, 50, 512)
    assert (model.embed_dim, model.num_features, model.num_prefix_tokens) == (512, 512, 1)
    assert model.has_class_token and model.img_size == (224, 224) and model.size_multiple == 32
    assert [tuple(stage.pos_embed.shape) for stage in model.stages] == [
        (1, 3136, 64),
        (1, 784, 128),
        (1, 196, 320),
        (1, 50, 512),
    ]
    blocks = [block for stage in model.stages for block in stage.blocks]
    assert all(type(block) is PvtBlock and type(block.attn) is PvtAttention for block in blocks)
    assert [stage.blocks[0].attn.sr_ratio for stage in model.stages] == [8, 4, 2, 1]
    assert [stage.blocks[0].attn.num_heads for stage in model.stages] == [1, 2, 5, 8]
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in blocks]
    np.testing.assert_allclose(rates, np.linspace(0, 0.3, len(blocks)), rtol=1e-6)
    assert model.pretrained_cfg["first_conv"] + ".weight" in model.state_dict()


def slow_attention(attn: PvtAttention, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Spatial-reduction attention token by token, head by head."""
    rows, columns = feat_size
    ratio, dim = attn.sr_ratio, attn.head_dim
    output = torch.zeros_like(x)
    for image, tokens in enumerate(x):
        cells = list(tokens)
        if ratio > 1:
            cells = []
            for row in range(0, rows, ratio):
                for column in range(0, columns, ratio):
                    cell = attn.sr.bias.clone()
                    for i in range(ratio):
                        for j in range(ratio):
                            cell += attn.sr.weight[:, :, i, j] @ tokens[(row + i) * columns + column + j]
                    cells.append(attn.norm(cell))
        keys_values = [attn.kv.weight @ cell + attn.kv.bias for cell in cells]
        for t, token in enumerate(tokens):
            query = attn.q.weight @ token + attn.q.bias
            heads = []
            for head in range(attn.num_heads):
                part = slice(head * dim, (head + 1) * dim)
                keys = [kv[: len(query)][part] for kv in keys_values]
                values = [kv[len(query) :][part] for kv in keys_values]
                scores = torch.stack([query[part] @ key / dim**0.5 for key in keys]).exp()
                heads.append(sum(s * value for s, value in zip(scores / scores.sum(), values, strict=True)))
            output[image, t] = attn.proj.weight @ torch.cat(heads) + attn.proj.bias
    return output


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize(("ratio", "prefix"), [(1, 0), (1, 1), (2, 0), (4, 0)])
def test_attention_equals_its_slow_twin(ratio: int, prefix: int, fused: bool) -> None:
    attn = PvtAttention(6, 2, sr_ratio=ratio).double()
    attn.fused_attn = fused
    x = torch.randn(2, prefix + 4 * 8, 6, dtype=torch.float64) * 3
    with torch.no_grad():
        torch.testing.assert_close(attn(x, (4, 8)), slow_attention(attn, x, (4, 8)))


def test_attention_follows_timms_switch() -> None:
    assert PvtAttention(4, 2).fused_attn
    try:
        set_fused_attn(False)
        assert not PvtAttention(4, 2).fused_attn
    finally:
        set_fused_attn(True)


def test_trains_in_full_size() -> None:
    model = timm.create_model("pvt_v1_tiny", img_size=64, num_classes=10, drop_path_rate=0.5)
    images = torch.randn(4, 3, 64, 64)
    assert not torch.equal(model(images), model(images))  # drop path is on
    model.eval()(images).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_initial_weights() -> None:
    model = timm.create_model("pvt_v1_tiny", img_size=64)
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.2)
    for stage in model.stages:
        assert stage.pos_embed.std().item() == pytest.approx(0.02, rel=0.1)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1) and not module.bias.any()


@pytest.mark.parametrize("size", [(32, 32), (96, 64), (128, 128)])
def test_other_image_sizes(size: tuple[int, int]) -> None:
    """A model run at another size equals one built for that size into which its weights are loaded."""
    source = tiny().eval()
    target = tiny(img_size=size).eval()
    target.load_state_dict(checkpoint_filter_fn(source.state_dict(), target))
    images = torch.randn(2, 3, *size)
    assert source.forward_features(images).shape == (2, 1 + size[0] * size[1] // 1024, 64)
    torch.testing.assert_close(source(images), target(images))


def test_sizes_that_would_be_cut_are_refused() -> None:
    for call in (tiny(), tiny().forward_intermediates):
        with pytest.raises(ValueError, match="image sides must be multiples of 32, got 64x72; resize or pad"):
            call(torch.randn(1, 3, 64, 72))
    with pytest.raises(ValueError, match="multiples of 32, got 100x100"):
        tiny(img_size=100)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="last sr_ratios must be 1, got"):
        tiny(sr_ratios=(8, 4, 2, 2))
    with pytest.raises(ValueError, match="global_pool must be 'token', 'avg' or ''"):
        tiny(global_pool="max")
    with pytest.raises(ValueError, match="multiple of num_heads, got 8 and 3"):
        tiny(num_heads=(3, 2, 5, 8))


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
def test_authors_names_load(wrapper: str | None) -> None:
    ours = tiny().state_dict()
    theirs = authors_names(ours)
    starts = {"patch_embed1.proj.weight", "patch_embed4.norm.bias", "pos_embed1", "block2.1.attn.kv.weight"}
    assert starts | {"block1.0.attn.sr.weight", "cls_token", "norm.weight", "head.bias"} <= set(theirs)
    model = tiny()
    file = theirs if wrapper is None else {wrapper: theirs, "epoch": 299}
    model.load_state_dict(checkpoint_filter_fn(file, model), strict=True)
    torch.testing.assert_close(dict(model.state_dict()), dict(ours), rtol=0, atol=0)


def test_authors_file_loads_through_timm(tmp_path: Path) -> None:
    """A file fills a model of another image size, other classes and other input channels, as timm promises."""
    source = tiny(num_classes=1000)
    torch.save({"model": authors_names(source.state_dict())}, tmp_path / "weights.pth")
    overlay = dict(file=str(tmp_path / "weights.pth"))
    model = tiny(pretrained=True, pretrained_cfg_overlay=overlay, num_classes=7, in_chans=1, img_size=96)
    for i, stage in enumerate(model.stages):
        own = source.stages[i]
        torch.testing.assert_close(stage.blocks[0].attn.kv.weight, own.blocks[0].attn.kv.weight)
        grid = own.pos_embed.detach()[:, own.num_prefix_tokens :].transpose(1, 2)
        grid = grid.unflatten(2, own.patch_embed.grid_size)
        grid = nn.functional.interpolate(grid, stage.patch_embed.grid_size, mode="bilinear")
        torch.testing.assert_close(stage.pos_embed[:, stage.num_prefix_tokens :], grid.flatten(2).transpose(1, 2))
    torch.testing.assert_close(model.stages[3].pos_embed[:, 0], source.stages[3].pos_embed[:, 0])
    assert model(torch.randn(1, 1, 96, 96)).shape == (1, 7)


def test_reset_classifier() -> None:
    model = tiny().eval()
    images = torch.randn(2, 3, 64, 64)
    tokens = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), tokens[:, 0])
    model.reset_classifier(7)
    assert model.num_classes == 7 and model.get_classifier() is model.head
    torch.testing.assert_close(model(images), model.head(tokens[:, 0]))
    model.reset_classifier(0)
    torch.testing.assert_close(model(images), tokens[:, 0])
    model.reset_classifier(0, "avg")
    torch.testing.assert_close(model(images), tokens[:, 1:].mean(1))
    model.reset_classifier(0, "")
    torch.testing.assert_close(model(images), tokens)
    model.double().reset_classifier(3, "token")
    assert model(images.double()).shape == (2, 3)


def test_forward_intermediates() -> None:
    model = tiny().eval()
    images = torch.randn(2, 3, 64, 96)
    ran: list[int] = []
    for i, stage in enumerate(model.stages):
        stage.register_forward_hook(lambda *_, i=i: ran.append(i))

    features, maps = model.forward_intermediates(images)
    torch.testing.assert_close(features, model.forward_features(images))
    assert [tuple(m.shape) for m in maps] == [(2, 8, 16, 24), (2, 16, 8, 12), (2, 40, 4, 6), (2, 64, 2, 3)]
    first, normed = model.forward_intermediates(images, indices=[0, -1], norm=True, intermediates_only=True)
    torch.testing.assert_close(first, maps[0])
    torch.testing.assert_close(normed.flatten(2).transpose(1, 2), features[:, 1:])
    torch.testing.assert_close(model.norm(maps[-1].permute(0, 2, 3, 1)), normed.permute(0, 2, 3, 1))

    ran.clear()
    early, stopped = model.forward_intermediates(images, indices=[1], stop_early=True)
    assert ran == [0, 1]
    torch.testing.assert_close(stopped, [maps[1]])
    torch.testing.assert_close(early, maps[1].flatten(2).transpose(1, 2))
    with pytest.raises(ValueError, match="output_fmt must be 'NCHW', got 'NLC'"):
        model.forward_intermediates(images, output_fmt="NLC")


def test_features_only() -> None:
    images = torch.randn(1, 3, 64, 64)
    model = tiny(features_only=True)
    assert [tuple(m.shape) for m in model(images)] == [(1, 8, 16, 16), (1, 16, 8, 8), (1, 40, 4, 4), (1, 64, 2, 2)]
    assert model.feature_info.reduction() == [4, 8, 16, 32]
    pruned = tiny(features_only=True, out_indices=(0, -2))
    assert [tuple(m.shape) for m in pruned(images)] == [(1, 8, 16, 16), (1, 40, 4, 4)]
    assert pruned.feature_info.channels() == [8, 40]
    sum(m.sum() for m in pruned(images)).backward()
    assert all(p.grad is not None for p in pruned.parameters())  # nothing unused is left over


def test_gradient_checkpointing_changes_no_gradient() -> None:
    model = tiny()
    images = torch.randn(2, 3, 64, 64)
    calls: list[int] = []
    model.stages[2].blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))

    def gradients() -> list[Tensor]:
        calls.clear()
        return list(torch.autograd.grad(model(images).square().sum(), list(model.parameters())))

    plain = gradients()
    assert len(calls) == 1
    model.set_grad_checkpointing()
    torch.testing.assert_close(gradients(), plain)
    assert len(calls) == 2
    model.set_grad_checkpointing(False)
    gradients()
    assert len(calls) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(copied) -> None:
    model = tiny().eval()
    twin = copied(model)
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(twin(images), model(images))
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in model.parameters()}


def test_optimizer_groups() -> None:
    model = tiny()
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}
    groups = timm.optim.param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.5)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    depths = [math.log(scale[id(block.norm1.weight)], 0.5) for stage in model.stages for block in stage.blocks]
    assert depths == [6, 5, 4, 3, 2, 1]  # the head 0, the stem 7
    assert scale[id(model.stages[0].pos_embed)] == 0.5**7
    for together, block in (
        (model.stages[1].patch_embed.proj.weight, model.stages[1].blocks[0]),
        (model.stages[3].pos_embed, model.stages[3].blocks[0]),
        (model.cls_token, model.stages[3].blocks[0]),
        (model.norm.weight, model.stages[3].blocks[1]),
    ):
        assert scale[id(together)] == scale[id(block.norm1.weight)]

    layer = group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert [layer[f"stages.{i}.blocks.0.norm1.weight"] for i in range(4)] == [1, 2, 3, 4]
    assert (layer["stages.0.pos_embed"], layer["cls_token"], layer["norm.weight"], layer["head.bias"]) == (0, 4, 4, 5)
