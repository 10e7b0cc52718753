"""The kinds of input that are fuzzed: where their valid forms come from, how they are changed, what reads them."""

import dataclasses
import hashlib
import inspect
import json
import os
import random
import shutil
import stat
import struct
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
import yaml

import vitmix
from fuzz import Case, Kind, Wrong
from fuzz_commands import Enough, as_typed, prepare, run_command
from fuzz_images import run_image
from fuzz_labels import run_coco, run_maps, run_masks
from fuzz_values import NUMBERS, TEXTS, WHOLE, change_bytes, change_text, change_value, hostile, hostile_text
from training import TINY
from vitmix._grammar import spelled
from vitmix._registry import KINDS as PART_KINDS
from vitmix._registry import METHODS, parts
from vitmix.lab.cli import COMMANDS, CommandGroup
from vitmix.lab.cli._parser import flag
from vitmix.lab.comparison.matrix import read_matrix
from vitmix.lab.data.augment import Augmentation
from vitmix.lab.evaluation.subject import open_subject
from vitmix.lab.settings import fitted, key_and_value
from vitmix.lab.suite import Robustness
from vitmix.lab.training import recipes
from vitmix.lab.training.config import FIELDS, TrainConfig, checkpoint_interval, resolve, to_yaml
from vitmix.lab.training.config import KINDS as TYPES
from vitmix.lab.training.header import read_header
from vitmix.lab.training.weights import load_weights, read_weights

RUN = Path(__file__).parent / "behaviour" / "run_0.1"
MATRICES = Path(vitmix.__file__).parent / "lab" / "comparison" / "matrices"
MODEL = "vit_tiny_patch16_224"
ARGUMENTS = {"patch_size": 8, "embed_dim": 8, "depth": 2, "num_heads": 2, "img_size": 16}
DATA = "shapes(size=16, length=16, test_length=8)"


# Method texts, and other texts with a grammar


def method_text(chance: random.Random, depth: int = 2) -> str:
    """A method, most of whose names are right."""
    kind = chance.random()
    if kind < 0.25 and depth:
        terms = [method_text(chance, depth - 1) for _ in range(chance.choice([2, 2, 3]))]
        weighted = chance.random() < 0.3
        return " | ".join(f"{chance.choice([0.2, 1, 3, 0, -1])}*{each}" if weighted else each for each in terms)
    if kind < 0.3 and depth:
        return f"({method_text(chance, depth - 1)})"
    if kind < 0.6:
        names = [name for name in PART_KINDS if chance.random() < 0.5]
        inside = [f"{name}={_part_value(name, chance)}" for name in names] + _common(chance)
        text = f"mix({', '.join(inside)})"
    else:
        name = chance.choice([*METHODS])
        signature = inspect.signature(METHODS[name]).parameters
        settings = {key: each.default for key, each in signature.items() if each.kind is each.KEYWORD_ONLY}
        text = _call(name, settings, chance, _common(chance))
    for _ in range(chance.choice([0, 0, 0, 1, 1, 2])):
        text += f" + {_part(chance.choice(['inner', 'extra']), chance)}"
    return text


def _common(chance: random.Random) -> list[str]:
    given = {"smoothing": chance.choice([0, 0.1, 1, 2]), "loss": chance.choice(["ce", "bce", "x"])}
    return [f"{key}={value}" for key, value in given.items() if chance.random() < 0.1]


def _part_value(kind: str, chance: random.Random) -> str:
    if kind not in ("extra", "inner"):
        return _part(kind, chance)
    return f"[{', '.join(_part(kind, chance) for _ in range(chance.choice([0, 1, 2])))}]"


def _part(kind: str, chance: random.Random) -> str:
    name, part = chance.choice([*parts(kind).items()])
    return _call(name, {each.name: each.default for each in dataclasses.fields(part)}, chance)


def _call(name: str, settings: dict[str, Any], chance: random.Random, more: Sequence[str] = ()) -> str:
    chosen = [key for key in settings if chance.random() < 0.2]
    inside = [f"{key}={_setting(settings[key], chance)}" for key in chosen] + [*more]
    return f"{name}({', '.join(inside)})" if inside else name


def _setting(default: Any, chance: random.Random) -> str:
    """A value like the default one, or another."""
    if chance.random() < 0.08:
        odd = ["[]", "[1]", "none", "True", "all", "[-1, 0]", "[[1]]", "x", "box", str(chance.choice(NUMBERS))]
        return chance.choice(odd)
    if isinstance(default, bool):
        return chance.choice(["True", "False"])
    if isinstance(default, int):
        return str(chance.choice([default, 0, 1, 2, -1, 3]))
    if isinstance(default, float):
        return str(chance.choice([default, 0, 0.3, 1, 2.5, 1e-9, 1e9]))
    if isinstance(default, tuple):
        return chance.choice(["[2, 2]", "[0]", "[1, 1]", "all", "[-1]"])
    if chance.random() < 0.6:
        return str(default)
    return chance.choice(["all", "none", "batch", "sample", "max", "min", "random", "[4, 4]", "0.5"])


def run_text(case: Case) -> bool:
    """A method, made and printed and made again; now and then trained for a step. Or another text with a grammar."""
    chance = case.chance
    if chance.random() < 0.2:
        return _run_other_text(case)
    text = method_text(chance)
    for _ in range(chance.choice([0, 0, 0, 1, 1, 2, 5])):
        text = change_text(text, chance, _words())
    classes = chance.choice([5, 5, 5, 5, 5, 1, hostile(chance)])
    case.shown = f"create({text!a}, {classes!a})"
    with warnings.catch_warnings(action="ignore"):
        mixer = vitmix.create(text, classes)
        printed = str(mixer)
        if vitmix.create(printed, classes) != mixer:
            raise Wrong(f"printed as {printed!r}, which is another method")
        if vitmix.create(spelled(text), classes) != mixer:
            raise Wrong(f"spelled as {spelled(text)!r}, which is another method")
        if classes == 5 and chance.random() < 0.15:
            case.shown += ", trained for a step"
            _train_step(mixer)
    return True


@cache
def _words() -> tuple[str, ...]:
    names = [*METHODS, *PART_KINDS, *(name for kind in PART_KINDS for name in parts(kind))]
    settings = [each.name for kind in PART_KINDS for part in parts(kind).values() for each in dataclasses.fields(part)]
    return (*names, *names, *settings, *"()[],=*+|", "nan", "inf", "0.5*", "=none", "none", "True", *TEXTS)


@cache
def _tiny_model() -> torch.nn.Module:
    return timm.create_model(MODEL, num_classes=5, **ARGUMENTS).train()


def _train_step(mixer: Any) -> None:
    torch.manual_seed(0)
    learner = vitmix.Learner(_tiny_model(), mixer)
    try:
        maps = torch.rand(4, 2, 2) if any(each.needs.maps for each in mixer.mixers) else None
        loss = learner(torch.randn(4, 3, 16, 16), torch.arange(4), maps=maps).loss
        loss.backward()
    finally:
        learner.mixing.close()


def _run_other_text(case: Case) -> bool:
    """Texts that a flag takes: each field of a training's settings, intervals, policies, KEY=VALUE, bounds."""
    chance = case.chance
    kind = chance.randrange(5)
    if kind == 0:
        text = _changed(chance.choice(["1 epoch", "500 steps", "600 seconds", "0.5 epochs"]), chance)
        case.shown = f"checkpoint_interval({text!a})"
        checkpoint_interval(text)
    elif kind == 1:
        policies = ["rand-m9-mstd0.5-inc1", "augmix-m5-w4-d2", "original-mstd0.5", "v0", "rand-n2-p0.5-weights1"]
        text = _changed(chance.choice(policies), chance)
        case.shown = f"Augmentation(auto_augment={text!a})"
        Augmentation(size=16, auto_augment=text)
    elif kind == 2:
        text = _changed(chance.choice(["depth=6", "embed_dims=[1, 2]", "qkv_bias=true", "x={a: 1}"]), chance)
        case.shown = f"key_and_value({text!a})"
        key_and_value(text)
    elif kind == 3:
        text = _changed(chance.choice(["8/255", "0.03", "1"]), chance)
        case.shown = f"fitted({text!a})"
        fitted(Robustness, "epsilons", [text], "the flags")
    else:
        flags = {chance.choice([*FIELDS]): hostile_text(chance) for _ in range(chance.choice([1, 1, 2]))}
        case.shown = f"resolve({flags!a})"
        _same_when_stored(case, resolve({"model": MODEL, **flags}))
    return True


def _changed(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice([1, 1, 2])):
        text = change_text(text, chance)
    return text


# YAML files


@cache
def _configurations() -> list[dict[str, Any]]:
    stored = [yaml.safe_load((RUN / "config.yaml").read_text()), TINY | {"scale": [0.1, 1], "betas": [0.9, 0.99]}]
    return stored + [dict(recipes.read_recipe(name).settings) for name in recipes.list_recipes()]


@cache
def _matrices() -> list[dict[str, Any]]:
    found = [yaml.safe_load(path.read_text()) for path in sorted(MATRICES.glob("*.yaml"))]
    return [each for each in found if len(each["rows"]) < 8]


def run_yaml(case: Case) -> bool:
    """A configuration or a matrix, changed as a value and then as text."""
    chance = case.chance
    is_matrix = chance.random() < 0.4
    value = dict(chance.choice(_matrices() if is_matrix else _configurations()))
    if not is_matrix:
        value = dict(chance.sample([*value.items()], min(len(value), chance.randrange(1, 9))))
        value |= {} if chance.random() < 0.1 else {"model": MODEL}
        value |= {chance.choice([*FIELDS]): hostile(chance) for _ in range(chance.choice([0, 0, 1]))}
    for _ in range(chance.choice([0, 1, 1, 1, 2])):
        value = change_value(value, chance)
    content = _as_yaml(value, chance)
    path = case.folder / "file.yaml"
    path.write_bytes(content)
    case.shown = f"{'matrix' if is_matrix else 'configuration'} {content[:1500]!r}"
    if is_matrix:
        matrix = read_matrix(str(path))
        if len(matrix.rows) * max(1, len(matrix.models)) * max(1, len(matrix.data)) * len(matrix.seeds) < 50:
            matrix.trainings(case.folder)
        path.write_text(yaml.safe_dump(matrix.plain()))
        if read_matrix(str(path)) != matrix:
            raise Wrong("the matrix, written and read again, is another one")
    else:
        _same_when_stored(case, resolve(file=path))
    return True


def _same_when_stored(case: Case, config: TrainConfig) -> None:
    path = case.folder / "stored.yaml"
    path.write_text(to_yaml(config))
    again = resolve(file=path)
    if again != config and repr(again) != repr(config):  # NaN is not itself
        raise Wrong(f"stored and read again, the settings are others: {again}")


def _as_yaml(value: Any, chance: random.Random) -> bytes:
    style = chance.random()
    try:
        if style < 0.35:
            text = json.dumps(value, ensure_ascii=False)
        else:
            text = yaml.safe_dump(value, default_flow_style=style < 0.5, allow_unicode=style < 0.8, width=200)
    except yaml.YAMLError:
        text = json.dumps(value)
    words = (*TEXTS, "&a ", "*a", "<<: *a\n", "!!binary ", "!!set ", "!!python/object:os.system ", "? ", "- ", "---\n")
    words += ("|\n ", ">\n ", "'", '"', "%YAML 9.9\n", "!!float ", "!!int ", "2024-01-31", "0o17", "1_000", ".inf")
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        text = change_text(text, chance, words)
    content = text.encode("utf-8", "surrogatepass")
    return change_bytes(content, chance) if chance.random() < 0.1 else content


# Files of weights


def _opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a file of weights, and the numbers."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _changed_weights(content: bytes, chance: random.Random) -> bytes:
    """A file of weights of which the description, the tensors' places or the bytes are changed."""
    try:
        header, numbers = _opened(content)
        facts = header.get("__metadata__", {}).get("vitmix")
        value = None if facts is None else json.loads(facts)
    except (ValueError, AttributeError, TypeError, RecursionError, struct.error):  # it was changed before
        return change_bytes(content, chance)
    target = chance.random()
    if target < 0.6 and facts is not None:
        for _ in range(chance.choice([1, 1, 2, 3])):
            value = change_value(value, chance)
        said = json.dumps(value)
        header["__metadata__"]["vitmix"] = change_text(said, chance) if chance.random() < 0.15 else said
    elif target < 0.85:
        header = change_value(header, chance)
    text = json.dumps(header)
    if chance.random() < 0.1:
        text = change_text(text, chance)
    body = text.encode("utf-8", "surrogatepass")
    length = chance.choice(NUMBERS[:16]) % 2**64 if chance.random() < 0.03 else len(body)
    content = struct.pack("<Q", length) + body + numbers
    return change_bytes(content, chance) if target > 0.85 or chance.random() < 0.05 else content


def run_header(case: Case) -> bool:
    """A changed file of weights, and something that reads it."""
    chance = case.chance
    if chance.random() < 0.04:
        path = case.folder / chance.choice(["weights.pth", "weights.bin"])
        content = _torch_file(chance)
    else:
        path = case.folder / "weights.safetensors"
        content = _changed_weights((RUN / "best.safetensors").read_bytes(), chance)
    path.write_bytes(content)
    case.shown = f"{path.name}: {content[8:4000]!r}"
    return _read_weights_file(case, path)


def _read_weights_file(case: Case, path: Path) -> bool:
    chance = case.chance
    reader = chance.randrange(12)
    if reader < 5:
        case.shown = f"read_header of {case.shown}"
        read_header(path)
    elif reader < 7:
        case.shown = f"open_subject of {case.shown}"
        _ = open_subject(path).augmentation
    elif reader == 7:
        case.shown = f"load_weights of {case.shown}"
        read_weights(path)
        load_weights(timm.create_model(MODEL, num_classes=8, **ARGUMENTS | {"patch_size": 4}), path)
    elif reader == 8:
        case.shown = f"resolve of {case.shown}"
        resolve({"checkpoint": str(path), "data": DATA})
    else:
        name = str(path)
        lines = [
            ["eval", name, "--data", DATA, "--workers", "0"],
            ["show", "--model", name, "--method", "cutmix", "--output", "a.svg"],
            ["train", "--checkpoint", name, "--data", DATA, "--batch", "8", "--workers", "0", "--track", "none"],
            ["figure", "attention", name, "--output", "a.svg"],
            ["export", name, "out", "--to", "timm"],
            ["analyze", name, "--data", DATA, "--study", "accuracy", "--images", "4", "--batch", "2", "--workers", "0"],
            ["maps", "--data", DATA, "--teacher", MODEL, "--checkpoint", name, "--output", "maps", "--workers", "0"],
        ]
        arguments = chance.choice(lines)
        case.shown = f"{as_typed(arguments)}\n{case.shown}"
        return run_command(arguments)
    return True


def _torch_file(chance: random.Random) -> bytes:
    header, _ = _opened((RUN / "best.safetensors").read_bytes())
    path = Path("made.pth")
    stored = {key: torch.zeros(shape["shape"]) for key, shape in header.items() if key != "__metadata__"}
    values: list[Any] = [stored, {"state_dict": stored}, {1: torch.zeros(1)}, [stored], {"model": {"x": 1}}, None]
    torch.save(chance.choice(values), path)
    content = path.read_bytes()
    path.unlink()
    return change_bytes(content, chance) if chance.random() < 0.8 else content


# Command lines

TINY_MODEL = [f"{key}={value}" for key, value in ARGUMENTS.items() if key != "img_size"]
NAMED = ["--model", MODEL, "--size", "16", "--model-args", *TINY_MODEL]
FAST = ["--epochs", "1", "--batch", "8", "--workers", "0", "--track", "none", "--cpu"]
RAN = ["eval", "run", "--workers", "0", "--cpu"]
LINES: list[list[str]] = [
    *([name] for name in COMMANDS),
    *([name, "--help"] for name in COMMANDS),
    ["--version"],
    ["train", "--data", DATA, *NAMED, *FAST, "--method", "mixup(alpha=0.8) | tl_align", "--output", "out"],
    ["train", "--data", DATA, *NAMED, *FAST, "--scale", "0.1", "1", "--betas", "0.9", "0.99", "--ema", "0.9"],
    ["train", "--data", DATA, *NAMED, *FAST, "--erasing", "0.5", "--erase-after-mixing", "--accumulate", "2"],
    ["train", "--data", DATA, *NAMED, *FAST, "--resident", "--padding", "2", "--scale", "none", "--repeats", "2"],
    ["train", "--config", "run/config.yaml", "--output", "other", "--seed", "1"],
    ["train", "--config", "run/config.yaml", "--output", "run", "--resume"],
    ["train", "--recipe", "shapes", "--data", DATA, *FAST, "--layer-decay", "0.7", "--clip-grad", "1"],
    ["train", "--checkpoint", "run", "--data", DATA, *FAST, "--mean", "0.5", "0.5", "0.5", "--std", "1", "1", "1"],
    ["train", "--data", "imagefolder:photos?holdout=0.5", *NAMED, *FAST],
    ["train", "--recipe", "help"],
    RAN,
    [*RAN, "--data", DATA, "--split", "val", "--weights", "last", "--output", "found.json"],
    [*RAN, "--suite", "clean,noise", "--limit", "4", "--cells", "cells"],
    [*RAN, "--suite", "attacks", "--limit", "2", "--attack-limit", "2", "--epsilons", "8/255", "--alphas", "0.01"],
    [*RAN, "--suite", "occlusion", "--orders", "random", "--limit", "2"],
    [*RAN, "--suite", "corruptions", "--corruptions", "gaussian_noise", "--reference", "alexnet", "--limit", "2"],
    ["eval", "run/best.safetensors", "--data", DATA, "--batch", "4", "--size", "16", "--precision", "fp32"],
    ["eval", MODEL, "--model-args", *TINY_MODEL, "num_classes=8", "--size", "16", "--data", DATA, "--workers", "0"],
    ["export", "run", "out", "--to", "timm", "--weights", "last"],
    ["export", "run/best.safetensors", "out", "--to", "hf"],
    ["analyze", "--list"],
    ["analyze", "run", "--study", "accuracy", "--images", "4", "--batch", "2", "--workers", "0", "--figure", "svg"],
    ["analyze", "run", "--study", "labels", "--method", "cutmix", "--images", "4", "--batch", "2", "--seed", "3"],
    ["compare", "--list"],
    ["compare", "example", "--dry-run", "--seeds", "0", "1"],
    ["compare", "matrix.yaml", "--no-train", "--output", "out", "--measure", "best"],
    ["compare", "--method", "cutmix", "smmix", "--seeds", "0", "--set", "recipe=shapes", "epochs=2", "--jobs", "2"],
    ["compare", "matrix.yaml", "--rows", "a", "--baseline", "a", "--minutes", "1", "--publish", "public"],
    ["report", "run", "--no-eval", "--examples", "0", "--output", "page.html"],
    ["show", "--run", "run", "--method", "cutmix", "--output", "a.svg", "--seed", "1", "--names", "a", "b"],
    ["show", "shapes:1", "a.png", "--model", "run", "--method", "tl_align", "--output", "a.svg"],
    ["figure", "attention", "run", "--blocks", "0", "--output", "a.svg", "--dpi", "50"],
    ["figure", "rollout", "run", "--images", "shapes:1", "--names", "x", "--output", "a.svg"],
    ["figure", "heads", "run", "--block", "1", "--method", "none", "htm", "--output", "a.svg"],
    ["figure", "labels", "run", "--output", "a.svg", "--seed", "2"],
    ["figure", "gallery", "run", "--method", "cutmix", "mixup", "--output", "a.svg"],
    ["maps", "--data", DATA, "--model", "saliency:spectral", "--output", "maps", "--batch", "4", "--workers", "0"],
    ["maps", "--data", DATA, "--teacher", "run", "--output", "maps", "--top", "2", "--workers", "0"],
    ["recipes", "shapes"],
    ["models", MODEL],
    ["models", "--why", "--markdown"],
    ["bench", "--model", MODEL, "--size", "32", "--batch", "2", "--methods", "cutmix", "--modes", "eager", "--cpu"],
    ["bench", "--parts", "kernels", "--model", MODEL, "--size", "32", "--precision", "fp32", "--output", "out"],
    ["--plugin", "plugin.py", "methods"],
]


FRACTIONS = (0, 1, 0.5, 1e-9, 1e-320, 1e9, 1e38, 1e308, -1, "nan", "inf", 2, 0.999)


@cache
def _flags() -> tuple[str, ...]:
    found = {"--plugin", "--help", "-h", "--no-compile", "--no-resume"}
    for each in COMMANDS.values():
        for command in each.kinds.values() if isinstance(each, CommandGroup) else (each,):
            found |= {flag(option.name) for option in dataclasses.fields(command.settings)}
    return tuple(sorted(found))


def run_line(case: Case) -> bool:
    """A command line, of which arguments are removed, doubled, moved, added or replaced."""
    chance = case.chance
    if chance.random() < 0.15:
        arguments = _training_line(chance)
    else:
        arguments = list(chance.choice(LINES))
        for _ in range(chance.choice([0, 1, 1, 1, 2, 3, 4])):
            arguments = _change_line(arguments, chance)
    case.shown = as_typed(arguments)
    folder = case.folder
    shutil.copytree(RUN, folder / "run")
    (folder / "matrix.yaml").write_text(f"rows: {{a: cutmix, b: mixup}}\nseeds: [0]\nsettings: {{data: '{DATA}'}}\n")
    (folder / "plugin.py").write_text("")
    for name in ("a.png", "photos/x/0.png", "photos/y/1.png", "photos/x/2.png", "photos/y/3.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(_image())
    return run_command(arguments)


@cache
def _image() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (9, 7), (1, 2, 3)).save(file, "PNG")
    return file.getvalue()


def _training_line(chance: random.Random) -> list[str]:
    """A small training, some of whose settings have an extreme value of the right type."""
    arguments = ["train", "--data", DATA, *NAMED, *FAST]
    for name in chance.sample([*FIELDS], chance.choice([1, 1, 2, 3])):
        kind = TYPES[name]
        if kind.base is bool:
            arguments.append(flag(name))
        elif kind.length is not None:
            arguments += [flag(name), *(str(chance.choice(FRACTIONS)) for _ in range(chance.choice([2, 3])))]
        elif kind.base is float:
            arguments += [flag(name), str(chance.choice(FRACTIONS))]
        elif kind.base is int:
            arguments += [flag(name), str(chance.choice(WHOLE))]
        else:
            choices = kind.choices or ("run", "none", "sgd", "rand-m99-n9", "muon", DATA, "lamb")
            arguments += [flag(name), chance.choice(choices)]
    return arguments


def _change_line(arguments: list[str], chance: random.Random) -> list[str]:
    arguments = list(arguments)
    at = chance.randrange(len(arguments)) if arguments else 0
    kind = chance.randrange(12)
    if kind == 0 or not arguments:
        arguments[at:at] = [chance.choice(_flags())]
    elif kind == 1:
        arguments[at:at] = [chance.choice(_flags()), hostile_text(chance)]
    elif kind == 2:
        arguments.append(f"{chance.choice(_flags())}={hostile_text(chance)}")
    elif kind == 3:
        del arguments[at]
    elif kind == 4:
        arguments[at:at] = [arguments[at]]
    elif kind == 5:
        chance.shuffle(arguments)
    elif kind == 6:
        arguments[at] = change_text(arguments[at], chance, _words())
    elif kind == 7:
        places = ["run", "run/best.safetensors", "a.png", "matrix.yaml", "photos", ".", "missing", "run/config.yaml"]
        arguments[at] = chance.choice([*places, *COMMANDS, DATA, MODEL, "imagefolder:photos", "npz:run", "wds:run"])
    elif kind == 8:
        arguments += chance.choice(LINES)[1:]
    else:
        values = [place for place, each in enumerate(arguments) if place and not each.startswith("-")] or [at]
        arguments[chance.choice(values)] = hostile_text(chance)
    return arguments


# Run folders

REPORT = ["report", "run", "--output", "page.html"]
TRAINED = ["train", "--config", "run/config.yaml", "--output", "run"]
STUDIED = ["analyze", "run", "--workers", "0", "--figure", "svg", "--images"]
READERS = [  # and patterns of what they read
    ([*REPORT, "--no-eval", "--examples", "0"], ("*.json", "*.jsonl", "analysis/*.json", "config.yaml", "best*")),
    ([*REPORT, "--examples", "1"], ("*.json*", "analysis/*.json", "config.yaml", "*.safetensors")),
    (["report", ".", "--no-eval", "--examples", "0"], ("*.json*", "*.yaml", "analysis/*.json", "metrics.*")),
    (["eval", "run", "--workers", "0"], ("config.yaml", "best.safetensors", "*.json")),
    (["eval", "run", "--suite", "clean,noise", "--limit", "4"], ("robustness.json", "robustness/*", "config.yaml")),
    (["eval", "run", "--suite", "clean,noise"], ("robustness.json", "robustness/*")),
    (["eval", "run/last.safetensors", "--workers", "0"], ("last.safetensors", "config.yaml")),
    ([*STUDIED, "4", "--batch", "2", "--study", "accuracy"], ("config.yaml", "best*", "analysis/accuracy.json")),
    ([*STUDIED, "1024", "--study", "accuracy"], ("analysis/accuracy.*", "summary.json", "best*")),
    (["export", "run", "out", "--to", "timm"], ("config.yaml", "best.safetensors", "summary.json")),
    (["show", "--model", "run", "--method", "cutmix", "--output", "a.svg"], ("config.yaml", "best.safetensors")),
    (["figure", "rollout", "run", "--output", "a.svg"], ("config.yaml", "best.safetensors")),
    (TRAINED, ("config.yaml", "summary.json", "metrics.*", "checkpoints/*12/*")),
    ([*TRAINED, "--resume"], ("config.yaml", "checkpoints/*/*", "checkpoints/*12/*", "best*", "metrics.*")),
    (["train", "--checkpoint", "run", "--data", DATA, *FAST], ("best.safetensors", "config.yaml")),
    (["compare", "table.yaml", "--no-train"], ("*.json*", "config.yaml", "analysis/*.json", "metrics.*")),
    (["compare", "table.yaml", "--no-train", "--publish", "public"], ("*.json*", "config.yaml", "analysis/*.json")),
    (["maps", "--data", DATA, "--model", "run", "--output", "maps", "--workers", "0"], ("best*", "config.yaml")),
]


@cache
def _files(pattern: str) -> tuple[str, ...]:
    return tuple(str(path.relative_to(RUN)) for path in sorted(RUN.glob(pattern)))


def run_folder(case: Case) -> bool:
    """A run folder of which some files are changed, missing or something else, and a command that reads it."""
    chance = case.chance
    arguments, patterns = chance.choice(READERS)
    run = case.folder / "run"
    shutil.copytree(RUN, run)
    if arguments[0] == "compare":
        run = _compared(case.folder)
    elif arguments[0] == "train" and chance.random() < 0.7:  # not finished, so that it is resumed
        for name in ("summary.json", "last.safetensors"):
            (run / name).unlink()
    said = []
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        path = run / chance.choice(_files(chance.choice(patterns)))
        said.append(f"{path.relative_to(run)}: {_damage(path, chance)}")
        if path.parent.parent.name == "checkpoints" and path.name != "manifest.json" and chance.random() < 0.6:
            _write_manifest(path.parent)
    case.shown = f"{as_typed(arguments)} where {'; '.join(said)}"
    return run_command(arguments)


def _write_manifest(checkpoint: Path) -> None:
    """Lists the files of a checkpoint as they are, as if they had been written so."""
    contents = {path.name: path.read_bytes() for path in checkpoint.iterdir() if stat.S_ISREG(path.lstat().st_mode)}
    contents.pop("manifest.json", None)
    sums = {name: {"bytes": len(each), "sha256": hashlib.sha256(each).hexdigest()} for name, each in contents.items()}
    with suppress(OSError):
        (checkpoint / "manifest.json").write_text(json.dumps(sums))


def _compared(folder: Path) -> Path:
    """The run where a comparison has it."""
    settings = yaml.safe_load((RUN / "config.yaml").read_text())
    given = {name: value for name, value in settings.items() if name not in ("seed", "method", "output", "resume")}
    matrix = {"rows": {"mine": settings["method"]}, "seeds": [settings["seed"]], "settings": given}
    (folder / "table.yaml").write_text(yaml.safe_dump(matrix))
    (training,) = read_matrix(str(folder / "table.yaml")).trainings(folder / "comparisons" / "table")
    training.run.path.parent.mkdir(parents=True)
    (folder / "run").rename(training.run.path)
    return training.run.path


def _damage(path: Path, chance: random.Random) -> str:
    """Changes a file, and says how."""
    kind = chance.random()
    if kind < 0.12 or not path.is_file():
        return _replace(path, chance)
    if path.suffix == ".safetensors" and kind < 0.75:
        content = _changed_weights(path.read_bytes(), chance)
        path.write_bytes(content)
        return f"weights {content[8:3000]!r}"
    if path.suffix not in (".json", ".jsonl", ".yaml") or kind < 0.25:
        changed = change_bytes(path.read_bytes(), chance)
        path.write_bytes(changed)
        return f"bytes {changed[:60]!r}"
    try:
        content = path.read_text()
        if path.suffix == ".jsonl":
            rows = change_value([json.loads(line) for line in content.splitlines()], chance)
            text = "\n".join(json.dumps(row) for row in rows) if isinstance(rows, list) else json.dumps(rows)
        else:
            text = json.dumps(change_value(yaml.safe_load(content), chance))
    except (ValueError, RecursionError, yaml.YAMLError):  # it was changed before
        return _replace(path, chance)
    path.write_text(text)
    return f"now {text[:1500]!a}"


def _replace(path: Path, chance: random.Random) -> str:
    """Puts something else in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    kind = chance.choice(["missing", "folder", "pipe", "loop", "device", "empty", "deep", "value", "other", "bytes"])
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "other":
        shutil.copy(RUN / chance.choice(_files("*.*")), path)
    elif kind != "missing":
        contents = {"empty": b"", "deep": b"[" * 5000, "bytes": chance.randbytes(50)}
        path.write_bytes(contents.get(kind, json.dumps(hostile(chance)).encode()))
    return kind


def _prepared(run: Callable[[Case], bool]) -> Callable[[Case], bool]:
    def run_prepared(case: Case) -> bool:
        prepare()
        try:
            return run(case)
        except Enough:
            return True

    return run_prepared


KINDS = {
    "texts": Kind(_prepared(run_text), share=45, batch=1000),
    "yaml": Kind(_prepared(run_yaml), share=25, batch=500),
    "headers": Kind(_prepared(run_header), share=11, batch=250),
    "commands": Kind(_prepared(run_line), share=10, batch=200),
    "runs": Kind(_prepared(run_folder), share=3, batch=100),
    "images": Kind(_prepared(run_image), share=6, batch=250),
    "coco": Kind(_prepared(run_coco), share=3, batch=250),
    "masks": Kind(_prepared(run_masks), share=3, batch=250),
    "maps": Kind(_prepared(run_maps), share=3, batch=250),
}
