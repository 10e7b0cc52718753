"""`vitmix explore` below its page: controls, compositions, scenes, uploads, links."""

import base64
import dataclasses
import inspect
import io
import random
import re
import shutil
import socket
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import vitmix
from explore_page import PLAIN, explorer, small_model
from support import ROOT
from training import one_thread, train  # noqa: F401
from vitmix._mixer import Mixer
from vitmix._registry import KINDS, METHODS, parts
from vitmix.lab.cli.main import main
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.data.decoding import FORMATS
from vitmix.lab.explore import models as models_of_page
from vitmix.lab.explore import photos
from vitmix.lab.explore.composition import Composition, composition_of
from vitmix.lab.explore.controls import Control, controls_of
from vitmix.lab.explore.explorer import Explorer, code_of, method_text
from vitmix.lab.explore.markup import RULES, depth_html, scene_html
from vitmix.lab.explore.messages import sentence_of, without_paths
from vitmix.lab.explore.models import Models, OpenedModel, Place, places_of
from vitmix.lab.explore.photos import MOST_PIXELS, open_image, photo_names
from vitmix.lab.explore.rules import Bar
from vitmix.lab.explore.scene import Scene, Stage, make_pair, play
from vitmix.lab.explore.state import State, read_query
from vitmix.lab.figures import NamedModel, read_image
from vitmix.lab.runs import Run
from vitmix.lab.show import run_methods

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "mix(mask=box(alpha=0.5, grid=[2, 3]), share=prior(times=attention), pairing=rolled(by=3), smoothing=0.1) "
    "+ region(weight=0.5) + vtm(tokens=3)",
    "tokenmix(share=0.3, label=activation)",
    "smmix(blocks=all)",
    "mix(mask=salient_box(blocks=[1, 2]), extra=[region, consistency])",
    "cutmix(alpha=0.25, loss=bce) + htm(block=1)",
    "mix",
    "none(smoothing=0.1)",
]


def images() -> list:
    return [read_image(text, 32) for text in ("shapes:1", "shapes:46")]


def scene_of(text: str, model: NamedModel | None = None, seed: int = 3) -> Scene:
    model = model or small_model()
    return play(model, make_pair(model, images()), text, seed)


# Controls


def test_every_setting_has_a_control():
    """Against the registry: the fields of parts and the arguments of methods, but for parts, which have menus."""
    for kind in KINDS:
        for part in parts(kind).values():
            assert [each.name for each in controls_of(part)] == [field.name for field in dataclasses.fields(part)]
    for name, method in METHODS.items():
        parameters = inspect.signature(method).parameters.values()
        own = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        found = [each.name for each in controls_of(method)]
        assert found[: len(own)] == own and {"smoothing", "loss"} <= set(found), name


def test_the_kind_of_a_control_is_what_the_setting_takes():
    found = {each.name: each for each in controls_of(METHODS["tokenmix"])}
    assert found["share"].kind == "fraction" and found["alpha"].kind == "text" and found["grid"].kind == "text"
    assert found["preset"].choices == ("separate", "paper", "released")
    assert {each.name: each.kind for each in controls_of(METHODS["tl_align"])} == {
        **{"alpha": "number", "per": "choice", "aligned": "switch", "blocks": "text", "normalize": "switch"},
        **{"smoothing": "fraction", "loss": "choice"},
    }
    low = next(each for each in controls_of(METHODS["smmix"]) if each.name == "high")
    assert low.help == "range of the window's sides, as fractions of the grid's sides."  # said of low and high


def test_every_control_says_what_it_does():
    for thing in (*METHODS.values(), *(part for kind in KINDS for part in parts(kind).values())):
        assert [each.name for each in controls_of(thing) if not each.help] == [], thing


def test_registered_parts_and_methods_get_controls(own_parts):
    for name in METHODS:
        composition = composition_of(name)
        assert composition is not None and list(composition.controls())
    for kind in KINDS:
        for part in parts(kind).values():
            assert {each.name for each in controls_of(part)} == {each.name for each in dataclasses.fields(part)}


@pytest.mark.parametrize(
    ("kind", "value", "setting"),
    [("text", "[2, 3]", (2, 3)), ("text", "none", None), ("text", "", None), ("text", "all", "all")]
    + [("choice", "max", "max"), ("whole", 3.0, 3), ("number", 2, 2.0), ("switch", True, True)],
)
def test_widgets_become_settings(kind, value, setting):
    assert Control("name", kind, None).read(value) == setting


@pytest.mark.parametrize("value", ["1, b=2", "f(a=1)", "]", "1) + htm("])
def test_a_text_cannot_say_more_than_its_setting(value):
    with pytest.raises(ValueError):
        Control("name", "text", None).read(value)


@pytest.mark.parametrize("text", TEXTS)
def test_compositions_say_what_texts_say(text):
    composition = composition_of(text)
    assert composition is not None and vitmix.create(composition.text(), 5) == vitmix.create(text, 5)
    assert composition_of(composition.text()) == composition


@pytest.mark.parametrize("text", ["mixup | cutmix", "cutmix + htm(block=1) + htm(block=2)"])
def test_what_menus_cannot_show_has_no_composition(text):
    assert composition_of(text) is None


def test_settings_at_their_default_are_left_out():
    assert Composition("mixup", values={"base.alpha": 0.8, "base.per": "batch"}).text() == "mixup"
    assert Composition("mixup", values={"base.alpha": 0.5}).text() == "mixup(alpha=0.5)"


# Scenes


def test_bars_are_the_targets_of_the_methods():
    """Slow twin: each rule's bar is the target of the method that is defined by it, computed by `vitmix show`."""
    twins = {
        "area": "cutmix",
        "attention": "transmix",
        "aligned": "tl_align",
        "activation": "mix(mask=box, share=activation)",
        "prior": "mix(mask=box, share=prior)",
    }
    model = small_model()
    shown = run_methods(model, images(), list(twins.values()), seed=3).results
    for method in ("cutmix", "tl_align", "cutmix + vtm(block=1, tokens=2)"):
        bars = {bar.rule: bar for bar in scene_of(method, model).bars}
        for rule, result in zip(twins, shown, strict=True):
            assert (bars[rule].own, bars[rule].partner) == pytest.approx((result.own, result.partner), abs=1e-5)
    assert len({round(result.partner, 5) for result in shown}) == len(shown)


@pytest.mark.parametrize(
    "method", ["mixup", "cutmix", "transmix", "smmix", "htm(block=1)", "tokenmix(label=activation)"]
)
def test_scenes_show_what_vitmix_show_shows(method):
    model = small_model()
    (shown,), scene = run_methods(model, images(), [method], seed=3).results, scene_of(method, model)
    assert (scene.method.own, scene.method.partner) == pytest.approx((shown.own, shown.partner), abs=1e-5)
    assert torch.equal(scene.method.origin, shown.origin) and torch.allclose(scene.method.mixed, shown.mixed)
    assert [each.caption for each in scene.method.statistics] == [each.caption for each in shown.statistics]
    for here, there in zip(scene.method.statistics, shown.statistics, strict=True):
        torch.testing.assert_close(here.grid, there.grid, atol=1e-5, rtol=1e-4)


def test_shares_are_carried_from_the_mask_to_the_target():
    scene = scene_of("tl_align")
    assert len(scene.blocks) == 4 and scene.blocks[-1].read == pytest.approx(scene.method.partner, abs=1e-6)
    spread = [float(block.share.std()) for block in scene.blocks if block.share is not None]
    assert len(spread) == 4 and spread[0] > spread[-1]  # attention mixes the tokens


def test_predictions_are_those_of_the_model():
    model = small_model()
    scene = scene_of("cutmix", model)
    pixels = torch.stack([*scene.pair.pixels, scene.method.mixed])
    with torch.no_grad():
        expected = model.model.eval()(model.inputs(pixels)).softmax(-1).topk(5)
    for found, values, labels in zip(scene.predictions, *expected, strict=True):
        assert [each.name for each in found] == [f"class {label}" for label in labels]
        assert [each.probability for each in found] == pytest.approx(values.tolist(), abs=1e-4)


def test_an_answer_takes_few_passes_of_the_model():
    """Its time is that of the passes: one, one more for a guide, one more if tokens are mixed inside the network."""
    model, passes = small_model(), []
    stage, pair = Stage(), images()
    stage.pair(model, pair)
    model.model.register_forward_hook(lambda *_: passes.append(1))
    for text, most in (("cutmix", 1), ("tl_align", 1), ("transmix", 1), ("smmix", 2), ("vtm(block=1, tokens=2)", 2)):
        passes.clear()
        stage.scene(model, pair, text)
        assert 1 <= len(passes) <= most, text
        passes.clear()
        stage.scene(model, pair, text)
        assert not passes  # remembered, so the slider through the depth runs no model


def test_a_target_above_one_says_so():
    """TokenMix's activation labels, whose bar is scaled."""
    model, images = small_model(), [read_image(text, 32) for text in ("shapes:1", "shapes:46")]
    scene = play(model, make_pair(model, images), "cutmix")
    high = dataclasses.replace(scene, bars=(Bar("activation", 0.6, 0.8), Bar("area", 0.4, 0.6)))
    assert re.findall(r"sum \d+%", scene_html(high)) == ["sum 140%"]


def test_every_label_rule_says_where_it_comes_from():
    assert list(RULES) == list(parts("share"))
    needing = {name for name, share in parts("share").items() if share().needs.maps}
    assert {name for name, words in RULES.items() if "with the model's maps" in words} == needing  # not a teacher's


def test_a_model_that_was_closed_leaves_no_answers_to_another():
    """Python gives its number, `id`, to a later model."""
    stage, models = Stage(), [small_model() for _ in range(12)]
    for label, model in enumerate(models):
        model.model.head.bias.data[label] = 50.0
    for label in range(12):
        scene = stage.scene(dataclasses.replace(models[label]), images(), "cutmix")
        assert scene.predictions[0][0].name == f"class {label}"


def test_a_switch_draws_by_the_seed():
    drawn = {scene_of("mixup | cutmix", seed=seed).drawn for seed in range(8)}
    assert drawn == {"mixup (50% of batches)", "cutmix (50% of batches)"}


def test_images_of_the_same_class_keep_two_parts():
    model = small_model()
    pair = dataclasses.replace(make_pair(model, images()), labels=(11, 11))
    method = play(model, pair, "cutmix").method
    assert method.own + method.partner == pytest.approx(1) and 0 < method.partner < 1


def test_models_that_cannot_be_read_still_show_something():
    torch.manual_seed(0)
    model = NamedModel("", timm.create_model("test_resnet", num_classes=4), Augmentation(64, crop_pct=1.0), 4)
    found = play(model, make_pair(model, images()), "cutmix")
    assert scene_html(found) and depth_html(found, 1)
    missing = {bar.rule for bar in found.bars if bar.missing}
    assert "attention" in missing and "area" not in missing
    plain = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4))
    model = NamedModel("", plain, PLAIN, 4)
    found = play(model, make_pair(model, images()), "mixup")
    assert found.blocks == () and "cannot be read" in depth_html(found, 1) and scene_html(found)


def draw_value(control: Control, dice: random.Random):
    """A setting within reason; texts stay at their default, or take what `blocks` and `grid` take."""
    if control.kind == "fraction":
        return round(dice.random(), 2)
    if control.kind == "number":
        return round(dice.uniform(0.05, 2), 2)
    if control.kind == "whole":
        return dice.choice([control.default, 1, 2, 3])
    if control.kind == "switch":
        return dice.random() < 0.5
    if control.kind == "choice":
        return control.read(dice.choice(control.choices))
    return {"blocks": dice.choice(["all", (1, -1), (0,)]), "grid": dice.choice([None, (4, 4)])}.get(
        control.name, control.default
    )


def draw_composition(dice: random.Random) -> Composition:
    def some(kind: str) -> tuple[str, ...]:
        return tuple(name for name in parts(kind) if dice.random() < 0.3)

    base = "mix" if dice.random() < 0.7 else dice.choice(list(METHODS))
    mask, share, pairing = (dice.choice(list(parts(kind))) for kind in ("mask", "share", "pairing"))
    composition = Composition(base, mask, share, some("extra"), some("inner"), pairing)
    values = {key: draw_value(control, dice) for key, _, control in composition.controls() if dice.random() < 0.5}
    return dataclasses.replace(composition, values=values)


def test_fifty_random_compositions():
    """Every composition that the library allows is shown; the others are refused with one sentence."""
    dice, model, pair = random.Random(0), small_model(), None
    pair = make_pair(model, images())
    shown, refused = 0, 0
    while shown < 50:
        text = draw_composition(dice).text()
        try:
            vitmix.create(text, 12).attach(model.model).close()
        except ValueError as problem:
            assert "\n" not in str(problem)
            refused += 1
            assert refused < 150
            continue
        scene = play(model, pair, text, seed=shown)
        assert scene.method.own >= 0 and scene.method.partner >= 0, text
        assert all(np.isfinite([bar.own, bar.partner]).all() for bar in scene.bars), text
        assert scene_html(scene) and depth_html(scene, 1 + shown % 4)
        shown += 1


def test_parts_and_methods_of_others_are_shown(own_parts):
    model = small_model()
    pair = make_pair(model, images())
    own = {kind: [name for name, part in parts(kind).items() if part.__module__ == "own_parts"] for kind in KINDS}
    assert all(own[kind] for kind in ("mask", "share", "extra", "inner"))
    texts = [f"mix(mask={name})" for name in own["mask"]] + [f"mix(mask=box, share={name})" for name in own["share"]]
    texts += [f"cutmix + {name}" for kind in ("extra", "inner") for name in own[kind]]
    texts += [name for name, method in METHODS.items() if method.__module__ == "own_parts"]
    for text in texts:
        scene = play(model, pair, text)
        assert {*own["share"]} <= {bar.rule for bar in scene.bars} and scene_html(scene), text


def test_gradients_are_of_the_images_own_classes(registry_kept):
    """A mask that needs the guide's gradient gets that of the loss of the predicted or named classes."""
    seen = []

    @vitmix.register
    @dataclasses.dataclass(frozen=True)
    class SteepestMask(vitmix.Mask):
        """Pastes the partner where its gradient is larger."""

        name = "steepest"

        @property
        def needs(self):
            return vitmix.Needs(guide_gradient=True)

        def where(self, values, batch):
            seen.append((batch.rows.argmax(1).tolist(), batch.guidance.gradient))
            return vitmix.Paste(batch.guidance.gradient[batch.partner] > batch.guidance.gradient)

    model = small_model()
    pair = make_pair(model, images())
    scene = play(model, pair, "mix(mask=steepest, share=attention)")
    (rows, gradient), images_in = seen[0], pair.inputs.clone().requires_grad_()
    assert rows == list(pair.labels) and 0 < scene.method.partner < 1
    loss = torch.nn.functional.cross_entropy(model.model(images_in), torch.tensor(pair.labels), reduction="sum")
    (expected,) = torch.autograd.grad(loss, images_in)
    torch.testing.assert_close(gradient, expected.square().mean(1).sqrt(), atol=1e-6, rtol=1e-4)


# Images


def data_url(image: Image.Image, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def test_ready_photographs_are_free_and_open_without_a_download(monkeypatch):
    pytest.importorskip("skimage", reason="needs scikit-image")
    monkeypatch.setattr("socket.socket", None)
    assert photo_names()[:2] == ["cat", "coffee"]
    for name in photo_names():
        assert open_image(name, 32).image.mode == "RGB"
        assert photos.credit(name).endswith(("CC0", "public domain", "computed by vitmix"))


def test_without_scikit_image_there_are_computed_images(monkeypatch):
    monkeypatch.setattr(photos.importlib.util, "find_spec", lambda name: None)
    assert photo_names() == list(photos.SHAPES)


def test_uploads_are_read_and_shrunk():
    assert open_image(data_url(Image.new("L", (2000, 100))), 32).image.size == (640, 32)
    assert open_image(data_url(Image.new("RGB", (50, 70)), "JPEG"), 32).image.size == (50, 70)


def eps() -> str:
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize("kind", FORMATS)
def test_uploads_of_usual_formats_are_read(kind):
    assert open_image(data_url(Image.new("RGB", (40, 30), "red"), kind), 32).image.size == (40, 30)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/etc/passwd", "unknown image"),
        ("../cat", "unknown image"),
        ("shapes:1", "unknown image"),
        ("data:text/html;base64,AAAA", "must be an image"),
        ("data:image/png;base64,AAA", "damaged"),
        ("data:image/png;base64,AAAA", "not an image of a known kind"),
        (eps(), "not an image of a known kind"),  # Pillow would run Ghostscript
        ("data:image/png;base64," + "A" * (17 * 2**20), "may have 12 MB"),
    ],
)
def test_what_is_no_image_gets_a_sentence(source, words):
    with pytest.raises(ValueError, match=words):
        open_image(source, 32)


def test_an_upload_that_is_missing_is_asked_for():
    with pytest.raises(ValueError, match="no image is uploaded yet; drop one"):
        open_image("", 32)


def test_uploads_of_many_pixels_are_refused_before_they_are_unpacked():
    side = int(MOST_PIXELS**0.5) + 1
    with pytest.raises(ValueError, match="more than the 24,000,000 allowed"):
        open_image(data_url(Image.new("1", (side, side))), 32)


# States, texts


def test_links_restore_the_state():
    usual = State(first="shapes 1", second="shapes 46", model="small")
    for method in TEXTS:
        state = State(method, "shapes 7", "shapes 1", "a/b", 17, 3)
        from urllib.parse import parse_qsl

        assert read_query(dict(parse_qsl(state.query())), usual) == state


def test_links_are_not_trusted():
    usual = State(first="shapes 1", second="shapes 46", model="small")
    query = {"first": "/etc/passwd", "second": "<script>", "seed": "-1", "block": "9" * 30, "method": ""}
    assert read_query(query, usual) == usual
    assert explorer().restore({"method": "no_such(", "model": "small"}).method == usual.method
    assert State(first=photos.UPLOADED).query() == "method=tl_align"


def test_names_are_escaped():
    scene = dataclasses.replace(scene_of("cutmix"), names=("<script>a", "b&c"))
    assert "<script" not in scene_html(scene) and "&lt;script&gt;a" in scene_html(scene)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("there is no run folder and no file /home/me/runs/one", "there is no run folder and no file one"),
        ("'/a/b/c.safetensors' is damaged", "'c.safetensors' is damaged"),
        (r"C:\Users\me\run is damaged", "run is damaged"),
        ("in ../../other/run, 1/2 of and/or 5 images/s", "in run, 1/2 of and/or 5 images/s"),
        ("no /secret and no /root, but /tmp/x/", "no secret and no root, but x/"),
        ("'/my data, all/of it/one run' is damaged", "'one run' is damaged"),
        ('in "~me/a b/c d.pt", 3 / 4', 'in "c d.pt", 3 / 4'),
        ("/home/me/my runs/one is damaged", "one is damaged"),
        (r"C:\Users\My Name\run is damaged", "run is damaged"),
        ("imagefolder:/home/me/photos has no images", "imagefolder:photos has no images"),
        ("file:///home/me/x and //share/x, at https://timm.fast.ai/a/b", "x and x, at https://timm.fast.ai/a/b"),
        ("</b> stays, as n/a and 1/2 do", "</b> stays, as n/a and 1/2 do"),
        ("facebook/deit-tiny is not on this machine", "facebook/deit-tiny is not on this machine"),
    ],
)
def test_no_path_leaves_the_machine(text, said):
    assert without_paths(text) == said


def test_unexpected_errors_keep_their_inside(capsys):
    assert "secret" not in sentence_of(KeyError("/secret/path")) and "secret" in capsys.readouterr().err


@pytest.mark.parametrize("method", [*METHODS, *TEXTS, "mixup | cutmix"])
def test_every_method_has_a_text_and_code(method):
    opened = OpenedModel(small_model(), "", "model = timm.create_model('x', num_classes=12)")
    assert len(method_text(method)) > 5
    compile(code_of(method, opened), "code", "exec")


def check_that_code_trains(opened: OpenedModel, side: int) -> None:
    """Runs the shown code: it builds the opened model's architecture, and changes every weight that has a gradient."""
    torch.manual_seed(0)
    space: dict = {"loader": [(torch.rand(2, 3, side, side), torch.tensor([0, 1]))]}
    code = code_of("tl_align(alpha=0.5)", opened)
    shapes = {name: each.shape for name, each in opened.model.model.state_dict().items()}
    head, _, loop = code.partition("for images")
    exec(head, space)
    assert {name: each.shape for name, each in space["model"].state_dict().items()} == shapes
    before = [each.clone() for each in space["model"].parameters()]
    exec(f"for images{loop}", space)
    same = [torch.equal(*each) for each in zip(before, space["model"].parameters(), strict=True)]
    assert not any(same)


# Models


@pytest.fixture(scope="module")
def run(one_thread, tmp_path_factory):  # noqa: F811
    """A run with settings of its own for the model, as the built-in recipe has."""
    folder = tmp_path_factory.mktemp("runs") / "shapes_run"
    train(folder, epochs=1)
    return folder


def opened_place(path, arch: str | None = None, **settings) -> OpenedModel:
    places, _ = places_of([str(path)], arch, [])
    (name,) = places
    return Models(places, **settings)[name]


def test_the_code_of_a_run_trains_its_model(run):
    check_that_code_trains(opened_place(run), 16)


def test_the_code_of_a_model_that_vitmix_registers_trains_it():
    check_that_code_trains(Models({}, ["cct_2_3x2_32"])["cct_2_3x2_32"], 32)


def test_a_run_and_its_weights_file_are_opened(run, tmp_path):
    """The model has the stored weights, classes and preprocessing, and the page answers with it."""
    stored = load_file(run / "best.safetensors")
    copied = tmp_path / "copied.safetensors"  # a file without its run
    shutil.copy(run / "best.safetensors", copied)
    opened = {path: opened_place(path) for path in (run, run / "best.safetensors", copied)}
    for path, each in opened.items():
        state = each.model.model.state_dict()
        assert all(torch.equal(state[key], value) for key, value in stored.items()) and stored
        assert each.model.trained and each.model.outputs == 12 and len(each.model.classes) == 12
        assert set(each.model.augmentation.sides) == {16}, path
    assert opened[run].said == "shapes_run: best weights of a run"
    assert opened[copied].said == "copied: weights of copied.safetensors"
    answer = Explorer(Models({"mine": Place(run)})).answer(State("cutmix", "shapes 1", "shapes 46", "mine"))
    assert "Model: mine: best weights of a run." in answer.about and str(run) not in answer.about


def test_the_last_weights_of_a_run(run):
    opened = opened_place(run, weights="last")
    state, stored = opened.model.model.state_dict(), load_file(run / "last.safetensors")
    assert opened.weights == "last weights of a run"
    assert all(torch.equal(state[key], value) for key, value in stored.items())


def test_a_weights_file_of_others_needs_its_model(tmp_path):
    torch.manual_seed(0)
    weights = timm.create_model("test_vit", num_classes=5).state_dict()
    torch.save(weights, tmp_path / "theirs.pth")
    opened = opened_place(tmp_path / "theirs.pth", "test_vit")
    assert torch.equal(opened.model.model.state_dict()["head.weight"], weights["head.weight"])
    assert opened.said == "theirs: weights of theirs.pth" and "num_classes=5" in opened.code


def vit(config):
    import transformers

    return transformers.ViTForImageClassification(config)


@pytest.fixture
def hub(monkeypatch):
    """The Hugging Face hub with one tiny model, `someone/tiny`."""
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    names = dict(enumerate(["ant", "bee", "cat", "dog"]))
    config = transformers.ViTConfig(image_size=32, patch_size=8, **shape, id2label=names)
    loaded = []

    def from_config(name, *, local_files_only):
        assert name == "someone/tiny"
        return config

    def from_pretrained(name, local_files_only=True):
        torch.manual_seed(0)
        loaded.append((name, local_files_only))
        return vit(config)

    def processor(name, *, local_files_only):
        return transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.4] * 3)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_config)
    monkeypatch.setattr(transformers.AutoModelForImageClassification, "from_pretrained", from_pretrained)
    monkeypatch.setattr(transformers.AutoImageProcessor, "from_pretrained", processor)
    return loaded


def test_a_hugging_face_model_is_opened(hub):
    opened = Models({}, ["someone/tiny"])["someone/tiny"]
    assert hub == [("someone/tiny", True)]
    assert opened.model.classes == ("ant", "bee", "cat", "dog") and opened.model.augmentation.mean == (0.4,) * 3
    assert opened.said == "someone/tiny: published weights"
    scene = play(opened.model, make_pair(opened.model, images()), "tl_align")
    assert len(scene.blocks) == 2 and {each.name for each in scene.predictions[0]} == {"ant", "bee", "cat", "dog"}
    check_that_code_trains(opened, 32)


def test_downloads_from_the_hub_need_permission(hub):
    assert Models({}, ["someone/tiny"], pretrained=True)["someone/tiny"]
    assert hub == [("someone/tiny", False)]


def test_models_without_weights_say_so():
    opened = Models({}, ["test_vit"])["test_vit"]
    assert not opened.model.trained and "random weights" in opened.weights and "--pretrained" in opened.weights


def test_names_typed_into_the_page_are_never_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resnet.safetensors").write_bytes(b"")
    for name in ("run", "runs/one", "test_vit2"):
        (tmp_path / name).mkdir(parents=True)
    models = Models({}, ["test_vit"])
    names = ("resnet.safetensors", "run", "./run", "runs/one", "test_vit2", str(tmp_path), "../x", "a/b/c", "")
    for name in names:
        with pytest.raises(ValueError, match="unknown model"):
            models[name]


def test_hugging_face_names_need_a_cache_or_permission(monkeypatch):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="--pretrained allows the download"):
        Models({}, ["test_vit"])["no-one/no-model"]


def test_without_a_network_the_page_opens_what_there_is(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(models_of_page, "USUAL", "test_vit")
    said: list[str] = []
    models = Models({}, ["no-one/no-model"])
    assert models.first(said.append) == "test_vit" and models.names[0] == "test_vit"
    assert said == [
        "Note: the Hugging Face model no-one/no-model is not on this machine; --pretrained allows the download; "
        "the page opens test_vit instead."
    ]
    assert "random weights" in models["test_vit"].weights


TOO_LARGE = "has 0 million parameters; choose a model of at most 0 million"


def test_large_models_are_refused_before_they_take_memory(monkeypatch):
    monkeypatch.setattr(models_of_page, "MOST_PARAMETERS", 1000)
    with pytest.raises(ValueError, match=f"^test_vit {TOO_LARGE}"):
        Models({}, ["test_vit"])["test_vit"]


def test_large_models_of_the_hub_are_refused_before_their_weights_are_loaded(monkeypatch, hub):
    config = pytest.importorskip("transformers").AutoConfig.from_pretrained("someone/tiny", local_files_only=True)
    count = sum(each.numel() for each in vit(config).parameters())
    monkeypatch.setattr(models_of_page, "MOST_PARAMETERS", count - 1)
    with pytest.raises(ValueError, match=f"^someone/tiny {TOO_LARGE}"):
        Models({}, ["someone/tiny"])["someone/tiny"]
    assert hub == []
    monkeypatch.setattr(models_of_page, "MOST_PARAMETERS", count)
    assert Models({}, ["someone/tiny"])["someone/tiny"]


def test_large_files_are_refused_before_they_are_read(monkeypatch, run, tmp_path):
    """Runs, weights files with and without a header, and a model that is larger than its file."""
    exported = tmp_path / "exported"
    assert main(["export", str(run), str(exported), "--to", "timm"]) == 0
    count = sum(each.numel() for each in load_file(run / "best.safetensors").values())
    torch.save({}, tmp_path / "theirs.pth")
    places = [(run, None), (run / "best.safetensors", None), (exported, None)]
    monkeypatch.setattr(models_of_page, "MOST_PARAMETERS", count)
    for place, arch in places:
        assert opened_place(place, arch)
    monkeypatch.setattr(models_of_page, "MOST_PARAMETERS", count - 1)
    monkeypatch.setattr(models_of_page, "open_subject", None)
    for place, arch in [*places, (tmp_path / "theirs.pth", "test_vit")]:
        with pytest.raises(ValueError, match=f"{TOO_LARGE}$"):
            opened_place(place, arch)


def test_few_models_stay_open(monkeypatch):
    monkeypatch.setattr(models_of_page, "MOST_OPEN", 1)
    models = Models({}, ["test_vit", "test_vit2"])
    first = models["test_vit"]
    assert models["test_vit"] is first and models["test_vit2"] and models["test_vit"] is not first


def test_places_are_run_folders_and_files(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"")
    places, names = places_of([str(tmp_path / "weights.safetensors"), "test_vit", "a/b"], "test_vit", [tmp_path])
    assert names == ["test_vit", "a/b"] and places["weights"].arch == "test_vit" and places[tmp_path.name].arch is None
    with pytest.raises(ValueError, match="neither a run folder"):
        places_of(["no_such_model"], None, [])
    with pytest.raises(ValueError, match="--arch needs a weights file"):
        places_of(["test_vit"], "test_vit", [])


def test_published_runs_are_compared_and_no_models(monkeypatch, capsys):
    """They have no weights."""
    served = []
    monkeypatch.setattr("vitmix.lab.explore.server.serve", lambda explorer, **settings: served.append(explorer))
    assert main(["explore", str(ROOT / "results" / "built_in"), "--model", "test_vit"]) == 0, capsys.readouterr().err
    (page,) = served
    assert page.models.names == ["test_vit"] and len(page.runs) > 1
    assert "srcdoc" in page.compare(list(page.runs)[:2])


# The explorer


def test_answers_have_everything_the_page_shows():
    page = explorer()
    answer = page.answer(State("transmix", "shapes 1", "shapes 46", "small", 3, 2))
    assert 'data-target="' in answer.scene and 'data-block="2"' in answer.depth and answer.blocks == 4
    assert "random weights" in answer.about and "TransMix" in answer.about
    assert answer.query == "method=transmix&first=shapes+1&second=shapes+46&model=small&seed=3&block=2"
    uploaded = page.answer(State("transmix", data_url(Image.new("RGB", (40, 40))), "shapes 46", "small"))
    assert "first" not in uploaded.query and "an uploaded image" in uploaded.about


def test_figure_and_gallery():
    page = explorer()
    state = State("cutmix", "shapes 1", "shapes 46", "small")
    head, _, content = page.figure(state).partition(",")
    assert head == "data:image/png;base64" and Image.open(io.BytesIO(base64.b64decode(content))).width > 400
    gallery = page.gallery(state)
    for method in METHODS:
        assert method == "none" or f"?method={method}&amp;" in gallery, method
    assert gallery.count("<article") == len(METHODS) - 1 and "Left out" not in gallery


def test_runs_are_compared_without_their_paths(tmp_path):
    for seed in range(2):
        train(tmp_path / "runs" / f"run{seed}", epochs=1, seed=seed)
    page = explorer(tmp_path / "runs")
    found = page.compare(["run0", "run1"])
    assert "run1" in found and "srcdoc" in found and str(tmp_path) not in found
    assert "Choose" in page.compare(["../run0"])


def test_a_run_named_by_a_dot_has_its_folders_name(monkeypatch, run):
    """`vitmix explore .` inside a run folder."""
    monkeypatch.chdir(run)
    served = []
    monkeypatch.setattr("vitmix.lab.explore.server.serve", lambda explorer, **settings: served.append(explorer))
    assert main(["explore", "."]) == 0
    (page,) = served
    assert page.models.names == list(page.runs) == ["shapes_run"]
    assert main(["explore", "--model", "."]) == 0 and served[1].models.names == ["shapes_run"]
    named = Explorer(page.models, {"shapes_run": Run(run)}).compare(["shapes_run"])
    assert page.compare(["shapes_run"]) == named and str(run) not in named
    relative = Explorer(page.models, {"here": Run(".")}).compare(["here"])
    assert relative.count(".") > named.count(".") - 100  # of numbers and styles


@pytest.mark.parametrize(
    ("port", "words"), [(0, "port must be 1 to 65535, got 0"), (99_999, "got 99999"), (None, "in use")]
)
def test_ports_that_cannot_be_used_are_refused_before_a_model_is_loaded(port, words, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["explore", "--port", str(taken.getsockname()[1] if port is None else port)]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not said.out


def test_a_model_where_run_folders_are_expected_is_told_where_it_goes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("best.safetensors").write_bytes(b"")
    for given, problem in (("test_vit", "there is no run folder test_vit"), ("best.safetensors", "is a file")):
        assert main(["explore", given]) == 2
        said = capsys.readouterr().err
        assert problem in said and said.endswith(f"; did you mean --model {given}?\n"), said


def test_runs_that_are_left_out_are_named(tmp_path, run, monkeypatch, capsys):
    monkeypatch.setattr("vitmix.lab.explore.server.serve", lambda explorer, **settings: None)
    shutil.copytree(run, tmp_path / "runs" / "done")
    shutil.copytree(run, tmp_path / "runs" / "begun")
    (tmp_path / "runs" / "begun" / "metrics.jsonl").write_text("")
    assert main(["explore", str(tmp_path / "runs")]) == 0
    assert "Left out: " in (said := capsys.readouterr().out) and "begun" in said


@pytest.mark.parametrize("found", [None, ModuleSpec("gradio", None)], ids=["nothing", "a folder that pip left"])
def test_without_gradio_the_command_says_what_to_install(found, monkeypatch, capsys):
    monkeypatch.setattr("vitmix.lab.cli.explore.find_spec", lambda name: found)
    assert main(["explore"]) == 2
    assert capsys.readouterr().err == "vitmix: error: explore needs gradio: pip install 'vitmix[app]'\n"


def test_mixer_controls_are_the_common_settings():
    assert [each.name for each in controls_of(Mixer)] == ["smoothing", "loss"]
