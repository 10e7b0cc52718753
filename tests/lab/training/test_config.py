"""One configuration: layers, types, round trip, recipes."""

import dataclasses
import json
from pathlib import Path

import pytest
import timm
import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

import vitmix
from pinned import FOLDER
from training import TINY, tiny
from vitmix.lab.runs import run_for
from vitmix.lab.settings import section_of
from vitmix.lab.training.config import (
    FIELDS,
    TrainConfig,
    checkpoint_interval,
    differences,
    read_yaml,
    resolve,
    to_yaml,
)
from vitmix.lab.training.prepare import build_augmentation, build_mixer, build_model, without_image_mixing
from vitmix.lab.training.recipes import list_recipes, read_recipe, recipe_header, recipe_text
from vitmix.parts.masks import NoMask

NAMED = {
    "shapes", "deit", "deit_tiny", "deit_small", "deit_base", "transmix", "cait_xxs24", "cait_xxs36", "pvt_tiny",
    "pvt_small", "pvt_medium", "pvt_large", "swin_tiny", "swin_small", "tokenmix", "tokenmix_400", "tl_align",
    "tl_align_deit_base", "tl_align_swin_base", "smmix", "vit_base_htm", "vit_base_vtm", "vit_base_both",
    *(f"cct_{data}_{epochs}{kind}" for data in ("cifar10", "cifar100") for epochs in (300, 1500)
      for kind in ("", "_htm", "_vtm", "_both")),
    *(f"vit_lite_{data}_{epochs}{kind}" for data in ("cifar10", "cifar100") for epochs in (300, 1500)
      for kind in ("", "_htm", "_vtm", "_both")),
}  # fmt: skip


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: deit\nepochs: 50\nlr: 1e-3\n")
    config = resolve({"epochs": "20"}, file=file)
    assert config.epochs == 20  # flag over file
    assert config.lr == 0.001  # file over recipe, and YAML 1.1 reads 1e-3 as a text
    assert config.batch == 1024  # recipe over default
    assert config.hflip == TrainConfig().hflip
    assert config.recipe == "deit"


def test_nothing_given_is_the_example() -> None:
    assert resolve().recipe == "shapes" and resolve({"epochs": 3}).recipe == "shapes"
    assert resolve({"data": "imagefolder:x"}).recipe is None
    assert resolve({"model": "deit_tiny_patch16_224"}).recipe is None
    assert resolve({"recipe": "none", "data": "shapes"}).recipe is None


def test_model_args_belong_to_their_model() -> None:
    example = resolve()
    assert resolve({"model_args": {"depth": 9}}).model_args == {**example.model_args, "depth": 9}
    assert resolve({"recipe": "shapes", "model": "deit_tiny_patch16_224"}).model_args == {}
    assert resolve({"recipe": "shapes", "model": example.model}).model_args == example.model_args


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"epocs": 3}, "unknown setting 'epocs' in the flags; did you mean 'epochs'?"),
        ({"lr": "fast"}, "lr in the flags must be a number, got 'fast'"),
        ({"epochs": "2.5"}, "epochs in the flags must be a whole number"),
        ({"epochs": 2.5}, "epochs in the flags must be a whole number"),
        ({"compile": "yes"}, "compile in the flags must be true or false"),
        ({"epochs": None}, "epochs in the flags must be a whole number, got None"),
        ({"scale": "a b"}, "scale in the flags must be a list of numbers or none"),
        ({"epochs": 0}, "epochs must be an integer of at least 1"),
        ({"workers": 2**31}, "workers may be at most 1,024"),
        ({"smoothing": 2}, "smoothing must lie between 0 and 1"),
        ({"warmup_lr": 1e38}, "warmup_lr must be at most 1e+06"),
        ({"lr": 1e38}, "the learning rate, lr * batch / lr_per, must be at most 1e+06"),
        ({"precision": "bf61"}, "did you mean 'bf16'?"),
        ({"scale": [0.1]}, "scale takes 2 numbers, got 1"),
        ({"best": "ema_accuracy"}, "set ema"),
        ({"pretrained": True, "checkpoint": "x", "model": "test_vit"}, "give one of them"),
        ({"checkpoint_every": "often"}, "'500 steps'"),
        ({"recipe": "diet"}, "unknown recipe 'diet'; did you mean 'deit'?"),
    ],
)
def test_wrong_settings_are_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=".*") as refusal:
        resolve(flags)
    assert words in str(refusal.value)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no configuration file"):
        resolve(file=tmp_path / "none.yaml")
    for text, words in (
        ("a: [", "not valid YAML"),
        ("- a", "name: value"),
        ("wight_decay: 1", "did you mean 'weight_d"),
    ):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ValueError, match=words):
            resolve(file=tmp_path / "bad.yaml")
    (tmp_path / "bad.yaml").write_text("data: !!python/object/apply:os.system ['true']")
    with pytest.raises(ValueError, match="not valid YAML"):
        resolve(file=tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs: 3\nlr: 1: 2\n", "in line 2: mapping values are not allowed here"),
        (
            "epochs: 3\n\tlr: 1\n",
            "in line 2: found character '\\t' that cannot start any token while scanning for the next",
        ),
        (
            "a: 1\nmethod: 'cutmix\nlr: 1\n",
            "in line 4: found unexpected end of stream while scanning a quoted scalar that begins in line 2",
        ),
    ],
)
def test_wrong_yaml_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=".*") as refusal:
        resolve(file=file)
    said = str(refusal.value)
    assert said.startswith(f"{file} is not valid YAML {sentence}") and "^" not in said and said.count(str(file)) == 1


def test_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder; name the file in it, as .*config.yaml"):
        read_yaml(tmp_path)


@pytest.mark.parametrize("recipe", ["shapes", "transmix", "cct_cifar10_300_both", "tl_align_swin_base"])
def test_stored_configuration_is_the_same(tmp_path: Path, recipe: str) -> None:
    config = resolve({"recipe": recipe, "betas": (0.9, 0.95), "output": "somewhere"})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert resolve(file=tmp_path / "config.yaml") == config
    assert set(read_yaml(tmp_path / "config.yaml")) == set(FIELDS)


def test_differences() -> None:
    config = resolve(TINY)
    assert differences(config, dataclasses.replace(config, workers=3, output="b", keep=9, log_every=7)) == []
    assert differences(config, dataclasses.replace(config, lr=1.0, seed=4)) == ["seed: 0 -> 4", "lr: 0.003 -> 1.0"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("mixup|smmix", "mixup | smmix"),
        (" mixup( alpha = 0.8,smoothing=0 )  |cutmix ", "mixup(alpha=0.8, smoothing=0) | cutmix"),
        ("(mixup|cutmix)+htm( block=2 )+vtm", "(mixup | cutmix) + htm(block=2) + vtm"),
        ("0.2 * mixup|0.8*tl_align(blocks=[1,3])", "0.2*mixup | 0.8*tl_align(blocks=[1, 3])"),
        ("cutmix(alpha=1e+0)", "cutmix(alpha=1e+0)"),
        ("cutmix(alpha=+1.5)+htm", "cutmix(alpha=+1.5) + htm"),
    ],
)
def test_one_spelling_of_a_method(text: str, same: str) -> None:
    config = resolve({**TINY, "method": text})
    assert config.method == same and vitmix.create(same, 10) == vitmix.create(text, 10)
    assert config == resolve({**TINY, "method": same})
    assert run_for(config).path == run_for(resolve({**TINY, "method": same})).path


def test_blanks_make_no_wrong_method_right() -> None:
    for text in ("cut mix", "mixup | 0.5 cutmix", "cutmix(alpha=1 0)"):
        with pytest.raises(ValueError, match="expected"):
            vitmix.create(resolve({**TINY, "method": text}).method, 10)


def test_ready_texts_are_spelled_so() -> None:
    """Folders of runs/ are named after the text: a recipe's should not move."""
    for name in list_recipes():
        assert dict(read_recipe(name).settings).get("method", resolve().method) == resolve({"recipe": name}).method


def test_equal_methods_are_no_difference() -> None:
    def between(first: str, second: str, **changes: object) -> list[str]:
        return differences(resolve({**TINY, "method": first}), resolve({**TINY, "method": second, **changes}))

    assert between("mixup(alpha=0.8)|cutmix", "mixup | mix(mask=box)") == []
    assert between("cutmix(smoothing=0.1)", "cutmix") == []  # which is the configuration's
    assert between("cutmix(smoothing=0.0)", "cutmix") == ["method: 'cutmix(smoothing=0.0)' -> 'cutmix'"]
    assert between("mixup", "mixup(alpha=0.9)") == ["method: 'mixup' -> 'mixup(alpha=0.9)'"]
    assert between("no_more", "cutmix") == ["method: 'no_more' -> 'cutmix'"]


def test_every_field_is_documented() -> None:
    assert all(field.metadata["help"] and section_of(TrainConfig, name) for name, field in FIELDS.items())


def test_checkpoint_interval() -> None:
    assert checkpoint_interval("1 epoch") == (1, "epochs")
    assert checkpoint_interval("500 steps") == (500, "steps")
    assert checkpoint_interval("0.5 seconds") == (0.5, "seconds")


def test_recipes_are_all_there() -> None:
    assert set(list_recipes()) >= NAMED


@pytest.mark.parametrize("name", list_recipes())
def test_recipe(name: str) -> None:
    header = " ".join(recipe_header(name))
    assert "Expected" in header and "Cost:" in header
    assert name == "shapes" or " et al.," in header
    settings = dict(read_recipe(name).settings)
    assert "base" not in settings
    config = resolve({"recipe": name})
    mixer = build_mixer(config, 10)
    assert vitmix.create(str(mixer), 10) == mixer
    assert {each.smoothing for each in mixer.mixers} == {config.smoothing}
    assert config.loss is None or {each.loss for each in mixer.mixers} == {config.loss}
    for mixing, quiet in zip(mixer.mixers, without_image_mixing(mixer).mixers, strict=True):
        assert isinstance(quiet.mask, NoMask) and quiet.inner == mixing.inner and quiet.smoothing == mixing.smoothing
    if not timm.is_model(config.model):
        assert config.model in (f"pvt_v1_{size}" for size in ("tiny", "small", "medium", "large"))
        pytest.skip(f"{config.model} is not registered with timm")
    with torch.device("meta"):  # shapes without memory
        model, _ = build_model(dataclasses.replace(config, pretrained=False, checkpoint=None), 10)
    assert model(torch.empty(1, 3, *[build_augmentation(config, model).sides[0]] * 2, device="meta")).shape == (1, 10)


@pytest.mark.parametrize(
    ("method", "smoothing"),
    [
        ("cutmix", [0.1]),
        ("cutmix(smoothing=0.0)", [0.0]),
        ("mixup(smoothing=0.2) | cutmix(smoothing=0) | tl_align", [0.2, 0.0, 0.1]),
        ("(mixup | cutmix(smoothing=0)) + htm(block=2)", [0.1, 0.0]),
        ("mix(mask=box, smoothing=0.0) | mix(mask=box)", [0.0, 0.1]),
    ],
)
def test_smoothing_of_the_text_wins(method: str, smoothing: list[float]) -> None:
    mixer = build_mixer(resolve({**TINY, "method": method, "smoothing": 0.1}), 10)
    assert [each.smoothing for each in mixer.mixers] == smoothing


def test_recipes_keep_their_settings() -> None:
    """Against a snapshot of what each recipe sets other than `TrainConfig` does."""
    stored = json.loads((FOLDER / "recipes.json").read_text())
    default = dataclasses.asdict(TrainConfig())
    for name in list_recipes():
        resolved = dataclasses.asdict(resolve({"recipe": name}))
        changed = {key: value for key, value in resolved.items() if value != default[key]}
        assert json.loads(json.dumps(changed)) == stored[name], name
    assert stored.keys() <= set(list_recipes())


def test_settings_of_recipes() -> None:
    """Single facts of the papers, as a guard against slips of the hand."""
    deit, transmix, swin = (resolve({"recipe": name}) for name in ("deit", "transmix", "swin_small"))
    assert (deit.epochs, deit.batch, deit.peak_lr, deit.repeats, deit.erasing) == (300, 1024, 0.001, 3, 0.25)
    assert (transmix.total_epochs, transmix.warmup_epochs, transmix.peak_lr) == (310, 20, 0.001)
    assert (transmix.weight_decay, transmix.ema, transmix.erasing) == (0.03, 0.99996, 0.0)
    assert (transmix.interpolation, transmix.crop_pct, transmix.lr_per) == ("random", 0.9, None)
    assert resolve({"recipe": "cait_xxs36"}).crop_pct == 1.0
    assert (swin.drop_path, swin.clip_grad, swin.warmup_epochs, swin.repeats) == (0.3, 5.0, 20, 1)
    tokenmix, tuning = resolve({"recipe": "tokenmix_400"}), resolve({"recipe": "tl_align_deit_base"})
    assert (tokenmix.epochs, tokenmix.loss, tokenmix.min_lr) == (400, "bce", 1e-6)
    assert (tuning.epochs, tuning.peak_lr, tuning.weight_decay, tuning.schedule) == (40, 1e-5, 1e-8, "constant")
    assert tuning.pretrained and tuning.method == "tl_align"
    cct = resolve({"recipe": "cct_cifar10_300"})
    assert (cct.peak_lr, cct.weight_decay, cct.erasing, cct.mixing_off_epoch) == (0.00055, 0.06, 0.0, 175)
    both = resolve({"recipe": "cct_cifar100_1500_both"})
    assert "htm(block=3, tau=0.2, rho=0.005) + vtm(block=2, tokens=3)" in both.method
    assert (both.total_epochs, both.batch, both.peak_lr, both.weight_decay) == (1510, 128, 0.0006, 0.06)
    lite = resolve({"recipe": "vit_lite_cifar100_1500_both"})
    assert (lite.peak_lr, lite.weight_decay, lite.method) == (0.0007, 0.05, both.method)
    vit = resolve({"recipe": "vit_base_vtm"})
    assert (vit.mean, vit.std, vit.crop_pct) == (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, 0.875)
    assert (vit.optimizer, vit.batch, vit.peak_lr, vit.min_lr, vit.epochs) == ("momentum", 504, 0.03, 0.003, 30)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("tl_align_deit_base", "fb_in1k"),  # 81.8
        ("tl_align_swin_base", "ms_in1k"),  # 83.5; timm's first choice, from ImageNet-22k, has 85.2
        ("vit_base_both", "orig_in21k_ft_in1k"),  # Google's own, not those with later augmentation
    ],
)
def test_fine_tuning_starts_from_the_papers_weights(name: str, weights: str) -> None:
    config = resolve({"recipe": name})
    cfg = timm.get_pretrained_cfg(config.model)
    assert config.pretrained and cfg is not None and cfg.tag == weights


def test_a_printed_recipe_is_a_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    for name in list_recipes():
        file.write_text(recipe_text(name))
        assert dataclasses.replace(resolve(file=file), recipe=name) == resolve({"recipe": name}), name


def test_cuda_graphs_do_not_accumulate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CUDA graphs"):
        tiny(tmp_path, compile=True, compile_mode="reduce-overhead", accumulate=2)
