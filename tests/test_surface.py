"""What users have written down must go on working: flags, settings, names and texts, held against a stored list.

Additions are welcome; nothing may vanish or change its default. `python tests/test_surface.py --write` stores a new
list.
"""

import hashlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
import yaml
from torch import Tensor, nn

import pinned
import vitmix
from command import done
from command import vitmix as run
from vitmix.lab.training.config import KINDS, TrainConfig

FILE = "surface.json"
CLASSES = 10
COMMANDS = [
    *("train", "transfer", "eval", "export", "analyze", "compare", "report", "show", "maps"),
    *("recipes", "methods", "models", "bench"),
    *(f"figure {kind}" for kind in ("attention", "rollout", "heads", "gradcam", "occlusion", "labels", "gallery")),
]
STORED: dict[str, Any] = pinned.read(FILE) if (pinned.FOLDER / FILE).exists() else {}


# Flags


def flags_of(command: str) -> dict[str, dict[str, Any]]:
    """What a command's help says of each flag: its value, the choices, and a default that is one word or number."""
    found: dict[str, dict[str, Any]] = {}
    for names, value, described in _definitions(done(*command.split(), "--help")):
        flag: dict[str, Any] = {"value": value}
        if choices := re.match(r"\{(.*?)\}", value):
            flag["choices"] = choices[1].split(",")
        if default := re.search(r"\(default: ([^\s()]+)\)", described):
            flag["default"] = default[1]
        found |= dict.fromkeys(names, flag | {"described": described})
    return found


def _definitions(text: str) -> list[tuple[list[str], str, str]]:
    """Names, value and description of flags: a line that begins with one, up to the next one or an empty line."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        line = line.strip(" \t│|*╭╰─╮╯")  # as other libraries draw frames
        begins = re.match(r"-{1,2}\w", line) is not None
        inside = begins or (inside and line != "")
        if begins:
            found.append([line])
        elif inside:
            found[-1].append(line)
    entries = []
    for first, *further in found:
        head, _, rest = first.partition("  ")
        names = [name for name in re.findall(r"(?<!\S)--[a-z][\w-]*", head) if name != "--help"]
        value = re.sub(r"(?<!\S)--?[a-z][\w-]*,?", "", head).strip()
        entries.append((names, value, " ".join([rest.strip(), *further]).strip()))
    return entries


@pytest.mark.parametrize("command", COMMANDS)
def test_flags(command: str) -> None:
    found = flags_of(command)
    for name, stored in STORED["flags"][command].items():
        assert name in found, f"{command} has lost {name}"
        assert bool(found[name]["value"]) == bool(stored["value"]), f"{command} {name}: {found[name]['value']!r}"
        words = re.findall(r"[^\s,;:(){}|\[\]]+", f"{found[name]['value']} {found[name]['described']}")
        assert set(stored.get("choices", [])) <= set(words), f"{command} {name}: {words}"
        if "default" in stored:
            assert any(_same_number(stored["default"], word) for word in words), f"{command} {name}: {words}"


def _same_number(first: str, second: str) -> bool:
    try:
        return first == second or float(first) == float(second)
    except ValueError:
        return False


def test_commands() -> None:
    words = done("--help").split()
    assert {command.split()[0] for command in STORED["flags"]} <= set(words)
    assert set(STORED["flags"]) == set(COMMANDS)


def test_a_lost_flag_and_a_changed_default_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for change in (
        {"--examples": {"value": "N", "default": "6"}},
        {"--exmaples": {"value": "N", "default": "5"}},
        {"--examples": {"value": "N", "choices": ["few"]}},
        {"--no-eval": {"value": "N"}},
    ):
        monkeypatch.setitem(STORED["flags"], "report", change)
        with pytest.raises(AssertionError):
            test_flags("report")


# Settings of trainings and comparisons


def train_settings() -> dict[str, Any]:
    default = TrainConfig()
    return {name: _plain(getattr(default, name)) for name in inspect.signature(TrainConfig).parameters}


def train_choices() -> dict[str, list[str]]:
    return {name: list(kind.choices) for name, kind in KINDS.items() if kind.choices}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_settings_of_a_training() -> None:
    found = train_settings()
    for name, default in STORED["train"].items():
        assert name in found, f"the setting {name} is lost"
        assert found[name] == default or name == "workers", name  # as many as there are cores
    for name, choices in STORED["train choices"].items():
        for choice in choices:
            assert getattr(TrainConfig(**{"ema": 0.9, name: choice}), name) == choice


def test_a_matrix_takes_every_entry_and_every_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {key: value for key, value in STORED["train"].items() if key not in ("seed", "output", "resume")}
    matrix = {
        "about": "a table",
        "note": "for all",
        "baseline": "TokenMix",
        "settings": {key: value for key, value in settings.items() if key not in ("method", "model", "data")},
        "rows": {"CutMix": "mixup(alpha=0.8) | cutmix", "TokenMix": {"method": "tokenmix", "loss": "bce"}},
        "models": ["deit_tiny_patch16_224", "cct_7_3x1_32"],
        "data": {"shapes": {"size": 32}},
        "seeds": [0, 1],
    }
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(matrix))
    monkeypatch.chdir(tmp_path)
    lines = done("compare", "table.yaml", "--dry-run").split("\n")
    assert len([line for line in lines if line.startswith("to run")]) == 8
    assert lines[0].split() == ["to", "run", "CutMix-deit_tiny_patch16_224-shapes-seed0"]


def recipes() -> dict[str, str]:
    """The settings of each recipe as a checksum."""
    names = [line.split()[0] for line in done("recipes").split("\n\n")[0].splitlines()]
    return {name: _checksum(yaml.safe_load(done("recipes", name))) for name in names}


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def matrices() -> dict[str, int]:
    """How many trainings each ready matrix has."""
    lines = [line for line in done("compare", "--list").splitlines() if line.endswith(" runs)")]
    return {line.split()[0]: int(re.findall(r"(\d+) runs", line)[-1]) for line in lines}


def test_recipes_and_matrices() -> None:
    assert STORED["recipes"].items() <= recipes().items()
    assert STORED["matrices"].items() <= matrices().items()


# Methods and parts as texts


TEXTS = [
    "mixup|cutmix",
    "0.2*mixup(alpha=0.8) | 0.8*transmix",
    "(mixup | 3*cutmix) + htm(block=1) + vtm(tokens=2)",
    "mix(mask=box, share=aligned)",
    "mix(mask=block(share=0.3), share=aligned) + consistency",
    "mix(mask=salient_box, extra=[region, consistency])",
    "mix(mask=salient_box(blocks=[0, -1]), share=activation(empty=area), pairing=rolled(by=2), loss=bce)",
    "cutmix(smoothing=0.1, pairing=derangement)",
    "smmix(blocks=all) + vtm(block=1, choose=random)",
    "tokenmix(label=activation, share=0.25)",
    "mix",
]
COMMON = {"pairing": "reversed", "smoothing": "0.0", "loss": "None"}


def method_settings() -> dict[str, dict[str, str]]:
    found = {}
    for name in vitmix.list_methods():
        parameters = inspect.signature(getattr(vitmix, name)).parameters.values()
        own = {each.name: _text(each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}
        found[name] = COMMON | own
    return found


def _text(value: Any) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


def part_settings() -> dict[str, dict[str, dict[str, str]]]:
    """Read from the list that the command prints."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    kind = ""
    for line in done("methods").split("Parts,")[1].partition("\n\n")[0].splitlines()[1:]:
        heading, call = line[:9].strip(), line[9:].strip()
        kind = heading or kind
        name, _, inside = call.removesuffix(")").partition("(")
        settings = dict(each.split("=") for each in re.split(r", (?=\w+=)", inside)) if inside else {}
        found.setdefault(kind, {})[name] = {
            key: re.sub(r"\((.*?),?\)", r"[\1]", value) for key, value in settings.items()
        }
    return found


def _created(text: str) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return vitmix.create(text, CLASSES)


def test_methods_and_their_defaults() -> None:
    listed = done("methods").split()
    for name, settings in STORED["methods"].items():
        assert name in vitmix.list_methods() and name in listed
        for key, value in settings.items():
            assert _created(f"{name}({key}={value})") == _created(name), f"{name} {key}"


def test_parts_and_their_defaults() -> None:
    listed = re.findall(r"\w+", done("methods"))
    for kind, parts in STORED["parts"].items():
        for name, settings in parts.items():
            assert name in listed
            base = "mix(mask=history)" if name == "recognize" else "cutmix"  # which compares with an earlier batch
            whole = f"{base} + {{}}" if kind in ("extra", "inner") else f"mix({kind}={{}})"
            for key, value in settings.items():
                assert _created(whole.format(f"{name}({key}={value})")) == _created(whole.format(name)), f"{name} {key}"


def test_texts_are_spelled_as_before() -> None:
    """Run folders and comparisons are named by them."""
    for text, spelled in STORED["texts"].items():
        assert str(_created(text)) == spelled and _created(spelled) == _created(text)


# Names for programs


MADE_BY_THE_LIBRARY = ("MixedBatch", "Mixing", "Output")  # nobody calls their constructors
MEMBERS = {
    "Learner": ("model", "mixer", "mixing", "added", "step", "compile", "forward"),
    "Mixing": ("mix", "targets", "loss", "losses", "counts", "parameters", "modules", "close", "step"),
    "Output": ("loss", "logits", "targets", "parts", "counts"),
    "Mixer": ("attach", "num_classes", "mask", "share", "extra", "inner", "pairing", "smoothing", "loss"),
    "AttentionTap": ("class_row", "column_mean", "attention", "flow"),
}


def public_names(module: ModuleType) -> dict[str, dict[str, str] | None]:
    """Names with their parameters and defaults; a name of another kind has none."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)
    ]
    found: dict[str, dict[str, str] | None] = {}
    for name in sorted(names):
        value = getattr(module, name)
        known = callable(value) and name not in MADE_BY_THE_LIBRARY
        found[name] = _parameters(value) if known else None
    return found


def _parameters(value: Callable[..., Any]) -> dict[str, str]:
    parameters = inspect.signature(value).parameters.values()
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {each.name: _shown(each.default) for each in parameters if each.kind not in free}


def _shown(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "needed"
    simple = default is None or isinstance(default, (bool, int, float, str, tuple))
    return repr(default) if simple else "made"  # such as a part, which need not be the same class


@pytest.mark.parametrize("place", ["vitmix", "vitmix.functional"])
def test_public_names(place: str) -> None:
    module = vitmix if place == "vitmix" else vitmix.functional
    assert vitmix.__version__ and inspect.ismodule(vitmix.models)
    for name, parameters in STORED[place].items():
        with warnings.catch_warnings(action="ignore"):  # a name may be an old one
            value = getattr(module, name)
        if parameters is None:
            continue
        found = inspect.signature(value).parameters
        free = any(each.kind is each.VAR_KEYWORD for each in found.values())
        for parameter, default in parameters.items():
            assert parameter in found or free, f"{name} has lost {parameter}"
            if parameter in found and default != "made":
                assert _shown(found[parameter].default) == default, f"{name} {parameter}"
        positions = [each.name for each in found.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        assert [each for each in parameters if each in positions] == [each for each in positions if each in parameters]


def test_members_of_objects() -> None:
    images, labels = batch()
    model = vit()
    learner = vitmix.Learner(model, vitmix.cutmix(CLASSES))
    objects = {"Learner": learner, "Mixing": learner.mixing, "Mixer": learner.mixer, "Output": learner(images, labels)}
    objects["AttentionTap"] = vitmix.AttentionTap(vit(), class_row=[0])
    for name, members in MEMBERS.items():
        assert not [each for each in members if not hasattr(objects[name], each)], name


# Refusals


def vit(**settings: Any) -> nn.Module:
    sizes = dict(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=CLASSES)
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **settings}).train()


def batch(count: int = 4, size: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, size, size), torch.arange(count) % CLASSES


def _step(text: str, images: Tensor | None = None, labels: Tensor | None = None, **given: Any) -> None:
    vitmix.Learner(vit(), vitmix.create(text, CLASSES))(
        batch()[0] if images is None else images, batch()[1] if labels is None else labels, **given
    )


def _unreadable() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, CLASSES))


def _attached(text: str, use: Callable[[Any, nn.Module], Any]) -> None:
    model = vit()
    with vitmix.create(text, CLASSES).attach(model) as mixing:
        use(mixing, model)


def _part_of_a_batch(mixing: Any, model: nn.Module) -> None:
    mixed = mixing.mix(*batch())
    mixing.loss(model(mixed.images[:2]), mixed)


def _after_the_end() -> None:
    with vitmix.cutmix(CLASSES).attach(vit()) as mixing:
        pass
    mixing.mix(*batch())


Refusal = tuple[Callable[[], Any], tuple[str, ...]]


def _text_refusal(text: str, *keywords: str) -> Refusal:
    return (lambda: vitmix.create(text, CLASSES)), keywords


IN_PROGRAMS: dict[str, Refusal] = {
    "unknown method": _text_refusal("cutmx", "cutmx", "cutmix"),
    "unknown setting": _text_refusal("cutmix(alfa=1)", "alfa", "cutmix", "alpha"),
    "empty text": _text_refusal(" ", "cutmix"),
    "bracket left open": _text_refusal("cutmix(alpha=1", "cutmix(alpha=1", "expected"),
    "nothing behind a bar": _text_refusal("mixup | ", "expected", "mixup"),
    "unreadable text": _text_refusal("cutmix; mixup", "parse", "mixup"),
    "a paper's spelling": _text_refusal("TL-Align", "tl_align"),
    "a weight alone": _text_refusal("0.5*cutmix", "weight"),
    "a method added": _text_refusal("cutmix + mixup", "mixup", "method"),
    "unknown addition": _text_refusal("cutmix + regoin", "regoin", "region"),
    "a setting twice": _text_refusal("cutmix(alpha=1, alpha=2)", "alpha", "twice"),
    "a negative alpha": _text_refusal("cutmix(alpha=-1)", "alpha", "positive"),
    "an unknown word": _text_refusal("cutmix(per=image)", "image", "batch", "sample"),
    "a share above one": _text_refusal("tokenmix(share=2)", "share", "0", "1"),
    "an unknown mask": _text_refusal("mix(mask=bx)", "mask", "bx", "box"),
    "a part for a number": _text_refusal("cutmix(alpha=box(per=sample))", "alpha", "number"),
    "HTM with aligned shares": _text_refusal("tl_align + htm", "htm", "aligned"),
    "HTM with attention shares": _text_refusal("transmix + htm(block=1)", "htm", "attention"),
    "HTM with the region loss": _text_refusal("smmix + htm", "region", "htm"),
    "an addition twice": _text_refusal("cutmix + region + region", "region", "twice"),
    "two losses": _text_refusal("cutmix(loss=ce) | tokenmix", "loss", "ce", "bce"),
    "an unknown loss": _text_refusal("cutmix(loss=mse)", "loss", "mse", "bce"),
    "blocks that are no numbers": _text_refusal("tl_align(blocks=0.5)", "blocks", "all"),
    "a setting beside a switch": (lambda: vitmix.create("mixup | cutmix", CLASSES, alpha=1.0), ("alpha", "string")),
    "no classes": (lambda: vitmix.cutmix(0), ("num_classes",)),
    "an extra that is none": (lambda: vitmix.Mixer(CLASSES, extra=("region",)), ("extra",)),  # pyright: ignore
    "fewer labels": (lambda: _step("cutmix", labels=torch.arange(3)), ("labels", "images", "3", "4")),
    "labels beyond the classes": (lambda: _step("cutmix", labels=torch.tensor([0, 1, 2, 10])), ("labels", "10")),
    "labels in a column": (lambda: _step("cutmix", labels=torch.arange(4).view(4, 1)), ("labels", "flatten")),
    "labels that are a list": (lambda: _step("cutmix", labels=[0, 1, 2, 3]), ("labels", "tensor", "list")),  # pyright: ignore
    "one image": (lambda: _step("cutmix", images=torch.randn(3, 16, 16)), ("images",)),
    "another size": (lambda: _step("tokenmix", images=torch.randn(4, 3, 24, 24)), ("16x16",)),
    "a method that needs a model": (lambda: vitmix.tl_align(CLASSES)(*batch()), ("attach",)),
    "an unreadable model": (lambda: vitmix.tl_align(CLASSES).attach(_unreadable()), ("Sequential", "read")),
    "an unreadable guide": (lambda: vitmix.smmix(CLASSES).attach(vit(), guide=_unreadable()), ("Sequential", "read")),
    "no attention": (
        lambda: vitmix.transmix(CLASSES).attach(timm.create_model("test_resnet", num_classes=CLASSES)),
        ("attention", "ResNet"),
    ),
    "a block too far": (lambda: _step("transmix(block=9)"), ("block", "9", "3")),
    "HTM too far": (lambda: _step("htm(block=7)"), ("block", "7", "3")),
    "too many tokens": (lambda: _step("vtm(block=1, tokens=17)"), ("17", "16")),
    "no maps": (lambda: _step("tokenmix(label=activation)"), ("maps", "activation")),
    "maps of another batch": (lambda: _step("tokenmix(label=activation)", maps=torch.rand(3, 4, 4)), ("maps",)),
    "maps that do not fit": (
        lambda: _step("tokenmix(label=activation)", maps=torch.rand(4, 7, 7)),
        ("maps", "7x7", "4x4", "resize"),
    ),
    "a guide of other classes": (
        lambda: vitmix.Learner(vit(), vitmix.smmix(CLASSES), guide=vit(num_classes=7))(*batch()),
        ("guide", "7", "10", "classes"),
    ),
    "a model of other classes": (
        lambda: vitmix.Learner(vit(num_classes=7), vitmix.cutmix(CLASSES))(*batch()),
        ("logits", "(4, 10)", "(4, 7)"),
    ),
    "part of a batch": (lambda: _attached("tl_align", _part_of_a_batch), ("2", "4", "images")),
    "a loss before the model": (
        lambda: _attached("tl_align", lambda mixing, model: mixing.targets(mixing.mix(*batch()))),
        ("carried share", "model", "before"),
    ),
    "after the end": (_after_the_end, ("closed", "attach")),
    "a slot that was not recorded": (
        lambda: vitmix.AttentionTap(vit(), class_row=[0]).class_row(0),
        ("class row", "block 0"),
    ),
}
ON_THE_COMMAND_LINE: dict[str, tuple[str, ...]] = {
    "tarin": ("tarin", "train"),
    "train --epohcs 3": ("--epohcs", "--epochs"),
    "train --epochs many": ("epochs", "whole number", "many"),
    "train --epochs 0": ("epochs", "0", "1"),
    "train --recipe diet": ("recipe", "diet", "deit"),
    "train --config missing.yaml": ("missing.yaml",),
    "train --config typo.yaml": ("epohcs", "typo.yaml", "epochs"),
    "train --config list.yaml": ("list.yaml", "settings"),
    "train --config broken.yaml": ("broken.yaml", "YAML", "line"),
    "train --data missing:data": ("data", "missing", "shapes"),
    "train --data imagefolder:missing": ("folder", "missing"),
    "train --model vit_nope --data shapes": ("model", "vit_nope"),
    "train --method cutmx": ("method", "cutmx", "cutmix"),
    "train --precision fp8": ("precision", "fp8", "bf16"),
    "train --best ema_accuracy": ("best", "ema_accuracy", "ema"),
    "train --scale 0.5": ("scale", "2", "1"),
    "train --model-args depth": ("model_args", "KEY=VALUE", "depth"),
    "train --checkpoint missing.safetensors": ("weights", "missing.safetensors"),
    "train --checkpoint_every often": ("checkpoint_every", "often", "500 steps"),
    "train --resume --output nowhere": ("resume", "nowhere"),
    "eval nowhere": ("nowhere",),
    "eval typo.yaml": ("typo.yaml",),
    "report nowhere": ("nowhere",),
    "analyze --study depth": ("study", "depth"),
    "show --method cutmx": ("method", "cutmx", "cutmix"),
    "export nowhere out --to timm": ("nowhere",),
    "recipes diet": ("recipe", "diet", "deit"),
    "compare": ("compare", "--method", "--list"),
    "compare tokenmix": ("matrix", "tokenmix"),
    "compare --rows CutMix": ("--rows", "matrix"),
    "compare example --rows CatMix": ("row", "CatMix", "CutMix"),
    "compare example --set method=mixup": ("--set", "method", "--method"),
    "compare example --no-train --analyze": ("--no-train", "--analyze"),
    "compare typo.yaml": ("typo.yaml", "epohcs"),
}


def refusal(case: str) -> list[str]:
    """The kind of error and its sentence."""
    torch.manual_seed(0)
    try:
        IN_PROGRAMS[case][0]()
    except Exception as error:
        return [type(error).__name__, str(error)]
    raise AssertionError(f"{case} is not refused any more")


def refusal_of_command(arguments: str) -> str:
    """Runs in an empty folder but for a few wrong files."""
    Path("typo.yaml").write_text("epohcs: 3\n")
    Path("list.yaml").write_text("- epochs\n")
    Path("broken.yaml").write_text("epochs: [3\nbatch: 2\n")
    said = run(*arguments.split())
    assert said.code == 2, said.out + said.err
    assert said.err.startswith("vitmix: error: ") and said.err.count("\n") == 1, said.err
    return said.err.removeprefix("vitmix: error: ").strip()


@pytest.mark.parametrize("case", IN_PROGRAMS)
def test_refusals_in_programs(case: str) -> None:
    kind, sentence = refusal(case)
    assert kind == STORED["refusals"][case][0]
    pinned.check_sentence(sentence, STORED["refusals"][case][1], IN_PROGRAMS[case][1])


@pytest.mark.parametrize("arguments", ON_THE_COMMAND_LINE)
def test_refusals_on_the_command_line(arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = refusal_of_command(arguments)
    pinned.check_sentence(sentence, STORED["refused commands"][arguments], ON_THE_COMMAND_LINE[arguments])


def test_keywords_are_words_of_the_sentences() -> None:
    """Or they could not hold anything."""
    for case, (_, keywords) in IN_PROGRAMS.items():
        assert pinned.has_words(STORED["refusals"][case][1], keywords), case
    for arguments, keywords in ON_THE_COMMAND_LINE.items():
        assert pinned.has_words(STORED["refused commands"][arguments], keywords), arguments


def test_another_sentence_is_found() -> None:
    stored = STORED["refusals"]["HTM with aligned shares"][1]
    pinned.check_sentence("HTM cannot follow aligned shares.", stored, ("htm", "aligned"))
    with pytest.raises(AssertionError):
        pinned.check_sentence("unknown method 'x', known: none, mixup, cutmix", stored, ("htm", "aligned"))


def _write() -> None:
    import os
    import tempfile

    def flags(command: str) -> dict[str, Any]:
        return {
            name: {key: value for key, value in flag.items() if key != "described"}
            for name, flag in flags_of(command).items()
        }

    content: dict[str, Any] = {
        "flags": {command: flags(command) for command in COMMANDS},
        "train": train_settings(),
        "train choices": train_choices(),
        "recipes": recipes(),
        "matrices": matrices(),
        "methods": method_settings(),
        "parts": part_settings(),
        "texts": {text: str(_created(text)) for text in TEXTS},
        "vitmix": public_names(vitmix),
        "vitmix.functional": public_names(vitmix.functional),
        "refusals": {case: refusal(case) for case in IN_PROGRAMS},
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        content["refused commands"] = {each: refusal_of_command(each) for each in ON_THE_COMMAND_LINE}
    pinned.write(FILE, content, depth=2)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit("usage: python tests/test_surface.py --write")
    _write()
