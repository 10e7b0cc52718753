"""Images and label maps in device memory: the batches of the loader, and a training with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mask_toys import COLORS, tiny_transfer, write_masks
from vitmix.lab.dense.config import TransferConfig
from vitmix.lab.dense.segmentation import TASK
from vitmix.lab.dense.segmentation.resident import ResidentEvalMasks, ResidentMasks
from vitmix.lab.dense.task import IGNORED, Sides
from vitmix.lab.dense.training import TransferTrainer
from vitmix.lab.environment import one_thread
from vitmix.lab.runs import Run

SIDES = Sides((32, 32), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
CPU = torch.device("cpu")
# Tensors without values: a device like a GPU, on which nothing meets a tensor of the host.
DEVICES = ["meta", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def single() -> Any:
    with one_thread():
        yield


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_masks(tmp_path / "data", train=10)


def loader(data: Path, tmp_path: Path, **settings: Any) -> ResidentMasks:
    config: TransferConfig = tiny_transfer(data, tmp_path / "run", resident=True, **settings)
    return ResidentMasks(TASK.open_data(config.data, "train"), config, SIDES, batch=4, device=CPU)


def test_maps_move_with_their_images(data: Path, tmp_path: Path) -> None:
    """The toys show each class in its color, so colors tell the labels of all but the pixels along edges."""
    for batch in loader(data, tmp_path, distortion=False).epoch(0):
        assert batch.images.shape == (4, 3, 32, 32) and batch.targets.dtype == torch.long
        pixels = (batch.images * 0.25 + 0.5) * 255 - 20  # the middle of the toys' noise
        near = (pixels.unsqueeze(1) - torch.tensor(COLORS[:3]).view(1, 3, 3, 1, 1)).abs().amax(2).argmin(1)
        known = batch.targets != IGNORED
        assert (near == batch.targets)[known].float().mean() > 0.95
        assert ((batch.images.abs().amax(1) < 0.01) == ~known).float().mean() > 0.99


def test_an_epoch_continues_anywhere(data: Path, tmp_path: Path) -> None:
    images = loader(data, tmp_path)
    whole, rest = list(images.epoch(3)), list(images.epoch(3, start=1))
    assert len(whole) == 2 and len(rest) == 1
    assert torch.equal(whole[1].images, rest[0].images) and torch.equal(whole[1].targets, rest[0].targets)
    assert not torch.equal(whole[0].images, next(iter(images.epoch(4))).images)
    assert torch.cat([each.indices for each in whole]).unique().numel() == 8


def test_unusable_images_are_replaced_and_counted(data: Path, tmp_path: Path) -> None:
    (data / "train" / "images" / "3.png").write_bytes(b"no image")
    images = loader(data, tmp_path)
    assert list(images.images.broken) == [3]
    rows = torch.cat([batch.indices for epoch in range(3) for batch in images.epoch(epoch)])
    assert 3 not in rows and 4 in rows


def test_other_sizes_are_refused(data: Path, tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        path = data / "train" / folder / "9.png"
        Image.fromarray(np.asarray(Image.open(path))[:20]).save(path)
    with pytest.raises(ValueError, match="must have one size, got 48 x 40.*and 48 x 20.*leave --resident out"):
        loader(data, tmp_path)
    with pytest.raises(ValueError, match="resident is available for --task segment only"):
        tiny_transfer("coco:x", tmp_path / "run", task="detect", head="fasterrcnn", head_args={}, resident=True)


def test_evaluation_batches_are_those_of_the_files(data: Path, tmp_path: Path) -> None:
    config = tiny_transfer(data, tmp_path / "run")
    images = TASK.open_data(config.data, "test")
    batches = ResidentEvalMasks(images, SIDES, batch=2, workers=0, device=CPU, rank=0, world=1)
    assert [len(each) for each in batches] == [2, 1] and len(batches) == 2
    (first, _), labels = next(iter(batches)).images, next(iter(batches)).targets[0]
    wanted = np.asarray(Image.open(data / "test" / "images" / "0.png"))
    assert torch.equal(first, (torch.from_numpy(wanted.copy()).permute(2, 0, 1).float() / 255 - 0.5) / 0.25)
    assert np.array_equal(labels.numpy(), np.asarray(Image.open(data / "test" / "masks" / "0.png")))


@pytest.mark.parametrize("device", DEVICES)
def test_everything_is_on_the_device(data: Path, tmp_path: Path, device: str) -> None:
    place = torch.device(device)
    config = tiny_transfer(data, tmp_path / "run", resident=True)
    train, test = (TASK.open_data(config.data, split) for split in ("train", "test"))
    batches = list(ResidentMasks(train, config, SIDES, batch=4, device=place).epoch(0))
    assert len(batches) == 2
    for batch in batches:
        assert {each.device.type for each in (batch.images, batch.targets, batch.indices)} == {device}
        assert batch.images.shape == (4, 3, 32, 32) and batch.targets.shape == (4, 32, 32)
    for batch in ResidentEvalMasks(test, SIDES, batch=2, workers=0, device=place, rank=0, world=1):
        assert {each.device.type for each in (*batch.images, *batch.targets)} == {device}


@pytest.mark.gpu
def test_a_gpu_trains_and_evaluates(data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"cpu": False, "precision": "bf16", "compile": True, "method": "mixup | cutmix"}
    assert TransferTrainer(tiny_transfer(data, tmp_path / "run", resident=True, **changes)).run() == 0
    assert Run(tmp_path / "run").epochs[-1].values["miou"] > 0


def test_a_resumed_training_is_the_same(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmix.lab.training import processes

    whole = tiny_transfer(data, tmp_path / "whole", resident=True, method="cutmix")
    assert TransferTrainer(whole).run() == 0
    config = tiny_transfer(data, tmp_path / "parts", resident=True, method="cutmix")
    trainer = TransferTrainer(config)

    def stop(*_: object) -> None:
        if trainer.update == 3:
            raise processes.Stopped("by a test", 130)

    monkeypatch.setattr(trainer.stopper, "check", stop)
    assert trainer.run() == 130
    assert TransferTrainer(config).run() == 0
    scores = [[epoch.values["miou"] for epoch in Run(tmp_path / each).epochs] for each in ("whole", "parts")]
    assert scores[0] == scores[1] and len(scores[0]) == 2


def test_a_compiled_step_learns_the_same(data: Path, tmp_path: Path) -> None:
    """The graph that a compiler gets is whole, with hard and with soft label maps, and gives the same losses."""
    method = "mixup | cutmix"
    plain, compiled = (
        TransferTrainer(tiny_transfer(data, tmp_path / name, method=method, drop_path=0.0)) for name in ("a", "b")
    )
    compiled.core.compile(backend="eager", fullgraph=True)
    for trainer in (plain, compiled):
        assert trainer.run() == 0
    losses = [[epoch.values["loss"] for epoch in Run(tmp_path / each).epochs] for each in ("a", "b")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
