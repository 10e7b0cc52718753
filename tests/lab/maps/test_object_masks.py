"""A folder of object masks, from the files to OA-CutMix's labels."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from training import TINY, one_thread, tiny, train  # noqa: F401
from vitmix.lab.cli.main import main
from vitmix.lab.data.sources import open_images
from vitmix.lab.maps.making import make_maps
from vitmix.lab.maps.stored import INDEX, read_label_maps
from vitmix.lab.maps.teachers import saliency_teacher
from vitmix.lab.training.engine import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = (24, 32)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Gray images with a white object; its level in the masks is 1, that of its border 2."""
    rng = np.random.default_rng(0)
    for number in range(16):
        mask = np.zeros(SIZE, np.uint8)
        top, left = rng.integers(0, 8), rng.integers(0, 16)
        mask[top : top + 12, left : left + 12] = 2
        mask[top + 2 : top + 10, left + 2 : left + 10] = 1
        for split in ("train", "val"):
            name = f"{split}/{'ab'[number % 2]}/{number}.png"
            for folder, pixels in (("images", np.where(mask == 1, 255, 64)), ("masks", mask)):
                path = tmp_path / folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    return f"imagefolder:{tmp_path / 'images'}"


def masks_to(output: Path, data: str, *more: str) -> int:
    folder = str(output.parent / "masks" / "train")
    given = ["--data", data, "--masks", folder, "--mask-value", "1", "--output", str(output), "--workers", "0"]
    return main(["maps", *given, *more])


def test_masks_are_stored_and_follow_their_images(tmp_path: Path, data: str) -> None:
    assert masks_to(tmp_path / "maps", data) == 0
    images = open_images(data, "train")
    maps = read_label_maps(tmp_path / "maps", images, objects=True)
    assert maps.shape == (16, 56, 56)
    changes = {"data": data, "method": "oa_cutmix", "maps": str(tmp_path / "maps")}
    run = train(tmp_path / "run", **changes, scale=[0.3, 1.0], auto_augment="rand-m9-mstd0.5-inc1")
    assert np.isfinite(run.position.history[-1].values["loss"])
    trainer = Trainer(tiny(tmp_path / "other", **changes, scale=[0.5, 1.0], mean=(0.0,) * 3, std=(1.0,) * 3))
    batch = next(iter(trainer.loader.epoch(0)))
    assert batch.maps is not None
    drawn = torch.stack([batch.images[:, 0].flatten(), batch.maps.flatten()])
    assert drawn.corrcoef()[0, 1] > 0.95
    trainer.lock.release()


def test_cells_hold_the_part_that_the_object_covers(tmp_path: Path, data: str) -> None:
    assert masks_to(tmp_path / "maps", data, "--size", "8") == 0
    maps = read_label_maps(tmp_path / "maps", open_images(data, "train"))
    assert maps.shape == (16, 8, 8)
    parts = torch.full((16,), 64 / (SIZE[0] * SIZE[1]))  # of the image; stored in 255 levels
    torch.testing.assert_close(maps.double().mean((1, 2)), parts.double(), atol=1e-3, rtol=0)
    assert masks_to(tmp_path / "maps", data) == 2  # of another size


def test_activations_are_no_object_masks(tmp_path: Path) -> None:
    make_maps(open_images(TINY["data"], "train"), saliency_teacher("spectral"), tmp_path / "maps")
    for method in ("oa_cutmix", "mix(mask=block, share=object)", "mixup | oa_cutmix"):
        with pytest.raises(ValueError, match="need object masks, and .* has activations of saliency:spectral"):
            Trainer(tiny(tmp_path / "run", method=method, maps=str(tmp_path / "maps")))
    with pytest.raises(ValueError, match="'vitmix maps --masks FOLDER'"):
        Trainer(tiny(tmp_path / "run", method="oa_cutmix"))
    with pytest.raises(ValueError, match="cannot be combined with the teacher's labels"):
        Trainer(tiny(tmp_path / "run", method="oa_cutmix", maps=str(tmp_path / "maps"), labels="teacher"))
    assert not (tmp_path / "run").exists()


def test_what_is_no_folder_of_masks_is_refused(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    maps = tmp_path / "maps"
    assert masks_to(maps, data, "--model", "resnet18", "--pretrained") == 2
    assert "remove --model, --pretrained" in capsys.readouterr().err
    assert main(["maps", "--data", data, "--mask-value", "1", "--output", str(maps)]) == 2
    assert "needs a folder of masks" in capsys.readouterr().err
    assert masks_to(maps, TINY["data"]) == 2
    assert "needs image files" in capsys.readouterr().err
    (tmp_path / "masks" / "train" / "a" / "2.png").unlink()
    assert masks_to(maps, data) == 2
    assert "there is no mask" in capsys.readouterr().err and not maps.exists()


def test_a_damaged_mask_is_no_object(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "masks" / "train" / "a" / "2.png").write_bytes(b"not an image")
    assert masks_to(tmp_path / "maps", data) == 0
    assert "1 image could not be read and has an empty map: a/2.png" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "maps" / INDEX).read_text())["broken"]) == 1
    maps = read_label_maps(tmp_path / "maps", open_images(data, "train"))
    assert maps.any(2).any(1).logical_not().sum() == 1
