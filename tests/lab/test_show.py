"""`vitmix show`: the figure shows what the methods do."""

import struct
import time
import xml.etree.ElementTree as ElementTree
import zlib
from itertools import pairwise

import numpy as np
import pytest
import timm
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import vitmix
from support import ROOT
from training import one_thread, train  # noqa: F401
from vitmix.attention.tap import AttentionTap
from vitmix.lab.cli.main import main
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.figures import NamedImage, NamedModel, read_image
from vitmix.lab.fitting import fitting_methods
from vitmix.lab.plotting.render import grid_figure
from vitmix.lab.show import MethodResult, PairResults, methods_grid, render_methods, run_methods
from vitmix.methods import METHODS

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = Augmentation(32, mean=(0.5,) * 3, std=(0.5,) * 3, crop_pct=1.0)


def small_model(**settings) -> torch.nn.Module:
    torch.manual_seed(1)
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 12}
    model = timm.create_model("vit_tiny_patch16_224", drop_path_rate=0.5, drop_rate=0.5, **shape, **settings)
    for block in model.blocks:  # else attention is nearly uniform
        block.attn.qkv.weight.data.mul_(12)
    return model


def pair_of(*methods: str, model: torch.nn.Module | None = None, seed: int = 3) -> PairResults:
    images = [read_image(text, 32) for text in ("shapes:1", "shapes:46")]
    return run_methods(NamedModel("", model or small_model(), PLAIN, 12), images, methods, seed=seed)


def result_of(method: str, **settings) -> MethodResult:
    (result,) = pair_of(method, **settings).results
    return result


def test_all_methods_are_shown_by_default():
    assert fitting_methods(small_model(), (32, 32)) == ([method for method in METHODS if method != "none"], {})


def test_notes_say_why_an_image_shows_no_mixing():
    notes = {"manifold_mixup": "mixed in the network", "cutmix": "", "vtm": ""}
    found = {result.title: " ".join(result.notes) for result in pair_of(*notes).results}
    assert found == notes


def test_recursivemix_pastes_the_pair_of_the_batch_before():
    """Which had the two images the other way round."""
    pair = pair_of("recursivemix", seed=5)
    (result,), (own, partner) = pair.results, pair.pixels
    inside = result.origin > 0
    share = float(inside.float().mean())
    assert 0.1 < share < 0.5 and result.partner == pytest.approx(share, abs=1e-5) and not result.notes
    torch.testing.assert_close(result.mixed[:, ~inside], own[:, ~inside], atol=1e-5, rtol=0)
    pasted = result.mixed[:, inside]
    assert all(bool((partner.flatten(1) - color[:, None]).abs().sum(0).min() < 1e-4) for color in pasted.T[::7])


def test_mask_image_and_target_agree():
    """Slow twin: every pixel is the own one's, the partner's, or a blend by the mask that is shown."""
    pair = pair_of("mixup", "cutmix", "tokenmix", "smmix", "none")
    own, partner = pair.pixels
    for result in pair.results[:3]:
        height, width = result.origin.shape
        cells = result.origin.repeat_interleave(32 // height, 0).repeat_interleave(32 // width, 1)
        torch.testing.assert_close(result.mixed, own * (1 - cells) + partner * cells, atol=1e-5, rtol=0)
    for result in pair.results[:4]:
        assert result.partner == pytest.approx(float(result.origin.mean()), abs=1e-5)
        assert result.own + result.partner == pytest.approx(1, abs=1e-5)
    assert pair.results[4].own == 1 and torch.allclose(pair.results[4].mixed, own, atol=1e-5)


def test_comparable_methods_share_their_draw():
    cutmix, transmix, tl_align = pair_of("cutmix", "transmix", "tl_align").results
    assert torch.equal(cutmix.mixed, transmix.mixed) and torch.equal(cutmix.origin, tl_align.origin)
    assert len({round(result.own, 6) for result in (cutmix, transmix, tl_align)}) == 3


def test_transmix_shows_the_attention_that_it_uses():
    model = small_model()
    result = result_of("transmix", model=model)
    with AttentionTap(model, class_row=[-1]) as tap, torch.no_grad():
        images = (torch.stack([result.mixed, result.mixed]) - 0.5) / 0.5
        model.eval()(images)
    expected = tap.class_row(-1)[0].view(4, 4)
    assert result.used and result.statistics[0].caption == "class attention"
    torch.testing.assert_close(result.statistics[0].grid, expected, atol=1e-5, rtol=1e-4)
    assert not result_of("cutmix").used and result_of("cutmix").statistics[0].grid.shape == (4, 4)


def test_tl_align_shows_shares_that_average_to_its_target():
    result = result_of("tl_align", model=small_model(global_pool="avg", class_token=False))
    assert result.statistics[0].kind == "share"
    assert float(result.statistics[0].grid.mean()) == pytest.approx(result.partner, abs=1e-5)


def test_smmix_shows_where_its_window_came_from():
    result = result_of("smmix")
    assert result.moved_from is not None
    top, bottom, left, right = result.moved_from
    assert (bottom - top) * (right - left) == pytest.approx(result.partner, abs=1e-5)
    scores = result.statistics[1].grid  # the window is the partner's most attended
    window = scores[round(4 * top) : round(4 * bottom), round(4 * left) : round(4 * right)]
    unfolded = scores.unfold(0, window.shape[0], 1).unfold(1, window.shape[1], 1).sum((2, 3))
    assert float(window.sum()) == pytest.approx(float(unfolded.max()), rel=1e-5)


def test_htm_shows_the_tokens_it_took_and_from_whom():
    pair = pair_of("htm(block=1, rho=0.001)", "cutmix + htm(block=1, rho=0.001)")
    own, partner = pair.pixels
    result = pair.results[0]
    taken = (result.statistics[1].grid - result.statistics[0].grid > 0.001).float()
    assert 0 < taken.sum() < 16 and torch.equal(result.origin, taken)
    cells = taken.repeat_interleave(8, 0).repeat_interleave(8, 1)
    torch.testing.assert_close(result.mixed, own * (1 - cells) + partner * cells, atol=1e-5, rtol=0)
    kept, gained = result.statistics[0].grid[taken == 0].sum(), result.statistics[1].grid[taken == 1].sum()
    assert result.own == pytest.approx(float(kept / (kept + gained)), abs=1e-5)
    assert pair.results[1].origin.shape == (4, 4)


def test_htm_without_an_exchange_says_so_and_shows_both():
    result = result_of("htm(block=1, rho=0.9)")
    assert result.notes == ("HTM exchanged nothing",) and result.own == 1 and not result.origin.any()
    assert not torch.equal(result.statistics[0].grid, result.statistics[1].grid)
    assert result_of("htm(block=1, rho=0.001)").notes == ()


def test_titles_do_not_touch():
    methods = ["cutmix + htm + vtm", "smmix", "mixup + htm + vtm", "tokenmix + htm", "transmix", "cutmix"]
    figure = grid_figure(methods_grid(pair_of(*methods)))
    FigureCanvasAgg(figure).draw()
    last_words = {method.split()[-1] for method in methods}
    found = [each for each in figure.texts if each.get_text().rpartition(" ")[2] in last_words]
    titles = sorted((each.get_window_extent() for each in found), key=lambda box: box.x0)
    assert len(titles) == len(methods)
    assert all(left.x1 <= right.x0 for left, right in pairwise(titles)) and titles[-1].x1 <= figure.bbox.x1


def test_lines_lie_between_tokens_and_not_between_pixels():
    figure = grid_figure(methods_grid(pair_of("cutmix", "tokenmix")))
    assert sorted({len(panel.lines) for panel in figure.axes}) == [0, 6]  # 4 x 4 tokens; the box's pixels are 32 x 32


def test_names_in_any_script(tmp_path, capsys, monkeypatch):
    arguments = ["--method", "cutmix", "--output", str(tmp_path / "figure.png")]
    monkeypatch.setattr("vitmix.lab.plotting.text.OTHERS", ())
    assert main(["show", "--names", "猫", "犬 猫", *arguments]) == 0
    assert "has the letters 猫犬;" in capsys.readouterr().out
    assert main(["show", "--names", "Katze", "кошка", *arguments]) == 0
    assert "letters" not in capsys.readouterr().out


def test_names_that_cannot_be_written(tmp_path, capsys):
    output = tmp_path / "figure.svg"
    assert main(["show", "--names", "caf\udce9", "a\0\x1b", "--method", "cutmix", "--output", str(output)]) == 0
    assert "letters \\udce9" in capsys.readouterr().out
    ElementTree.parse(output)  # XML has no such characters


def test_a_model_without_attention_is_not_said_to_have_any(tmp_path, capsys):
    arguments = ["--model", "test_resnet", "--method", "cutmix", "--output", str(tmp_path / "figure.svg")]
    assert main(["show", *arguments]) == 0
    words = "".join(ElementTree.parse(tmp_path / "figure.svg").getroot().itertext())
    assert "Attention:" not in words and "means nothing" not in capsys.readouterr().out


def test_vtm_shows_its_bank():
    result = result_of("vtm(block=3, tokens=5)")
    assert result.bank is not None and result.bank.shape == (4, 4) and int(result.bank.sum()) == 15
    assert result.own == 1 and not result.origin.any()


def test_every_choice_of_a_switch_is_a_column():
    results = pair_of("0.2*mixup | 0.8*cutmix", "transmix").results
    assert [result.title for result in results] == ["mixup", "cutmix", "transmix"]
    assert [result.notes for result in results] == [("20% of batches",), ("80% of batches",), ()]


def test_activation_labels_use_the_models_own_maps():
    result = result_of("tokenmix(label=activation)")
    assert result.used and len(result.statistics) == 2 and result.statistics[0].grid.shape == (4, 4)
    mass = [each.grid / each.grid.sum() for each in result.statistics]
    assert result.own == pytest.approx(float((mass[0] * (1 - result.origin)).sum()), abs=1e-4)
    assert result.partner == pytest.approx(float((mass[1] * result.origin).sum()), abs=1e-4)


def test_models_without_readable_attention():
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=4)
    images = [read_image(text, 64) for text in ("shapes:1", "shapes:2")]
    named = NamedModel("", model, Augmentation(64, crop_pct=1.0), 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pair = run_methods(named, images, ["cutmix", "tokenmix(grid=[4, 4])"])
    assert pair.results[0].statistics == () and render_methods(pair)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # BatchNorm's too
    aligned = run_methods(named, images, ["tl_align"]).results[0]
    assert aligned.statistics[0].kind == "share" and aligned.used
    with pytest.raises(ValueError, match="needs attention"):
        run_methods(named, images, ["transmix"])


# Images


@pytest.mark.parametrize("size", [(1, 1), (3, 900), (2000, 1500)])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "I;16", "CMYK"])
def test_images_of_any_kind_and_size(tmp_path, mode, size):
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0]), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image = Image.fromarray(pixels.astype(np.uint16)) if mode == "I;16" else image.convert(mode)
    path = tmp_path / ("image.tif" if mode in ("CMYK", "I;16") else "image.png")
    image.save(path)
    read = read_image(str(path), 32)
    assert read.image.mode == "RGB" and read.name == "image"
    pair = run_methods(NamedModel("", small_model(), PLAIN, 12), [read, read], ["cutmix"])
    assert pair.pixels.shape == (2, 3, 32, 32)


def bomb() -> bytes:
    """A PNG of 30,000 x 30,000 pixels in a few bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bomb.png", bomb(), "more than the 89,478,485 pixels allowed"),
        ("cut.png", bomb()[:20], "cannot be read"),
        ("text.jpg", b"not an image", "not an image of a known kind"),
        ("empty.png", b"", "not an image of a known kind"),
    ],
)
def test_broken_and_huge_images_get_one_sentence(tmp_path, capsys, name, content, words):
    (tmp_path / name).write_bytes(content)
    output = tmp_path / "out.png"
    assert main(["show", str(tmp_path / name), "shapes:1", "--output", str(output)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and name in said
    assert any(word in said for word in words.split("|")), said
    assert not output.exists()


def test_sideways_photographs_stand_upright(tmp_path):
    image = Image.new("RGB", (40, 20))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "photo.jpg", exif=exif)
    assert read_image(str(tmp_path / "photo.jpg"), 32).image.size == (20, 40)


# The command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shapes:1"], "two images, got 1"),
        (["cutmix"], "'cutmix' is a method, not an image; did you mean --method cutmix?"),
        (["cutmix", "tl_align(blocks=[1])"], "did you mean --method cutmix 'tl_align(blocks=[1])'?"),
        (["shapes:1", "cutmix"], "'cutmix' is a method, not an image; did you mean --method cutmix?"),
        (["shapes:1", "nowhere.png"], "'nowhere.png' does not exist"),
        (["--method", "cutmx"], "did you mean 'cutmix'?"),
        (["--output", "figure.bmp"], ".png, .svg, .pdf"),
        (["--output", "nowhere/figure.png"], "output folder 'nowhere' does not exist"),
        (["--model", "nowhere/run"], "no run folder"),
        (["--model", "resnet18", "--weights", "beste"], "did you mean 'best'?"),
        (["--model", "deit_smal"], "unknown model"),
    ],
)
def test_wrong_input_gets_one_sentence(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["show", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_every_method_on_files_with_an_untrained_model(tmp_path, capsys):
    for name, size in (("cat.jpg", (640, 480)), ("dog.png", (50, 300))):
        Image.effect_noise(size, 80).convert("RGB").save(tmp_path / name)
    start = time.process_time()
    output = tmp_path / "figure.png"
    assert main(["show", str(tmp_path / "cat.jpg"), str(tmp_path / "dog.png"), "--output", str(output)]) == 0
    assert time.process_time() - start < 12
    said = capsys.readouterr().out
    assert "untrained" in said and "mixup, cutmix, tokenmix, transmix, tl_align, smmix, htm, vtm" in said
    with Image.open(output) as figure:
        assert figure.width > 1000


def test_formats_and_a_run(tmp_path, capsys):
    train(tmp_path / "run", epochs=1)
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        output = tmp_path / f"figure{suffix}"
        arguments = [
            "--model",
            str(tmp_path / "run"),
            "--method",
            "cutmix",
            "tl_align | mixup",
            "--output",
            str(output),
        ]
        assert main(["show", *arguments]) == 0
        assert output.read_bytes().startswith(start)
    words = "".join(ElementTree.parse(tmp_path / "figure.svg").getroot().itertext())
    for expected in ("original:", "arrow", "partner:", "ring", "cutmix", "tl_align", "50% of batches", "trained"):
        assert expected in words
    assert "untrained" not in capsys.readouterr().out and "UNTRAINED" not in words
    (tmp_path / "moved.safetensors").write_bytes((tmp_path / "run" / "best.safetensors").read_bytes())
    assert main(["show", "--model", str(tmp_path / "moved.safetensors"), "--output", str(output)]) == 0
    assert "untrained" not in capsys.readouterr().out


def test_many_methods_go_into_bands():
    images = [NamedImage(Image.new("RGB", (32, 32), color), color) for color in ("red", "blue")]
    pair = run_methods(NamedModel("", small_model(), PLAIN, 12), images, ["cutmix"] * 11)
    assert len(pair.results) == 11 and render_methods(pair, dpi=40)
    figure = grid_figure(methods_grid(pair))
    assert sum(text.get_text() == "cutmix" for text in figure.texts) == 11 and figure.get_figwidth() <= 7.2
    assert sum(bool(axes.texts) and "red" in axes.texts[0].get_text() for axes in figure.axes) == 2  # in each section


def test_the_title_of_a_composition_is_its_text():
    result = result_of("mix(mask=block(share=0.3), share=aligned) + consistency")
    assert result.title.startswith("mix(") and vitmix.create(result.title, 12)


def test_same_command_same_figure():
    assert render_methods(pair_of("smmix", "vtm")) == render_methods(pair_of("smmix", "vtm"))


def test_documented_figure_is_small():
    path = ROOT / "docs" / "show.png"
    assert path.stat().st_size < 300_000


def test_long_names_keep_their_end_inside_the_image():
    images = [read_image(text, 32) for text in ("shapes:1", "shapes:46")]
    names = ["n02056570_king_penguin", "n01774384_black_widow_spider"]
    named = [NamedImage(each.image, name) for each, name in zip(images, names, strict=True)]
    pair = run_methods(NamedModel("", small_model(), PLAIN, 12), named, ["cutmix"] * 8)
    figure = grid_figure(methods_grid(pair))
    FigureCanvasAgg(figure).draw()
    tags = {text.get_text(): (text, panel) for panel in figure.axes for text in panel.texts if ":" in text.get_text()}
    assert list(tags) == ["original:\n…penguin", "partner:\n…spider"]
    for text, panel in tags.values():
        frame, box = text.get_bbox_patch(), panel.get_window_extent()
        assert frame is not None and frame.get_window_extent().x1 <= box.x1
