"""Small manners of the commands: names of run folders, the bar, trackers, headlines."""

import importlib.util
import io
import warnings
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from training import TINY, one_thread, tiny  # noqa: F401
from vitmix.lab.runs import Analysis, Estimate, Table, run_for
from vitmix.lab.runs.lock import default_name
from vitmix.lab.studies.studies import headline
from vitmix.lab.training.config import TrainConfig, resolve
from vitmix.lab.training.engine import Trainer
from vitmix.lab.training.progress import Reporter
from vitmix.lab.writing import make_folder


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (
            {"data": "imagefolder:/home/me/pets/", "model": "deit_tiny_patch16_224", "method": "smmix"},
            "deit_tiny-pets-smmix-seed0",
        ),
        (
            {"data": "shapes(size=16)", "method": "mixup(alpha=0.8) | tl_align"},
            "deit_small-shapes-mixup-tl_align-seed0",
        ),
        ({"data": "torchvision:CIFAR10:data", "method": "none", "seed": 3}, "deit_small-CIFAR10-none-seed3"),
        ({"data": "npz:a/b?holdout=0.1", "method": "mix(mask=box) + region"}, "deit_small-b-mix-region-seed0"),
        (
            {"data": "wds:x/train-{000..9}.tar", "model": "swin_tiny_patch4_window7_224.ms_in1k"},
            "swin_tiny-train-mixup-cutmix-seed0",
        ),
        (
            {"data": "imagefolder:..", "model": "hf-hub:some/one", "method": "(mixup | cutmix) + htm(block=2)"},
            "one-mixup-cutmix-htm-seed0",
        ),
    ],
)
def test_default_names(settings: dict[str, object], name: str) -> None:
    assert default_name(TrainConfig(**settings)).replace("--", "-") == name  # type: ignore[arg-type]


def test_the_same_command_finds_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, other = resolve(TINY), resolve({**TINY, "epochs": 9})
    assert run_for(first).path == run_for(other).path == Path("runs/vit_tiny-shapes-mixup-tl_align-seed0")
    make_folder(run_for(first).path)
    run_for(first).write_config(first)
    assert run_for(first).path.name == "vit_tiny-shapes-mixup-tl_align-seed0"
    assert run_for(other).path.name == "vit_tiny-shapes-mixup-tl_align-seed0-2"
    make_folder(run_for(other).path)
    run_for(other).write_config(other)
    assert run_for(resolve({**TINY, "epochs": 8})).path.name.endswith("seed0-3")
    (Path("runs") / "vit_tiny-shapes-mixup-tl_align-seed0" / "config.yaml").write_text("epochs: [")
    assert run_for(other).path.name.endswith("seed0-2") and run_for(first).path.name.endswith("seed0-3")


def test_the_bar_moves_with_every_update(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path / "run", log_every=1000, epochs=1))
    seen = []
    with mock.patch.object(Reporter, "advance", lambda self, update: seen.append(update)):
        assert trainer.run() == 0
    assert seen == list(range(1, 7))
    reporter = Reporter(enabled=True, epochs=1, updates=6, columns=())
    reporter.console = Console(file=io.StringIO(), force_terminal=True)
    reporter.start(0)
    assert reporter.progress is not None
    reporter.advance(4)
    assert reporter.progress.tasks[0].completed == 4
    reporter.stop()
    reporter.advance(5)  # nothing to move


def test_a_wrong_tracker_names_the_tracker(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown tracker 'tensorbord'.*tensorboard") as error:
        Trainer(tiny(tmp_path / "run", track="tensorbord"))
    assert "precision" not in str(error.value)


def test_a_missing_tracker_is_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = next((name for name in ("aim", "clearml", "wandb") if importlib.util.find_spec(name) is None), None)
    if missing is None:
        pytest.skip("every tracker is installed")
    with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match=f"'{missing}' is not installed"):
        Trainer(tiny(tmp_path / "run", track=missing))
    assert not caplog.records


def analysis(study: str, *tables: Table) -> Analysis:
    given = dict(study=study, about="what it measures", weights="w", weights_sha256=None, data="d")
    return Analysis(**given, images=1, batch=2, seed=0, methods=None, tables=tables)  # type: ignore[arg-type]


def test_headlines() -> None:
    def value(mean: float) -> Estimate:
        return Estimate(mean, 0.1, 9, mean - 0.01, mean + 0.01)

    rows = [(("cutmix",), {"top-1": value(0.5)}), (("smmix",), {"top-1": value(0.7)})]
    table = Table("Accuracy on mixed images", ("method",), rows, percent=("top-1",))
    said = headline(analysis("accuracy", table))
    assert said == "accuracy: images mixed by smmix are recognized best: one of two classes 70.0 ± 1.0 %"
    rows += [((name,), {"top-1": value(mean)}) for name, mean in (("mixup", 0.7), ("tokenmix", 0.685), ("none", 0.6))]
    table = Table("Accuracy on mixed images", ("method",), rows[:3], percent=("top-1",))
    assert headline(analysis("accuracy", table)) == f"{said}; the interval overlaps that of mixup"
    table = Table("Accuracy on mixed images", ("method",), rows, percent=("top-1",))
    assert headline(analysis("accuracy", table)) == f"{said}; the interval overlaps those of 2 others"
    rows = [(("cutmix", block), {"partner to partner": value(0.1)}) for block in "01"]
    rows += [(("smmix", block), {"partner to partner": value(0.3 - int(block) / 4)}) for block in "01"]
    table = Table("Attention between the regions of a mixed image", ("method", "block"), rows)
    assert "with cutmix: 0.1 ±" in headline(analysis("regions", table))  # in the last block
    assert headline(analysis("regions")) == "regions: what it measures"


def test_an_endless_warmup_is_no_error(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path / "run", warmup_epochs=1e308))
    assert "the warm-up of 1e+308 epochs takes the whole run" in " ".join(trainer.remarks)
