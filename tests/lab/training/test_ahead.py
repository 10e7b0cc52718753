"""What loader workers compute ahead of the training step, and how images were normalized."""

from pathlib import Path
from typing import Any

import pytest

from training import one_thread, same_weights, tiny, train, weights  # noqa: F401
from vitmix import Normalization
from vitmix.lab.evaluation import open_subject
from vitmix.lab.training import prepare
from vitmix.lab.training.engine import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("workers", [0, 1])
def test_peaks_of_workers_change_nothing(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"method": "mixup | saliencymix", "erasing": 0.5, "epochs": 1, "mixing_off_epoch": 1}
    trainer = Trainer(tiny(tmp_path / "ahead", **settings, workers=workers))
    assert next(iter(trainer.loader.epoch(0))).ahead["1.mask.peak"].shape == (8, 2)
    assert trainer.run() == 0
    monkeypatch.setattr(prepare, "ahead_of", lambda *_: None)
    assert not next(iter(Trainer(tiny(tmp_path / "other", **settings)).loader.epoch(0))).ahead
    train(tmp_path / "inside", **settings)
    assert same_weights(weights(tmp_path / "ahead"), weights(tmp_path / "inside"))


def test_other_methods_compute_nothing_ahead(tmp_path: Path) -> None:
    assert prepare.ahead_of(Trainer(tiny(tmp_path / "run", method="cutmix")).core, (16, 16)) is None


def test_a_training_knows_how_its_images_are_normalized(tmp_path: Path) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    trainer = train(tmp_path / "run", method="saliencymix", mean=list(mean), std=list(std), epochs=1)
    assert trainer.core.mixing.normalization == Normalization(mean, std)
    model = open_subject(tmp_path / "run").model
    assert (model.pretrained_cfg["mean"], model.pretrained_cfg["std"]) == (mean, std)
