"""The baselines of the papers' tables against vectors from their authors' programs (see tests/golden)."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitmix
from support import Arrays, cases_of, close, golden_cases, load, same, tensor, unmixed
from vitmix import functional as F
from vitmix._sampling import Draw, generator_for
from vitmix.parts.base import Guidance
from vitmix.parts.cuts import grid_energy, grid_labels
from vitmix.parts.decoupled import decoupled_loss
from vitmix.parts.fourier import low_frequency_image, ranked_mask
from vitmix.parts.guided import guided_share
from vitmix.parts.history import History, HistoryMask, history_loss, pooled_box
from vitmix.parts.joint import Weighing, given_up, inner_cut, joint_cost, joint_parts, likeness, mix_blocks
from vitmix.parts.labelings import labeling, labeling_energy
from vitmix.parts.lattice import lattice_mask
from vitmix.parts.manifold import Manifold, blended
from vitmix.parts.masks import box_reach
from vitmix.parts.objects import object_share
from vitmix.parts.peak import PeakMask, saliency_peak
from vitmix.parts.progressive import cell_mask, progressive_share
from vitmix.parts.puzzle import PuzzleMask, block_saliency, move_blocks, puzzle_costs, transport_plan
from vitmix.parts.resized import ResizedMask, paste_resized
from vitmix.parts.shares import maps_on_mask, visible_mass
from vitmix.parts.token_labels import mixed_token_labels
from vitmix.parts.top_cells import TopCellsMask, top_cells

EXACT = 1e-10


def size_of(images: np.ndarray) -> tuple[int, int]:
    return images.shape[-2], images.shape[-1]


def frame_for(images: np.ndarray, grid: tuple[int, int] | None = None) -> vitmix.Frame:
    return vitmix.Frame(len(images), size_of(images), grid)


def given_box(box: np.ndarray) -> Tensor:
    """(row0, column0, row1, column1) as our (top, bottom, left, right)."""
    return tensor(box)[..., [0, 2, 1, 3]].reshape(-1, 4)


def one_hot(labels: np.ndarray, classes: int, smoothing: float = 0.0) -> Tensor:
    return F.smooth_rows(F.label_rows(tensor(labels), classes, dtype=torch.float64), smoothing)


def test_golden_files_are_all_here() -> None:
    names = {"fmix", "resizemix", "gridmix", "saliencymix", "attentive_cutmix", "manifold_vit", "mixpro", "decouplemix"}
    names |= {"oa_cutmix", "tokenlabel_targets", "tokenlabel_loss", "mixtoken_boxes", "mixtoken_vit", "relabel"}
    names |= {"manifold_resnet", "puzzlemix", "comixup", "recursivemix", "tdattenmix", "tdattenmix_gaze", "mergemix"}
    assert names <= set(golden_cases("*"))


# Masks


@pytest.mark.parametrize("case", golden_cases("fmix"))
def test_golden_fmix(case: str) -> None:
    """The repaired program; draws of odd widths have a column that it drops."""
    for data in cases_of(load(case)):
        height, width = map(int, data["hw"])
        normals = tensor(data["draws"])[None, :, : width // 2 + 1]
        image = low_frequency_image(normals, (height, width), decay=float(data["decay"]))
        close(image[0], data["paper_gray"], 1e-12)
        share = torch.tensor([1 - float(data["lam"])], dtype=torch.float64)
        for word, up in (("ceil", True), ("floor", False)):
            mask = ranked_mask(image, share, torch.tensor([up]), max_soft=float(data["max_soft"]))
            close(1 - mask[0].double(), data[f"paper_mask_{word}"], 1e-12)
        mask = ranked_mask(image, share, torch.tensor([True]), max_soft=float(data["max_soft"]))
        images = tensor(data["images"]).double()
        close(F.mix_images(images, mask, tensor(data["perm"])), data["paper_mixed"], EXACT)
        close(F.area_share(mask, dtype=torch.float64), share, 1 / (height * width))  # also of soft masks


@pytest.mark.parametrize("case", golden_cases("resizemix"))
def test_golden_resizemix(case: str) -> None:
    whole = load(case)
    images, mask = tensor(whole["images"]), ResizedMask()
    frame = frame_for(whole["images"])
    for scale, data in zip(whole["tau"], cases_of(whole), strict=True):
        partner = tensor(data["perm"])
        values = mask.values(frame, float(scale), tensor(data["centre"]))
        same(values["box"], given_box(data["box"]))
        batch = vitmix.Unmixed(images, torch.zeros(len(images), 1), partner, frame)
        made = mask.where(values, batch)
        same(made.images, data["mixed"])
        for nearest in (False, True):
            weights = values["rows"], values["columns"]
            moved = paste_resized(images, images[partner], values["box"], weights, nearest=nearest)
            same(moved, data["mixed"])
        share = F.area_share(made.mask, dtype=torch.float64)
        close(share, np.full(len(images), float(data["share"])), 1e-12)


@pytest.mark.parametrize("case", golden_cases("gridmix"))
def test_golden_gridmix(case: str) -> None:
    """Crops inside the image; the program lets others wrap around."""
    inside = [data for data in cases_of(load(case)) if bool(data["crop_inside"]) and float(data["hole_aspect"]) == 1]
    assert inside
    for data in inside:
        crop = dict(area=float(data["cut_area"]), aspect=float(data["cut_aspect"]), place=tuple(data["place_xy"]))
        share = 1 - float(data["lam_drawn"])
        mask = lattice_mask(size_of(data["images"]), share, holes=int(data["n_holes"]), **crop)
        same(mask, data["mask_partner"])
        same(F.mix_images(tensor(data["images"]), mask[None], tensor(data["perm"])), data["mixed"])
        close(F.area_share(mask[None], dtype=torch.float64)[0], data["share"], 1e-7)  # float32 there


@pytest.mark.parametrize("case", golden_cases("saliencymix"))
def test_golden_saliencymix(case: str) -> None:
    """From uint8 images, whose channels the program takes for blue, green, red."""
    data = load(case)
    images, mask = tensor(data["images"]), PeakMask(per="batch", order="bgr")
    levels = mask.saliency(images)
    close(levels.float() / 255, data["saliency"], 1e-6)
    same((levels == levels.amax((1, 2), keepdim=True)).sum((1, 2)), data["n_at_max"])
    same(saliency_peak(levels), data["peak"])
    for number, own in enumerate(data["lam_drawn"]):
        share = torch.full((len(images),), 1 - own, dtype=torch.float64)
        same(F.boxes_around(saliency_peak(levels), size_of(data["images"]), share), given_box(data["boxes"][:, number]))
        partner = tensor(data["batch_perm"][number])
        batch = vitmix.Unmixed(images, torch.zeros(len(images), 1), partner, frame_for(data["images"]))
        inside = mask.where({"reach": box_reach(size_of(data["images"]), share[:1])}, batch).mask
        same(inside, F.box_mask(given_box(data["batch_box"][number]), size_of(data["images"])))
        same(F.mix_images(images, inside, partner), data["batch_mixed"][number])
        close(F.area_share(inside, dtype=torch.float64)[0], data["batch_share"][number], 1e-12)


@pytest.mark.parametrize("case", golden_cases("attentive_cutmix"))
def test_golden_attentive_cutmix(case: str) -> None:
    """OpenMixup's channel mean. There, images keep their own cells; here, they get the partner's."""
    data = load(case)
    images, partner, scores = tensor(data["images"]), tensor(data["perm"]), tensor(data["features"]).mean(1)
    for count in data["ks"]:
        cells = top_cells(scores, torch.tensor([int(count)]))
        same(cells, data[f"openmixup_k{count}_own_cells"])
        # The image keeps its cells and gets the rest: the cells of its partner in the exchanged pair.
        same(F.mix_images(images, ~cells, partner), data[f"openmixup_k{count}_mixed"])
        close(cells.double().mean((1, 2)), np.full(len(images), data[f"openmixup_k{count}_lam_own"]), 1e-7)
        frame = frame_for(data["images"], tuple(scores.shape[1:]))
        mask = TopCellsMask(cells=int(count)).where({}, unmixed(frame, partner, scores)).mask
        same(mask, cells[partner])
    for share, count in zip(data["plus_lam_drawn"], data["plus_k"], strict=True):
        frame = frame_for(data["images"], tuple(scores.shape[1:]))
        drawn = {"share": torch.tensor([share], dtype=torch.float64)}
        assert TopCellsMask().where(drawn, unmixed(frame, partner, scores)).mask.sum((1, 2)).eq(int(count)).all()


# MixPro


@pytest.mark.parametrize("case", golden_cases("mixpro"))
def test_golden_mixpro(case: str) -> None:
    for data in cases_of(load(case)):
        side, patch, cell = (int(data[key]) for key in ("image_size", "model_patch", "mask_patch"))
        grid, cells = (side // patch, side // patch), math.ceil(side / cell) ** 2
        own = math.ceil(cells * float(data["lam_drawn"]))
        order = tensor(data["cell_orders"])
        mask = cell_mask(order, own, grid, cell // patch)
        same(~mask, data["own_tokens"])
        shape = tuple(data["own_cells"].shape[1:])
        same(~cell_mask(order, own, shape, 1), data["own_cells"])
        partner = tensor(data["perm"])
        same(F.mix_images(tensor(data["images"]), mask, partner), data["mixed"])
        area = F.area_share(mask, dtype=torch.float64)
        if side % cell == 0:  # the program counts cells that are partly outside as whole ones
            close(1 - area, data["lam_area"], 1e-12)
        area = 1 - tensor(data["lam_area"])
        targets = F.mix_targets(
            one_hot(data["labels"], int(data["num_classes"]), float(data["smoothing"])), partner, area
        )
        close(targets, data["targets_area"], EXACT)
        close(tensor(data["attention_class_row"])[:, :, 1:].mean(1), data["attn_tokens"], EXACT)
        attention = F.attention_share(tensor(data["attn_tokens"]), mask.flatten(1))
        close(1 - attention, data["lam_attn"], EXACT)
        logits = tensor(data["logits"]).requires_grad_()
        share = progressive_share(attention, area, targets, logits)
        close(1 - share, data["lam"], EXACT)
        same_sides = torch.zeros(len(logits)), torch.ones(len(logits))  # the share is then the similarity
        close(progressive_share(same_sides[1], same_sides[0], targets, logits), data["sim"], EXACT)
        rows = one_hot(data["labels"], int(data["num_classes"]))
        loss = F.soft_cross_entropy(logits, F.mix_targets(rows, partner, share))
        close(loss, data["loss_pal"], EXACT)
        loss.backward()
        close(logits.grad, data["grad_logits_lam_constant"], EXACT)
        close(F.soft_cross_entropy(logits, targets), data["loss_area_smoothed"], EXACT)


# Losses and label rules


@pytest.mark.parametrize("case", golden_cases("decouplemix"))
def test_golden_decouplemix(case: str) -> None:
    """The program hands scaled weights out in the order of classes of the first mixed row; nothing at one half."""
    whole = load(case)
    for data in cases_of(whole):
        logits = tensor(data["logits"]).requires_grad_()
        own, partner, share = tensor(data["label_own"]), tensor(data["label_partner"]), 1 - float(data["own"])
        scaled, eta = bool(data["eta_scaled_by_share"]), float(data["eta"])
        main = F.soft_cross_entropy(logits, tensor(data["targets"]).double())
        close(main, data["loss_plain_ce"], 1e-7)  # targets are float32
        if share == 0.5:
            loss = main
        else:
            first = int((own != partner).nonzero()[0])
            as_given = 1 - share if scaled and own[first] > partner[first] else share
            shares = torch.full((len(own),), as_given, dtype=torch.float64)
            loss = main + eta * decoupled_loss(logits, own, partner, shares, scaled=scaled)
        close(loss, data["loss"], EXACT)
        loss.backward()
        close(logits.grad, data["grad_logits"], EXACT)


@pytest.mark.parametrize("case", golden_cases("decouplemix"))
def test_golden_decouplemix_function(case: str) -> None:
    """Without the head. It takes the mean of the batch with `avg_factor`, otherwise of mixed and unmixed rows apart."""
    data = load(case)
    logits, targets = tensor(data["mean_logits"]), tensor(data["mean_targets"])
    classes = targets.topk(2).indices
    mixed = (targets > 0).sum(1) == 2
    own, partner = classes[:, 0], torch.where(mixed, classes[:, 1], classes[:, 0])
    share = 1 - targets.amax(1)
    eta = float(data["persample_eta"])  # of all of the file
    loss = F.soft_cross_entropy(logits, targets) + eta * decoupled_loss(logits, own, partner, share)
    close(loss, data["mean_loss_avg_factor"], EXACT)
    parts = [
        F.soft_cross_entropy(logits[rows], targets[rows])
        + eta * decoupled_loss(logits[rows], own[rows], partner[rows], share[rows])
        for rows in (mixed, ~mixed)
    ]
    close(parts[0] + parts[1], data["mean_loss"], EXACT)


@pytest.mark.parametrize("case", golden_cases("decouplemix"))
@pytest.mark.parametrize("word", ["constant", "scaled"])
def test_golden_decouplemix_per_sample(case: str, word: str) -> None:
    data = {key.removeprefix("persample_"): value for key, value in load(case).items() if key.startswith("persample_")}
    logits = tensor(data["logits"]).requires_grad_()
    own, partner, share = tensor(data["label_own"]), tensor(data["label_partner"]), 1 - tensor(data["own"])
    rows = one_hot(data["label_own"], logits.shape[1]), one_hot(data["label_partner"], logits.shape[1])
    main = F.soft_cross_entropy(logits, torch.lerp(*rows, share.unsqueeze(1)))
    as_given = torch.where(own > partner, 1 - share, share)  # the order of classes, in each row
    loss = main + float(data["eta"]) * decoupled_loss(logits, own, partner, as_given, scaled=word == "scaled")
    close(loss, data[f"loss_{word}"], EXACT)
    loss.backward()
    close(logits.grad, data[f"grad_{word}"], EXACT)


def oa_cases(case: str) -> list[tuple[str, Tensor, Tensor, np.ndarray, float, float]]:
    """Name, object masks, box, original parts, weight of the relative share, blend."""
    data, found = load(case), []
    relative = {"absolute": 0.0, "relative": 1.0, "blend": 1 - float(data["blend_mode"])}
    for number in range(int(data["n_cases"])):
        for word, weight in relative.items():
            for percent in (100, 80):
                own = data[f"c{number}_own_{word}_w{percent}"]
                found.append(
                    (word, tensor(data["masks"]), given_box(data[f"c{number}_box"]), own, weight, percent / 100)
                )
    small, soft = (tensor(data[f"{word}_masks"])[:, 0] for word in ("small", "soft"))
    size = tuple(map(int, data["small_hw"]))
    for objects, own in ((small, "small_own_absolute"), (small * 255, "small255_own_absolute")):
        found.append(("absolute", F.expand_mask(objects, size), given_box(data["small_box"]), data[own], 0.0, 1.0))
    found.append(("absolute", soft, given_box(data["small_box"]), data["soft_own_absolute"], 0.0, 1.0))
    return found


@pytest.mark.parametrize("case", golden_cases("oa_cutmix"))
def test_golden_oa_cutmix(case: str) -> None:
    """All but the samples in which nothing is visible or, with relative shares, an object is missing."""
    whole, compared = load(case), dict.fromkeys(("absolute", "relative", "blend"), 0)
    partner = tensor(whole["partner"])
    for word, objects, box, own, relative, blend in oa_cases(case):
        mask = F.box_mask(box, (objects.shape[1], objects.shape[2]))
        mix, area = vitmix.Mix(partner, mask), F.area_share(mask, dtype=torch.float64).expand(len(partner))
        share = object_share(objects, mix, area, relative=relative, blend=blend)
        sizes = objects.sum((1, 2))
        seen = (objects * ~mask).sum((1, 2)) + (objects[partner] * mask).sum((1, 2)) > 0
        known = seen & ((sizes > 0) & (sizes[partner] > 0) if relative else True)
        compared[word] += int(known.sum())
        # The program adds about 1e-8 to the sizes of objects.
        close(1 - share[known], tensor(own)[known], 1e-12 if word == "absolute" else 5e-8)
        close(share[~seen], area[~seen], 1e-12)
    assert all(compared.values())
    for data in cases_of(whole):
        mask = F.box_mask(given_box(data["box"]), size_of(data["images"]))
        same(F.mix_images(tensor(data["images"]), mask, partner), data["mixed"])


# Token labels


def label_maps(data: Arrays, grid: tuple[int, int], flips: Tensor | None = None) -> Tensor:
    maps = F.dense_maps(tensor(data["map_values"]), tensor(data["map_indices"]), int(data["num_classes"]))
    size = tensor(data["image_hw"]).double()
    crops = tensor(data["crop_tlhw"]).double() / size.repeat(1, 2)
    return F.crop_label_maps(maps, crops, torch.zeros(len(maps), dtype=torch.bool) if flips is None else flips, grid)


@pytest.mark.parametrize("case", golden_cases("tokenlabel_targets"))
def test_golden_token_label_targets(case: str) -> None:
    """The program's own numbers are float32."""
    data = load(case)
    side, flips = int(data["grid"]), tensor(data["flip"])
    tokens, whole = label_maps(data, (side, side), flips).flatten(2), label_maps(data, (1, 1), flips).flatten(2)
    close(torch.cat([whole, tokens], 2), data["target_right_s0"][:, :, 1:], 5e-6)
    close(whole[:, :, 0], data["target_right_relabel"][:, :, 1], 5e-6)
    rows = one_hot(data["labels"], int(data["num_classes"]))
    close(rows, data["target_right_s0"][:, :, 0], 5e-6)
    smoothing, classes = float(data["smoothing"]), int(data["num_classes"])
    truth, ours = F.smooth_rows(rows, smoothing), torch.cat([whole, tokens], 2)
    extra = ours * smoothing / classes  # a row of the program sums to 1 + smoothing / classes
    smooth = F.smooth_rows(ours.transpose(1, 2).flatten(0, 1), smoothing).unflatten(0, (len(rows), -1))
    smooth = torch.cat([truth.unsqueeze(2), smooth.transpose(1, 2) + extra], 2)
    close(smooth, data["target_right_s"], 5e-6)
    share = torch.full((len(rows),), 1 - float(data["target_mixed_own_part"]), dtype=torch.float64)
    mixed = F.mix_targets(smooth.flatten(1).double(), F.reversed_pairs(len(rows)), share)
    close(mixed, data["target_right_mixed_s"].reshape(len(rows), -1), 5e-6)


@pytest.mark.parametrize("case", golden_cases("relabel"))
def test_golden_relabel(case: str) -> None:
    data = load(case)
    rows = label_maps(data, (1, 1)).flatten(1)
    close(rows, data["target_right"], 2e-5)
    close(F.soft_cross_entropy(tensor(data["logits"]), rows), data["loss_right"], 2e-5)
    images, partner = tensor(data["cutmix_images"]), tensor(data["cutmix_partner"])
    mixer = vitmix.cutmix(int(data["num_classes"]), smoothing=float(data["cutmix_smoothing"]))
    draw = Draw(0, {"partner": partner, "mask.box": given_box(data["cutmix_box"])})
    mixed, targets = mixer(images, rows, draw=draw)
    same(mixed, data["cutmix_mixed"])
    close(targets, data["cutmix_target"], 2e-5)


@pytest.mark.parametrize("case", golden_cases("tokenlabel_loss"))
def test_golden_token_label_loss(case: str) -> None:
    """The program puts logits back to their images; we put labels where the tokens are: the same sum."""
    compared = 0
    for data in cases_of(load(case)):
        if bool(data["ground_truth"]):  # a variant that no published command uses
            continue
        compared += 1
        logits, restored = tensor(data["logits"]).requires_grad_(), tensor(data["aux_logits"]).requires_grad_()
        grid, partner = tuple(map(int, data["grid"])), F.reversed_pairs(len(logits))
        mask = F.box_mask(given_box(data["box"]), grid)
        target = tensor(data["target"])
        rows = target[:, :, 1] if target.ndim == 3 else target
        labels = (target[:, :, 2:] if target.ndim == 3 else target[:, :, None].expand(-1, -1, grid[0] * grid[1])).mT
        share = F.area_share(mask, dtype=torch.float64).expand(len(logits))
        main = F.soft_cross_entropy(logits, F.mix_targets(rows, partner, share))
        mix = vitmix.Mix(partner, mask)
        inside = mask.flatten(1)
        in_place = F.mix_tokens(restored, inside, partner)
        token = F.sample_cross_entropy(in_place, mixed_token_labels(labels, inside, mix)).mean()
        close(main, data["loss_cls"], EXACT)
        close(token, data["loss_token"], EXACT)
        loss = float(data["cls_weight"]) * main + float(data["dense_weight"]) * token
        close(loss, data["loss"], EXACT)
        loss.backward()
        close(logits.grad, data["grad_logits"], EXACT)
        close(restored.grad, data["grad_aux"], EXACT)
    assert compared


@pytest.mark.parametrize("case", golden_cases("mixtoken_boxes"))
def test_golden_mixtoken_boxes(case: str) -> None:
    for height, width, own, row, column, *box in load(case)["rows"]:
        share, center = torch.tensor([1 - own], dtype=torch.float64), torch.tensor([[int(row), int(column)]])
        same(F.boxes_around(center, (int(height), int(width)), share), given_box(np.array(box)).long())


def golden_model(data: Arrays, **settings: object) -> VisionTransformer:
    """The timm ViT of a file with `param/` keys; residual branches divided by `skip` are folded into their weights."""
    weights = {key.removeprefix("param/"): tensor(value).double() for key, value in data.items() if "param/" in key}
    width = weights["cls_token"].shape[2]
    model = VisionTransformer(
        img_size=size_of(data["images"]),
        patch_size=int(data["patch_size"]),
        embed_dim=width,
        depth=int(data["depth"]),
        num_heads=int(data["num_heads"]),
        mlp_ratio=weights["blocks.0.mlp.fc1.weight"].shape[0] / width,
        qkv_bias="blocks.0.attn.qkv.bias" in weights,
        num_classes=len(weights["head.bias"]),
        norm_layer=partial(nn.LayerNorm, eps=float(data.get("norm_eps", 1e-6))),
        **settings,
    )
    for key in weights:
        if ".attn.proj." in key or ".mlp.fc2." in key:
            weights[key] = weights[key] / float(data.get("skip", 1))
    model.load_state_dict({key: value for key, value in weights.items() if not key.startswith("aux_head")})
    return model.double().train()


@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.parametrize("case", golden_cases("mixtoken_vit"))
def test_golden_mixtoken_vit(case: str, embedded: bool) -> None:
    """Mixing tokens, as the program does, and mixing the pixels of patches that do not overlap."""
    data = load(case)
    model, grid = golden_model(data), tuple(map(int, data["grid"]))
    target, classes = tensor(data["target"]), len(data["param/head.bias"])
    learner = vitmix.Learner(
        model, vitmix.token_labeling(classes, weight=float(data["dense_weight"]), embedded=embedded)
    )
    head = learner.added["token_label_head"]
    with torch.no_grad():
        head.weight.copy_(tensor(data["param/aux_head.weight"]))
        head.bias.copy_(tensor(data["param/aux_head.bias"]))
    maps = target[:, :, 2:].unflatten(2, grid)
    draw = Draw(0, {"partner": F.reversed_pairs(len(target)), "mask.box": given_box(data["box"])})
    final: list[Tensor] = []
    model.norm.register_forward_hook(lambda *given: final.append(given[2]))
    images = tensor(data["images"])
    output = learner(images, target[:, :, 1].contiguous(), maps=maps, draw=draw)
    close(output.logits, data["logits"], EXACT)
    close(output.loss, data["loss"], EXACT)
    close(final[0], data["tokens_final"], EXACT)
    inside = F.box_mask(given_box(data["box"]), grid).flatten(1)
    restored = F.mix_tokens(head(final[0][:, 1:]), inside, draw.values["partner"])
    close(restored, data["aux_logits_restored"], EXACT)
    output.loss.backward()
    close(head.weight.grad, data["grad/aux_head.weight"], EXACT)
    close(head.bias.grad, data["grad/aux_head.bias"], EXACT)
    for name, parameter in model.named_parameters():
        folded = ".attn.proj." in name or ".mlp.fc2." in name  # these weights are divided by `skip`
        close(parameter.grad / (float(data["skip"]) if folded else 1), data[f"grad/{name}"], EXACT)
    learner.eval()
    with torch.no_grad():
        close(learner(images), data["clean_logits"], EXACT)
        close(head(final[1][:, 1:]), data["clean_aux_logits"], EXACT)
        close(vitmix.TokenLabelClassifier(model, head)(images), data["eval_output"], EXACT)


# Manifold Mixup


@pytest.mark.parametrize("case", golden_cases("manifold_vit"))
def test_golden_manifold_vit(case: str) -> None:
    data = load(case)
    depth, layers = int(data["depth"]), [int(layer) for layer in data["layers"]]
    for layer in layers:
        case_of = {key.removeprefix(f"l{layer}_"): value for key, value in data.items() if key.startswith(f"l{layer}_")}
        model = golden_model(data)
        blocks = tuple(each - 1 for each in layers if each)
        mixer = vitmix.Mixer(int(data["num_classes"]), inner=(Manifold(blocks=blocks, pixels=0 in layers),))
        shares = torch.zeros(1 + depth, dtype=torch.float64)
        shares[layer] = 1 - float(case_of["own"])
        values = {"partner": F.reversed_pairs(len(data["images"]))}
        draw = Draw(0, values | {"inner0.shares": shares, "inner0.partner": tensor(case_of["partner"])})
        output = vitmix.Learner(model, mixer)(tensor(data["images"]), tensor(data["labels"]), draw=draw)
        close(output.logits, case_of["logits"], EXACT)
        close(output.targets, case_of["target"], EXACT)
        close(output.loss, case_of["loss_ce"], EXACT)
        output.loss.backward()
        names = [key.removeprefix("param/") for key in data if key.startswith("param/")]
        norms = torch.stack([model.get_parameter(name).grad.norm() for name in names])
        close(norms, case_of["grad_norm"], EXACT)


def resnet_logits(weights: dict[str, Tensor], images: Tensor, layer: int, partner: Tensor, share: Tensor) -> Tensor:
    """A pre-activation ResNet in training mode, whose input (layer 0) or state after a stage is blended."""

    def norm(states: Tensor, name: str) -> Tensor:
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return nn.functional.relu(nn.functional.batch_norm(states, None, None, scale, shift, training=True))

    states = blended(images, partner, share) if layer == 0 else images
    states = nn.functional.conv2d(states, weights["conv1.weight"], padding=1)
    for stage in range(1, 5):
        name, stride = f"layer{stage}.0", 1 if stage == 1 else 2
        active, shortcut = norm(states, f"{name}.bn1"), weights.get(f"{name}.shortcut.0.weight")
        skipped = states if shortcut is None else nn.functional.conv2d(active, shortcut, stride=stride)
        inner = nn.functional.conv2d(active, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = nn.functional.conv2d(norm(inner, f"{name}.bn2"), weights[f"{name}.conv2.weight"], padding=1)
        states = inner + skipped
        if layer == stage:
            states = blended(states, partner, share)
    return nn.functional.linear(states.mean((2, 3)), weights["linear.weight"], weights["linear.bias"])


@pytest.mark.parametrize("case", golden_cases("manifold_resnet"))
def test_golden_manifold_resnet(case: str) -> None:
    """The authors' network and loss; numbers that they draw and their targets are float32."""
    data = load(case)
    first, last = map(int, data["layer_draw_inclusive"])
    rows = one_hot(data["labels"], int(data["num_classes"]))
    for layer in range(first, last + 1):
        case_of = {key.removeprefix(f"l{layer}_"): value for key, value in data.items() if key.startswith(f"l{layer}_")}
        weights = {key.removeprefix("param/"): tensor(data[key]) for key in data if key.startswith("param/")}
        for weight in weights.values():
            weight.requires_grad_()
        partner, share = tensor(case_of["partner"]), 1 - tensor(case_of["own"]).double()
        logits = resnet_logits(weights, tensor(data["images"]), layer, partner, share)
        close(logits, case_of["logits"], 1e-7)
        targets = F.mix_targets(rows, partner, share.expand(len(rows)))
        close(targets, case_of["target"], 1e-7)
        loss = nn.functional.binary_cross_entropy(logits.softmax(1), targets)
        close(loss, case_of["loss"], 1e-7)
        loss.backward()
        for name in ("linear", "conv1"):
            close(weights[f"{name}.weight"].grad, case_of[f"grad_{name}"], 1e-7)


# Puzzle Mix


@pytest.mark.parametrize("case", golden_cases("puzzlemix"))
def test_golden_puzzlemix_costs_and_cuts(case: str) -> None:
    """Costs up to truncation to integers; two labels as the program, three labels never with more energy."""
    for data in cases_of(load(case)):
        blocks, labels = int(data["block_num"]), int(data["n_labels"])
        named = {key: float(data[key]) for key in ("beta", "gamma", "eta")}
        images, share = tensor(data["images"]).double() / 255, 1 - float(data["lam_drawn"])
        sizes = dict(blocks=blocks, labels=labels, neighborhood=int(data["neigh_size"]))
        costs = puzzle_costs(tensor(data["saliency"]), images, tensor(data["perm"]), share, **sizes, **named)
        stored = [data[key].astype(np.float64) for key in ("unary_int", "edge_down_int", "edge_right_int")]
        for ours, theirs in zip(costs, stored, strict=True):
            close((ours * 1000 * blocks**2).trunc(), theirs, 1)
        for number, rows in enumerate(zip(*stored, strict=True)):
            found = grid_labels(*rows)
            energy = grid_energy(found, *rows)
            assert energy <= data["energy"][number] + 1e-6 and energy <= data["energy_exact"][number] + 1e-6
            close(torch.tensor(grid_energy(data["labels"][number].astype(int), *rows)), data["energy"][number], 1e-6)
            exact = grid_energy(data["exact_labels"][number].astype(int), *rows)
            close(torch.tensor(exact), data["energy_exact"][number], 1e-6)
            if labels == 2:
                same(torch.from_numpy(found), data["labels"][number])


@pytest.mark.parametrize("case", golden_cases("puzzlemix", "overflow_unary_int"))
def test_golden_puzzlemix_does_not_overflow(case: str) -> None:
    data = load(case)
    keys = ("overflow_unary_int", "overflow_edge_down_int", "overflow_edge_right_int")
    for number, rows in enumerate(zip(*(data[key].astype(np.float64) for key in keys), strict=True)):
        same(torch.from_numpy(grid_labels(*rows)), data["overflow_exact_labels"][number])


@pytest.mark.parametrize("case", golden_cases("puzzlemix"))
def test_golden_puzzlemix_transport(case: str) -> None:
    whole = load(case)
    mean, std = (tensor(whole[key]).view(3, 1, 1) for key in ("mean", "std"))
    for data in cases_of(whole):
        partner, saliency = tensor(data["perm"]), tensor(data["saliency"])
        images = (tensor(data["images"]).double() / 255 - mean) / std
        part = tensor(data["labels"]).double() / (int(data["n_labels"]) - 1)
        close(1 - part, data["own_mask"], 0)
        side, block = images.shape[-1], images.shape[-1] // int(data["block_num"])
        pair = [images, images[partner]]
        if bool(data["transport"]):
            cell = int(data["t_size"]) if 0 < int(data["t_size"]) < block else block
            grid = (side // cell, side // cell)
            mine, shown = block_saliency(saliency, grid), F.expand_mask(part, grid)
            own = transport_plan(mine, shown < 1, cost=float(data["t_eps"]))
            theirs = transport_plan(mine[partner], shown > 0, cost=float(data["t_eps"]))
            same(own, data["plan_own"])
            same(theirs, data["plan_partner"])
            pair = [move_blocks(each, plan) for each, plan in zip(pair, (own, theirs), strict=True)]
        weight = F.expand_mask(part, (side, side)).unsqueeze(1)
        close((1 - weight) * pair[0] + weight * pair[1], data["mixed"], EXACT)
        close(part.mean((1, 2)), data["share"], 1e-12)


@pytest.mark.parametrize("case", golden_cases("puzzlemix"))
def test_golden_puzzlemix_whole(case: str) -> None:
    """The mask as it acts in a step, where the program's cut is optimal."""
    whole, compared = load(case), 0
    mean, std = whole["mean"], whole["std"]
    for data in cases_of(whole):
        images = (tensor(data["images"]).double() / 255 - tensor(mean).view(3, 1, 1)) / tensor(std).view(3, 1, 1)
        named = {key: float(data[key]) for key in ("beta", "gamma", "eta")}
        size = int(data["t_size"])
        mask = PuzzleMask(
            labels=int(data["n_labels"]),
            neighborhood=int(data["neigh_size"]),
            transport=bool(data["transport"]),
            cost=float(data["t_eps"]),
            cell=size if size > 0 else None,
            mean=tuple(map(float, mean)),
            std=tuple(map(float, std)),
            **named,
        )
        frame = vitmix.Frame(len(images), size_of(data["images"]), dtype=torch.float64)
        guidance = Guidance(gradient=tensor(data["saliency"]))
        batch = vitmix.Unmixed(images, torch.zeros(len(images), 1), tensor(data["perm"]), frame, guidance)
        share = torch.tensor(1 - float(data["lam_drawn"]), dtype=torch.float64)
        made = mask.where({"share": share, "blocks": torch.tensor(int(data["block_num"]))}, batch)
        optimal = tensor(data["energy"]) <= tensor(data["energy_exact"]) + 1e-6
        same_labels = (F.expand_mask(1 - tensor(data["own_mask"]), frame.size) == made.mask).all(2).all(1)
        compared += int((optimal & same_labels).sum())
        close(made.images[same_labels], tensor(data["mixed"])[same_labels], EXACT)
        close(made.mask.mean((1, 2))[same_labels], tensor(data["share"])[same_labels], 1e-12)
    assert compared > int(whole["n_cases"])


# Co-Mixup


def similar(data: Arrays) -> np.ndarray:
    return likeness(tensor(data["compat_raw"]).double(), float(data["omega"])).numpy()


def released(data: Arrays) -> Weighing:
    numbers = (float(data[key]) for key in ("beta", "gamma", "thres"))
    return Weighing(*numbers, rounds=int(data["niter"]), by_column=True)


def comixup_cost(data: Arrays) -> np.ndarray:
    drawn = tensor(data["dirichlet"]), tensor(data["saliency"])
    return joint_cost(drawn[1], drawn[0], blocks=int(data["block_num"]), eta=float(data["eta"])).numpy()


@pytest.mark.parametrize("case", golden_cases("comixup"))
def test_golden_comixup_cuts(case: str) -> None:
    """Every inner cut along the program's way, given the labels it found before; ours never has more energy."""
    for data in cases_of(load(case)):
        weighing, cost, like = released(data), comixup_cost(data), similar(data)
        close(torch.from_numpy(like), data["compat"], 1e-6)
        parts = np.eye(cost.shape[0])[data["init"]]
        extra, count = np.zeros((len(parts), len(cost))), len(parts)
        for number in range(int(data["n_cuts"])):
            turn, output = divmod(number, count)
            cut = inner_cut(cost, like, parts, output, extra[output], weighing, halves=turn > 0)
            close(torch.from_numpy(cut.unary), data[f"cut{number}_unary"], 1e-5)
            close(torch.from_numpy(cut.distance), data[f"cut{number}_pair"], 1e-6)
            close(torch.tensor(cut.edge), data[f"cut{number}_edge"], 1e-7)
            theirs = data[f"cut{number}_labels"].astype(np.int64)
            energies = [
                labeling_energy(each, cut.unary, cut.distance, cut.edge)
                for each in (labeling(cut.unary, cut.distance, cut.edge), theirs)
            ]
            assert energies[0] <= energies[1] + 1e-12
            parts[output] = cut.parts[theirs]
            if output == count - 1 and turn == weighing.rounds - 2:
                extra = given_up(parts.sum((1, 2)) > 0)
        close(torch.from_numpy(parts), data["mask"], 0)
        close(mix_blocks(tensor(data["images"]).double(), torch.from_numpy(parts)), data["mixed"], 1e-4)


@pytest.mark.parametrize("case", golden_cases("comixup"))
def test_golden_comixup_whole(case: str) -> None:
    """All rounds with our solver, where each of the program's cuts is optimal: masks, images and targets."""
    compared = 0
    for data in cases_of(load(case)):
        found = torch.from_numpy(joint_parts(comixup_cost(data), similar(data), data["init"], released(data)))
        if (found != tensor(data["mask"])).any():  # one cut of the program was not optimal, so later ones differ
            continue
        compared += 1
        close(mix_blocks(tensor(data["images"]).double(), found), data["mixed"], 1e-4)
        rows = one_hot(data["labels"], int(data["num_classes"]))
        close(found.mean((1, 2)) @ rows, data["targets"], 1e-6)
    assert compared


# RecursiveMix


def steps_of(data: Arrays) -> list[Arrays]:
    found = range(int(data["n_steps"]))
    return [{key.removeprefix(f"s{n}_"): v for key, v in data.items() if key.startswith(f"s{n}_")} for n in found]


@pytest.mark.parametrize("case", golden_cases("recursivemix"))
def test_golden_recursivemix(case: str) -> None:
    """Pasting with nearest neighbors; the other interpolation of the program is not ours."""
    data, history, mask = load(case), History(), HistoryMask()
    classes, heads = int(data["num_classes"]), {key: tensor(data[key]) for key in data if key.startswith("fc")}
    compared = 0
    for before, step in zip([None, *steps_of(data)], steps_of(data), strict=False):
        images, rows = tensor(step["images"]).double(), one_hot(step["labels"], classes)
        frame = vitmix.Frame(len(images), size_of(step["images"]), dtype=torch.float64)
        batch = vitmix.Unmixed(images, rows, torch.arange(len(images)), frame, module=history)
        if before is None:
            made = mask.where(mask.draw(frame, torch.Generator()), batch)
            close(made.images, step["mixed"], 0)
            assert not made.mask.any()
        else:
            history.images, history.rows = tensor(before["mixed"]), tensor(before["targets"])
            left, top, right, bottom = map(int, step["box_xyxy"])
            center, area = tensor(step["centre_xy"]).flip(0)[None], torch.tensor([float(step["u"])]).double()
            box = F.boxes_around(center, frame.size, area)
            same(box, torch.tensor([[top, bottom, left, right]]))
            made = mask.where(mask.values(frame, box), batch)
            share = made.mask.double().mean().expand(len(images))
            close(share, np.full(len(images), float(step["share"])), 1e-12)
            close(torch.lerp(rows, made.rows, share.unsqueeze(1)), step["targets"], EXACT)
            if not bool(step["bilinear"]):
                close(made.images, step["mixed"], EXACT)
                compared += 1
            features = tensor(step["features"])
            pooled = pooled_box(features, box, frame.size)
            close(pooled, step["roi_feat"], EXACT)
            logits = nn.functional.linear(features.mean((2, 3)), heads["fc_weight"], heads["fc_bias"])
            close(logits, step["logits"], EXACT)
            boxed = nn.functional.linear(pooled, heads["fc_roi_weight"], heads["fc_roi_bias"])
            close(boxed, step["roi_logits"], EXACT)
            main, old = F.soft_cross_entropy(logits, tensor(step["targets"])), tensor(before["logits"])[: len(images)]
            close(main, step["loss_ce"], EXACT)
            close(history_loss(boxed, old, torch.ones_like(share)), step["loss_roi"], EXACT)
            total = main + float(data["omega"]) * history_loss(boxed, old, share)
            close(total, step["loss_total"], EXACT)
    assert compared


# TdAttenMix


@pytest.mark.parametrize("case", golden_cases("tdattenmix"))
def test_golden_tdattenmix(case: str) -> None:
    """Windows of each pair. The program has one share per batch, from sums over the batch, in the right map."""
    whole = load(case)
    classes, smoothing = int(whole["num_classes"]), float(whole["smoothing"])
    for data in cases_of(whole):
        images, scores = tensor(data["images"]), tensor(data["attention"])
        partner, grid = F.reversed_pairs(len(images)), (scores.shape[1], scores.shape[2])
        assert images.shape[2] == grid[0] * int(data["patch_size"])
        mixer = vitmix.tdattenmix(classes)
        frame = vitmix.Frame(len(images), size_of(data["images"]), grid, dtype=torch.float64)
        sides = set(map(tuple, data["side_list"].tolist()))
        draws = math.ceil(len(sides) * math.log(1e6 * len(sides)))  # all miss one of the sides once in a million times
        drawn = {tuple(mixer.mask.draw(frame, generator_for(seed))["window"][0].tolist()) for seed in range(draws)}
        assert drawn == sides
        values = {"window": tensor(data["size"])[None], "place": torch.zeros(2, len(images), 2)}
        paste = mixer.mask.where(values, unmixed(frame, partner, scores))
        same(paste.mask, data["mask"])
        same(F.mix_images(images, paste.mask, partner, paste.source), data["mixed"])
        mix, area = vitmix.Mix(partner, *paste), F.area_share(paste.mask, dtype=torch.float64)
        own, theirs = visible_mass(*maps_on_mask(scores, mix), mix)
        close(own.sum() / (own + theirs).sum(), data["own_attention_right"], 1e-12)
        share = (area + 1 - float(data["own_attention_right"])) / 2
        rows = one_hot(data["labels"], classes, smoothing)
        close(F.mix_targets(rows, partner, share), data["target_right"], 1e-6)
        close(F.mix_targets(tensor(data["clean_logits"]), partner, share), data["consistency_logits_right"], EXACT)
        each = torch.where(own + theirs > 0, theirs / (own + theirs), area)
        close(guided_share(scores, mix, area), (area + each) / 2, 1e-12)


@pytest.mark.parametrize("case", golden_cases("tdattenmix"))
def test_golden_tdattenmix_mixup(case: str) -> None:
    """The other branch of its recipe."""
    data = load(case)
    images, share = tensor(data["mixup_images"]), 1 - float(data["mixup_own"])
    rows = one_hot(data["mixup_labels"], int(data["num_classes"]))
    mixer = vitmix.mixup(rows.shape[1], smoothing=float(data["smoothing"]))
    values = {"partner": F.reversed_pairs(len(images)), "mask.share": torch.tensor([share], dtype=torch.float64)}
    mixed, targets = mixer(images, rows, draw=Draw(0, values))
    close(mixed, data["mixup_mixed"], EXACT)
    close(targets, data["mixup_target"], 1e-6)


@pytest.mark.parametrize("case", golden_cases("tdattenmix_gaze"))
def test_golden_gaze(case: str) -> None:
    """AbsViT: both passes, the logits of the second, and the map."""
    data = load(case)
    weights = {key.removeprefix("param/"): tensor(value) for key, value in data.items() if key.startswith("param/")}
    classes, width = weights["head.weight"].shape
    model = vitmix.models.AbsViT(
        img_size=size_of(data["images"]),
        patch_size=int(data["patch_size"]),
        embed_dim=width,
        depth=int(data["depth"]),
        num_heads=int(data["num_heads"]),
        mlp_ratio=len(weights["blocks.0.mlp.fc1.bias"]) / width,
        num_classes=classes,
    ).double()
    model.load_state_dict(weights)
    images, rows = tensor(data["images"]), one_hot(data["labels"], classes)
    with torch.no_grad():
        first = model.embed_and_run(images, [None] * int(data["depth"]))
        second = model.look_for(images, rows @ model.head.weight)
        close(first, data["tokens_first"], EXACT)
        close(second, data["tokens_second"], EXACT)
        close(model.eval().forward_head(second), data["logits"], EXACT)
        close(model.gaze(images, rows).flatten(1), data["attention"], EXACT)


# MergeMix


@pytest.mark.parametrize("case", golden_cases("mergemix"))
def test_golden_mergemix_merging(case: str) -> None:
    """Without the class token, which never merges. Of one schedule, the program's first entry is negative."""
    data = load(case)
    count, places = int(data["match_r"]), tensor(data["match_map"])
    assert not places[:, 0].any()
    found = F.match_tokens(tensor(data["match_metric"])[:, 1:], count, prefix=1)
    same(found, places[:, 1:] - 1)
    tokens, sizes = tensor(data["match_tokens"])[:, 1:], tensor(data["match_sizes"])[:, 1:, 0]
    merged, summed = F.merge_tokens(tokens, sizes, found, tokens.shape[1] - count)
    close(merged, data["match_merged"][:, 1:], EXACT)
    close(summed, data["match_merged_sizes"][:, 1:, 0], EXACT)
    assert F.merge_schedule(int(data["depth"]), int(data["merge_total"])) == data["merge_list"].tolist()
    for number, (blocks, total, rate) in enumerate(data["schedule_cases"].tolist()):
        found, expected = F.merge_schedule(blocks, total, rate), data[f"schedule_{number}"].tolist()
        assert found == expected if min(expected) >= 0 else (sum(found), min(found)) == (total, 0)


def mergemix_model(data: Arrays) -> VisionTransformer:
    """timm's ViT with the parameters of the program's, which has no head: here, it has a class for each image."""
    names = {"/proj.": "/patch_embed.proj.", "/norm1.": "/norm.", "layers": "blocks", "ln": "norm", "ffn": "mlp"}
    classes, width = len(data["images"]), data["param/cls_token"].shape[2]
    renamed = {"param/head.weight": np.zeros((classes, width)), "param/head.bias": np.zeros(classes)}
    for key, value in data.items():
        for old, new in names.items():
            key = key.replace(old, new) if key.startswith("param/") else key
        renamed[key] = value
    return golden_model(renamed)


@pytest.mark.parametrize("case", golden_cases("mergemix"))
def test_golden_mergemix_mask(case: str) -> None:
    """The class token's row, spread back by the merging before it. Tokens that merged tie at the cut."""
    data = load(case)
    images, partner = tensor(data["images"]), tensor(data["partner"])
    count, patches = data["saliency_right_row"].shape
    mixer = vitmix.mergemix(count, merged=int(data["merge_total"]) / patches, block=int(data["read_block"]))
    with mixer.attach(mergemix_model(data)) as mixing:
        share = torch.tensor([1 - float(data["own_drawn"])], dtype=torch.float64)
        batch = mixing.mix(images, torch.arange(count), draw=Draw(0, {"partner": partner, "mask.share": share}))
        saliency = batch.guidance.observed
        assert saliency is not None
        close(int(data["num_heads"]) * saliency.flatten(1), data["saliency_right_row"], EXACT)  # the program adds heads
        kept = ~batch.mix.mask
        cut = torch.where(kept, saliency, torch.inf).amin((1, 2), keepdim=True)
        apart = saliency != cut
        same(kept[apart].double(), tensor(data["own_mask_right_row"])[apart])
        # Only the patches of one token are at the cut.
        tokens = tensor(data["source_map_at_attention"])[:, 1:]
        sizes = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).sum(2).amax(1)
        assert (apart.sum((1, 2)) >= patches - sizes).all()
        rows = torch.eye(count, dtype=torch.float64)
        targets = torch.lerp(rows, rows[partner], 1 - tensor(data["own_share"]).double().unsqueeze(1))
        close(mixing.targets(batch), targets, 1e-6)
