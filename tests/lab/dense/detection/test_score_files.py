"""Scores of files of detections: hand-made and hostile ones, in COCO's numbers or one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from coco_toys import write_toys
from vitmix.lab.dense.detection.outlines import draw_mask, encode_runs, pack_runs, read_outline
from vitmix.lab.dense.detection.results import score_file
from vitmix.lab.runs.dense import DenseScores


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = write_toys(tmp_path_factory.mktemp("toys"), train=1, test=3, polygons=True)
    return json.loads((folder / "test.json").read_text())


def perfect(truth: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    """Every object as a detection."""
    keys = ("image_id", "category_id", "bbox", "segmentation")
    return [{key: each[key] for key in keys} | {"score": 0.9} | changes for each in truth["annotations"]]


def scores(folder: Path, truth: Any, rows: Any) -> DenseScores:
    for name, content in (("truth.json", truth), ("rows.json", rows)):
        (folder / name).write_text(json.dumps(content))
    return score_file(folder / "truth.json", folder / "rows.json")


def edited(truth: dict[str, Any], part: str, **changes: Any) -> dict[str, Any]:
    """With changes to the first entry of a part."""
    first, *rest = truth[part]
    return {**truth, part: [{**first, **changes}, *rest]}


def without(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name != key} for each in rows]


def test_detections_may_have_masks_of_every_kind(tmp_path: Path, truth: dict[str, Any]) -> None:
    """faster-coco-eval itself takes packed run lengths only."""
    sizes = {each["id"]: (each["height"], each["width"]) for each in truth["images"]}
    rows = perfect(truth)
    assert any(isinstance(each["segmentation"], list) for each in rows)
    found = scores(tmp_path, truth, rows)
    for each in rows:
        size = sizes[each["image_id"]]
        runs = encode_runs(draw_mask(read_outline(each["segmentation"], size), size))
        each["segmentation"] = {"size": list(size), "counts": pack_runs(runs)}
    packed = scores(tmp_path, truth, rows)
    assert found.values == packed.values
    assert found.values["mask_ap50"].mean == found.values["ap"].mean == pytest.approx(1)


def test_no_detections_at_all(tmp_path: Path, truth: dict[str, Any]) -> None:
    assert scores(tmp_path, truth, []).values["ap"].mean == 0


def test_entries_of_other_programs_are_ignored(tmp_path: Path, truth: dict[str, Any]) -> None:
    """faster-coco-eval takes rows with a caption or key points for those of other tasks."""
    plain = scores(tmp_path, truth, perfect(truth))
    more = {"caption": 5, "keypoints": None, "id": "x", "neg_category_ids": 3, "ignore": [], "lvis_mark": {}}
    everywhere = {part: [{**more, **each} for each in truth[part]] for part in truth}
    assert scores(tmp_path, everywhere, perfect(truth, **more)).values == plain.values


def test_objects_may_lack_an_area(tmp_path: Path, truth: dict[str, Any]) -> None:
    scores(tmp_path, {**truth, "annotations": without(truth["annotations"], "area")}, perfect(truth))


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("annotations", {"iscrowd": 10**20}, "iscrowd that is not 0 or 1"),
        ("annotations", {"iscrowd": True}, "iscrowd that is not 0 or 1"),
        ("annotations", {"iscrowd": 2}, "iscrowd that is not 0 or 1"),
        ("annotations", {"iscrowd": None}, "iscrowd that is not 0 or 1"),
        ("annotations", {"area": "x"}, "an area that is not a number"),
        ("annotations", {"segmentation": [[1e9, 0, 0, 0, 0, 1e9]]}, "leaves its image"),
        ("images", {"id": 10**20}, "image without its own id, height and width"),
        ("images", {"id": 2}, "image without its own id, height and width"),
        ("images", {"height": 10**9}, "image without its own id, height and width"),
        ("images", {"height": 0}, "image without its own id, height and width"),
        ("images", {"height": 65_536, "width": 65_536}, "image without its own id, height and width"),
        ("categories", {"id": 10**20}, "category without its own id and name"),
        ("categories", {"id": 5}, "category without its own id and name"),
    ],
)
def test_hostile_annotations_are_one_sentence(
    tmp_path: Path, truth: dict[str, Any], part: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        scores(tmp_path, edited(truth, part, **changes), perfect(truth))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_id": 10**20}, "is of an image that is not annotated"),
        ({"segmentation": [[0, 0, 1e30, 0, 0, 5]]}, "leaves its image"),
        ({"segmentation": 5}, "has an invalid mask"),
        ({"score": None}, "needs a score"),
    ],
)
def test_hostile_detections_are_one_sentence(
    tmp_path: Path, truth: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^detection 0 of .*{said}"):
        scores(tmp_path, truth, perfect(truth, **changes))


def test_either_all_detections_have_masks_or_none(tmp_path: Path, truth: dict[str, Any]) -> None:
    rows = perfect(truth)
    with pytest.raises(ValueError, match="^detection 1 of .* has no mask, and others have one"):
        scores(tmp_path, truth, [*rows[:1], *without(rows[1:], "segmentation")])
    assert "mask_ap" not in scores(tmp_path, truth, without(rows, "segmentation")).values
