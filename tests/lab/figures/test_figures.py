"""`vitmix figure`: figures show what the models do."""

import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from torch import Tensor, nn

from support import SMALL_VIT
from training import one_thread, train  # noqa: F401
from vitmix import create
from vitmix.attention.flow import Given
from vitmix.attention.readers import read_model
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.figures import (
    KINDS,
    FigureInputs,
    NamedModel,
    attention_rollout,
    block_attention,
    grad_cam,
    read_image,
)
from vitmix.lab.figures.attention import chosen_blocks, head_attention, label_maps, roll_out
from vitmix.lab.figures.cam import to_channels_first
from vitmix.lab.figures.gradient import gradient_saliency
from vitmix.lab.figures.models import short_names, without_dropout
from vitmix.lab.figures.occlusion import PARTS, cell_orders, confidence, occluded
from vitmix.lab.figures.samples import mixing_pair
from vitmix.lab.plotting import ImageGrid, Section, Tile, TileRow, render_grid
from vitmix.lab.plotting.canvas import OWN, PARTNER, SHARE
from vitmix.lab.plotting.grid import folded, overlay, unit_scale
from vitmix.lab.plotting.render import HEAD_SIZE, grid_figure
from vitmix.lab.plotting.text import any_script, fitted, text_width
from vitmix.lab.show import run_methods
from vitmix.parts.masks import NoMask

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", dict(patch_size=8, embed_dim=24, depth=3, num_heads=3)),
    "cait": ("cait_xxs24_224", dict(patch_size=8, embed_dim=24, depth=2, num_heads=3)),
    "swin": (
        "swin_tiny_patch4_window7_224",
        dict(patch_size=4, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)),
    ),
    "pvt": ("pvt_v1_tiny", dict(embed_dims=(8, 8, 16, 16), num_heads=(1, 2, 2, 4), depths=(1, 1, 1, 2))),
    "cnn": ("test_resnet", {}),
    "unread": ("test_efficientnet", {}),
}
ATTENTIVE = ("vit", "cait", "swin", "pvt")
NAMES = tuple(f"c{number}" for number in range(10)) + ("arrow", "ring")


def build(kind: str, size: int = 32) -> nn.Module:
    torch.manual_seed(3)
    name, settings = MODELS[kind]
    shape = {"num_classes": 12} if kind in ("cnn", "unread") else {"num_classes": 12, "img_size": size}
    model = timm.create_model(name, **shape, **settings)
    for parameter_name, parameter in model.named_parameters():  # else attention is nearly uniform
        if any(part in parameter_name for part in ("qkv.weight", ".q.weight", ".kv.weight", ".k.weight")):
            parameter.data.normal_(0, 0.4)
    without_dropout(model)
    return model


def named(kind: str, **settings: Any) -> NamedModel:
    plain = Augmentation(32, mean=(0.5,) * 3, std=(0.5,) * 3, crop_pct=1.0)
    return NamedModel(kind, build(kind), plain, 12, NAMES, **settings)


def images_of(*texts: str) -> list:
    return [read_image(text, 32) for text in texts or ("shapes:1", "shapes:46")]


def some_images(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


# Attention


def test_rollout_of_known_matrices():
    model = timm.create_model(MODELS["vit"][0], img_size=(8, 16), patch_size=8, embed_dim=8, depth=2, num_heads=1)
    first = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])  # tokens: class, left, right
    second = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    flows = [Given(each.view(1, 1, 3, 3), prefix=1) for each in (first, second)]
    # After the second block the class token is (2 class + left + right) / 4. In each token, after the first:
    # class (6 class + left + right) / 8, left all left, right (class + 3 right) / 4. Together:
    expected = [2 / 4 * 1 / 8 + 1 / 4, 2 / 4 * 1 / 8 + 1 / 4 * 3 / 4]
    assert roll_out(read_model(model), flows, (8, 16)).flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", ATTENTIVE)
def test_rollout_is_what_the_aligned_target_reads(kind):
    """The target is linear in the input's shares, and rollout its weights; the class token starts with the area."""
    model, images = build(kind), some_images()
    with mixing_pair(model, create("tl_align", 12), images, [0, 1], 5) as (mixing, batch), torch.no_grad():
        model(batch.images)
        share = mixing.targets(batch)[0, 1]
    rolled = attention_rollout(model, batch.images)
    reader = read_model(model)
    start = batch.tape.token_share[-1][:1, reader.block(0).prefix :]
    assert rolled.shape[1:] == reader.grids((32, 32))[0]
    area = batch.tape.image_share[0]
    read = (rolled[:1].flatten(1) * start).sum() + (1 - rolled[0].sum()) * area
    assert float(read) == pytest.approx(float(share), abs=1e-5)


@pytest.mark.parametrize("kind", ATTENTIVE)
def test_heads_average_to_the_blocks_attention(kind):
    model, images = build(kind), some_images()
    maps = block_attention(model, images)
    assert list(maps) == list(range(read_model(model).depth))
    for block in (0, -1):
        heads = head_attention(model, images, block)
        torch.testing.assert_close(heads.mean(1), maps[block % len(maps)], atol=1e-5, rtol=1e-4)


def test_blocks_are_chosen_from_either_end_and_evenly():
    assert chosen_blocks(3, None) == [0, 1, 2] and chosen_blocks(1, None) == [0]
    assert chosen_blocks(24, None, most=4) == [0, 8, 15, 23]
    assert chosen_blocks(4, [-1, 0, 3]) == [0, 3]
    with pytest.raises(ValueError, match="block 4 is out of range"):
        chosen_blocks(4, [4])


# Grad-CAM


class Linear(nn.Module):
    """Features are the image, logits a linear function of their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 3, 1)
        self.head = nn.Linear(3, 2)
        self.features.weight.data = torch.eye(3).view(3, 3, 1, 1)
        self.features.bias.data.zero_()
        self.head.weight.data = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, -1.0]])

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


def test_grad_cam_of_a_linear_model_is_its_weighted_image():
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    found = grad_cam(Linear(), images, [0, 1])
    for cam, by_hand in zip(found, (images[0, 0], 2 * images[1, 1] - images[1, 2]), strict=True):
        positive = by_hand.clamp_min(0)
        scaled = (positive - positive.min()) / (positive.max() - positive.min())
        torch.testing.assert_close(cam, scaled, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", MODELS)
def test_grad_cam_of_every_family(kind):
    model = build(kind, size=64)
    before = [module.training for module in model.modules()]
    cams = grad_cam(model, some_images(64), [1, 2])
    assert cams.shape == (2, 64, 64) and float(cams.min()) >= 0 and float(cams.max()) <= 1
    assert float(cams.std()) > 0 and [module.training for module in model.modules()] == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_features_of_every_layout_become_a_grid():
    grid = torch.arange(24.0).view(1, 4, 2, 3)
    tokens = torch.cat([torch.full((1, 2, 4), -1.0), grid.flatten(2).mT], 1)
    for features in (grid, grid.movedim(1, -1), tokens):
        assert torch.equal(to_channels_first(features, (2, 3)), grid)


def test_grad_cam_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_grad_cam", None)
    with pytest.raises(ValueError, match=r'grad-cam .* pip install "vitmix\[eval\]"'):
        grad_cam(Linear(), some_images(), [0, 1])


# Labels and occlusion


@pytest.mark.parametrize("kind", [*ATTENTIVE, "cnn"])
def test_label_maps_start_as_the_mask_and_are_all_own_when_unmixed(kind):
    model = build(kind)
    aligned = create("tl_align", 12)
    for mixer, mixed in ((aligned, True), (replace(aligned, mask=NoMask()), False)):
        with mixing_pair(model, mixer, some_images(), [0, 1], 5) as (mixing, batch), torch.no_grad():
            model(batch.images)
            mixing.targets(batch)
            maps = label_maps(mixing, batch)
        grids = [read_model(model).embed_grid((32, 32)), *read_model(model).grids((32, 32))]
        assert [each.grid.shape for each in maps] == grids
        if mixed:
            area = float(batch.mix.mask[0].float().mean())
            assert float(maps[0].grid.mean()) == pytest.approx(area, abs=0.05 if kind == "cnn" else 1e-5)
            assert all(0 < each.read < 1 for each in maps)
        else:
            assert not any(each.grid.any() or each.read for each in maps)


def test_own_tokens_are_blue():
    colors = overlay(torch.zeros(3, 8, 8), torch.zeros(2, 2), "share", strength=1.0)
    assert colors[0, 0] == pytest.approx([int(OWN[place : place + 2], 16) / 255 for place in (1, 3, 5)], abs=0.01)
    assert SHARE(1.0)[0] > SHARE(1.0)[2]


def test_overlay_places_each_value_over_its_cell():
    values = torch.tensor([[0.0, 1.0], [0.5, 0.25]])
    colors = overlay(torch.rand(3, 6, 4), values, "heat", strength=1.0)
    for row in range(2):
        for column in range(2):
            cell = colors[3 * row : 3 * row + 3, 2 * column : 2 * column + 2]
            assert (cell == cell[0, 0]).all()
    assert colors[0, 2:].mean() > colors[3, :2].mean() > colors[0, :2].mean()
    assert not unit_scale(torch.ones(2, 2)).any() and unit_scale(values).max() == 1


def test_occlusion_grows_cell_by_cell():
    pixels = torch.rand(3, 8, 8) + 0.1
    order = cell_orders((4, 4), 1, 0)[0]
    before = torch.zeros(8, 8, dtype=torch.bool)
    for part in PARTS:
        black = (occluded(pixels, order, part, (4, 4)) == 0).all(0)
        assert int(black.sum()) == 4 * round(16 * part) and (black | before).equal(black)
        before = black
    assert torch.equal(occluded(pixels, order, 0, (4, 4)), pixels)


def test_confidence_by_hand():
    class Brightness(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            mean = images.mean((1, 2, 3))
            return torch.stack([mean, torch.zeros_like(mean)], 1)

    images = torch.stack([torch.full((3, 4, 4), value) for value in (0.0, 1.0, -2.0)])
    expected = torch.sigmoid(torch.tensor([0.0, 1.0, -2.0]))
    torch.testing.assert_close(confidence(Brightness(), images, 0, batch=2), expected)


# Grids


def grid_of(kind: str, *models: str, methods: tuple[str, ...] = (), **settings: Any) -> ImageGrid:
    if kind == "gallery" and not methods:
        methods = ("cutmix", "mixup | tokenmix(grid=[4, 4], loss=ce)")
    return KINDS[kind](FigureInputs([named(each) for each in models], images_of(), methods), **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["vit", "swin", "cait", "cnn"])
def test_every_kind_on_every_model(kind, model):
    if model == "cnn" and kind in ("attention", "rollout", "heads"):
        with pytest.raises(ValueError, match="needs attention"):
            grid_of(kind, model)
        return
    assert render_grid(grid_of(kind, model), dpi=30).startswith(b"\x89PNG")


def test_models_stand_side_by_side():
    same = grid_of("attention", "vit", "vit")
    assert len(same.sections) == 1 and len(same.sections[0].rows) == 4
    different = grid_of("attention", "vit", "swin")
    assert [len(section.heads) for section in different.sections] == [4, 5] and render_grid(different, dpi=30)
    assert grid_of("rollout", "vit", "swin").sections[0].heads == ("image", "vit", "swin")
    mixed = grid_of("gradcam", "vit", "cait", methods=("smmix",)).sections[0]  # each model chooses its own window
    assert mixed.heads[0] == "vit: image" and len(mixed.heads) == len(mixed.rows[0].tiles) == 6
    curves = grid_of("occlusion", "vit", "unread").sections[0].curves
    assert [curve.name for curve in curves] == ["vit", "unread"] and len(curves[0].values) == len(PARTS)


@pytest.mark.parametrize("kind", ["attention", "rollout", "heads", "gradcam"])
@pytest.mark.parametrize("method", ["none", "transmix", "tl_align", "smmix", "tokenmix(label=activation)"])
def test_every_method_is_shown_mixed_with_its_own_target(kind, method):
    models, pair = [named("vit")], images_of()
    expected = run_methods(models[0], pair, [method], seed=2).results[0]
    tile = KINDS[kind](FigureInputs(models, pair, [method], seed=2)).sections[0].rows[0].tiles[0]
    assert torch.allclose(torch.from_numpy(tile.pixels).permute(2, 0, 1), expected.mixed, atol=1e-6)
    parts = [expected.own, expected.partner] if method != "none" else []
    assert tile.caption.splitlines() == (
        [f"{each.name} {part:.0%}" for each, part in zip(pair, parts, strict=True)] if parts else [pair[0].name]
    )


def test_gradient_saliency_is_that_of_finite_differences():
    """Slow twin: the loss of an image with one color of one pixel changed."""
    model = named("vit").model.double().eval()
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    found = gradient_saliency(model, images, [1])[0]
    for row, column in ((3, 5), (20, 31)):
        slopes = []
        for channel in range(3):
            shift = torch.zeros_like(images)
            shift[0, channel, row, column] = 1e-5
            with torch.no_grad():
                losses = [-model(images + sign * shift).log_softmax(1)[0, 1] for sign in (1, -1)]
            slopes.append(float(losses[0] - losses[1]) / 2e-5)
        assert float(found[row, column]) == pytest.approx((sum(each**2 for each in slopes) / 3) ** 0.5, rel=1e-5)
    assert model.training is False and all(parameter.grad is None for parameter in model.parameters())


def test_gradients_stand_beside_attention():
    assert grid_of("gradient", "vit").sections[0].heads == ("image", "attention", "gradient")
    assert grid_of("gradient", "vit", "cnn").sections[0].heads == ("image", "vit: gradient", "cnn: gradient")


def test_hidden_mixing_shows_in_the_heads():
    rows = grid_of("heads", "vit").sections[0].rows
    assert [row.label for row in rows] == ["none", "manifold", "htm(block=2)"]
    maps = [row.tiles[1].pixels for row in rows]
    assert (maps[0] != maps[1]).any() and (maps[0] != maps[2]).any() and (maps[1] != maps[2]).any()


def test_a_method_that_took_nothing_says_so():
    tile = grid_of("heads", "vit", methods=("htm(block=2, rho=1)",)).sections[0].rows[0].tiles[0]
    assert [line.split()[-1] for line in tile.caption.splitlines()] == ["100%", "0%"]


def test_only_right_keeps_what_every_model_names():
    model = named("vit")
    seen = model.classes[model.predicted(images_of())[0]]
    other = next(name for name in NAMES if name != seen)
    first, second = images_of("shapes:1", "shapes:1")
    images = [replace(first, name=seen), replace(second, name=other)]
    grid = KINDS["gradcam"](FigureInputs([model], images), only_right=True)
    assert [row.tiles[0].caption for row in grid.sections[0].rows] == [seen]
    with pytest.raises(ValueError, match="no image is classified correctly by all models"):
        KINDS["gradcam"](FigureInputs([model], images[1:]), only_right=True)
    with pytest.raises(ValueError, match="class of 'photo' is not known"):
        KINDS["gradcam"](FigureInputs([model], [replace(first, name="photo")]), only_right=True)


@pytest.mark.parametrize(
    ("kind", "methods", "words"),
    [
        ("labels", ("cutmix",), "does not carry labels"),
        ("gradcam", ("htm",), "mixes inside the network"),
        ("attention", ("vtm(tokens=2)",), "no place in the image"),
        ("occlusion", ("cutmix",), "unmixed"),
    ],
)
def test_methods_that_make_no_sense_are_refused(kind, methods, words):
    with pytest.raises(ValueError, match=words):
        grid_of(kind, "vit", methods=methods)


def section_of(count: int, **settings: Any) -> Section:
    tiles = tuple(Tile(np.zeros((2, 2, 3)), str(number)) for number in range(count))
    return Section(tuple(map(str, range(count))), (TileRow(tiles, "one"), TileRow(tiles, "two")), **settings)


@pytest.mark.parametrize(
    ("count", "fit", "settings", "expected"),
    [
        (5, 5, {}, ["01234"]),
        (9, 5, {"lead": 1}, ["01234", "05678"]),
        (6, 5, {"lead": 2}, ["0123", "0145"]),
        (9, 5, {"unit": 3}, ["012", "345", "678"]),
        (7, 4, {"lead": 1, "unit": 2}, ["012", "034", "056"]),
        (7, 4, {"curves": ("any",)}, ["0123456"]),
        (3, 1, {"lead": 1}, ["01", "02"]),
    ],
)
def test_columns_that_do_not_fit_a_page_go_on_below(count, fit, settings, expected):
    parts = folded(section_of(count, **settings), fit)
    assert ["".join(part.heads) for part in parts] == expected
    for part in parts:
        assert [row.label for row in part.rows] == ["one", "two"]
        assert all("".join(tile.caption for tile in row.tiles) == "".join(part.heads) for row in part.rows)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("count", [2, 5, 9, 14, 26])
def test_figures_are_never_wider_than_a_page(count, labels):
    section = section_of(count, lead=1)
    rows = section.rows if labels else tuple(replace(row, label="") for row in section.rows)
    svg = render_grid(ImageGrid((replace(section, rows=rows),)), suffix=".svg").decode()
    width = re.search(r'width="([0-9.]+)pt"', svg)
    assert width is not None and float(width[1]) / 72 <= 7.2 + 1e-6


def test_untrained_models_are_said():
    untrained = FigureInputs([named("vit", trained=False)], images_of())
    assert "UNTRAINED" in KINDS["rollout"](untrained).footer
    assert "UNTRAINED" not in grid_of("rollout", "vit").footer


def test_names_are_told_apart():
    assert short_names(["runs/a", "runs/b"]) == ["a", "b"]
    assert short_names(["x/run", "y/run"]) == ["x/run", "y/run"]


def test_curves_of_different_classes_say_so() -> None:
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = timm.create_model("vit_tiny_patch16_224", **(SMALL_VIT | {"num_classes": 12})).eval()
        torch.nn.init.zeros_(model.head.weight)
        with torch.no_grad():
            model.head.bias[seed] = 9
        models.append(NamedModel(f"m{seed}", model, Augmentation(32, crop_pct=1.0), outputs=12))
    (section,) = KINDS["occlusion"](FigureInputs(models, [read_image("shapes:1", 32)])).sections
    assert "class 0" not in section.axes[1]
    assert [curve.name for curve in section.curves] == ["m0: class 0", "m1: class 1"]


# Names


LONG = "n02056570_king_penguin"


@pytest.mark.parametrize(
    ("words", "lines", "expected"),
    [
        ("sock", 1, ["sock"]),
        (LONG, 1, ["…king_penguin"]),
        (LONG, 2, [LONG]),
        (f"{LONG} 54%", 2, ["n02056570_king_", "penguin 54%"]),
        ("n01774384_black_widow_spider", 1, ["…widow_spider"]),
        ("a" * 300, 1, ["…" + "a" * 15]),
    ],
)
def test_names_are_cut_in_front(words: str, lines: int, expected: list[str]) -> None:
    width = 1.2 if words == LONG and lines == 2 else 0.95
    assert fitted(words, width, size=6.5, lines=lines) == expected


def test_heads_are_not_broken_between_letters() -> None:
    methods = ["own", "saliencymix", "attentive_cutmix", "decouplemix", *("mixup",) * 6]
    tiles = (Tile(np.zeros((4, 4, 3))),) * len(methods)
    with any_script():
        figure = grid_figure(ImageGrid((Section(tuple(methods), (TileRow(tiles),)),)))
    texts = [each for each in figure.findobj(Text) if each.get_text()]
    found = {each.get_text() for each in texts}
    assert {"saliencymix", "attentive_", "cutmix", "decouplemix"} <= found
    sizes = {each.get_fontsize() for each in texts if each.get_text() in ("own", "saliencymix")}
    assert len(sizes) == 1 and 5 < sizes.pop() < HEAD_SIZE


@given(st.text("abM _-:W猫", max_size=60), st.floats(0.3, 2), st.integers(1, 3))
def test_fitted_words_fit(words: str, width: float, lines: int) -> None:
    with any_script():
        found = fitted(words, width, size=7, lines=lines)
        assert len(found) <= lines and all(text_width(line, 7) <= width for line in found)
    shown, whole = ("".join("".join(each).split()) for each in (found, words))
    assert shown == whole or shown.startswith("…") and whole.endswith(shown[1:]) and len(shown) > 1


@pytest.mark.parametrize("kind", ["gallery", "labels", "occlusion"])
def test_long_names_touch_nothing(kind: str) -> None:
    names = [LONG, "n01774384_black_widow_spider"]
    shown = [replace(image, name=name) for image, name in zip(images_of(), names, strict=True)]
    one = replace(named("vit"), classes=(*names, *NAMES[2:]))
    methods = ["cutmix"] * 7 if kind == "gallery" else ()
    with any_script():
        figure = grid_figure(KINDS[kind](FigureInputs([one], shown, methods)))
        FigureCanvasAgg(figure).draw()
        words = [each for each in figure.findobj(Text) if isinstance(each, Text) and each.get_text().strip()]
        texts = [each for each in words if each.get_window_extent().width > 1]  # the others do not show
        boxes = [each.get_window_extent() for each in texts]
    assert any("penguin" in each.get_text() for each in texts)
    for number, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, texts[number].get_text()
        for other, box_of_other in zip(texts[:number], boxes, strict=False):
            assert not box.overlaps(box_of_other), (texts[number].get_text(), other.get_text())
        for axes in (each.get_window_extent() for each in figure.axes if each.images):
            assert not box.overlaps(axes), texts[number].get_text()


def test_the_partner_has_one_color() -> None:
    """Readers of all figures and of reports learn the colors once."""
    cells = overlay(torch.zeros(3, 1, 2), torch.tensor([[0.0, 1.0]]), "share", strength=1)[0]
    assert cells[0] == pytest.approx(to_rgb(OWN)) and cells[1] == pytest.approx(to_rgb(PARTNER))
