"""`vitmix transfer`: a tiny run from the command to its report, resumption bit by bit, a kill, wrong arguments."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from command import done, vitmix
from mask_toys import TINY, VIT, as_flags, tiny_transfer, write_masks, write_pair
from vitmix.lab.data import workers
from vitmix.lab.dense.backbone import Encoder
from vitmix.lab.dense.config import TransferConfig, resolve_transfer
from vitmix.lab.dense.training import TransferTrainer
from vitmix.lab.environment import one_thread
from vitmix.lab.runs import Run
from vitmix.lab.training import processes
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.recipes import list_recipes, read_recipe

PYRAMID = {"swin": {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1], "window_size": 2}}
PYRAMID["pvt"] = {"embed_dims": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}


@pytest.fixture(autouse=True)
def single() -> Any:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masks(tmp_path_factory.mktemp("masks"))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command, with mixing and averaged weights."""
    output = tmp_path_factory.mktemp("runs") / "run"
    flags = as_flags({**TINY, "data": f"masks:{data}", "output": output, "method": "cutmix", "ema": 0.5})
    said = done("transfer", *flags)
    assert "Training on 8 images of 3 classes" in said and "\nmiou      " in said and "; best miou " in said
    assert "vit_tiny_patch16_224 with setr" in said
    return output


def test_a_run_folder_like_any_other(finished: Path) -> None:
    run = Run(finished)
    assert isinstance(run.config, TransferConfig) and run.config.method == "cutmix"
    assert [epoch.number for epoch in run.epochs] == [1, 2]
    assert {"miou", "ema_miou", "pixel_accuracy", "eval_loss", "loss"} <= run.epochs[0].values.keys()
    assert run.best_epoch is not None and run.summary is not None and run.summary.updates == 4
    assert run.dense is not None and run.dense.classes == ("0", "1", "2")
    found = run.dense.scores.values["miou"]
    assert found.mean == pytest.approx(run.best_epoch.get("miou")) and found.interval is not None
    assert run.examples is not None
    (strips,) = run.examples.strips
    assert [tile.words[0] for tile in strips.rows[0]] == ["image", "truth", "prediction", "errors"]
    with pytest.raises(ValueError, match="run of vitmix transfer"):
        _ = run.classifier_config


def test_eval_finds_what_the_training_found(finished: Path, tmp_path: Path) -> None:
    before = Run(finished).dense
    assert before is not None
    (finished / "dense.json").unlink()
    said = done("eval", str(finished), "--cpu", "--output", str(tmp_path / "out.json"))
    assert "miou" in said and "95 % percentile interval" in said
    after = Run(finished).dense
    assert after is not None and after.scores == before.scores
    assert json.loads((tmp_path / "out.json").read_text())["scores"]["n"] == 3
    suite = vitmix("eval", str(finished), "--suite", "robustness")
    assert suite.code == 2 and "measures classifiers only" in suite.err
    other = vitmix("eval", str(finished), "--size", "64")
    assert other.code == 2 and "names its model and size" in other.err


def test_eval_takes_the_precision_of_the_flag(finished: Path) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        done("eval", str(finished), "--cpu", "--precision", "tf32", "--split", "val")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_report(finished: Path, tmp_path: Path) -> None:
    done("report", str(finished), "--output", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    for text in ("mIoU", "Predictions", "Scores of each class", "Mean intersection over union", "1,000 bootstrap"):
        assert text in page
    assert page.count("data:image/") == 12


def test_other_commands_refuse_a_transfer(finished: Path, tmp_path: Path) -> None:
    for words in (("export", str(finished), str(tmp_path / "out"), "--to", "timm"), ("analyze", str(finished))):
        said = vitmix(*words)
        assert said.code == 2 and "Traceback" not in said.err, said.err


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "last.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def test_resumed_equals_uninterrupted(finished: Path, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Stopped within an epoch, after its first update, and resumed: bitwise the same weights and scores."""
    config = tiny_transfer(data, tmp_path / "run", method="cutmix", ema=0.5)
    trainer = TransferTrainer(config)

    def stop(*_: object) -> None:
        if trainer.update == 1:
            raise processes.Stopped("by a test", 130)

    monkeypatch.setattr(trainer.stopper, "check", stop)
    assert trainer.run() == 130 and trainer.update == 1
    again = TransferTrainer(config)
    assert again.run() == 0
    assert same(weights(finished), weights(tmp_path / "run"))
    names = ("loss", "miou", "ema_miou")
    rows = [
        [[epoch.values[name] for name in names] for epoch in Run(each).epochs] for each in (finished, tmp_path / "run")
    ]
    assert rows[0] == rows[1]


def test_a_killed_process_resumes(finished: Path, data: Path, tmp_path: Path) -> None:
    """SIGKILL after the first checkpoint; the same command goes on and ends with the same weights."""
    flags = as_flags({**TINY, "data": f"masks:{data}", "output": tmp_path / "run", "method": "cutmix", "ema": 0.5})
    flags += ["--checkpoint-every", "1 steps"]
    code = (
        "import os, signal, sys\n"
        "from vitmix.lab.training.journal import Journal\n"
        "save = Journal.save\n"
        "def killed(self, update):\n"
        "    save(self, update)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Journal.save = killed\n"
        "from vitmix.lab.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code, "transfer", *flags], env=environment, capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    assert "resuming at update 1 of 4" in done("transfer", *flags)
    assert same(weights(finished), weights(tmp_path / "run"))


def test_a_lost_loader_worker_stops_at_a_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence says why, and the same command goes on."""
    watched = workers._watched

    def lost_after_one(torch_loader: Any) -> Iterator[Any]:
        yield from itertools.islice(watched(torch_loader), 1)
        raise workers.WorkerLost("loader worker 7 was ended by SIGKILL")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "_watched", lost_after_one)
        assert TransferTrainer(tiny_transfer(data, tmp_path / "run")).run() == 1
    said = capsys.readouterr().out
    assert "Stopped because loader worker 7 was ended by SIGKILL" in said
    assert "Checkpoint of update 1 is written" in said
    assert TransferTrainer(tiny_transfer(data, tmp_path / "run")).run() == 0


def test_a_warm_up_of_the_whole_run_is_noted(data: Path, tmp_path: Path) -> None:
    trainer = TransferTrainer(tiny_transfer(data, tmp_path / "run", warmup_epochs=2))
    assert "Note: the warm-up of 2 epochs takes the whole run." in trainer.remarks


def test_a_finished_run_is_not_repeated(finished: Path, data: Path) -> None:
    flags = as_flags({**TINY, "data": f"masks:{data}", "output": finished, "method": "cutmix", "ema": 0.5})
    assert "This run is finished" in done("transfer", *flags)
    other = vitmix("transfer", *flags, "--lr", "0.1")
    assert other.code == 2 and "another configuration (lr: " in other.err


def test_the_weights_of_a_classifier_are_taken_over(data: Path, tmp_path: Path) -> None:
    """Positions are resampled to the dense size, and the classifier goes."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=16, **VIT)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    changes = {"backbone": str(tmp_path / "weights.safetensors"), "arch": "vit_tiny_patch16_224", "freeze": True}
    trainer = TransferTrainer(tiny_transfer(data, tmp_path / "run", **changes))
    own = trainer.task.encoder_of(trainer.core.model).state_dict()
    theirs = {name: value for name, value in model.state_dict().items() if not name.startswith("head")}
    assert own.keys() == theirs.keys()
    assert own["pos_embed"].shape[1] == 17 and theirs["pos_embed"].shape[1] == 5
    assert all(torch.equal(own[name], theirs[name]) for name in own if name != "pos_embed")
    assert not any(each.requires_grad for each in trainer.task.encoder_of(trainer.core.model).parameters())
    assert trainer.run() == 0
    after = Run(tmp_path / "run").best
    assert torch.equal(load_file(after)["encoder.model.blocks.0.attn.qkv.weight"], own["blocks.0.attn.qkv.weight"])


def test_broken_masks_are_counted(data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data, tmp_path / "data")
    shutil.copy(folder / "train/masks/1.png", tmp_path / "kept.png")
    (folder / "train/masks/1.png").write_bytes(b"nothing")
    (folder / "train/masks/2.png").unlink()
    said = done("transfer", *as_flags({**TINY, "data": f"masks:{folder}(classes=a/b/c)", "output": tmp_path / "run"}))
    assert "1 image has no mask" in said and "1 image could not be used: training: train/images/1.png" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head": "maskrcnn"}, "unknown head"),
        ({"head_args": {"chanels": 8}}, "head_args do not fit setr"),
        ({"backbone": "no_such_model"}, "no_such_model"),
        ({"backbone": "nowhere/run"}, "there is no run folder and no file"),
        ({"data": ""}, "no data is named"),
        ({"data": "coc:DIR"}, "kind of data"),
        ({"method": "vtm"}, "mixes inside the network"),
        ({"method": "cutmixx"}, "cutmixx"),
        ({"best": "accuracy"}, "unknown best"),
        ({"jitter": (2.0, 1.0)}, "the smaller first"),
        ({"batch": 100}, "lower the batch size"),
        ({"recipe": "deit_tiny"}, "vitmix train"),
        ({"recipe": "ade20k"}, "unknown recipe"),
    ],
)
def test_wrong_arguments(data: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    flags = as_flags({**TINY, "data": f"masks:{data}", "output": tmp_path / "run", **changes})
    found = vitmix("transfer", *flags)
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1, found.err
    assert not (tmp_path / "run").exists()


def test_without_a_backbone_and_without_the_packages(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "no backbone is named" in vitmix("transfer", "--data", f"masks:{data}").err
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch.decoders.dpt.decoder", None)
    with pytest.raises(ValueError, match=r'pip install "vitmix\[dense\]"'):
        TransferTrainer(tiny_transfer(data, tmp_path / "run", head="dpt", head_args={}))


def test_steps_become_epochs_of_equal_length(data: Path, tmp_path: Path) -> None:
    given = {name: value for name, value in TINY.items() if name not in ("epochs", "warmup_epochs")}
    config = resolve_transfer(
        {**given, "data": f"masks:{data}", "steps": 5, "warmup_steps": 2, "output": str(tmp_path)}
    )
    assert config.epochs == 3 and config.warmup_epochs == 1.0  # two updates of an epoch
    short = resolve_transfer({**given, "data": f"masks:{data}", "steps": 1, "output": str(tmp_path / "run")})
    assert short.epochs == 1
    assert TransferTrainer(short).total_updates == 1


def tiny_arguments(arch: str) -> dict[str, Any]:
    return next((each for name, each in PYRAMID.items() if arch.startswith(name)), {**VIT, "patch_size": 16})


@pytest.mark.parametrize(
    "recipe", [name for name in list_recipes("transfer") if read_recipe(name).settings["task"] == "segment"]
)
def test_recipes_of_segmentation_run(recipe: str, data: Path, tmp_path: Path) -> None:
    """Two updates with the recipe's own settings, on a tiny model of its family and a tiny set."""
    settings = read_recipe(recipe).settings
    arguments = {"arch": settings["arch"], "model_args": tiny_arguments(settings["arch"]), "size": 64, "steps": 2}
    arguments |= {"batch": 4, "head_args": {"channels": 32}, "workers": 0, "cpu": True, "track": "none"}
    said = done(
        "transfer", "--recipe", recipe, *as_flags({**arguments, "data": f"masks:{data}", "output": tmp_path / "run"})
    )
    assert f"{settings['arch']} with {settings['head']}" in said
    assert Run(tmp_path / "run").dense is not None


def test_recipes_name_source_and_cost() -> None:
    assert "ade20k_upernet_swin_tiny" in done("recipes")
    said = done("recipes", "ade20k_fpn_pvt_small")
    assert "Expected mIoU: 41.9" in said and "Cost: " in said and "steps: 80000" in said
    refused = vitmix("train", "--recipe", "ade20k_fpn_pvt_small")
    assert refused.code == 2 and "vitmix transfer" in refused.err


def test_train_configurations_are_not_transfers() -> None:
    assert TrainConfig().command == "train" and TrainConfig().headline == "accuracy"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 5}, "size must be a multiple of the patches of .*, 8 pixels, got 5; use 8 or 16"),
        ({"head": "fpn", "head_args": {"channels": 8}}, "head_args do not fit fpn: num_channels .8. must be divisible"),
        ({"head_args": {"width": 8}}, "head_args do not fit setr"),
        ({"data": "coco:x"}, "coco:x has boxes, which --task detect learns"),
        ({"task": "paint"}, "unknown task 'paint'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(data: Path, tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TransferTrainer(tiny_transfer(changes.pop("data", data), tmp_path / "run", **changes))


def test_masks_that_all_have_unknown_labels(tmp_path: Path) -> None:
    for number in range(4):
        write_pair(tmp_path / f"train/images/{number}.png", tmp_path / f"train/masks/{number}.png", number, offset=7)
    config = tiny_transfer(f"masks:{tmp_path}(classes=a/b)?holdout=0.5", tmp_path / "run", batch=2)
    with pytest.raises(ValueError, match="none of the 2 images .* could be used; the first: .*; correct the files"):
        TransferTrainer(config).run()


def test_masks_without_a_class(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of the checked masks has a class; 255 and below offset=9 is ignored"):
        TransferTrainer(tiny_transfer(f"masks:{data}(classes=a/b, offset=9)", tmp_path / "run"))


def test_a_network_of_convolutions_as_backbone() -> None:
    """Its first map, of stride 2, is left out."""
    encoder = Encoder(timm.create_model("resnet18", num_classes=0), "resnet18")
    assert encoder.strides == [4, 8, 16, 32] and encoder.channels == [64, 128, 256, 512]
    assert [tuple(each.shape[-2:]) for each in encoder(torch.zeros(1, 3, 64, 64))] == [(16, 16), (8, 8), (4, 4), (2, 2)]
