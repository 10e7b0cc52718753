"""Copy-paste: objects of the partner by their outlines, against a twin in plain loops."""

from typing import Any

import pytest
import torch

import vitmix
from pixel_story import numbered
from vitmix import functional as F


def objects(count: int, size: int = 8) -> dict[str, Any]:
    masks = torch.zeros(count, size, size, dtype=torch.bool)
    boxes = []
    for number in range(count):
        top, left = torch.randint(0, size - 4, (2,)).tolist()
        masks[number, top : top + 4, left : left + 4] = torch.rand(4, 4) < 0.8
        masks[number, top, left] = masks[number, top + 3, left + 3] = True
        boxes.append([left, top, left + 4, top + 4])
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        "labels": torch.arange(count),
        "masks": masks,
        "area": masks.sum((1, 2)).float(),
    }


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_copy_paste_equals_the_twin(least: float) -> None:
    images, targets = numbered(3, 8, 8), [objects(count) for count in (3, 2, 4)]
    partner = torch.tensor([1, 2, 0])
    chosen = [torch.rand(len(targets[other]["boxes"])) < 0.6 for other in partner.tolist()]
    mixed, found = F.copy_paste(images, targets, partner, chosen, min_visible=least, min_size=0)
    for number, other in enumerate(partner.tolist()):
        over = torch.zeros(8, 8, dtype=torch.bool)
        for which, take in enumerate(chosen[number].tolist()):
            over |= targets[other]["masks"][which] & take
        for row in range(8):
            for column in range(8):
                origin = other if over[row, column] else number
                assert mixed[number, :, row, column].tolist() == [origin, row, column]
        expected = []
        for which in range(len(targets[number]["boxes"])):
            outline = targets[number]["masks"][which]
            left = [(row, column) for row, column in outline.nonzero().tolist() if not over[row, column]]
            part = len(left) / int(outline.sum())
            if not left or part < least:
                continue
            rows, columns = zip(*left, strict=True)
            box = [min(columns), min(rows), max(columns) + 1, max(rows) + 1]
            whole = part == 1
            expected.append((which, part, targets[number]["boxes"][which].tolist() if whole else box, len(left)))
        for which in chosen[number].nonzero().flatten().tolist():
            outline = targets[other]["masks"][which]
            expected.append((which, 1.0, targets[other]["boxes"][which].tolist(), int(outline.sum())))
        labels, parts, boxes, areas = map(list, zip(*expected, strict=True))
        assert found[number]["labels"].tolist() == labels
        torch.testing.assert_close(found[number]["visible"], torch.tensor(parts))
        assert found[number]["boxes"].tolist() == boxes
        torch.testing.assert_close(found[number]["area"], torch.tensor(areas).float())
        torch.testing.assert_close(found[number]["masks"].sum((1, 2)).float(), torch.tensor(areas).float())


def test_copy_paste_is_drawn_from_seed_and_step() -> None:
    images, targets = numbered(4, 8, 8), [objects(count) for count in (3, 0, 2, 4)]
    one, two, other = (vitmix.CopyPaste(seed=seed)(images, targets) for seed in (0, 0, 1))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1][0]["boxes"], two[1][0]["boxes"])
    assert not torch.equal(one[0], other[0])


def test_probability_zero_and_a_single_image_change_nothing() -> None:
    images, targets = numbered(2, 8, 8), [objects(3), objects(2)]
    for mixed, found in (
        vitmix.CopyPaste(0.0)(images, targets),
        vitmix.CopyPaste(1.0)(images[:1], targets[:1]),
        vitmix.CopyPaste(1.0, pairing=vitmix.Rolled(by=0))(images, targets),
    ):
        assert torch.equal(mixed, images[: len(mixed)])
        for new, old in zip(found, targets, strict=False):
            assert all(torch.equal(new[key], old[key]) for key in old)


def test_an_empty_outline_pastes_nothing_and_none_are_fine() -> None:
    images, targets = numbered(2, 8, 8), [objects(1), objects(0)]
    targets[0]["masks"][0] = False
    mixed, found = vitmix.CopyPaste(1.0)(images, targets)
    assert torch.equal(mixed, images)
    assert [len(each["boxes"]) for each in found] == [1, 0]


def test_wrong_input_is_refused() -> None:
    images, targets = numbered(2, 8, 8), [objects(1), objects(2)]
    without = [{key: each[key] for key in ("boxes", "labels")} for each in targets]
    with pytest.raises(ValueError, match="copy-paste needs the instance masks"):
        vitmix.CopyPaste()(images, without)
    with pytest.raises(ValueError, match="got label maps"):
        vitmix.CopyPaste()(images, torch.zeros(2, 8, 8, dtype=torch.long))
    with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
        vitmix.CopyPaste(2.0)
    with pytest.raises(ValueError, match="one value per object of the partner, got 3 for 2 objects"):
        F.copy_paste(images, targets, torch.tensor([1, 0]), [torch.ones(3).bool(), torch.ones(1).bool()])
    with pytest.raises(ValueError, match="one entry of chosen per image, got 1"):
        F.copy_paste(images, targets, torch.tensor([1, 0]), [torch.ones(2).bool()])
