"""Boxes and instance masks are kept, cut or dropped by what the mixed image shows, against a pixel-by-pixel twin."""

from typing import Any

import pytest
import torch
from torch import Tensor

import vitmix
from pixel_story import HARD, SOFT, Told, numbered, told, told_by_colors, tracers, transform, visible_object
from vitmix import functional as F

Target = dict[str, Any]
PARTS = 4  # sub-pixels per side, so that boxes may end at quarters of a pixel


def some_boxes(count: int, height: int, width: int) -> Tensor:
    """Boxes whose corners are quarters of pixels."""
    found = []
    while len(found) < count:
        x1, x2 = sorted(torch.randint(0, width * PARTS + 1, (2,)).tolist())
        y1, y2 = sorted(torch.randint(0, height * PARTS + 1, (2,)).tolist())
        if x1 < x2 and y1 < y2:
            found.append([x1 / PARTS, y1 / PARTS, x2 / PARTS, y2 / PARTS])
    return torch.tensor(found, dtype=torch.float32).view(-1, 4)


def some_targets(counts: list[int], height: int, width: int, *, masks: bool = False) -> list[Target]:
    found: list[Target] = []
    for number, count in enumerate(counts):
        target: Target = {"boxes": some_boxes(count, height, width), "labels": torch.arange(count) + 10 * number}
        if masks:
            target["masks"] = (torch.rand(count, height, width) < 0.4).to(torch.uint8)
            target["boxes"] = torch.tensor([[0.0, 0.0, width, height]]).repeat(count, 1)
        found.append(target | {"area": torch.full((count,), 100.0), "image_id": number})
    return found


def expected_objects(
    story: Told, own: int, other: int, targets: list[Target], zoom: float, moved: tuple[bool, bool], least: float
) -> list[tuple[int, float, list[float], float, Tensor]]:
    """Label, visible part, box, area and visible sub-pixels of each object of a mixed image."""
    found = []
    for image, grown, shifted in ((own, 1.0, moved[0]), (other, zoom, moved[1])):
        target = targets[image]
        for number in range(len(target["boxes"])):
            masked = "masks" in target
            parts = 1 if masked else PARTS
            edges = [round(edge * parts) for edge in target["boxes"][number].tolist()]

            def member(row: int, column: int, target: Target = target, number: int = number, e: Any = edges) -> bool:
                if "masks" in target:
                    return bool(target["masks"][number, row, column])
                return e[0] <= column < e[2] and e[1] <= row < e[3]

            weight, count, box, shown = visible_object(story, image, member, parts)
            if masked:
                total = float(target["masks"][number].sum())
            else:
                total = (edges[2] - edges[0]) * (edges[3] - edges[1]) / parts**2
            part = min(weight / total / grown, 1.0)
            whole = count == round(total * parts**2) and not shifted
            if part <= 0 or part < least - 1e-5 or not (whole or min(box[2] - box[0], box[3] - box[1]) >= 1 - 1e-5):
                continue
            area = 100.0 if whole else 100.0 * count / parts**2 / total
            box = target["boxes"][number].tolist() if whole else box
            found.append((int(target["labels"][number]), part, box, area, shown))
    return found


def compare(batch: Any, stories: list[Told], targets: list[Target], least: float) -> int:
    """Checks a mixed batch against the twin; returns the number of objects that were cut."""
    mix, cut = batch.mix, 0
    moved = (mix.moves is not None and mix.moves.own is not None, mix.moves is not None or mix.source is not None)
    for own, story in enumerate(stories):
        other = int(mix.partner[own])
        pasted = sum(image == other for line in story for cell in line for image, _, _ in cell)
        zoom = pasted / (len(story) * len(story[0])) if mix.moves is not None and mix.moves.own is None else 1.0
        wanted = expected_objects(story, own, other, targets, zoom, moved, least)
        found = batch.targets[own]
        assert found["labels"].tolist() == [each[0] for each in wanted]
        torch.testing.assert_close(
            found["visible"].double(), torch.tensor([e[1] for e in wanted]).double(), atol=2e-5, rtol=0
        )
        boxes = torch.tensor([each[2] for each in wanted]).view(-1, 4)
        torch.testing.assert_close(found["boxes"], boxes, atol=0, rtol=0)
        torch.testing.assert_close(found["area"], torch.tensor([each[3] for each in wanted]), atol=1e-3, rtol=1e-4)
        assert found["image_id"] == own
        if "masks" in found:
            for mask, each in zip(found["masks"], wanted, strict=True):
                assert torch.equal(mask.bool(), each[4])
        cut += sum(part < 1 for _, part, *_ in wanted)
    return cut


@pytest.mark.parametrize("masks", [False, True], ids=["boxes", "instance masks"])
@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_objects_equal_the_twin(text: str, masks: bool) -> None:
    images, targets = numbered(4, 16, 16), some_targets([3, 0, 2, 4], 16, 16, masks=masks)
    cut = 0
    for least in (0.25, 0.0):
        mix = transform(text, 3, 16)
        mix.objects["min_visible"] = least
        batch = mix.mix(images, targets)
        cut += compare(batch, told_by_colors(batch.images), targets, least)
    assert cut or text == "none"


@pytest.mark.parametrize("masks", [False, True], ids=["boxes", "instance masks"])
@pytest.mark.parametrize("text", SOFT.values(), ids=SOFT)
def test_objects_of_blended_images_equal_the_twin(text: str, masks: bool) -> None:
    size = 8
    images, targets = tracers(2, size, size), some_targets([3, 4], size, size, masks=masks)
    for least in (0.25, 0.0):
        mix = transform(text, images.shape[1], size, seed=5)
        mix.objects["min_visible"] = least
        batch = mix.mix(images, targets)
        compare(batch, told(batch.images, size, size), targets, least)


def test_odd_sizes_equal_the_twin() -> None:
    for text in ("cutmix", "resizemix", "fmix"):
        images, targets = numbered(2, 7, 13), some_targets([3, 2], 7, 13)
        batch = vitmix.DenseMix(text, seed=1).mix(images, targets)
        compare(batch, told_by_colors(batch.images), targets, 0.25)


def half(partner: Tensor, size: int = 8) -> vitmix.Mix:
    """The right half of each image comes from the partner."""
    return vitmix.Mix(partner, torch.arange(size).expand(1, size, size) >= size // 2)


def test_objects_are_kept_cut_or_dropped() -> None:
    boxes = torch.tensor([[0.5, 1, 3.5, 4], [2, 0, 6, 8], [3.5, 0, 7.5, 8], [5, 5, 7, 7]])
    targets = [{"boxes": boxes, "labels": torch.arange(4)}, {"boxes": boxes[:0], "labels": torch.arange(0)}]
    first, second = F.mix_boxes(half(torch.tensor([1, 0])), targets, size=(8, 8))
    assert first["labels"].tolist() == [0, 1]  # of the third one, an eighth is visible
    assert first["boxes"].tolist() == [[0.5, 1, 3.5, 4], [2, 0, 4, 8]]
    assert first["visible"].tolist() == [1, 0.5]
    assert second["labels"].tolist() == [1, 2, 3]
    assert second["boxes"].tolist() == [[4, 0, 6, 8], [4, 0, 7.5, 8], [5, 5, 7, 7]]
    least = F.mix_boxes(half(torch.tensor([1, 0])), targets, size=(8, 8), min_visible=0)
    assert least[0]["labels"].tolist() == [0, 1]  # the third one is now half a pixel wide
    small = F.mix_boxes(half(torch.tensor([1, 0])), targets, size=(8, 8), min_visible=0, min_size=0)
    assert small[0]["labels"].tolist() == [0, 1, 2]


def test_blended_objects_of_both_images_are_kept_with_their_weights() -> None:
    boxes = torch.tensor([[1.0, 1, 5, 5]])
    targets = [{"boxes": boxes + shift, "labels": torch.tensor([shift])} for shift in (0, 2)]
    mix = vitmix.Mix(torch.tensor([1, 0]), torch.full((1, 1, 1), 0.3))
    first, second = F.mix_boxes(mix, targets, size=(8, 8))
    assert first["labels"].tolist() == [0, 2] and second["labels"].tolist() == [2, 0]
    torch.testing.assert_close(first["visible"], torch.tensor([0.7, 0.3]))
    assert first["boxes"].tolist() == [[1, 1, 5, 5], [3, 3, 7, 7]]
    faint = vitmix.Mix(torch.tensor([1, 0]), torch.full((1, 1, 1), 0.1))
    assert F.mix_boxes(faint, targets, size=(8, 8))[0]["labels"].tolist() == [0]


def test_share_zero_and_an_image_that_is_its_own_partner_change_nothing() -> None:
    targets = some_targets([3, 0, 2], 8, 8, masks=True)
    targets[0]["masks"][1] = 0  # an empty outline: the box decides
    targets[2]["boxes"][0] = torch.tensor([-0.5, 0, 8.75, 8])  # annotations are rounded
    nothing = vitmix.Mix(torch.tensor([1, 2, 0]), torch.zeros(1, 1, 1, dtype=torch.bool))
    alone = vitmix.Mix(torch.arange(3), torch.rand(3, 8, 8) < 0.5)
    for mix in (nothing, alone, vitmix.Mix(torch.arange(3), torch.full((1, 1, 1), 0.5))):
        for found, target in zip(F.mix_boxes(mix, targets, size=(8, 8)), targets, strict=True):
            assert found.pop("visible").tolist() == [1] * len(target["boxes"])
            assert found.keys() == target.keys()
            assert all(torch.equal(torch.as_tensor(found[key]), torch.as_tensor(target[key])) for key in target)
    single = vitmix.DenseMix("cutmix")(torch.rand(1, 3, 8, 8), targets[:1])[1][0]
    assert torch.equal(single["boxes"], targets[0]["boxes"])


def test_inputs_stay_unchanged_and_other_keys_are_carried() -> None:
    images = torch.rand(2, 3, 8, 8)
    targets = some_targets([3, 2], 8, 8)
    for number, target in enumerate(targets):
        count = len(target["boxes"])
        target |= {
            "scores": torch.rand(count),
            "iscrowd": torch.zeros(count, dtype=torch.long),
            "track": torch.arange(count),
        }
        target |= {"orig_size": torch.tensor([8, 8]), "name": f"image {number}"}
    before = [{key: torch.as_tensor(value).clone() for key, value in each.items() if key != "name"} for each in targets]
    found = vitmix.DenseMix("mixup", carried=["track"], min_visible=0, seed=1)(images, targets)[1]
    assert found[0]["name"] == "image 0" and found[0]["orig_size"].tolist() == [8, 8]
    for key in ("scores", "iscrowd", "track"):
        assert torch.equal(found[0][key], torch.cat([targets[0][key], targets[1][key]]))
    for target, old in zip(targets, before, strict=True):
        assert all(torch.equal(torch.as_tensor(target[key]), value) for key, value in old.items())


def test_images_without_objects_stay_without() -> None:
    empty = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.long),
        "masks": torch.zeros(0, 16, 16).bool(),
    }
    for text in ("cutmix", "mixup", "resizemix", "mix(mask=block(grid=[4, 4]))"):
        for found in vitmix.DenseMix(text)(torch.rand(2, 3, 16, 16), [dict(empty), dict(empty)])[1]:
            assert found["boxes"].shape == (0, 4) and found["labels"].dtype == torch.long
            assert found["masks"].shape == (0, 16, 16) and found["visible"].shape == (0,)


def test_the_mixer_itself_mixes_boxes() -> None:
    targets = some_targets([3, 2], 8, 8)
    mixed, found = vitmix.create("cutmix", num_classes=3)(torch.rand(2, 3, 8, 8), targets)
    assert mixed.shape == (2, 3, 8, 8) and "visible" in found[1]


def test_integer_boxes_and_lists_of_images_keep_their_form() -> None:
    targets = [{"boxes": torch.tensor([[0, 1, 7, 5]]), "labels": torch.tensor([1])} for _ in range(2)]
    images, found = vitmix.DenseMix("cutmix", seed=0)(list(torch.rand(2, 3, 8, 8)), targets)
    assert isinstance(images, list) and images[0].shape == (3, 8, 8)
    assert found[0]["boxes"].dtype == torch.long


def wrong(**changes: Any) -> list[Target]:
    good: Target = {"boxes": torch.tensor([[1.0, 1, 5, 5]]), "labels": torch.tensor([1])}
    bad = {key: value for key, value in (good | changes).items() if value is not None}
    return [bad, bad]


WRONG = [
    (wrong(boxes=torch.tensor([[1.0, 1, 9.5, 5]])), r"inside the 8x8 image, got \[1.0, 1.0, 9.5, 5.0\]"),
    (wrong(boxes=torch.tensor([[-3.0, 1, 2, 5]])), "inside the 8x8 image"),
    (wrong(boxes=torch.tensor([[8.0, 1, 9, 5]])), "inside the 8x8 image"),
    (wrong(boxes=torch.tensor([[5.0, 1, 1, 5]])), "with left < right"),
    (wrong(boxes=torch.tensor([[1.0, 1, 1, 5]])), "remove empty boxes"),
    (wrong(boxes=torch.tensor([[1.0, 1, float("nan"), 5]])), "with left < right"),
    (wrong(boxes=torch.zeros(0)), r"boxes must be \(n, 4\), got \(0,\); no objects are torch.zeros\(0, 4\)"),
    (wrong(boxes=[[1, 1, 5, 5]]), "boxes must be a tensor, got list"),
    (wrong(boxes=torch.ones(1, 4).bool()), "boxes must be numbers of pixels, got torch.bool"),
    (wrong(boxes=None), r"each target needs 'boxes', got \['labels'\]"),
    (wrong(labels=None), "each target needs 'labels'"),
    (wrong(labels=torch.tensor([1, 2])), "labels must have one row per box, got 1 boxes"),
    (wrong(masks=torch.zeros(1, 4, 4)), r"instance masks must be \(n, 8, 8\) as the images, got \(1, 4, 4\)"),
    (wrong(keypoints=torch.zeros(1, 3)), "keypoints cannot be mixed"),
    ([wrong()[0], wrong(scores=torch.ones(1))[0]], "all targets must have the same keys"),
    (wrong()[:1], "one target per image, got 2 images and 1 targets"),
    (wrong()[0], "targets must be label maps .* got dict"),
    (None, "targets must be label maps .* got NoneType"),
]


@pytest.mark.parametrize(("targets", "message"), WRONG)
def test_wrong_targets_are_refused_in_one_sentence(targets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        vitmix.DenseMix("cutmix")(torch.zeros(2, 3, 8, 8), targets)
    assert "\n" not in str(caught.value)


def test_wrong_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="min_visible must lie between 0 and 1, got 25"):
        F.mix_boxes(half(torch.tensor([1, 0])), wrong(), size=(8, 8), min_visible=25)
    with pytest.raises(ValueError, match="min_size must be zero or a positive"):
        F.mix_boxes(half(torch.tensor([1, 0])), wrong(), size=(8, 8), min_size=-1)
