"""SMMix, TokenMix, TransMix and TL-Align against vectors from the authors' programs (see tests/golden)."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn

import vitmix
from support import DTYPES, Arrays, cases_of, close, golden_cases, golden_vit, load, same, tensor, unmixed
from vitmix import functional as F
from vitmix._sampling import Draw

EXACT = {torch.float64: 1e-10, torch.float32: 2e-5}


def rows_of(data: Arrays, labels: str = "labels", dtype: torch.dtype = torch.float32, smoothing: float | None = None):
    rows = F.label_rows(tensor(data[labels]), int(data["num_classes"]), dtype=dtype)
    return F.smooth_rows(rows, float(data["smoothing"]) if smoothing is None else smoothing)


def test_golden_files_are_all_here() -> None:
    """A missing folder must not pass as a run without cases."""
    names = {"smmix_regions", "smmix_mix", "smmix_losses", "smmix_vit_step", "tokenmix_targets", "tokenmix_mix"}
    names |= {"tokenmix_masks", "transmix_layer", "transmix_vit", "tl_align_layers", "tl_align_vit"}
    names |= {"tl_align_swin_paper", "vtm_cls", "vtm_nocls", "vtm_model", "htm_model", "htm_vtm_model"}
    names |= {f"htm_{kind}" for kind in ("layer_cls", "layer_nocls", "scorenet_cls", "scorenet_pool", "cls_all")}
    names |= {f"htm_{kind}" for kind in ("cls_partial", "nocls_all", "nocls_partial", "nocls_single", "nocls_none")}
    names |= {"htm_nocls_highrho", "cct_3x1_learnable", "cct_3x1_sine", "cct_3x2_none", "cct_cvt", "cct_vitlite"}
    assert names <= set(golden_cases("*"))


# SMMix


@pytest.mark.parametrize("case", golden_cases("smmix_regions"))
def test_golden_smmix_regions(case: str) -> None:
    for data in cases_of(load(case)):
        scores, (height, width) = tensor(data["scores"]), tensor(data["hw"])
        batch, rows, columns = scores.shape
        partner = tensor(data["partner"])
        sizes = height.expand(batch), width.expand(batch)
        low, high = (F.best_window(scores, *sizes, largest=largest) for largest in (False, True))
        valid = columns - int(width) + 1
        same(low[:, 0] * valid + low[:, 1], data["argmin_flat"])
        same(high[:, 0] * valid + high[:, 1], data["argmax_flat"])
        same(partner, F.reversed_pairs(batch))
        assert bool(data["is_tie"]) == bool((scores == scores[:, :1, :1]).all())
        same(low, data["target_topleft"])
        same(high[partner], data["source_topleft"])
        mask, source = F.window_region(low, high[partner], *sizes, (rows, columns))
        same(mask, data["mask"])
        target_tokens = tensor(data["target_tokens"])
        same(mask.flatten(1).nonzero()[:, 1].view(batch, -1), target_tokens)
        same(source.gather(1, target_tokens), data["source_tokens"])


@pytest.mark.parametrize("case", golden_cases("smmix_mix"))
def test_golden_smmix_mix(case: str) -> None:
    whole = load(case)
    for data in cases_of(whole):
        images, scores = tensor(data["images"]), tensor(data["scores"])
        before, partner = images.clone(), F.reversed_pairs(len(images))
        mixer = vitmix.smmix(int(data["num_classes"]), smoothing=float(data["smoothing"]))
        frame = vitmix.Frame(len(images), tuple(images.shape[-2:]), tuple(scores.shape[1:]))
        assert images.shape[-1] == scores.shape[-1] * int(data["patch_size"])
        values = {"window": tensor(data["hw"])[None], "place": torch.zeros(2, len(images), 2)}
        mask, source = mixer.mask.where(values, unmixed(frame, partner, scores))
        same(mask, data["mask"])
        same(F.mix_images(images, mask, partner, source), data["mixed"])
        same(images, before)
        share = F.area_share(mask, dtype=torch.float64)
        close(share, torch.full_like(share, float(data["lam_source"])), 1e-12)
        close(1 - share, torch.full_like(share, float(data["lam_target"])), 1e-12)
        rows = rows_of(data)
        close(F.mix_targets(rows, partner, share), data["target_mixed"], 1e-6)
        close(rows, data["target_of_target"], 1e-6)
        close(rows[partner], data["target_of_source"], 1e-6)
        close(F.mix_targets(tensor(data["clean_logits"]), partner, share), data["consistency_logits"], 1e-6)
    mixup = {k.removeprefix("mixup_"): v for k, v in whole.items() if k.startswith("mixup_")}
    check_mixup(mixup)


def check_mixup(data: Arrays) -> None:
    images, partner = tensor(data["images"]), F.reversed_pairs(len(data["images"]))
    share = torch.full((len(images),), 1 - float(data["lam"]))
    mixer = vitmix.mixup(int(data["num_classes"]), smoothing=float(data["smoothing"]))
    mixed, targets = mixer(images, tensor(data["labels"]), draw=Draw(0, {"partner": partner, "mask.share": share}))
    close(mixed, data["mixed"], 1e-6)
    close(targets, data["target"], 1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("smmix_losses"))
def test_golden_smmix_losses(case: str, dtype: torch.dtype) -> None:
    tolerance = EXACT[dtype]
    for data in cases_of(load(case)):
        give = lambda key: tensor(data[key], dtype)  # noqa: B023, E731
        prenorm = give("tokens_prenorm").requires_grad_()
        head, token_head = give("head_weight").requires_grad_(), give("token_head_weight").requires_grad_()
        if bool(data["shared_head"]):
            token_head = head
        width = prenorm.shape[-1]
        tokens = nn.functional.layer_norm(
            prenorm, (width,), give("norm_weight"), give("norm_bias"), float(data["norm_eps"])
        )
        close(tokens, data["tokens_final"], tolerance)
        mask, partner = tensor(data["mask"]), F.reversed_pairs(len(prenorm))
        share = mask.to(dtype).mean(1)
        close(share, torch.full_like(share, float(data["lam_source"])), 1e-6)
        rows = rows_of(data, dtype=dtype)
        logits = nn.functional.linear(tokens[:, 0], head, give("head_bias"))
        own, theirs = F.region_means(tokens[:, 1:], mask)
        own = nn.functional.linear(own, token_head, give("token_head_bias"))
        theirs = nn.functional.linear(theirs, token_head, give("token_head_bias"))
        close(logits, data["logits"], tolerance)
        close(theirs, data["logits_source_region"], tolerance)
        close(own, data["logits_target_region"], tolerance)
        clean = give("clean_logits")
        close(F.mix_targets(clean, partner, share), data["consistency_logits"], tolerance)
        main = F.soft_cross_entropy(logits, F.mix_targets(rows, partner, share))
        fine = F.region_loss(own, theirs, rows, partner, mask)
        consistency = F.consistency_loss(logits, clean, partner, share)
        close(main, data["loss_cls"], tolerance)
        close(F.soft_cross_entropy(theirs, rows[partner]), data["loss_fine_source"], tolerance)
        close(F.soft_cross_entropy(own, rows), data["loss_fine_target"], tolerance)
        close(fine, data["loss_fine"], tolerance)
        close(consistency, data["loss_con"], tolerance)
        total = main + fine + consistency
        close(total, data["loss_total"], tolerance)
        total.backward()
        close(prenorm.grad, data["grad_tokens_prenorm"], tolerance)
        close(head.grad, data["grad_head_weight"], tolerance)
        close(token_head.grad, data["grad_token_head_weight"], tolerance)
        if "attention" in data:
            attention = give("attention")
            patches = attention[:, :, 1:, 1:].mean((1, 2))
            close(patches, data["scores"], tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("smmix_vit_step"))
def test_golden_smmix_vit_step(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    double = dtype == torch.float64
    model = golden_vit(data, dtype, prefix="param/")
    classes = int(data["num_classes"])
    parts = (vitmix.RegionLoss(head="separate"), vitmix.ConsistencyLoss())
    mixer = vitmix.Mixer(classes, mask=vitmix.SalientMask(), extra=parts, smoothing=float(data["smoothing"]))
    images, labels = tensor(data["images"], dtype), tensor(data["labels"])
    values = {"partner": F.reversed_pairs(len(images)), "mask.window": tensor(data["hw"])[None]}
    values["mask.place"] = torch.zeros(2, len(images), 2)
    with mixer.attach(model) as mixing:
        head = mixing.modules["token_head"]
        head.load_state_dict({k: tensor(data[f"param/token_head.{k}"]) for k in ("weight", "bias")})
        batch = mixing.mix(images, labels, draw=Draw(0, values))
        assert batch.scores is not None and batch.clean_logits is not None
        close(batch.scores, data["scores"], 1e-10 if double else 2e-6)
        close(batch.clean_logits, data["clean_logits"], 1e-10 if double else 5e-5)
        same(batch.mix.mask, data["mask"])
        same(batch.images, data["mixed"])
        logits = model(batch.images)
        close(logits, data["logits"], 1e-10 if double else 5e-5)
        close(mixing.targets(batch), data["target_mixed"], 1e-10 if double else 1e-6)
        share = F.area_share(batch.mix.mask, dtype=dtype)
        close(share, torch.full_like(share, float(data["lam_source"])), 1e-6)
        expected = F.mix_targets(batch.clean_logits, batch.mix.partner, share)
        close(expected, data["consistency_logits"], 1e-10 if double else 5e-5)
        own, theirs = F.region_means(batch.tape.final[:, 1:], batch.mix.mask.flatten(1))
        close(head(own), data["logits_target_region"], 1e-10 if double else 5e-5)
        close(head(theirs), data["logits_source_region"], 1e-10 if double else 5e-5)
        losses = mixing.losses(logits, batch)
        names = {"main": "loss_cls", "region": "loss_fine", "consistency": "loss_con", "loss": "loss_total"}
        for ours, key in names.items():
            close(losses[ours], data[key], 1e-10 if double else 1e-5)
        losses["loss"].backward()
    gradients = dict(model.named_parameters()) | {f"token_head.{k}": v for k, v in head.named_parameters()}
    for name, parameter in gradients.items():
        expected = tensor(data[f"grad/{name}"])
        error = (parameter.grad.double() - expected).norm() / expected.norm().clamp_min(1e-12)
        assert error < (1e-10 if double else 1e-4), name


# TokenMix


def weights_and_targets(maps: Tensor, labels: np.ndarray, mask: np.ndarray, classes: int, smoothing: float):
    mix = vitmix.Mix(F.reversed_pairs(len(maps)), tensor(mask)[None])
    rows = F.label_rows(tensor(labels), classes, dtype=maps.dtype)
    weights = F.activation_weights(maps, mix)
    return F.activation_targets(rows, mix.partner, weights, smoothing=smoothing, clamp=False)


@pytest.mark.parametrize("case", golden_cases("tokenmix_targets"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_golden_tokenmix_targets(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    labels = tensor(data["dense_labels"])
    maps = tensor(data["dense_maps"], dtype)[torch.arange(len(labels)), labels]
    classes = int(data["dense_num_classes"])
    for key, smoothing in (("s0", 0.0), ("s01", 0.1)):
        targets = weights_and_targets(maps, data["dense_labels"], data["dense_mask"], classes, smoothing)
        close(targets, data[f"dense_target_{key}"], 1e-6)
    logits = tensor(data["dense_logits"], dtype)
    close(F.soft_bce(logits, targets), data["dense_bce_s01"], 1e-6)
    close(F.soft_cross_entropy(logits, targets), data["dense_softce_s01"], 1e-6)

    values, indices = tensor(data["topk_values"], dtype), tensor(data["topk_indices"])
    maps = F.class_maps(values, indices, tensor(data["topk_labels"]))
    close(maps / maps.max(), data["topk_class_maps"] / data["topk_class_maps"].max(), 1e-6)
    check_targets(maps, data, "topk", ("s0", "s01"))

    values, indices = tensor(data["crop_values"], dtype), tensor(data["crop_indices"])
    maps = F.class_maps(values, indices, tensor(data["crop_labels"]))
    grid = tuple(data["crop_mask"].shape)
    crops = tensor(data["crop_tlhw"], dtype)
    cropped = F.crop_maps(maps, crops, grid)
    close(cropped / cropped.max(), data["crop_class_maps"] / data["crop_class_maps"].max(), 1e-6)
    check_targets(cropped, data, "crop", ("s0", "s01"))
    # What the authors' program yields from its own data pipeline is the same crop with rows and columns exchanged.
    swapped = F.crop_maps(maps, crops[:, [1, 0, 3, 2]], grid)
    reference = data["crop_class_maps_swapped"]
    close(swapped / swapped.max(), reference / reference.max(), 1e-6)
    check_targets(swapped, data, "crop", ("s01_swapped",))
    check_mixup({k.removeprefix("mixup_"): v for k, v in data.items() if k.startswith("mixup_")})


def check_targets(maps: Tensor, data: Arrays, part: str, keys: tuple[str, ...]) -> None:
    for key in keys:
        smoothing = 0.0 if key == "s0" else 0.1
        classes = int(data[f"{part}_num_classes"])
        targets = weights_and_targets(maps, data[f"{part}_labels"], data[f"{part}_mask"], classes, smoothing)
        close(targets, data[f"{part}_target_{key}"], 1e-6)


@pytest.mark.parametrize("case", golden_cases("tokenmix_mix"))
def test_golden_tokenmix_mix(case: str) -> None:
    data = load(case)
    for kind in ("block", "random"):
        images, mask = tensor(data[f"{kind}_images"]), tensor(data[f"{kind}_mask"])[None]
        mixed = F.mix_images(images, mask, F.reversed_pairs(len(images)))
        same(mixed, data[f"{kind}_mixed"])
        close(1 - F.area_share(mask, dtype=torch.float64)[0], data[f"{kind}_lam_own"], 1e-12)
        same(F.mix_images(images.float(), mask, F.reversed_pairs(len(images))), data[f"{kind}_mixed"])


def mask_statistics(masks: np.ndarray) -> dict[str, np.ndarray]:
    eight = np.ones((3, 3))
    edges = (masks[:, 1:] != masks[:, :-1]).sum((1, 2)) + (masks[:, :, 1:] != masks[:, :, :-1]).sum((1, 2))
    return {
        "count": masks.sum((1, 2)),
        "ncc4": np.array([ndimage.label(mask)[1] for mask in masks]),
        "ncc8": np.array([ndimage.label(mask, eight)[1] for mask in masks]),
        "edges": edges,
    }


@pytest.mark.parametrize("case", golden_cases("tokenmix_masks"))
@pytest.mark.parametrize("ours, theirs", [("released", "asrun"), ("paper", "paper")])
def test_golden_tokenmix_masks(case: str, ours: str, theirs: str) -> None:
    data = load(case)
    grid, drawn = tuple(int(side) for side in data["grid"]), 1500
    shares = {key.split("_")[1] for key in data if key.startswith(f"{theirs}_r")}
    for number, name in enumerate(sorted(shares)):
        share = float(f"{name[1]}.{name[2:]}")
        stored = {k.removeprefix(f"{theirs}_{name}_"): v for k, v in data.items() if k.startswith(f"{theirs}_{name}_")}
        bits = np.unpackbits(stored["packed"], axis=1)[:, : grid[0] * grid[1]].reshape(-1, *grid)
        for key, value in mask_statistics(bits).items():  # the stored statistics are those of the stored masks
            np.testing.assert_allclose([value.mean(), value.std()], [stored[f"{key}_mean"], stored[f"{key}_std"]])
        wanted = torch.full((drawn,), int(stored["wanted_count"]))
        smallest = 14 if ours == "paper" else 1
        masks = F.draw_blocks(grid, wanted, smallest=smallest, generator=torch.Generator().manual_seed(number)).numpy()
        if grid == (14, 14):  # the presets scale the paper's 14 tokens with the grid; here they are those 14
            frame = vitmix.Frame(drawn, (224, 224), grid)
            preset = vitmix.BlockMask(share=share, preset=ours, per="sample")
            drawn_alike = preset.draw(frame, torch.Generator().manual_seed(number))["mask"].numpy()
            np.testing.assert_array_equal(drawn_alike, masks)
        for key, value in mask_statistics(masks).items():
            spread = 4.5 * np.sqrt(value.var() / drawn + stored[f"{key}_std"] ** 2 / int(data["n_masks"]))
            assert abs(value.mean() - stored[f"{key}_mean"]) < spread + 0.02, (name, key)
        assert np.abs(masks.mean(0) - stored["freq"]).max() < 0.08
        assert masks.sum((1, 2)).max() <= int(stored["wanted_count"])
        parts = np.bincount(mask_statistics(masks)["ncc4"], minlength=len(stored["ncc4_hist"])) / drawn
        assert np.abs(np.cumsum(parts - stored["ncc4_hist"] / int(data["n_masks"]))).max() < 0.08
        count = np.bincount(masks.sum((1, 2)), minlength=len(stored["count_hist"])) / drawn
        assert np.abs(np.cumsum(count - stored["count_hist"] / int(data["n_masks"]))).max() < 0.08


@pytest.mark.parametrize("case", golden_cases("tokenmix_masks"))
def test_golden_tokenmix_random_masks(case: str) -> None:
    data = load(case)
    grid = tuple(int(side) for side in data["grid"])
    for name in sorted(key for key in data if key.startswith("random_asrun_")):
        share = float(f"{name.split('_')[2][1]}.{name.split('_')[2][2:]}")
        mask = vitmix.ScatteredMask(share=share, per="sample")
        masks = mask.draw(vitmix.Frame(50, (224, 224), grid), torch.Generator().manual_seed(0))["mask"]
        # The authors' program adds tokens to the wanted count of either kind of mask; ours has no such option here.
        added = int(data[f"asrun_{name.split('_')[2]}_wanted_count"]) - int(share * grid[0] * grid[1] + 1e-9)
        same(masks.sum((1, 2)) + added, torch.full((50,), int(data[name])))


# TransMix


@pytest.mark.parametrize("case", golden_cases("transmix_layer"))
def test_golden_transmix_layer(case: str) -> None:
    data = load(case)
    attention = tensor(data["attn_last"])
    row = attention[:, :, 0, 1:].mean(1)
    close(row, data["cls_attn"], 1e-9)
    size, grid = tuple(int(s) for s in data["img_size"]), tuple(int(s) for s in data["grid"])
    assert size[0] // grid[0] == int(data["patch_size"])
    rows, partner = rows_of(data, "label_a", torch.float64), F.reversed_pairs(len(row))
    same(tensor(data["label_a"])[partner], data["label_b"])
    for number, box in enumerate(tensor(data["boxes_px"])):
        mask = F.box_mask(box[None], size)
        tokens = F.resample_mask(mask, grid, rule="nearest").flatten(1)
        same(tokens[0], data["mask_tokens"][number])
        area = F.area_share(mask, dtype=torch.float64)
        close(area[0], data["lam_area_b"][number], 1e-9)
        by_attention = F.attention_share(row, tokens)
        close(by_attention, data["lam_attn_b"][number], 1e-9)
        share = (by_attention + area) / 2
        close(share, data["lam_b"][number], 1e-9)
        close(F.mix_targets(rows, partner, share), data["target_smooth01"][number], 1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", golden_cases("transmix_vit"))
def test_golden_transmix_vit(case: str, dtype: torch.dtype) -> None:
    data = load(case)
    model = golden_vit(data, dtype)
    for smoothing, key in zip(data["smoothing"], ("target_smooth0", "target_smooth01"), strict=True):
        mixer = vitmix.transmix(int(data["num_classes"]), smoothing=float(smoothing))
        step = golden_step(model, mixer, data, data["box_px"])
        same(step["mixed"], data["mixed"])
        close(step["logits"], data["logits_f64"] if dtype == torch.float64 else data["logits"], 1e-4)
        close(step["row"], data["cls_attn"], 1e-5)
        close(step["targets"], data[key], 2e-6)
    close(step["loss"], data["loss"], 1e-5)
    close(step["gradient"], data["grad_qkv0"], 5e-5)
    mask = F.box_mask(tensor(data["box_px"])[None], tuple(data["mask_px"].shape))
    same(mask[0], data["mask_px"])
    grid = model.patch_embed.grid_size
    same(F.resample_mask(mask, grid, rule="nearest").flatten(), data["mask_tokens"])
    close(F.area_share(mask, dtype=torch.float64)[0], data["lam_area_b"], 1e-9)
    rows = rows_of(data, "label_a", smoothing=0.1)
    close(F.mix_targets(rows, F.reversed_pairs(len(rows)), F.area_share(mask)), data["target_area_smooth01"], 2e-6)
    # The stored map is single precision and itself 1.1e-5 from the double-precision one, and the order of sums differs
    # between CPUs; the row that the method reads is held to 1e-5 above.
    close(F.attention_maps(*step["layer"]), data["attn_last"], 3e-5)
    share = F.attention_share(step["row"], F.resample_mask(mask, grid, rule="nearest").flatten(1))
    close((share + F.area_share(mask)) / 2, data["lam_b"], 2e-6)


def golden_step(model: nn.Module, mixer: vitmix.Mixer, data: Arrays, boxes: np.ndarray) -> dict:
    """One step of a method on a golden ViT with given boxes: everything the golden file may ask about."""
    dtype = next(model.parameters()).dtype
    images, labels = tensor(data["images"], dtype), tensor(data["label_a"])
    draw = Draw(0, {"partner": F.reversed_pairs(len(images)), "mask.box": tensor(boxes).view(-1, 4)})
    model.zero_grad()
    last = model.blocks[-1].attn
    layer: list[Tensor] = []
    handles = [norm.register_forward_hook(lambda *args: layer.append(args[2])) for norm in (last.q_norm, last.k_norm)]
    with mixer.attach(model) as mixing:
        batch = mixing.mix(images, labels, draw=draw)
        logits = model(batch.images)
        loss = mixing.loss(logits, batch)
        loss.backward()
    for handle in handles:
        handle.remove()
    return {
        "mixed": batch.images,
        "logits": logits,
        "targets": mixing.targets(batch),
        "loss": loss,
        "gradient": model.blocks[0].attn.qkv.weight.grad.clone(),
        "row": batch.tape.saliency.get(len(model.blocks) - 1),
        "token_share": batch.tape.token_share,
        "layer": layer[:2],
    }


# TL-Align


@pytest.mark.parametrize("case", golden_cases("tl_align_layers"))
@pytest.mark.parametrize("kind", ["cls", "pool"])
def test_golden_tl_align_layers(case: str, kind: str) -> None:
    data = load(case)
    for suffix, tolerance in (("", 1e-9), ("_f32", 2e-6)):
        dtype = torch.float32 if suffix else torch.float64
        share = 1 - tensor(data[f"{kind}_lam0"], torch.float64).to(dtype)
        for attention, expected in zip(data[f"{kind}_attn{suffix}"], data[f"{kind}_lam_layers{suffix}"], strict=True):
            share = F.align_share(tensor(attention), share)
            close(1 - share, expected, tolerance)
    share = 1 - tensor(data[f"{kind}_lam0"])
    for attention in data[f"{kind}_attn"]:
        share = F.align_share(tensor(attention), share)
    final = share[:, 0] if kind == "cls" else share.mean(1)
    close(1 - final, data[f"{kind}_lam_final"], 1e-9)
    rows = rows_of(data, "label_a", torch.float64)
    own, theirs = rows, rows_of(data, "label_b", torch.float64)
    close(own + final[:, None] * (theirs - own), data[f"{kind}_dense_final"], 1e-6)
    patches = data["cls_attn"].shape[-1] - 1
    assert patches == int(np.prod(data["grid"])) == data["pool_attn"].shape[-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["", "frac_"])
@pytest.mark.parametrize("case", golden_cases("tl_align_vit"))
def test_golden_tl_align_vit(case: str, kind: str, dtype: torch.dtype) -> None:
    data = load(case)
    double = dtype == torch.float64
    model = golden_vit(data, dtype)
    masks = data[f"{kind}mask_px"]
    masks = masks if kind else masks[None]
    boxes = np.stack([box_of(mask) for mask in masks])
    same(F.box_mask(tensor(boxes), masks.shape[1:]), masks)
    if not kind:
        same(tensor(boxes[0]), data["box_px"])
        close(1 - F.area_share(tensor(masks).bool(), dtype=torch.float64)[0], data["lam_area"], 1e-12)
    for smoothing, key in zip(data["smoothing"], ("target_smooth0", "target_smooth01"), strict=True):
        mixer = vitmix.tl_align(int(data["num_classes"]), smoothing=float(smoothing))
        step = golden_step(model, mixer, data, boxes)
        close(step["targets"], data[kind + key], 2e-6)
    same(step["mixed"], data[f"{kind}mixed"])
    close(step["logits"], data[f"{kind}logits_f64"], 1e-9 if double else 1e-4)
    if double:
        close(step["targets"], data[f"{kind}target_smooth01_f64"], 1e-6)
    else:
        close(step["logits"], data[f"{kind}logits"], 1e-4)
    tolerance = 1e-9 if double else 2e-6
    shares = step["token_share"]
    close(1 - shares[-1], data[f"{kind}lam0"], tolerance)
    for block, expected in enumerate(data[f"{kind}lam_layers"]):
        close(1 - shares[block], expected, tolerance)
    close(1 - shares[len(model.blocks) - 1][:, 0], data[f"{kind}lam_final"], tolerance)
    close(F.attention_maps(*step["layer"]), data[f"{kind}attn"][-1], 1e-9 if double else 5e-5)
    close(step["loss"], data[f"{kind}loss"], 1e-5)
    close(step["gradient"], data[f"{kind}grad_qkv0"], 5e-5)
    with vitmix.AttentionTap(model, attention=range(len(model.blocks))) as tap:
        model(step["mixed"])
    for block, expected in enumerate(data[f"{kind}attn"]):
        close(tap.attention(block), expected, 1e-9 if double else 5e-5)


def box_of(mask: np.ndarray) -> np.ndarray:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return np.zeros(4, dtype=np.int64)
    return np.array([rows[0], rows[-1] + 1, columns[0], columns[-1] + 1])


@pytest.mark.parametrize("case", golden_cases("tl_align_swin_paper"))
def test_golden_tl_align_swin_input_and_target(case: str) -> None:
    """What holds on any model: pixels, the shares that enter the first block, and the dense target of a share."""
    data = load(case)
    images, masks = tensor(data["images"]), tensor(data["mask_px"]).bool()
    partner = F.reversed_pairs(len(images))
    same(F.mix_images(images, masks, partner), data["mixed"])
    grid = tuple(int(side) // int(data["patch_size"]) for side in data["img_size"])
    start = F.resample_mask(masks, grid, rule="area", dtype=torch.float64).flatten(1)
    close(1 - start, data["lam0"], 1e-9)
    close(1 - F.area_share(masks, dtype=torch.float64), data["lam_area"], 1e-9)
    rows = rows_of(data, "label_a", torch.float64)
    share = 1 - tensor(data["lam_final"])
    close(F.mix_targets(rows, partner, share), data["target_smooth01"], 1e-9)
    last = f"lam_stage{len(data['depths']) - 1}_block{int(data['depths'][-1]) - 1}"
    close(tensor(data[last]).mean(1), data["lam_final"], 1e-9)
