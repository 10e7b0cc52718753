"""Detection as a task of `vitmix transfer`, from data to scores, on made-up images."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coco_toys import write_toys
from vitmix.lab.cli.main import main
from vitmix.lab.dense.backbone import open_backbone
from vitmix.lab.dense.config import resolve_transfer
from vitmix.lab.dense.detection import TASK
from vitmix.lab.dense.loader import DenseLoader
from vitmix.lab.dense.task import Sides
from vitmix.lab.dense.training import TransferTrainer
from vitmix.lab.runs import Run
from vitmix.lab.training.recipes import list_recipes

SMALL = {"width": 16, "hidden": 32, "proposals": 30, "regions": 16, "detections": 10}
VIT = {"embed_dim": 32, "depth": 2, "num_heads": 2}
PYRAMID = {"embed_dims": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}
SWIN = {"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 4}
SIDES = Sides((64, 64), (0.5,) * 3, (0.25,) * 3)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("data") / "toys", train=8, test=4, polygons=True)


def settings(toys: Path, output: Path, **changes: Any) -> dict[str, Any]:
    usual = dict(
        backbone="deit_tiny_patch16_224", model_args=VIT, task="detect", data=f"coco:{toys}", size=64, head="maskrcnn"
    )
    quick = dict(head_args=SMALL, epochs=2, batch=4, workers=0, cpu=True, track="none", output=str(output))
    return {**usual, **quick, "jitter": (0.8, 1.2), "distortion": False, **changes}


def trained(toys: Path, output: Path, *, stop_after: int | None = None, **changes: Any) -> int:
    trainer = TransferTrainer(resolve_transfer(settings(toys, output, **changes)))
    learn = trainer._learn

    def learn_and_stop(*arguments: Any) -> None:
        learn(*arguments)
        if trainer.update == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer._learn = learn_and_stop
    code = trainer.run()
    if code == 0:
        trainer.evaluate_best()
    return code


@pytest.fixture(scope="module")
def finished(toys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "finished"
    assert trained(toys, output) == 0
    return output


def test_a_run_stores_scores_detections_and_examples(finished: Path, toys: Path) -> None:
    run = Run.open(finished)
    assert run.dense is not None and run.dense.task == "detect"
    scores = run.dense.scores
    assert {"ap", "ap50", "ap75", "mask_ap", "mask_ap50"} <= scores.values.keys()
    assert scores.values["ap"].n == 4 and scores.values["ap"].low is not None
    assert [each.name for each in scores.by_class] == ["rectangle", "ellipse"]
    rows = json.loads((finished / "detections.json").read_text())
    assert rows and all(row["category_id"] in (2, 5) and "segmentation" in row for row in rows)
    assert run.examples is not None and len(run.examples.strips[0].rows) == 4
    assert [tile.words[0] for tile in run.examples.strips[0].rows[0]] == ["truth", "detections", "errors"]
    assert {"ap", "class", "box", "proposal", "mask"} <= run.epochs[-1].values.keys()


def test_stored_detections_have_the_scores_of_the_run(
    finished: Path, toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "scores.json"
    assert main(["score", str(toys / "test.json"), str(finished / "detections.json"), "--output", str(output)]) == 0
    assert "4 images" in capsys.readouterr().out
    scores = Run.open(finished).dense.scores  # pyright: ignore[reportOptionalMemberAccess]
    assert json.loads(output.read_text())["values"] == scores.to_json()["values"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_id": 77}, "not annotated"),
        ({"category_id": 3}, "unknown category"),
        ({"bbox": [1, 2]}, "bbox of four numbers"),
        ({"segmentation": {"size": [1, 1], "counts": "0"}}, "invalid mask"),
    ],
)
def test_detections_of_other_data_are_refused(
    finished: Path, toys: Path, tmp_path: Path, change: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads((finished / "detections.json").read_text())
    (tmp_path / "rows.json").write_text(json.dumps([{**rows[0], **change}]))
    assert main(["score", str(toys / "test.json"), str(tmp_path / "rows.json")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("images", {"height": None}, "image without its own id, height and width"),
        ("categories", {"name": 7}, "category without its own id and name"),
        ("annotations", {"image_id": 77}, "not annotated"),
        ("annotations", {"category_id": "a"}, "unknown category"),
        ("annotations", {"bbox": [1, 2]}, "bbox of four numbers"),
        ("annotations", {"segmentation": "text"}, "invalid mask"),
        ("annotations", {"iscrowd": "no"}, "iscrowd that is not 0 or 1"),
    ],
)
def test_damaged_annotations_are_refused_with_a_sentence(
    finished: Path, toys: Path, tmp_path: Path, part: str, change: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((toys / "test.json").read_text())
    content[part][0] |= change
    (tmp_path / "test.json").write_text(json.dumps(content))
    assert main(["score", str(tmp_path / "test.json"), str(finished / "detections.json")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("part", ["images", "annotations", "categories"])
def test_annotations_without_a_part_are_refused(
    finished: Path, toys: Path, tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {**json.loads((toys / "test.json").read_text()), part: None}
    (tmp_path / "test.json").write_text(json.dumps(content))
    assert main(["score", str(tmp_path / "test.json"), str(finished / "detections.json")]) == 2
    assert "needs lists of images, annotations, categories" in capsys.readouterr().err


def test_a_killed_run_resumes_to_the_same_weights(finished: Path, toys: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert trained(toys, output, stop_after=3) == 143
    assert trained(toys, output) == 0
    one, other = load_file(finished / "last.safetensors"), load_file(output / "last.safetensors")
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(("head", "part"), [("maskrcnn", "class"), ("maskrcnn", "mask"), ("retinanet", "box")])
def test_the_loss_falls_on_images_seen_again(toys: Path, tmp_path: Path, head: str, part: str) -> None:
    """Of two stages, the second one's box loss may rise while more regions come close to objects."""
    config = resolve_transfer(settings(toys, tmp_path, head=head))
    images = TASK.open_data(config.data, "train")
    loader = DenseLoader(images, TASK.transform(config, SIDES), TASK.collate, SIDES, batch=4, seed=0)
    batch = next(loader.epoch(0))
    model = TASK.build(open_backbone(config), images.classes, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    seen = []
    for _ in range(25):
        losses = TASK.losses(model, batch.images, batch.targets)
        seen.append(losses[part].item())
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
    assert sum(seen[-3:]) < 0.8 * sum(seen[:3]), seen


@pytest.mark.parametrize("method", ["cutmix", "mixup", "copy_paste", "copy_paste(probability=0.9)"])
def test_methods_mix_boxes_and_masks(toys: Path, tmp_path: Path, method: str) -> None:
    config = resolve_transfer(settings(toys, tmp_path, method=method))
    images = TASK.open_data(config.data, "train")
    loader = DenseLoader(images, TASK.transform(config, SIDES), TASK.collate, SIDES, batch=8, seed=0)
    batch = next(loader.epoch(0))
    model = torch.nn.Module()
    model.backbone = torch.nn.Module()
    model.backbone.model = torch.nn.Identity()
    mixing = TASK.mixing(model, 2, config, 0)
    mixing.step = 5
    mixed, targets = mixing(batch.images, batch.targets)
    assert not torch.equal(mixed, batch.images)
    for each in targets:
        assert set(each) == {"boxes", "labels", "masks"}
        assert len(each["boxes"]) == len(each["labels"]) == len(each["masks"])
        assert each["masks"].shape[1:] == mixed.shape[2:]
    mixing.step = 5
    again, _ = mixing(batch.images, batch.targets)
    assert torch.equal(mixed, again)


@pytest.mark.parametrize("method", ["smmix", "tokenmix", "cutmix | tokenmix"])
def test_a_method_that_reads_the_model_sees_the_backbone(toys: Path, tmp_path: Path, method: str) -> None:
    config = resolve_transfer(settings(toys, tmp_path, method=method, head="fasterrcnn"))
    images = TASK.open_data(config.data, "train")
    model = TASK.build(open_backbone(config), images.classes, config).train()
    loader = DenseLoader(images, TASK.transform(config, SIDES), TASK.collate, SIDES, batch=4, seed=0)
    batch = next(loader.epoch(0))
    mixing = TASK.mixing(model, 2, config, 0)
    mixing.step = 1
    mixed, targets = mixing(batch.images, batch.targets)
    assert not torch.equal(mixed, batch.images) and model.training
    assert all(torch.isfinite(each) for each in TASK.losses(model, mixed, targets).values())


def test_a_wrong_probability_of_copy_paste_is_refused(
    toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="probability"):
        TASK.mixing(torch.nn.Module(), 2, resolve_transfer(settings(toys, tmp_path, method="copy_paste(3)")), 0)


@pytest.mark.parametrize("name", [name for name in list_recipes("transfer") if name.startswith("coco")])
def test_recipes_train_on_a_tiny_data_set(toys: Path, tmp_path: Path, name: str) -> None:
    """As given, but for the sizes of images and model, and the weights to start from."""
    config = resolve_transfer({"recipe": name, "data": f"coco:{toys}"})
    sides = tuple(side * 64 // 800 for side in config.short_sides)
    changes: dict[str, Any] = dict(size=64, short_sides=sides, long_side=107, pretrained=False, precision="fp32")
    changes |= dict(head_args=SMALL, epochs=1, batch=2, workers=0, cpu=True, track="none", output=str(tmp_path / "run"))
    changes |= dict(model_args=SWIN if "swin" in name else PYRAMID, eval_batch=2)
    trainer = TransferTrainer(resolve_transfer({"recipe": name, "data": f"coco:{toys}", **changes}))
    assert trainer.run() == 0
    trainer.evaluate_best()
    assert Run.open(tmp_path / "run").dense is not None
