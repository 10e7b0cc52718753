"""Every family of models: statistics, shares and heads against dense twins, and a training step of every method."""

import copy
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from torch import Tensor, nn

import dense
import vitmix
from support import close, load, same, tensor
from twins import TWINS, MViT, Twin
from vitmix import Draw
from vitmix.attention.readers import read_model
from vitmix.lab.families import CLASSES, FAMILIES, MVIT, SIZE, columns, train_step

METHODS = columns()

NO_ATTENTION = ("MLP-Mixer", "ResMLP", "ConvNeXt", "Hugging Face ConvNeXt", "Hugging Face ConvNeXt V2", "ResNet")
UNREAD = ("XCiT",)
ATTENTION = [name for name in FAMILIES if name not in (*NO_ATTENTION, *UNREAD)]
PLAIN_SWIN = [((8, 8), (4, 4), (0, 0)), ((8, 8), (4, 4), (2, 2)), ((4, 4), (4, 4), (0, 0)), ((4, 4), (4, 4), (0, 0))]
PADDED_SWIN = [((7, 7), (4, 4), (0, 0)), ((7, 7), (4, 4), (2, 2)), ((4, 4), (4, 4), (0, 0)), ((4, 4), (4, 4), (0, 0))]
# timm up to 1.0.30 sizes the second stage's windows by 7 // 2, while merging leaves 4 x 4 tokens.
OLD_TIMM = tuple(map(int, timm.__version__.split(".")[:3])) < (1, 0, 31)
TIMM_PADDED = [*PADDED_SWIN[:2], *(2 * [((4, 4), (3, 3), (0, 0))] if OLD_TIMM else PADDED_SWIN[2:])]
PVT_GRIDS = [(16, 16), (16, 16), (8, 8), (4, 4), (2, 2), (2, 2)]
PVT_RATIOS = [8, 8, 4, 2, 1, 1]
PVT_STAGES = [0, 0, 1, 2, 3, 3]
PVT_SIZES: dict[str, Any] = dict(
    embed_dims=(16, 16, 32, 32), num_heads=(1, 2, 2, 4), depths=(2, 1, 1, 2), num_classes=CLASSES
)


class Case(NamedTuple):
    """A model and how its attention lies on the grid: nothing is taken from the library's readers."""

    build: Callable[[], nn.Module]
    size: int = SIZE
    patch: int = 8
    prefix: int = 0
    windows: list[Any] | None = None
    pad_first: bool = False
    reduced: Callable[[int, int], list[range]] | None = None
    stages: list[int] | None = None
    twin: Twin | None = None
    unread: int = 0  # maps at the end that the classifier does not depend on


def plain(name: str, prefix: int, patch: int = 8) -> Case:
    return Case(FAMILIES[name].build, prefix=prefix, patch=patch, unread=int(name == "Hugging Face SigLIP"))


def by_ratio(side: int, ratio: int) -> list[range]:
    return dense.even_cells(side, ratio)


def by_count(side: int, ratio: int) -> list[range]:
    return dense.adaptive_cells(side, 7)


def swin(name: str, *, pad_first: bool, size: int) -> Case:
    windows = PLAIN_SWIN if size == 32 else PADDED_SWIN if pad_first else TIMM_PADDED
    build = FAMILIES[name].build
    if FAMILIES[name].source == "timm" and size != 32:
        build = lambda: timm.create_model(  # noqa: E731
            FAMILIES[name].example,
            img_size=size,
            patch_size=4,
            window_size=4,
            embed_dim=16,
            depths=(2, 2),
            num_heads=(2, 4),
            num_classes=CLASSES,
        )
    return Case(build, size=size, patch=4, windows=windows, pad_first=pad_first, stages=[0, 0, 1, 1])


def fused(case: Case) -> Case:
    """With fused attention, which timm does not use for windows unless it is told to."""

    def build() -> nn.Module:
        model = case.build()
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = True
        return model

    return case._replace(build=build)


def pvt(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, **PVT_SIZES, **settings)


PREFIX = {
    "ViT, DeiT": 1,
    "DeiT, distilled": 2,
    "DeiT III": 1,
    "ViT with registers, pooled": 4,
    "SigLIP": 0,
    "DINOv2": 5,
    "DINOv3": 5,
    "EVA-02": 1,
    "BEiT": 1,
    "ViT, relative positions": 0,
    "NaFlexViT": 4,
    "CaiT": 0,
    "ViT-Lite": 1,
    "torchvision ViT": 1,
    "Hugging Face ViT": 1,
    "Hugging Face DeiT": 2,
    "Hugging Face DeiT, distilled": 2,
    "Hugging Face DINOv2": 1,
    "Hugging Face DINOv2, registers": 3,
    "Hugging Face BEiT": 1,
    "Hugging Face CLIP": 1,
    "Hugging Face SigLIP": 0,
}
CASES: dict[str, Case] = {name: plain(name, prefix) for name, prefix in PREFIX.items()}
for family, twin in TWINS.items():
    CASES[family] = Case(FAMILIES[family].build, size=FAMILIES[family].size, prefix=twin.prefix, twin=twin)
CASES["MViT v2, class token"] = Case(
    lambda: MultiScaleVit(MultiScaleVitCfg(use_cls_token=True, **MVIT), img_size=(32, 32), num_classes=CLASSES),
    prefix=1,
    twin=MViT(prefix=1),
)
CASES["CCT"] = plain("CCT", 0, patch=2)
CASES["CVT"] = plain("CVT", 0, patch=4)
CASES["ViT-Lite"] = plain("ViT-Lite", 1, patch=4)
SWINS = ("Swin", "torchvision Swin", "Hugging Face Swin")
for family in (*SWINS, *(f"{name} V2" for name in SWINS)):
    first = FAMILIES[family].source != "timm"
    CASES[family] = swin(family, pad_first=first, size=32)
    CASES[f"{family}, padded"] = swin(family, pad_first=first, size=28)
for unfused in ("Swin", "Swin, padded"):
    CASES[f"{unfused}, fused"] = fused(CASES[unfused])
CASES["PVT v2"] = Case(pvt("pvt_v2_b1"), size=64, patch=4, reduced=by_ratio, stages=PVT_STAGES)
CASES["Hugging Face PVT v2"] = Case(
    FAMILIES["Hugging Face PVT v2"].build, size=64, patch=4, reduced=by_ratio, stages=PVT_STAGES
)
CASES["PVT v2, linear"] = Case(pvt("pvt_v2_b2_li"), size=64, patch=4, reduced=by_count, stages=PVT_STAGES)
CASES["PVT"] = Case(pvt("pvt_v1_small", img_size=64), size=64, patch=4, reduced=by_ratio, stages=PVT_STAGES)


def model_of(case: Case, name: str) -> nn.Module:
    package = FAMILIES[name.removesuffix(", fused").removesuffix(", padded").removesuffix(", class token")].package
    if package is not None:
        pytest.importorskip(package)
    torch.manual_seed(0)
    model = case.build().double().eval()
    with torch.no_grad():  # wide weights: attention far from uniform, as in a trained model
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return model


def images_of(case: Case, batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, case.size, case.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def dense_maps(case: Case, model: nn.Module, images: Tensor) -> list[Tensor]:
    maps = dense.watched_maps(model, images)
    maps = maps[: len(maps) - case.unread]
    if case.twin is not None:
        return case.twin.maps(model, maps)
    if case.windows is not None:
        return [
            dense.spread_windows(each, *windows, case.pad_first)
            for each, windows in zip(maps, case.windows, strict=True)
        ]
    if case.reduced is not None:
        spread = []
        for each, grid, ratio in zip(maps, PVT_GRIDS, PVT_RATIOS, strict=True):
            if ratio == 1 and case.reduced is by_ratio:
                spread.append(each)
            else:
                cells = case.reduced(grid[0], ratio)
                spread.append(dense.spread_cells(each, grid, (cells, cells)))
        return spread
    return maps


CLASS_BLOCKS = {"CaiT": (3, 4), "VOLO": (4, 5)}


def block_prefix(name: str, case: Case, number: int) -> int:
    if name in CLASS_BLOCKS:
        return int(number in CLASS_BLOCKS[name])
    return int(name == "PVT" and number >= 4) or case.prefix


@pytest.mark.parametrize("name", CASES)
def test_statistics_equal_dense_attention(name: str) -> None:
    case = CASES[name]
    model, images = model_of(case, name), images_of(case)
    plain, keys = logits(model, images), list(model.state_dict())
    maps = dense_maps(case, model, images)
    if name == "SigLIP":
        maps.pop()  # attention pooling
    patches = [number for number in range(len(maps)) if number not in CLASS_BLOCKS.get(name, ())]
    rows = [number for number in range(len(maps)) if block_prefix(name, case, number)]
    if name in ("ViT with registers, pooled", "NaFlexViT"):
        rows = []  # registers, but no class token
    with vitmix.AttentionTap(model, class_row=rows, column_mean=patches, attention=range(len(maps))) as tap:
        tapped = logits(model, images)
        assert list(model.state_dict()) == keys
    close(tapped, plain, 1e-9)
    same(logits(model, images), plain)  # nothing is left behind
    for number, attention in enumerate(maps):
        mean, prefix = attention.mean(1), block_prefix(name, case, number)
        merged = None if case.twin is None else case.twin.rows(number)
        close(tap.attention(number), attention if merged is None else attention[:, :, merged], 1e-9)
        if number in patches:
            close(tap.column_mean(number), mean[:, prefix:, prefix:].mean(1), 1e-9)
        if number in rows:
            close(tap.class_row(number), mean[:, 0, prefix:], 1e-9)


def logits(model: nn.Module, images: Tensor) -> Tensor:
    output = model(images)
    return (output if isinstance(output, Tensor) else output.logits).detach()


@pytest.mark.parametrize("name", CASES)
def test_single_precision_follows(name: str) -> None:
    case = CASES[name]
    model, images = model_of(case, name), images_of(case)
    others = 1 if name == "SigLIP" else len(CLASS_BLOCKS.get(name, ()))
    patches = range(len(dense_maps(case, model, images)) - others)
    exact = column_means(model, images, patches)
    single = column_means(copy.deepcopy(model).float(), images.float(), patches)
    for one, other in zip(exact, single, strict=True):
        assert other.dtype == torch.float32
        close(other, one, 1e-5)


def column_means(model: nn.Module, images: Tensor, blocks: range) -> list[Tensor]:
    with vitmix.AttentionTap(model, column_mean=blocks) as tap, torch.no_grad():
        model(images)
    return [tap.column_mean(block) for block in blocks]


# Aligned shares


def start_share(name: str, case: Case, model: nn.Module, pixels: Tensor) -> Tensor:
    """The partner's part of each patch, pixel by pixel; overlapping patches count what lies under their kernel."""
    if case.twin is not None:
        return case.twin.start(model, pixels).detach()
    if "PVT v2" in name:
        return dense.under_kernel(pixels, 7, 4, 3)
    return dense.under_kernel(pixels, case.patch, case.patch, 0)


@pytest.mark.parametrize("text", ["tl_align", "tl_align(blocks=[1])", "tl_align(normalize=False)"])
@pytest.mark.parametrize("name", CASES)
def test_aligned_shares_equal_dense_propagation(name: str, text: str) -> None:
    case = CASES[name]
    model, images = model_of(case, name), images_of(case)
    labels = torch.arange(4)
    mixer = vitmix.create(text, CLASSES)
    with mixer.attach(model) as mixing:
        batch = mixing.mix(images, labels)
        model(batch.images)
        targets = mixing.targets(batch)
        final = batch.tape.final
    maps = dense_maps(case, model, batch.images)
    pool = maps.pop() if name == "SigLIP" else None
    pixels = batch.mix.mask.double().expand(4, -1, -1)
    area = pixels.mean((1, 2))
    share = start_share(name, case, model, pixels).flatten(1)
    stages = case.stages or [0] * len(maps)
    share = torch.cat([area.unsqueeze(1)] * block_prefix(name, case, 0) + [share], dim=1)
    for number, attention in enumerate(maps):
        if case.twin is not None:
            share = case.twin.enter(model, number, share)
        if number and stages[number] != stages[number - 1]:
            side = int(share.shape[1] ** 0.5)
            grid = share.view(4, side, side)
            # PVT v2 overlaps when it merges, too
            share = (dense.under_kernel(grid, 3, 2, 1) if "PVT v2" in name else dense.merge_cells(grid)).flatten(1)
        if share.shape[1] < attention.shape[-1]:  # a class token that joins here
            share = torch.cat([area.unsqueeze(1), share], dim=1)
        if "blocks" in text and number != 1:
            continue
        carried = (attention.mean(1) @ share.unsqueeze(-1)).squeeze(-1)
        carried = carried / attention.mean(1).sum(-1)  # padding has no label
        if attention.shape[2] == 1:  # class attention
            carried = torch.cat([carried, share[:, 1:]], dim=1)
        if case.twin is not None:
            share = case.twin.leave(model, number, carried, None if "normalize" in text else share)
            continue
        share = carried if "normalize" in text else (carried + share) / 2
    close(targets[range(4), batch.mix.partner], read(name, case, model, share, pool, final), 1e-9)


MEAN_POOLED = ("ViT with registers, pooled", "BEiT", "EVA-02", "DINOv3")
MEAN_POOLED += ("ViT, relative positions", "NaFlexViT")
MEAN_POOLED += ("Hugging Face BEiT", "Hugging Face CLIP", "Hugging Face SigLIP")


def read(name: str, case: Case, model: Any, share: Tensor, pool: Tensor | None, final: Tensor | None) -> Tensor:
    """The classifier's view of the final tokens' shares, family by family."""
    if case.twin is not None:
        return case.twin.read(share)
    patches = share[:, case.prefix :].mean(1)
    if pool is not None:
        return (pool.mean(1) @ share.unsqueeze(-1)).squeeze(-1).mean(1)
    if name in ("CCT", "CVT"):
        return (model.sequence_pool_weights(final) * share).sum(1).detach()
    if name in MEAN_POOLED or case.stages and name != "PVT":
        return patches
    if "DINOv2" in name and "Hugging" in name:
        return (share[:, 0] + patches) / 2
    return share[:, :2].mean(1) if name.endswith("distilled") else share[:, 0]


@pytest.mark.parametrize("name", CASES)
def test_heads_are_read_as_the_model_reads_them(name: str) -> None:
    """The final tokens, pooled as the model pools them, give the model's own logits."""
    case = CASES[name]
    model, images = model_of(case, name), images_of(case)
    reader = read_model(model)
    mixer = vitmix.Mixer(CLASSES, extra=(vitmix.RegionLoss(),))
    with mixer.attach(model) as mixing:
        batch = mixing.mix(images, torch.arange(4))
        output = logits(model, batch.images)
        final = batch.tape.final
    assert final.shape == (4, reader.prefix + final_tokens(case), reader.width)
    if name in ("CCT", "CVT"):
        pooled = (model.sequence_pool_weights(final).unsqueeze(-1) * final).sum(1)
    elif reader.readout == "mean" and reader.pooling is None:
        pooled = final[:, reader.prefix :].mean(1)
    else:
        pooled = final[:, 0]
    if reader.pooling is None and reader.readout != "class and mean" and reader.read_tokens == 1:
        close(reader.classify(pooled), output, 1e-9)
    else:  # several tokens are read at once: only a sequence of equal tokens can be compared
        assert reader.classify(pooled).shape == output.shape


def final_tokens(case: Case) -> int:
    if case.twin is not None:
        return case.twin.final
    if case.windows is not None:
        return 16
    return 4 if case.reduced is not None else (case.size // case.patch) ** 2


def test_pooled_heads_on_equal_tokens() -> None:
    """Where the head looks at several tokens at once, equal tokens must give what one of them gives."""
    for name in ("SigLIP", "Hugging Face DINOv2", "DeiT, distilled", "Hugging Face DeiT, distilled"):
        case = CASES[name]
        model = model_of(case, name)
        reader = read_model(model)
        token = torch.randn(2, 1, reader.width, dtype=torch.float64)
        with torch.no_grad():
            if name == "SigLIP":
                expected = model.forward_head(token.expand(-1, 16, -1))
            elif "distilled" in name:
                heads = (
                    ("head", "head_dist") if "Hugging" not in name else ("cls_classifier", "distillation_classifier")
                )
                expected = sum(getattr(model, head)(token[:, 0]) for head in heads) / 2
            else:
                expected = model.classifier(torch.cat([token[:, 0], token.mean(1)], dim=1))
        close(reader.classify(token[:, 0]), expected, 1e-9)


# Costs and side effects


@pytest.mark.parametrize("name", CASES)
def test_the_tap_calls_no_module_a_second_time(name: str) -> None:
    case = CASES[name]
    model, images = model_of(case, name), images_of(case)
    count = calls(model, lambda: model(images))
    with vitmix.create("tl_align", CLASSES).attach(model) as mixing:
        batch = mixing.mix(images, torch.arange(4))
        assert calls(model, lambda: model(batch.images)) == count
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any("forward" in module.__dict__ for module in model.modules())


def calls(model: nn.Module, run: Callable[[], Any]) -> int:
    seen = []
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: seen.append(module))
    try:
        with torch.no_grad():
            run()
    finally:
        handle.remove()
    return len(seen)


@pytest.mark.parametrize("name", FAMILIES)
def test_learners_can_be_pickled(name: str) -> None:
    family = FAMILIES[name]
    if not family.available:
        pytest.skip(f"{family.package} is not installed")
    text = "cutmix" if name in UNREAD else "tl_align"
    learner = vitmix.Learner(family.build(), vitmix.create(text, CLASSES), seed=0).double()
    back = pickle.loads(pickle.dumps(learner))
    images = torch.randn(4, 3, family.size, family.size, dtype=torch.float64)
    for _ in range(2):
        torch.manual_seed(0)
        one = learner(images, torch.arange(4))
        torch.manual_seed(0)
        two = back(images, torch.arange(4))
        close(two.targets, one.targets, 1e-9)
        close(two.loss, one.loss, 1e-9)


def test_another_process_unpickles_hugging_face_models(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5")
    learner = vitmix.Learner(FAMILIES["Hugging Face ViT"].build(), vitmix.create("tl_align", CLASSES))
    torch.save(learner, tmp_path / "learner.pt")
    size = FAMILIES["Hugging Face ViT"].size
    script = (
        "import sys, torch; learner = torch.load(sys.argv[1], weights_only=False); "
        f"learner.train()(torch.randn(4, 3, {size}, {size}), torch.arange(4)).loss.backward()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path / "learner.pt")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["BEiT", "torchvision Swin", "Hugging Face ViT", "Hugging Face Swin", "Swin", "CaiT"])
def test_copies_are_wired_to_themselves(name: str) -> None:
    case = CASES[name]
    model, images = model_of(case, name), images_of(case).float()
    learner = vitmix.Learner(model.float().train(), vitmix.create("tl_align", CLASSES), seed=0)
    twin = copy.deepcopy(learner)
    torch.manual_seed(0)
    one = learner(images, torch.arange(4))
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.zero_()
    torch.manual_seed(0)
    other = twin(images, torch.arange(4))
    close(other.targets, one.targets, 1e-6)
    close(other.loss, one.loss, 1e-5)


def test_hugging_face_attention_is_given_back() -> None:
    pytest.importorskip("transformers")
    model = FAMILIES["Hugging Face ViT"].build()
    before = model.config._attn_implementation
    with vitmix.create("tl_align", CLASSES).attach(model):
        assert model.config._attn_implementation == "vitmix_sdpa"
        with vitmix.AttentionTap(model, class_row=[-1]) as tap:
            model(torch.randn(2, 3, SIZE, SIZE))
        assert tap.class_row(-1).shape == (2, 16)
        assert model.config._attn_implementation == "vitmix_sdpa"
        assert "vitmix" not in model.config.to_json_string()
    assert model.config._attn_implementation == before
    model.set_attn_implementation("eager")
    with vitmix.AttentionTap(model, class_row=[-1]) as tap:
        model(torch.randn(2, 3, SIZE, SIZE))
    assert tap.class_row(-1).shape == (2, 16) and model.config._attn_implementation == "eager"
    with vitmix.create("tl_align", CLASSES).attach(model):
        model.set_attn_implementation("sdpa")  # the user's word counts
    assert model.config._attn_implementation == "sdpa"


# Every method on every family


def step_cases() -> list[Any]:
    return [pytest.param(name, column, id=f"{name}-{column}") for name in FAMILIES for column in METHODS]


# Hugging Face's modules for other purposes, besides mask tokens.
UNUSED = {("Hugging Face CLIP", "vision_model.post_layernorm")}
UNUSED |= {("Hugging Face SigLIP", f"vision_model.head{part}") for part in ("", ".attention", ".attention.out_proj")}
UNUSED |= {("Hugging Face SigLIP", f"vision_model.head.{part}") for part in ("layernorm", "mlp.fc1", "mlp.fc2")}


@pytest.mark.parametrize("name, column", step_cases())
def test_one_training_step_of_every_method_on_every_family(name: str, column: str) -> None:
    family = FAMILIES[name]
    if not family.available:
        pytest.skip(f"{family.package} is not installed")
    try:
        learner, output = train_step(family, METHODS[column])
    except ValueError as error:
        assert (name, column) in REFUSED, error
        return
    assert (name, column) not in REFUSED
    assert torch.isfinite(output.loss)
    for key, parameter in learner.model.named_parameters():
        if key.endswith("mask_token") or (name, key.rpartition(".")[0]) in UNUSED:
            continue
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), key
        if not key.endswith("attention_pool.bias"):  # of a softmax, which a constant does not change
            assert parameter.grad.abs().sum() > 0, key
    assert learner(torch.randn(2, 3, family.size, family.size)) is not None


# timm's plain blocks
MERGES = ("ViT, DeiT", "DeiT, distilled", "DeiT III", "ViT with registers, pooled", "SigLIP", "DINOv2")
READS_ATTENTION = ("transmix", "smmix", "htm", "vtm", "attentive_cutmix", "mixpro", "tdattenmix")
REFUSED = {(name, method) for name in NO_ATTENTION for method in READS_ATTENTION}
READS_NOTHING = (
    "mixup, cutmix, fmix, resizemix, gridmix, saliencymix",
    "decouplemix",
    "oa_cutmix",
    "puzzlemix",
    "comixup",
)
REFUSED |= {(name, method) for name in UNREAD for method in METHODS if method not in (*READS_NOTHING, "tokenmix")}
REFUSED |= {(name, "mergemix") for name in FAMILIES if name not in MERGES}
REFUSED |= {(name, "vtm") for name in FAMILIES if "Swin" in name}
REFUSED |= {(name, "vtm") for name in ("TinyViT", "MaxViT", "CoAtNet", "LeViT", "Hiera", "MViT v2", "VOLO")}


@pytest.mark.parametrize("block", [0, -1])
@pytest.mark.parametrize("name", ATTENTION)
def test_a_guide_pass_may_stop_after_any_block(name: str, block: int) -> None:
    """A salient window needs attention of a block only, so the model does not run to its end."""
    _, output = train_step(FAMILIES[name], f"mix(mask=salient_box(blocks=[{block}]))")
    assert torch.isfinite(output.loss)


def test_every_family_of_the_table_has_its_dense_twin() -> None:
    assert set(ATTENTION) <= set(CASES)


@pytest.mark.parametrize("name", ATTENTION)
def test_htm_saliency_is_that_of_the_unmixed_tokens(name: str) -> None:
    """What HTM computes before its block runs equals the block's own statistic, nothing being mixed."""
    family = FAMILIES[name]
    if not family.available:
        pytest.skip(f"{family.package} is not installed")
    torch.manual_seed(0)
    model = family.build().double().eval()
    reader, images = read_model(model), torch.randn(3, 3, family.size, family.size, dtype=torch.float64)
    block = reader.block(1)
    seen: list[Any] = []
    handle = block.module.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(block.attend(args[0], args[1:], kwargs)), with_kwargs=True
    )
    with vitmix.AttentionTap(model, column_mean=[1]) as tap, torch.no_grad():
        model(images)
    handle.remove()
    close(seen[0].column_mean(), tap.column_mean(1), 1e-9)


@pytest.mark.parametrize("name", ATTENTION)
def test_htm_changes_neither_draws_nor_buffers(name: str) -> None:
    """What HTM computes before its block runs draws no random number, and updates no running statistic."""
    family = FAMILIES[name]
    if not family.available:
        pytest.skip(f"{family.package} is not installed")
    model = family.build().train()
    block, ran = read_model(model).block(1), []

    def attend(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state, buffers = torch.get_rng_state(), [each.clone() for each in model.buffers()]
        block.attend(args[0], args[1:], kwargs)
        same(torch.get_rng_state(), state)
        for one, other in zip(model.buffers(), buffers, strict=True):
            same(one, other)
        ran.append(1)

    block.module.register_forward_pre_hook(attend, with_kwargs=True)
    with torch.no_grad():
        model(torch.randn(2, 3, family.size, family.size))
    assert ran


# The golden Swin, and hand-computed spatial mixing


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=str)
def test_golden_tl_align_swin(dtype: torch.dtype, tolerance: float) -> None:
    data = load("tl_align_swin_paper")
    model = timm.models.swin_transformer.SwinTransformer(
        img_size=tuple(data["img_size"]),
        patch_size=int(data["patch_size"]),
        window_size=int(data["window_size"]),
        depths=tuple(data["depths"]),
        num_heads=tuple(data["num_heads"]),
        embed_dim=int(data["embed_dim"]),
        num_classes=int(data["num_classes"]),
        mlp_ratio=int(data["mlp_ratio"]),
    )
    model.load_state_dict({key.removeprefix("sd."): tensor(value) for key, value in data.items() if key[:3] == "sd."})
    model = model.to(dtype).eval()
    masks = data["mask_px"].astype(bool)
    boxes = []
    for mask in masks:
        rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
        boxes.append([rows[0], rows[-1] + 1, columns[0], columns[-1] + 1])
    mixer = vitmix.tl_align(int(data["num_classes"]), smoothing=float(data["smoothing"]))
    values = {"partner": torch.arange(4).flip(0), "mask.box": torch.tensor(boxes)}
    with mixer.attach(model) as mixing:
        batch = mixing.mix(tensor(data["images"], dtype), tensor(data["label_a"]), draw=Draw(0, values))
        same(batch.mix.mask, masks)
        close(batch.images, data["mixed"], 1e-6)
        output = model(batch.images)
        targets = mixing.targets(batch)
        shares = batch.tape.token_share
        arrived = batch.tape.share_before(2, mixing.reader)
    close(output, data["logits_f64"], tolerance if dtype == torch.float64 else 1e-4)
    close(1 - shares[-1], data["lam0"], tolerance)
    for number, (stage, block) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        close(1 - shares[number], data[f"lam_stage{stage}_block{block}"], tolerance)
    close(1 - arrived, data["lam_merge1"], tolerance)
    close(targets, data["target_smooth01"], tolerance)
    with vitmix.AttentionTap(model, attention=range(4)) as tap:
        model(batch.images)
    for number, (stage, block) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        side, shift = (16, 8)[stage], (2 * block, 2 * block) if stage == 0 or block else (0, 0)
        windows = tensor(data[f"attn_stage{stage}_block{block}"]).flatten(0, 1).unsqueeze(1)
        expected = dense.spread_windows(windows, (side, side), (4, 4), shift, pad_first=False)
        close(tap.attention(number).mean(1, keepdim=True), expected, tolerance)


# Compiled, checkpointed


ONE_GRAPH = ["Swin", "PVT v2", "PVT", "CaiT", "BEiT", "DINOv3", "torchvision ViT", "torchvision Swin", "ConvNeXt"]
ONE_GRAPH += ["Swin V2", "torchvision Swin V2", "ViT, relative positions", "NaFlexViT", "PiT", "Twins", "TinyViT"]
ONE_GRAPH += ["MaxViT", "CoAtNet", "LeViT", "Hiera", "MViT v2", "VOLO"]
ONE_GRAPH_CASES = [(name, "tl_align") for name in ONE_GRAPH]
ONE_GRAPH_CASES += [
    (f"Hugging Face {name}", "tl_align") for name in ("ViT", "Swin", "BEiT", "CLIP", "Swin V2", "PVT v2")
]
ONE_GRAPH_CASES += [(name, "vtm(block=1, tokens=2)") for name in ("BEiT", "PVT v2", "EVA-02", "Hugging Face BEiT")]
ONE_GRAPH_CASES += [(name, "cutmix + htm(block=1, tau=1)") for name in ("MaxViT", "Hiera", "MViT v2", "CoAtNet")]
ONE_GRAPH_CASES += [("Swin", "smmix"), ("CaiT", "smmix"), ("PVT v2", "cutmix + htm(block=1, tau=1)")]
# One case of each way to read attention and to mix tokens; the others take more than a minute together.
ALWAYS = [("Swin", "tl_align"), ("CaiT", "smmix"), ("PVT v2", "tl_align"), ("BEiT", "vtm(block=1, tokens=2)")]
ALWAYS += [(name, "tl_align") for name in ("NaFlexViT", "PiT", "Hiera", "VOLO", "torchvision ViT", "Hugging Face ViT")]
ALWAYS += [("CoAtNet", "cutmix + htm(block=1, tau=1)"), ("Hugging Face PVT v2", "tl_align")]


@pytest.mark.parametrize(
    "name, text",
    [pytest.param(*case, marks=[] if case in ALWAYS else pytest.mark.slow) for case in ONE_GRAPH_CASES],
)
def test_compiled_in_one_graph(name: str, text: str) -> None:
    family = FAMILIES[name]
    if not family.available:
        pytest.skip(f"{family.package} is not installed")
    torch.manual_seed(0)
    model = family.build()
    for module in model.modules():  # drawn noise differs between a compiled and a plain step
        if hasattr(module, "p") and isinstance(getattr(module, "p", None), float):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    learner = vitmix.Learner(model.train(), vitmix.create(text, CLASSES), seed=0)
    compiled = copy.deepcopy(learner)
    torch._dynamo.reset()
    compiled.compile(fullgraph=True, backend="eager")
    images, labels = torch.randn(4, 3, family.size, family.size), torch.arange(4)
    for _ in range(2):
        one, two = learner(images, labels), compiled(images, labels)
        close(two.loss, one.loss, 1e-5)
        close(two.targets, one.targets, 1e-5)
        two.loss.backward()


CHECKPOINTED = ["Swin", "PVT v2", "PVT", "CaiT", "BEiT", "DINOv3", "Hugging Face ViT"]

CHECKPOINTED += ["Swin V2", "NaFlexViT", "ViT, relative positions", "TinyViT", "MaxViT", "Hiera", "MViT v2", "VOLO"]


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name in CHECKPOINTED for text in ("tl_align", "cutmix + htm(block=1, tau=1)")]
    + [(name, "tl_align + vtm(block=1, tokens=2)") for name in ("PVT v2", "BEiT", "DINOv3", "Hugging Face BEiT")]
    + [("ResNet", "cutmix + region"), ("ResNet", "tl_align")],
)
def test_activation_checkpointing_changes_nothing(name: str, text: str) -> None:
    if FAMILIES[name].package is not None:
        pytest.importorskip("transformers")
    size = FAMILIES[name].size
    images, labels = torch.randn(4, 3, size, size, dtype=torch.float64), torch.arange(4)
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(3)
        model: Any = FAMILIES[name].build().double()
        if checkpointing and "Hugging" in name:
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)  # till 5.22
            enable({"use_reentrant": False})
        elif checkpointing:
            model.set_grad_checkpointing(True)
        learner = vitmix.Learner(model.train(), vitmix.create(text, CLASSES), seed=0)
        torch.manual_seed(4)
        output = learner(images, labels)
        output.loss.backward()
        results.append((output, [p.grad for p in learner.parameters() if p.grad is not None]))
    (one, first), (two, second) = results
    close(two.loss, one.loss, 1e-9)
    close(two.targets, one.targets, 1e-9)
    for gradient, other in zip(first, second, strict=True):
        close(other, gradient, 1e-9)


class Listening(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.source == "transformers"])
def test_tiny_models_are_built_without_a_word(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vitmix models` builds them all."""
    pytest.importorskip("transformers")
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [Listening(said)])
    FAMILIES[name].build()
    assert not said
