"""The command: lists, help, and one sentence with exit code 2 for every kind of wrong input."""

import inspect
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from command import vitmix
from training import TINY, one_thread, rows, train  # noqa: F401
from vitmix._registry import KINDS, METHODS, parts
from vitmix.lab.cli import main as cli
from vitmix.lab.training import prepare
from vitmix.lab.training.config import FIELDS

pytestmark = pytest.mark.usefixtures("one_thread")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence with which the command refuses these arguments."""
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("vitmix: error: ")
    return captured.err


@pytest.fixture
def tiny_file(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return str(path)


def pictures(folder: Path, *classes: str) -> Path:
    for name in classes:
        (folder / "train" / name).mkdir(parents=True)
        for index in range(3):
            Image.fromarray(np.full((16, 16, 3), index, np.uint8)).save(folder / "train" / name / f"{index}.png")
    return folder


def test_training_from_the_command_line(tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", tiny_file, "--output", str(tmp_path / "run"), "--epochs", "1", "--weight_decay=0.1"]
    assert cli.main(["train", *arguments, "--model-args", "depth=1", "--scale", "0.5", "1", "--no-compile"]) == 0
    stored = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert stored["epochs"] == 1 and stored["weight_decay"] == 0.1 and stored["scale"] == [0.5, 1.0]
    assert stored["model_args"] == {**TINY["model_args"], "depth": 1}
    assert "timm.create_model" in capsys.readouterr().out


def test_missing_folder(tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "run")
    said = refused(capsys, "train", "--config", tiny_file, "--data", f"imagefolder:{tmp_path}/no", "--output", output)
    assert "is not a folder" in said
    assert not Path(output).exists()


def test_one_class(tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = pictures(tmp_path / "data", "cat")
    assert "one class" in refused(capsys, "train", "--config", tiny_file, "--data", f"imagefolder:{data}")


def test_labels_beyond_the_classes(tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "train", "--config", tiny_file, "--num-classes", "5")
    assert "num_classes is 5" in said and "reach 11" in said


def test_unwritable_output(tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    said = refused(capsys, "train", "--config", tiny_file, "--output", str(tmp_path / "file" / "run"))
    assert "cannot write to the run folder" in said
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    assert "not a run folder" in refused(capsys, "train", "--config", tiny_file, "--output", str(tmp_path / "full"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every name is Unicode")
def test_a_run_folder_whose_name_is_not_unicode(
    tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights could be written and not read again, so a training there could not be resumed."""
    output = os.fsdecode(os.fsencode(tmp_path) + b"/run\xff")
    said = refused(capsys, "train", "--config", tiny_file, "--output", output)
    assert "must be valid UTF-8" in said and "run\\udcff" in said and not Path(output).exists()


def test_resuming_another_configuration(tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", epochs=1)
    output = ("--output", str(tmp_path / "run"))
    said = refused(capsys, "train", "--config", tiny_file, *output, "--epochs", "3", "--lr", "1")
    assert "lr: 0.003 -> 1.0" in said and "epochs: 1 -> 3" in said
    said = refused(capsys, "train", "--config", tiny_file, *output, "--epochs", "1", "--no-resume")
    assert "already holds a run" in said
    said = refused(capsys, "train", "--config", tiny_file, "--output", str(tmp_path / "new"), "--resume")
    assert "no run to resume" in said


def test_a_switch_is_trained_with_one_loss(tmp_path: Path, tiny_file: str) -> None:
    """An untrained classifier of 12 classes has a cross-entropy near 2.5 and a binary one near 0.7."""
    given = ("--method", "0.5*mixup(alpha=0.8) | 0.5*tokenmix", "--epochs", "1", "--lr", "1e-9", "--warmup-epochs", "0")
    with pytest.warns(UserWarning, match="mixup.* will be trained with binary cross-entropy, the loss of tokenmix"):
        assert cli.main(["train", "--config", tiny_file, "--output", str(tmp_path / "run"), *given]) == 0
    assert 0.5 < rows(tmp_path / "run")[0]["loss"] < 0.9


def test_unknown_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'deit'?" in refused(capsys, "train", "--recipe", "diet")


def test_checkpoint_of_another_model(tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    resnet = timm.create_model("test_resnet")
    save_file({key: value.contiguous() for key, value in resnet.state_dict().items()}, tmp_path / "resnet.safetensors")
    arguments = ("train", "--config", tiny_file, "--checkpoint")
    said = refused(capsys, *arguments, str(tmp_path / "resnet.safetensors"))
    assert "do not fit this VisionTransformer: cls_token is missing" in said and "more" in said
    wider = timm.create_model(TINY["model"], img_size=16, **{**TINY["model_args"], "embed_dim": 32})
    torch.save({"state_dict": wider.state_dict()}, tmp_path / "wider.pth")
    said = refused(capsys, *arguments, str(tmp_path / "wider.pth"))
    assert "cls_token is (1, 1, 32) instead of (1, 1, 16)" in said
    assert "no weights file" in refused(capsys, *arguments, str(tmp_path / "none.pth"))
    torch.save({"state_dict": print}, tmp_path / "code.pth")
    said = refused(capsys, *arguments, str(tmp_path / "code.pth"))
    assert "code.pth is not a weights file that can be read safely: it contains more than tensors" in said
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "resnet.safetensors").read_bytes()[:1000])
    assert "read safely" in refused(capsys, *arguments, str(tmp_path / "half.safetensors"))


def test_typo_in_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "typo.yaml").write_text("epohcs: 3\n")
    said = refused(capsys, "train", "--config", str(tmp_path / "typo.yaml"))
    assert "unknown setting 'epohcs'" in said and "typo.yaml" in said and "did you mean 'epochs'?" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epocs", "3"], "did you mean --epochs?"),
        (["--lr"], "expected one argument"),
        (["--lr", "fast"], "lr in the flags must be a number"),
        (["--method", "cutmx"], "did you mean 'cutmix'?"),
        (["--method", "cutmix("], "expected"),
        (["--method", "tokenmix(label=activation)"], "activation maps"),
        (["--model", "deit_smal_patch16_224"], "did you mean 'deit_small"),
        (["--model-args", "dept=3"], "model_args do not fit"),
        (["--model-args", "depth"], "KEY=VALUE"),
        (["--model-args", "patch_size=0"], "model_args do not fit"),
        (["--model-args", "num_heads=5"], "model_args do not fit"),
        (["--model-args", "num_classes=3"], "--num-classes"),
        (["--model", "deit_tiny_patch16_224.foo"], "unknown model"),
        (["--optimizer", "fusedsgd"], "is not available"),
        (["--precision", "fp16", "--cpu"], "fp16 needs a GPU"),
        (["--mixing-off-epoch", "-3"], "mixing_off_epoch must be an integer of at least 0"),
        (["--data", "shape"], "unknown kind of data 'shape'"),
        (["--batch", "100"], "lower"),
        (["--batch", "9", "--accumulate", "2"], "take 10"),
        (["--optimizer", "adamm"], "did you mean"),
        (["--track", "tensorbord"], "tensorbord"),
        (["--auto-augment", "rnd-m9"], "auto_augment"),
        (["--auto-augment", "augmix-m3", "--resident"], "leave --resident out"),
        (["--model", "cct_7_3x1_32", "--pretrained"], "cannot get the published weights of cct_7_3x1_32"),
        (["--method", "transmix", "--model", "test_resnet", "--model-args", "in_chans=3"], "needs attention"),
    ],
)
def test_other_wrong_input(
    tiny_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    output = tmp_path / "run"
    assert words in refused(capsys, "train", "--config", tiny_file, "--output", str(output), *arguments)
    assert not output.exists()


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("broken", ["train", "val"])
def test_nothing_to_read(
    tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str], broken: str, workers: str
) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for index in range(4):
                file = tmp_path / "data" / split / name / f"{index}.png"
                Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(file)
                if split == broken:
                    file.write_bytes(b"not a picture")
    arguments = ["--data", f"imagefolder:{tmp_path / 'data'}", "--workers", workers, "--output", str(tmp_path / "run")]
    assert cli.main(["train", "--config", tiny_file, *arguments]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("skipped an unreadable")]
    assert said.startswith("vitmix: error: none of the ") and said.endswith("get the files again")


def test_resident_images_of_several_sizes(tmp_path: Path, tiny_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = pictures(tmp_path / "data", "cat", "dog")
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(data / "train/cat/9.png")
    said = refused(
        capsys, "train", "--config", tiny_file, "--data", f"imagefolder:{data}", "--batch", "2", "--resident"
    )
    assert "one size" in said and "leave --resident out" in said


def test_one_process_of_each_node_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nodes may have other files; the processes of one node have the same. The silent ones let the first speak."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setenv("RANK", "8")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert "no configuration file" in refused(capsys, "train", "--config", "nowhere.yaml")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert waited == []
    assert cli.main(["train", "--config", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err == "" and waited == [cli.TURN_SECONDS]


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "vitmix --help" in refused(capsys)
    assert "tran" in refused(capsys, "tran")


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["methods"]) == 0
    said = capsys.readouterr().out
    assert "tl_align" in said and all(name in said for kind in KINDS for name in parts(kind))
    assert "rolled(by=1)" in said and "consistency(weight=1.0, average=logits, by=area)" in said
    for arguments in (["recipes"], ["train", "--recipe", "help"]):
        assert cli.main(arguments) == 0
        assert "cct_cifar10_300_both" in capsys.readouterr().out
    assert cli.main(["recipes", "deit"]) == 0
    assert "repeats: 3" in capsys.readouterr().out
    assert "unknown recipe" in refused(capsys, "recipes", "diet")


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        cli.main(["train", "--help"])
    assert ending.value.code == 0
    said = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in said for name in FIELDS)


def test_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "vitmix", "train", "--epocs=3"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "vitmix: error: unknown argument '--epocs'; did you mean --epochs? 'vitmix train --help' lists them all\n"
    )


SLOW = """import sys, time
print("importing", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("slow", "script"), [("torch", False), ("torch", True), ("argparse", False)])
def test_ctrl_c_while_the_command_starts_is_quiet(tmp_path: Path, slow: str, script: bool) -> None:
    (tmp_path / f"{slow}.py").write_text(SLOW)  # in the place of torch, or of what the command itself imports first
    (tmp_path / "vitmix").write_text("from vitmix.lab.cli.main import main\nraise SystemExit(main())\n")
    source = Path(cli.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(source)])}
    started = [str(tmp_path / "vitmix")] if script else ["-m", "vitmix"]
    command = [sys.executable, *started, "train"]
    settings: dict[str, Any] = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell's background jobs start with the signal ignored.
    settings["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, **settings) as process:
        assert process.stdout is not None and process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    assert (out, said) == (b"", b"") and process.returncode in (130, -signal.SIGINT)  # 130 in a shell, both of them


def test_ctrl_c_before_a_training_began_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tiny_file: str
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "open_data", interrupted)
    assert cli.main(["train", "--config", tiny_file, "--output", str(Path(tiny_file).parent / "run")]) == 130
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", [*METHODS, *(name for kind in KINDS for name in parts(kind))])
def test_methods_and_parts_are_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["methods", name]) == 0
    said = capsys.readouterr().out
    known = [METHODS[name]] if name in METHODS else []
    for thing in (*known, *(parts(kind)[name] for kind in KINDS if name in parts(kind))):
        assert all(setting in said for setting in inspect.signature(thing).parameters if setting != "num_classes")


def test_an_unknown_method_is_not_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown method or part 'cutmx'" in refused(capsys, "methods", "cutmx")


@pytest.mark.parametrize("words", [("bench", "--methods"), ("compare", "--dry-run", "--method")])
def test_a_wrong_method_is_refused_before_a_model_is_built(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    command, *flags = words
    assert "error: unknown method 'cutmx'" in refused(capsys, command, "--model", "no_such_model", *flags, "cutmx")


def test_help_shows_defaults_of_zero(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    said = capsys.readouterr().out
    for name in ("seed", "padding", "erasing", "color-jitter", "cooldown-epochs"):
        assert re.search(rf"--{name} \w+\s+.*\(default: 0\)", said), name


def test_a_model_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "swin_tiny_patch4_window7_224"]) == 0
    said = capsys.readouterr().out
    assert "timm's SwinTransformer, 28.3 million parameters, images of 224 x 224 pixels" in said
    assert "12 blocks (2 of 56 x 56, 2 of 28 x 28, 6 of 14 x 14, 2 of 7 x 7 tokens), attention" in said
    assert "Methods: mixup, cutmix, tokenmix, transmix, tl_align, smmix, htm, fmix, " in said
    assert "tdattenmix\nNot supported: vtm, because " in said
    assert re.search(r"^  window_size=\S+ +\S", said, re.MULTILINE)
    assert cli.main(["models", "xcit_nano_12_p16_224"]) == 0
    assert "its attention is between channels" in capsys.readouterr().out
    assert "unknown model 'deit_smal'" in refused(capsys, "models", "deit_smal")


@pytest.mark.parametrize(
    ("arguments", "note", "sentence"),
    [
        ("show --run nowhere", "--run is now --model", "unknown model 'nowhere'"),
        ("show --run nowhere --model x", "--run is now --model", "the model is named twice"),
        ("show --checkpoint no.pth --model test_vit", "--checkpoint is now --model FILE", "no file no.pth"),
        ("maps --data shapes --output x --teacher test_vit", "--teacher is now --model", "would have random weights"),
        ("eval no.pth --model test_vit", "--model NAME beside a weights file is now --arch NAME", "no file no.pth"),
        ("figure attention no.pth --model test_vit", "is now --arch NAME", "no file no.pth"),
    ],
)
def test_earlier_spellings_of_a_model(
    arguments: str, note: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments.split()) == 2
    *notes, error = capsys.readouterr().err.splitlines()
    assert sentence in error and any(each.startswith("vitmix: note: ") and note in each for each in notes)


@pytest.mark.parametrize("command", ["eval", "analyze", "show", "figure attention", "maps", "export", "bench"])
def test_every_command_names_a_model_in_the_same_way(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    said = capsys.readouterr().out
    for flag in ("--model RUN|FILE|NAME", "--arch NAME", "--model-args KEY=VALUE", "--size N"):
        assert flag in said
    assert command == "bench" or ("--weights best|last" in said and "--pretrained" in said)


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_size_with_part_of_a_patch_is_one_sentence(command: str, tmp_path: Path) -> None:
    """timm's models that take any size assert it in the forward pass only."""
    data = "shapes(size=16, length=24, test_length=24)"
    if command == "eval":
        timm_weights = timm.create_model("test_vit", num_classes=12).state_dict()
        save_file(timm_weights, tmp_path / "weights.safetensors")
        words = ["eval", str(tmp_path / "weights.safetensors"), "--arch", "test_vit", "--data", data]
    else:
        words = ["train", "--data", data, "--model", "test_vit", "--output", str(tmp_path / "run")]
    said = vitmix(*words, "--size", "33", "--cpu")
    assert said.code == 2 and said.err.count("\n") == 1
    assert "size must be a multiple of the patches of test_vit, 16 pixels, got 33; use 32 or 48" in said.err
