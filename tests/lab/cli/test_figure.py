"""`vitmix figure` as a command, and its figures in reports."""

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from support import ROOT
from training import one_thread, train  # noqa: F401
from vitmix.lab.cli import figure as command
from vitmix.lab.cli.main import main
from vitmix.lab.data.shapes import CLASSES
from vitmix.lab.evaluation.examples import make_examples
from vitmix.lab.evaluation.subject import open_subject
from vitmix.lab.figures import KINDS
from vitmix.lab.figures.images import held_out, read_image
from vitmix.lab.figures.stored import stored_figures

pytestmark = pytest.mark.usefixtures("one_thread")


def test_kinds_of_the_command_are_those_that_are_plotted():
    assert set(command.KINDS) == set(KINDS)


@pytest.fixture(scope="module")
def run(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder, epochs=1)
    return folder


def test_formats_and_names(run, tmp_path, capsys):
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        output = tmp_path / f"figure{suffix}"
        arguments = [str(run), str(run / "last.safetensors"), "--names", "arrow", "ring", "--output", str(output)]
        assert main(["figure", "labels", *arguments]) == 0
        assert output.read_bytes().startswith(start)
    words = "".join(ElementTree.parse(tmp_path / "figure.svg").getroot().itertext())
    for expected in ("block 1", "arrow", "partner", "last", "run"):
        assert expected in words
    assert "untrained" not in capsys.readouterr().out


def test_the_old_name_works_and_says_the_new_one(run, tmp_path):
    arguments = ["gallery", str(run), "--method", "cutmix", "--output", str(tmp_path / "figure.png")]
    with pytest.warns(FutureWarning, match="'vitmix draw' is now 'vitmix figure'"):
        assert main(["draw", *arguments]) == 0
    with pytest.warns(FutureWarning, match="is now"):
        assert main(["--plugin", "draw", "draw", *arguments]) == 2  # of this name there is no module
    assert (tmp_path / "figure.png").exists()


def test_same_command_same_figure(run, tmp_path):
    files = [tmp_path / "first.png", tmp_path / "second.png"]
    for file in files:
        assert main(["figure", "heads", str(run), "--method", "none", "manifold", "--output", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_run_is_shown_on_its_own_images(run, tmp_path, capsys):
    def figure(*arguments: str) -> str:
        assert main(["figure", "occlusion", *arguments, "--output", str(tmp_path / "figure.svg")]) == 0
        return (tmp_path / "figure.svg").read_text()

    own = held_out(open_subject(run), 2)
    assert own[0].name != own[1].name and own == held_out(open_subject(run), 2)
    assert own[0].image.size == (16, 16)  # as the data has them
    words = figure(str(run), "test_vit")
    assert all(image.name in words for image in own)
    others = [name for name in CLASSES if name not in words][:2]
    words = figure(str(run), "--names", *others)
    assert all(name in words for name in others)
    (tmp_path / "moved").mkdir()
    config = (run / "config.yaml").read_text()
    for name in ("best.safetensors", "summary.json"):
        shutil.copy(run / name, tmp_path / "moved" / name)
    lost = re.sub("(?m)^data: .*$", "data: npz:nowhere", config)
    (tmp_path / "moved" / "config.yaml").write_text(lost)
    capsys.readouterr()
    assert main(["figure", "occlusion", str(tmp_path / "moved")]) == 2
    assert capsys.readouterr().err.rstrip().endswith("; give --images")


def test_folders_name_classes(run, tmp_path, monkeypatch):
    (tmp_path / "ring").mkdir()
    read_image("shapes:46", 32).image.save(tmp_path / "ring" / "photo.png")
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "occlusion", str(run), "--images", "ring/photo.png", "--output", "figure.svg"]) == 0
    assert "“ring”" in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rings"], "invalid choice: 'rings'"),
        (["attention", "nowhere/run"], "no run folder"),
        (["attention", "--images", "nowhere.png"], "'nowhere.png' does not exist"),
        (["attention", "--method", "cutmx"], "did you mean 'cutmix'?"),
        (["attention", "--block", "3"], "did you mean --blocks?"),
        (["attention", "--output", "figure.bmp"], ".png, .svg, .pdf"),
        (["attention", "--output", "nowhere/figure.png"], "output folder 'nowhere' does not exist"),
        (["attention", "--names", "cat"], "2 images but 1 names"),
        (["attention", "test_resnet", "--size", "32"], "needs attention"),
        (["attention", "--blocks", "77"], "block 77 is out of range"),
        (["gallery", "--images", "shapes:1"], "mixed in pairs"),
        (["gradcam", "test_resnet", "--size", "32", "--only-right"], "not known"),
        (["gallery", "--dpi", "0"], "dpi must be"),
    ],
)
def test_wrong_input_gets_one_sentence(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["figure", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_gallery_of_a_report(run, tmp_path):
    found = make_examples(open_subject(run))
    assert [len(each.rows) for each in found.strips] == [2, 2] and not found.problems
    assert len(found.encoded()) < 400_000
    settings: dict[str, Any] = dict(model_args={}, size=32, method="cutmix", epochs=1, drop=0.0, drop_path=0.0)
    train(tmp_path / "cnn", model="test_resnet", **settings)
    without = make_examples(open_subject(tmp_path / "cnn"))
    assert "No attention: an attention map needs attention" in without.problems[0]
    assert [each.what for each in without.strips] == ["label maps"]
    train(tmp_path / "unread", model="test_efficientnet", **settings)
    assert "cannot be read" in make_examples(open_subject(tmp_path / "unread")).problems[0]


@pytest.mark.parametrize("kind", KINDS)
def test_documented_figures_are_small(kind):
    path = ROOT / "docs" / "figures" / f"{kind}.png"
    assert 5_000 < path.stat().st_size < 200_000


def test_figures_of_runs_are_in_their_report(run, tmp_path, monkeypatch, capsys):
    runs = [copied(run, tmp_path / "runs" / name) for name in ("first", "second")]
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "rollout", *map(str, runs), "test_vit", "--size", "32", "--output", "both.svg"]) == 0
    assert main(["figure", "occlusion", str(runs[0]), "--output", "both.svg"]) == 0  # in the place of the first one
    assert main(["figure", "gradcam", str(runs[1])]) == 0
    assert [each.path.name for each in stored_figures(runs[0])] == ["both.png"]
    words = [each.description for run in runs for each in stored_figures(run)]
    assert words == [
        "Confidence under growing occlusion: first.",
        "Attention rolled out through all blocks: first, second, test_vit.",
        "Grad-CAM of unmixed or mixed images: second.",
    ]
    page = report_of(tmp_path / "runs")
    for each in words:
        assert page.count(each) == 1
    assert "earlier weights" not in page


def copied(run: Path, place: Path) -> Path:
    return shutil.copytree(run, place, ignore=shutil.ignore_patterns("pictures"))


def report_of(place: Path) -> str:
    page = place.parent / "page.html"
    assert main(["report", str(place), "--examples", "0", "--output", str(page)]) == 0
    return page.read_text()


def test_a_figure_of_several_runs_is_shown_once_and_one_of_earlier_weights_is_called_so(run, tmp_path):
    runs = [copied(run, tmp_path / "runs" / name) for name in ("first", "second")]
    assert main(["figure", "labels", *map(str, runs), "--output", str(tmp_path / "labels.pdf")]) == 0
    page = report_of(tmp_path / "runs")
    assert page.count('class="drawn"') == 1 and '<section id="drawn">' in page
    weights = runs[0] / "best.safetensors"
    weights.write_bytes((runs[0] / "last.safetensors").read_bytes() + b" ")
    (runs[1] / "pictures" / "labels.png").write_bytes(b"no image")
    (runs[1] / "pictures" / "mine.png").write_bytes((runs[0] / "pictures" / "labels.png").read_bytes())
    assert "Made with earlier weights of the run." in report_of(tmp_path / "runs")


def test_figures_that_are_too_much_for_a_page_are_named(run, tmp_path):
    place = copied(run, tmp_path / "runs" / "run")
    (place / "pictures").mkdir()
    noise = torch.randint(0, 256, (900, 1600, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for number in range(4):
        Image.fromarray(noise.roll(number, 0).numpy()).save(place / "pictures" / f"{number}.png")
    page = report_of(tmp_path / "runs")
    assert "Left out, because they are too large for this page:" in page and "pictures/3.png" in page
    assert len(page) < 2_000_000
    assert 'class="drawn"' in page


def test_a_run_folder_that_cannot_be_written_is_no_failure(run, tmp_path, capsys):
    place = copied(run, tmp_path / "run")
    (place / "pictures").write_text("in the way")
    assert main(["figure", "gallery", str(place), "--method", "cutmix", "--output", str(tmp_path / "g.png")]) == 0
    assert "No copy for reports could be kept" in capsys.readouterr().out and (tmp_path / "g.png").exists()
