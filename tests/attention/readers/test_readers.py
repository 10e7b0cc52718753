"""Readers at their edges: variants within families, refusals, several listeners, failed steps, precision, cost."""

from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import dense
import vitmix
from support import close, same
from test_families import CASES, pvt
from vitmix.attention.readers import read_model
from vitmix.lab.families import CLASSES, FAMILIES, SIZE


def test_attention_pooling_leaves_the_prefix_out_where_the_model_does() -> None:
    """timm's ViT pools patches alone, its EVA every token."""
    names = ("vit_base_patch16_siglip_224", "vit_pe_core_tiny_patch16_384")
    for name, settings in zip(names, (dict(class_token=True, reg_tokens=2), {}), strict=True):
        sizes = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=CLASSES)
        model: Any = timm.create_model(name, **sizes, **settings).double().eval()
        images, labels = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.arange(4)
        with vitmix.tl_align(CLASSES).attach(model) as mixing:
            batch = mixing.mix(images, labels)
            model(batch.images)
            targets = mixing.targets(batch)
            share = batch.tape.token_share[1]
        pool = dense.watched_maps(model, batch.images)[-1].mean(1)
        seen = share[:, share.shape[1] - pool.shape[-1] :]
        assert pool.shape[-1] == (16 if "siglip" in name else 16 + model.num_prefix_tokens)
        close(targets[range(4), batch.mix.partner], (pool @ seen.unsqueeze(-1)).flatten(1).mean(1), 1e-9)


@pytest.mark.parametrize(
    "settings", [dict(use_shared_relative_position_bias=True), dict(use_relative_position_bias=True)]
)
def test_beit_that_reads_its_class_token(settings: dict[str, bool]) -> None:
    """Hugging Face's BEiT with a bias shared by all layers or one for each; the class row is the saliency."""
    transformers = pytest.importorskip("transformers", minversion="5")
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config = transformers.BeitConfig(image_size=32, patch_size=8, use_mean_pooling=False, **sizes, **settings)
    torch.manual_seed(0)
    model = transformers.BeitForImageClassification(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    images = torch.randn(4, 3, 48, 32, dtype=torch.float64)  # another size than the model's: the bias is interpolated
    with vitmix.tl_align(2).attach(model) as mixing, vitmix.AttentionTap(model, saliency=[0, 1]) as tap:
        batch = mixing.mix(images, torch.arange(4) % 2)
        model(batch.images)
        share, read = batch.tape.token_share[-1], mixing.targets(batch)
    maps = [each.mean(1) for each in dense.watched_maps(model, batch.images)]
    for number, attention in enumerate(maps):
        close(tap.saliency(number), attention[:, 0, 1:], 1e-9)
        share = ((attention @ share.unsqueeze(-1)).squeeze(-1) + share) / 2
    own, partner = torch.arange(4) % 2, (torch.arange(4) % 2)[batch.mix.partner]
    changed = own != partner
    assert changed.any()
    close(read[range(4), partner][changed], share[:, 0][changed], 1e-9)


@pytest.mark.parametrize(
    ("name", "settings", "prefix", "reads"),
    [
        ("vit_relpos_base_patch16_cls_224", {}, 1, "class"),
        ("vit_relpos_base_patch16_clsgap_224", {}, 1, "mean"),
        ("vit_relpos_base_patch16_rpn_224", {}, 0, "mean"),
        ("vit_srelpos_small_patch16_224", {}, 0, "mean"),
        ("naflexvit_base_patch16_gap", dict(class_token=True, reg_tokens=2, global_pool="token"), 3, "class"),
        ("naflexvit_base_patch16_gap", dict(rope_type="axial", reg_tokens=1), 1, "mean"),
        ("naflexvit_base_patch16_gap", dict(rope_type="mixed", class_token=True), 5, "mean"),
        ("naflexvit_base_patch16_siglip", {}, 0, "pool"),
    ],
)
def test_variants_of_plain_transformers(name: str, settings: dict[str, Any], prefix: int, reads: str) -> None:
    """Positions, prefix tokens and heads of other kinds: shares against attention that torch's calls show."""
    torch.manual_seed(0)
    size = 48 if "naflex" in name else 32  # NaFlexViT takes any size
    if "naflex" not in name:
        settings = dict(img_size=32, **settings)
    sizes = dict(patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=CLASSES)
    model: Any = timm.create_model(name, **sizes, **settings).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    images = torch.randn(4, 3, size, size, dtype=torch.float64)
    with vitmix.tl_align(CLASSES).attach(model) as mixing, vitmix.AttentionTap(model, saliency=[0, 1]) as tap:
        batch = mixing.mix(images, torch.arange(4))
        model(batch.images)
        targets, share = mixing.targets(batch), batch.tape.token_share[-1]
    maps = [each.mean(1) for each in dense.watched_maps(model, batch.images)]
    patches = dense.under_kernel(batch.mix.mask.double().expand(4, -1, -1), 8, 8, 0).flatten(1)
    close(share, torch.cat([batch.mix.mask.double().mean((1, 2)).expand(4).unsqueeze(1)] * prefix + [patches], 1), 1e-9)
    for number in range(2):
        rows = maps[number][:, 0] if reads == "class" else maps[number][:, prefix:].mean(1)
        close(tap.saliency(number), rows[:, prefix:], 1e-9)
        share = ((maps[number] @ share.unsqueeze(-1)).squeeze(-1) + share) / 2
    views = {"class": share[:, 0], "mean": share[:, prefix:].mean(1)}
    seen = (maps[-1] @ share.unsqueeze(-1)).flatten(1).mean(1) if reads == "pool" else views[reads]
    close(targets[range(4), batch.mix.partner], seen, 1e-9)


RMLP = dict(img_size=64, stem_width=8, transformer_dim_head=8)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vit_relpos_base_patch16_224", dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)),
        ("coatnet_rmlp_0_rw_224", dict(embed_dim=(8, 16), depths=(1, 2), block_type=("C", "T"), **RMLP)),
        ("maxvit_rmlp_tiny_rw_256", dict(embed_dim=(16,), depths=(1,), block_type=("M",), **RMLP)),
    ],
)
def test_dropout_of_positions_is_that_of_the_pass(name: str, settings: dict[str, Any]) -> None:
    """In training, a network of positions drops out; the statistic follows the bias that the model itself drew."""
    torch.manual_seed(0)
    if "maxvit" in name:
        settings = dict(transformer_window_size=(4, 4), **settings)
    model = timm.create_model(name, num_classes=CLASSES, drop_path_rate=0.0, **settings).double().train()
    images = torch.randn(2, 3, settings["img_size"], settings["img_size"], dtype=torch.float64)
    with vitmix.AttentionTap(model, attention=[0, 1]) as tap, dense.Watch() as watch, torch.no_grad():
        torch.manual_seed(1)
        tapped = model(images)
    torch.manual_seed(1)
    close(model(images), tapped, 1e-9)  # and no number is drawn that the model would not draw
    for number, maps in enumerate(watch.maps):
        flow: Any = tap.flow(number)
        inner = getattr(flow, "inner", flow)
        close(getattr(inner, "inner", inner).maps(), maps, 1e-9)


def test_refused_classes_say_why() -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    tower = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_patches=16)
    patches = transformers.Siglip2ForImageClassification(transformers.Siglip2Config(vision_config=tower))
    davit = timm.create_model("davit_tiny", depths=(1, 1, 1, 1), embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1))
    edgenext = timm.create_model("edgenext_xx_small", dims=(8, 16, 16, 32), depths=(1, 1, 1, 1))
    for model, words in (
        (patches, "its input is patches"),
        (davit, "between channels, not tokens"),
        (edgenext, "its attention is between channels, not tokens"),
    ):
        with pytest.raises(ValueError, match=words):
            read_model(model)


def test_patches_that_leave_a_rest() -> None:
    """384 pixels in patches of 14, as published, here 50: the last rows and columns belong to no patch."""
    model = timm.create_model(
        "vit_so400m_patch14_siglip_gap_384",
        img_size=50,
        patch_size=14,
        embed_dim=32,
        depth=2,
        num_heads=2,
        num_classes=4,
    )
    learner = vitmix.Learner(model.train(), vitmix.create("tl_align | transmix | mixup", CLASSES))
    images = torch.randn(4, 3, 50, 50)
    for _ in range(4):
        assert torch.isfinite(learner(images, torch.arange(4)).loss)
    reader = read_model(model)
    mask = torch.zeros(1, 50, 50, dtype=torch.bool)
    mask[:, 42:, :], mask[:, :, 14:28] = True, True
    expected = torch.tensor([[0.0, 1.0, 0.0]]).expand(1, 3, 3)
    close(reader.embed_share(mask, (50, 50), torch.float32), expected, 1e-7)
    with pytest.raises(ValueError, match="images of 50x50 leave a rest beside patches of 14x14"):
        vitmix.Learner(model, vitmix.create("smmix", CLASSES))(images, torch.arange(4))


def test_tokens_of_padded_merges_are_counted_as_they_lie() -> None:
    """Swin on 28 pixels: 7 x 7 tokens merge to 4 x 4, the last of which hold half as much."""
    model = CASES["Swin, padded"].build()
    reader = read_model(model)
    mask = torch.zeros(1, 28, 28, dtype=torch.bool)
    mask[:, 20:, 20:] = True  # rows 20..24 are in the third token (16..24), rows 24..28 are the fourth
    share = reader.patch_share(mask, torch.zeros(1), (28, 28)).view(4, 4)
    close(share[2:, 2:], torch.tensor([[0.25, 0.5], [0.5, 1.0]]), 1e-6)
    assert share[:2].sum() == 0
    nearest = reader.patch_mask(mask, -1, (28, 28)).view(4, 4)
    assert nearest.sum() == 1 and nearest[3, 3]


def test_methods_without_a_model_need_no_geometry() -> None:
    model = FAMILIES["torchvision Swin"].build()
    assert torch.isfinite(
        vitmix.Learner(model, vitmix.create("cutmix", CLASSES))(torch.randn(4, 3, 30, 30), torch.arange(4)).loss
    )
    with pytest.raises(ValueError, match="do not divide into patches"):
        vitmix.Learner(model, vitmix.create("tl_align", CLASSES))(torch.randn(4, 3, 30, 30), torch.arange(4))


def test_refused_variants_say_why() -> None:
    for name, settings, words in (
        ("convnext_tiny", dict(depths=(1, 1, 1, 1), dims=(8, 8, 8, 8), output_stride=16), "dilated"),
        ("resnet18", dict(global_pool="max"), "with 'max' pooling"),
        ("convnext_tiny", dict(depths=(1, 1, 1, 1), dims=(8, 8, 8, 8), global_pool="max"), "with 'max' pooling"),
        ("resnet18", dict(output_stride=8), "dilated"),
    ):
        with pytest.raises(ValueError, match=words):
            vitmix.tl_align(CLASSES).attach(timm.create_model(name, num_classes=CLASSES, **settings))
    for name in ("PVT v2", "PVT"):
        model = pvt(FAMILIES[name].example, **(dict(img_size=32) if name == "PVT" else {}))()
        with pytest.raises(ValueError, match="give only one"):
            vitmix.Learner(model, vitmix.create("smmix", CLASSES))(torch.randn(4, 3, 32, 32), torch.arange(4))


def test_pvt_takes_other_sizes() -> None:
    model = FAMILIES["PVT"].build()
    assert torch.isfinite(
        vitmix.Learner(model, vitmix.tl_align(CLASSES))(torch.randn(4, 3, 96, 64), torch.arange(4)).loss
    )


def test_several_listen_at_a_time() -> None:
    for name in ("BEiT", "torchvision ViT", "Swin"):
        model = FAMILIES[name].build().eval()
        images = torch.randn(2, 3, SIZE, SIZE)
        with vitmix.AttentionTap(model, column_mean=[0]) as outer, vitmix.AttentionTap(model, column_mean=[0]) as inner:
            model(images)
        same(inner.column_mean(0), outer.column_mean(0))
        assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("text", ["tl_align", "smmix", "htm(block=1, tau=9) + vtm(block=1)"])
@pytest.mark.parametrize("where", ["patch_embed", "head"])
def test_a_failed_step_leaves_the_model_alone(text: str, where: str) -> None:
    """In training mode: the hooks would take the next pass for the batch that failed, mix it, or refuse it."""
    model: Any = FAMILIES["ViT, DeiT"].build().train()
    images = torch.randn(4, 3, SIZE, SIZE)
    learner = vitmix.Learner(model, vitmix.create(text, CLASSES))
    plain, calls = model(images), []

    def fail(module: nn.Module, *_: Any) -> None:
        calls.append(1)
        if module.training:  # not in the guide pass
            raise ZeroDivisionError

    handle = getattr(model, where).register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        learner(images, torch.arange(4))
    handle.remove()
    assert calls
    same(model(images), plain)
    same(model(images), plain)


def test_nothing_is_left_on_a_student_whose_guide_is_refused() -> None:
    student, guide = FAMILIES["ViT, DeiT"].build(), FAMILIES["XCiT"].build()
    with pytest.raises(ValueError):
        vitmix.create("smmix", CLASSES).attach(student, guide=guide)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in student.modules())


def test_ones_own_reader_comes_first() -> None:
    from torchvision.models import VisionTransformer

    from vitmix.attention import readers as adapters

    try:
        adapters.register_reader(VisionTransformer, lambda model: pytest.fail("asked for"))
        read_model(FAMILIES["torchvision Swin"].build())
        with pytest.raises(pytest.fail.Exception):
            read_model(FAMILIES["torchvision ViT"].build())
    finally:
        del adapters._REGISTERED[VisionTransformer]


AUTOCAST = ["Swin", "PVT v2, linear", "CaiT", "SigLIP", "DINOv3", "MLP-Mixer", "ConvNeXt"]
AUTOCAST += ["Swin V2", "MaxViT", "CoAtNet", "TinyViT", "LeViT", "Hiera", "MViT v2", "VOLO"]


@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_keeps_shares_exact(name: str) -> None:
    """Under autocast statistics are computed in float32: a share of one stays one, and targets sum to one."""
    family = FAMILIES[name]
    torch.manual_seed(0)
    learner = vitmix.Learner(family.build(), vitmix.tl_align(CLASSES))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = learner(torch.randn(4, 3, family.size, family.size), torch.arange(4))
    output.loss.backward()
    assert output.targets.dtype == torch.float32
    assert (output.targets.sum(1) - 1).abs().max() < 1e-6
    mixing = learner.mixing
    batch = mixing.mix(torch.randn(4, 3, family.size, family.size), torch.arange(4))
    for index in batch.tape.token_share:
        batch.tape.token_share[index] = torch.ones_like(batch.tape.token_share[index])
    batch.tape.image_share = torch.ones(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        learner.model(batch.images)
    for share in batch.tape.token_share.values():
        close(share, torch.ones_like(share), 2e-6)


def test_htm_costs_one_norm_and_one_projection() -> None:
    """Counted where torch itself is called, since HTM reaches past the modules."""
    counts = []
    for text in ("cutmix", "cutmix + htm(block=1)"):
        torch.manual_seed(0)
        learner = vitmix.Learner(FAMILIES["ViT, DeiT"].build(), vitmix.create(text, CLASSES))
        with Counted() as counted:
            learner(torch.randn(4, 3, SIZE, SIZE), torch.arange(4))
        counts.append(counted)
    plain, mixed = counts
    assert mixed.norms - plain.norms == 1
    assert mixed.products - plain.products == 1 + 2  # the score net: once to judge, once for its loss


class Counted(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.norms = self.products = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.norms += func is nn.functional.layer_norm
        self.products += func is nn.functional.linear
        return func(*args, **(kwargs or {}))
