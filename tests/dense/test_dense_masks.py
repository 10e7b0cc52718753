"""Label maps follow the pixels of their images, for every mask, against a twin that reads pixels one by one."""

import pytest
import torch
from torch import Tensor

import vitmix
from pixel_story import (
    CLASSES,
    HARD,
    IGNORED,
    SOFT,
    Segmenter,
    hard_labels,
    labels,
    numbered,
    soft_labels,
    told,
    told_by_colors,
    tracers,
    transform,
)
from vitmix import functional as F
from vitmix._registry import parts


def test_every_mask_has_a_case() -> None:
    assert set(parts("mask")) - {"history", "joint", "half"} <= {*HARD, *SOFT}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_hard_label_maps_equal_the_twin(text: str) -> None:
    images, masks = numbered(4, 16, 16), labels(4, 16, 16)
    mix = transform(text, 3, 16)
    changed = 0
    for _ in range(3):
        mixed, found = mix(images, masks)
        expected = [hard_labels(story, masks, IGNORED) for story in told_by_colors(mixed)]
        assert found.dtype == masks.dtype
        torch.testing.assert_close(found, torch.stack(expected))
        changed += int((mixed != images).sum())
    assert changed or text == "none"


@pytest.mark.parametrize("text", SOFT.values(), ids=SOFT)
def test_blended_label_maps_equal_the_twin(text: str) -> None:
    size = 8
    images, masks = tracers(2, size, size), labels(2, size, size)
    mix = transform(text, images.shape[1], size)
    moved = 0
    for _ in range(3):
        mixed, found = mix(images, masks)
        stories = told(mixed, size, size)
        expected = [soft_labels(story, masks, CLASSES, IGNORED) for story in stories]
        torch.testing.assert_close(found.double(), torch.stack(expected), atol=1e-6, rtol=0)
        cells = [(at, cell) for story in stories for row, line in enumerate(story) for at, cell in enumerate(line)]
        moved += sum(column != at for at, cell in cells for _, _, column in cell)
    assert (moved > 0) == (text == SOFT["puzzle"])
    soft = F.mix_masks(vitmix.Mix(torch.arange(2), torch.zeros(1, 1, 1)), masks, num_classes=CLASSES)
    again = mix.mix(images, soft).targets  # soft maps stay soft
    assert again.shape == soft.shape


def test_soft_label_maps_equal_the_twin_of_hard_ones() -> None:
    for text in ("cutmix", "resizemix", "mixup", "fmix", "mix(mask=fourier(max_soft=0.3))"):
        images, masks = numbered(4, 9, 7), labels(4, 9, 7)
        soft = torch.stack([(masks == each).double() for each in range(CLASSES)], dim=1)
        one, two = (vitmix.DenseMix(text, num_classes=CLASSES, seed=3)(images, each)[1] for each in (masks, soft))
        if one.ndim == 3:
            one = torch.stack([(one == each).double() for each in range(CLASSES)], dim=1)
        torch.testing.assert_close(one.double(), two, atol=1e-6, rtol=0)


def test_the_gradient_of_a_segmentation_model_guides_puzzles() -> None:
    images, masks = torch.randn(2, 3, 16, 16), labels(2, 16, 16)
    model = Segmenter(3, CLASSES)
    mix = vitmix.DenseMix("puzzlemix", model=model, num_classes=CLASSES)
    assert mix.guide is not None
    wanted = images.clone().requires_grad_()
    torch.nn.functional.cross_entropy(model.eval()(wanted), masks, ignore_index=IGNORED).backward()
    assert wanted.grad is not None
    torch.testing.assert_close(mix.guide.gradient(images, masks), wanted.grad.pow(2).mean(1).sqrt())
    mix(images, masks)
    with pytest.raises(ValueError, match="for boxes, use another"):
        mix(images, [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0)}] * 2)
    with pytest.raises(ValueError, match=r"logits \(B, K, H, W\) of the images' size, got \(2, 10\)"):
        vitmix.DenseMix("puzzlemix", model=model.encoder, num_classes=CLASSES)(images, masks)


def test_places_without_a_pixel_are_ignored() -> None:
    """Where Puzzle Mix moved a block away and none came, the image is zero and the label unknown."""
    masks = labels(2, 4, 4)
    row, column = torch.randint(-1, 4, (2, 4, 4)), torch.randint(0, 4, (2, 4, 4))
    moves = vitmix.Moves(vitmix.Pixels(row, column), vitmix.Pixels(row.flip(0), column.flip(0)))
    for weight in (torch.rand(2, 4, 4) < 0.5, torch.rand(2, 4, 4, dtype=torch.float64)):
        mix = vitmix.Mix(torch.tensor([1, 0]), weight, moves=moves)
        found = F.mix_masks(mix, masks, num_classes=CLASSES)
        for image, y, x in torch.ones(2, 4, 4).nonzero().tolist():
            expected = torch.zeros(CLASSES, dtype=torch.float64)
            shown = IGNORED
            for origin, part in ((image, 1 - float(weight[image, y, x])), (1 - image, float(weight[image, y, x]))):
                number = image if origin != image else 1 - image
                label = (
                    int(masks[origin, row[number, y, x], column[number, y, x]]) if row[number, y, x] >= 0 else IGNORED
                )
                if label != IGNORED:
                    expected[label] += part
                shown = label if part == 1 else shown
            if weight.dtype == torch.bool:
                assert found[image, y, x] == shown
            else:
                torch.testing.assert_close(found[image, :, y, x], expected)
    assert (row < 0).any()


def test_bilinear_resizing_takes_the_nearest_label() -> None:
    size = 12
    images = tracers(2, size, size)
    masks = torch.arange(2 * size * size).view(2, size, size)
    mix = vitmix.DenseMix("mix(mask=resized(interpolation=bilinear))", ignore_index=-1, seed=2)
    for _ in range(4):
        mixed, found = mix(images, masks)
        weight = mixed.gather(1, found.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(weight, mixed.amax(1))  # of several pixels that are equally near, any


@pytest.mark.parametrize("size", [(7, 13), (1, 1), (5, 1)])
@pytest.mark.parametrize("text", ["cutmix", "fmix", "resizemix", "gridmix", "mix(mask=peak_box)"])
def test_odd_sizes_equal_the_twin(text: str, size: tuple[int, int]) -> None:
    images, masks = numbered(3, *size), labels(3, *size)
    mixed, found = vitmix.DenseMix(text, num_classes=CLASSES, seed=0)(images, masks)
    torch.testing.assert_close(
        found, torch.stack([hard_labels(each, masks, IGNORED) for each in told_by_colors(mixed)])
    )


def test_windows_of_a_model_need_whole_patches_and_boxes_do_not() -> None:
    images, masks = numbered(2, 18, 18), labels(2, 18, 18)
    model = Segmenter(3, CLASSES).double()
    vitmix.DenseMix("cutmix", model=model, num_classes=CLASSES)(images, masks)
    for text in ("tokenmix", "smmix"):
        with pytest.raises(ValueError, match="18x18"):
            vitmix.DenseMix(text, model=model, num_classes=CLASSES)(images, masks)


def test_tokens_of_a_segmentation_model_are_the_blocks() -> None:
    images, masks = numbered(4, 16, 16), labels(4, 16, 16)
    with vitmix.DenseMix("tokenmix", model=Segmenter(3, CLASSES).double(), num_classes=CLASSES, seed=0) as mix:
        batch = mix.mix(images, masks)
    assert batch.mix.mask.shape[1:] == (4, 4)
    expected = [hard_labels(story, masks, IGNORED) for story in told_by_colors(batch.images)]
    torch.testing.assert_close(batch.targets, torch.stack(expected))


def test_a_guide_leaves_the_model_as_it_was() -> None:
    images, masks = numbered(2, 16, 16).float(), labels(2, 16, 16)
    model = Segmenter(3, CLASSES).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logits = model(images)
    for text in ("smmix", "puzzlemix"):
        with vitmix.DenseMix(text, model=model, num_classes=CLASSES) as mix:
            mixed, found = mix(images, masks)
            F.mask_cross_entropy(model(mixed), found).backward()  # the pass on mixed images is an ordinary one
    assert model.training and all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    torch.testing.assert_close(model(images), logits)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_mixer_itself_mixes_label_maps() -> None:
    images, masks = numbered(4, 16, 16), labels(4, 16, 16)
    mixer = vitmix.create("cutmix", num_classes=CLASSES)
    mixed, found = mixer(images, masks)
    torch.testing.assert_close(
        found, torch.stack([hard_labels(each, masks, IGNORED) for each in told_by_colors(mixed)])
    )
    again = [mixer(images, masks, generator=torch.Generator().manual_seed(3))[1] for _ in range(2)]
    assert torch.equal(*again)


@pytest.mark.parametrize("text", ["mixup", "cutmix", "mix(mask=block(share=0.0, grid=[4, 4]))"])
def test_share_zero_is_the_identity(text: str) -> None:
    images, masks = numbered(4, 16, 16), labels(4, 16, 16)
    mix = vitmix.DenseMix(text, num_classes=CLASSES, seed=0)
    draw = mix.mixer.draw(vitmix.Frame(4, (16, 16), (4, 4)), torch.Generator().manual_seed(0))
    for name in ("mask.share", "mask.box"):
        if name in draw.values:
            draw.values[name] = torch.zeros_like(draw.values[name])
    mixed, found, _ = mix.mix(images, masks, draw=draw)
    if found.ndim == 4:
        known = masks != IGNORED
        assert torch.equal(found.sum(1) > 0, known)
        found = torch.where(known, found.argmax(1), IGNORED)
    assert torch.equal(mixed, images) and torch.equal(found, masks)


def test_inputs_stay_unchanged_and_a_single_image_is_its_own_partner() -> None:
    images, masks = numbered(1, 16, 16), labels(1, 16, 16)
    kept = images.clone(), masks.clone()
    mixed, found = vitmix.DenseMix("cutmix", num_classes=CLASSES)(images, masks)
    assert torch.equal(mixed, images) and torch.equal(found, masks)
    four = numbered(4, 16, 16), labels(4, 16, 16)
    before = [each.clone() for each in four]
    for text in ("cutmix", "mixup", "resizemix"):
        vitmix.DenseMix(text, num_classes=CLASSES)(*four)
    assert all(torch.equal(*pair) for pair in zip((*four, images, masks), (*before, *kept), strict=True))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_the_integer_type_is_kept(dtype: torch.dtype) -> None:
    images, masks = numbered(4, 8, 8), labels(4, 8, 8).to(dtype)
    assert vitmix.DenseMix("resizemix", num_classes=CLASSES)(images, masks)[1].dtype == dtype


def test_uint8_images_are_pasted_but_not_blended() -> None:
    images, masks = numbered(4, 8, 8).to(torch.uint8), labels(4, 8, 8)
    assert vitmix.DenseMix("cutmix", num_classes=CLASSES)(images, masks)[0].dtype == torch.uint8
    with pytest.raises(ValueError, match="blending images needs floating-point"):
        vitmix.DenseMix("mixup", num_classes=CLASSES)(images, masks)


def test_the_cross_entropy_of_masks_is_torchs_and_counts_known_pixels() -> None:
    logits, masks = torch.randn(2, CLASSES, 6, 5, dtype=torch.float64), labels(2, 6, 5)
    expected = torch.nn.functional.cross_entropy(logits, masks, ignore_index=IGNORED)
    torch.testing.assert_close(F.mask_cross_entropy(logits, masks), expected)
    partner, share = torch.tensor([1, 0]), torch.full((1, 1, 1), 0.3)
    soft = F.mix_masks(vitmix.Mix(partner, share), masks, num_classes=CLASSES)
    total = count = 0.0
    for image, row, column in torch.ones(2, 6, 5).nonzero().tolist():
        log = logits[image, :, row, column].log_softmax(0)
        for origin, weight in ((image, 0.7), (1 - image, 0.3)):
            if (label := int(masks[origin, row, column])) != IGNORED:
                total, count = total - weight * float(log[label]), count + weight
    torch.testing.assert_close(F.mask_cross_entropy(logits, soft).item(), total / count, atol=1e-6, rtol=1e-6)
    nothing = torch.full((2, 6, 5), IGNORED)
    assert F.mask_cross_entropy(logits, nothing) == 0
    assert F.mask_cross_entropy(logits, torch.zeros(2, CLASSES, 6, 5)) == 0


def test_draws_are_functions_of_seed_step_and_rank() -> None:
    images, masks = numbered(4, 16, 16), labels(4, 16, 16)

    def drawn(seed: int, rank: int = 0, step: int | None = None, count: int = 3) -> list[Tensor]:
        mix = vitmix.DenseMix("mixup | cutmix", num_classes=CLASSES, seed=seed, rank=rank, step=step)
        return [mix(images, masks)[0] for _ in range(count)]

    first = drawn(7)
    assert all(torch.equal(*pair) for pair in zip(first, drawn(7), strict=True))
    assert torch.equal(first[2], drawn(7, step=2, count=1)[0])
    assert not torch.equal(first[0], drawn(8)[0]) and not torch.equal(first[0], drawn(7, rank=1)[0])
    mix, other = (vitmix.DenseMix("mixup | cutmix", num_classes=CLASSES, seed=seed) for seed in (7, 0))
    mix(images, masks)
    other.load_state_dict(mix.state_dict())
    assert other.step == 1 and torch.equal(other(images, masks)[0], first[1])


MASKS = torch.zeros(2, 8, 8, dtype=torch.long)
WRONG = [
    (torch.zeros(2, 4, 4, dtype=torch.long), "masks must have the images' size 8x8, got 4x4"),
    (MASKS + 7, r"mask labels must lie in 0..4 or be ignore_index=255, got 7; check num_classes=5"),
    (MASKS - 1, "got -1; check num_classes=5"),
    (MASKS.bool(), "convert them with .long"),
    (MASKS.float(), "masks must be integers"),
    (MASKS.unsqueeze(1), "drop the channel with squeeze"),
    (torch.zeros(2, 3, 8, 8), "soft masks must have num_classes=5 channels, got 3"),
    (torch.zeros(2, dtype=torch.long), "labels of whole images are mixed by the mixer itself"),
    (torch.zeros(2, 5), "labels of whole images are mixed by the mixer itself"),
    (torch.zeros(3, 8, 8, dtype=torch.long), "one mask per image, got 2 images and 3 masks"),
    ("masks", "targets must be label maps .* got str"),
    ([torch.zeros(8, 8)] * 2, "targets must be label maps .* got list"),
]


@pytest.mark.parametrize(("masks", "message"), WRONG)
def test_wrong_masks_are_refused_in_one_sentence(masks: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        vitmix.DenseMix("cutmix", num_classes=CLASSES)(torch.zeros(2, 3, 8, 8), masks)
    assert "\n" not in str(caught.value)


def test_wrong_settings_are_refused() -> None:
    images = torch.zeros(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"blends pixels.*pass num_classes=K"):
        vitmix.DenseMix("mixup")(images, MASKS)
    with pytest.raises(ValueError, match="ignore_index=-100 does not fit into torch.uint8"):
        vitmix.DenseMix("cutmix", ignore_index=-100)(images, MASKS.byte())
    with pytest.raises(ValueError, match=r"pastes other images than the partner.*such as resized"):
        vitmix.DenseMix("recursivemix")
    with pytest.raises(ValueError, match=r"joint mask pastes other images"):
        vitmix.DenseMix("comixup", model=Segmenter(3, CLASSES), num_classes=CLASSES)
    with pytest.raises(ValueError, match="htm mixes inside the network"):
        vitmix.DenseMix("cutmix + htm")
    with pytest.raises(
        ValueError, match=r"salient_box mask reads the model; use vitmix.DenseMix\(method, model=model\)"
    ):
        vitmix.DenseMix("smmix")
    with pytest.raises(ValueError, match="needs a token grid"):
        vitmix.DenseMix("tokenmix")(images, MASKS)
    with pytest.raises(ValueError, match="same size to be mixed"):
        vitmix.DenseMix("cutmix")([torch.zeros(3, 8, 8), torch.zeros(3, 9, 8)], MASKS)
    with pytest.raises(ValueError, match=r"images must be a tensor.*got NoneType"):
        vitmix.DenseMix("cutmix")(None, MASKS)


def test_an_attached_mixer_points_to_dense_mixing() -> None:
    model = Segmenter(3, CLASSES).encoder
    with vitmix.create("cutmix", num_classes=10).attach(model) as mixing:
        with pytest.raises(ValueError, match=r"label maps are mixed by vitmix.DenseMix\(method, model=model\)"):
            mixing.mix(torch.zeros(2, 3, 16, 16), torch.zeros(2, 16, 16, dtype=torch.long))


def test_a_mask_that_moves_pixels_in_secret_is_refused(registry_kept: None) -> None:
    class Secret(vitmix.Mask):
        name = "secret"
        moves_pixels = True

        def where(self, values: object, batch: vitmix.Unmixed) -> vitmix.Composed:
            return vitmix.Composed(torch.ones(1, 8, 8, dtype=torch.bool), batch.images.flip(3))

    mix = vitmix.DenseMix(vitmix.Mixer(CLASSES, mask=Secret()))
    with pytest.raises(ValueError, match=r"secret moves pixels without saying which.*moves="):
        mix(torch.zeros(2, 3, 8, 8), MASKS)


def test_only_mask_and_pairing_of_a_method_are_used() -> None:
    mixer = vitmix.DenseMix("tl_align(pairing=rolled)").mixer
    assert str(mixer) == "cutmix(pairing=rolled)"
    assert {each.loss for each in vitmix.DenseMix("tokenmix(grid=[4, 4]) | cutmix").mixer.mixers} == {None}


NOT_DENSE = {"htm", "vtm", "manifold_mixup", "recursivemix", "comixup"}


@pytest.mark.parametrize("name", sorted(set(vitmix.list_methods()) - NOT_DENSE))
def test_every_method_mixes_label_maps(name: str) -> None:
    images, masks = torch.rand(2, 3, 16, 16), labels(2, 16, 16)
    text = {"mixpro": "mixpro(tokens=2)"}.get(name, name)
    with vitmix.DenseMix(text, model=Segmenter(3, CLASSES), num_classes=CLASSES) as mix:
        mixed, found = mix(images, masks)
    assert mixed.shape == images.shape and found.shape[-2:] == (16, 16)
