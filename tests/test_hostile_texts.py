"""Texts of unknown origin, as methods, YAML and JSON: a value or one sentence, at once."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

import vitmix
from vitmix.lab.cli import main as cli
from vitmix.lab.comparison.matrix import parse_matrix, read_matrix
from vitmix.lab.data.classes import class_names
from vitmix.lab.evaluation.conditions import Answers
from vitmix.lab.reading import MOST_DEPTH, parse_json, parse_yaml
from vitmix.lab.runs import run_for
from vitmix.lab.training.config import resolve

DIGITS = "9" * 400
METHODS = {
    "round brackets": "(" * 1500 + "cutmix" + ")" * 1500,
    "square brackets": f"cutmix(alpha={'[' * 1500}{']' * 1500})",
    "parts within parts": "mix(mask=" * 1500 + "box" + ")" * 1500,
    "a number": f"cutmix(alpha={DIGITS})",
    "a negative number": f"cutmix(alpha=-{DIGITS})",
    "a block": f"cutmix + htm(block={DIGITS})",
    "a fraction": f"cutmix(alpha={DIGITS}.5)",
    "an exponent": "cutmix(alpha=1e999)",
    "a weight": f"{DIGITS}*cutmix | mixup",
    "choices": " | ".join(["cutmix"] * 5000),
    "blanks": "cutmix" + " " * 1_000_000 + "| mixup",
    "a name": "x" * 1_000_000,
}


@pytest.mark.parametrize("name", METHODS)
def test_a_hostile_method_is_one_sentence(name: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError) as refusal:
        vitmix.create(METHODS[name], 10)
    assert len(str(refusal.value)) < 6000
    try:
        resolve({"method": METHODS[name], "model": "test_vit"})
    except ValueError:
        pass  # what cannot be spelled
    assert time.process_time() - start < 2


def test_honest_nesting_is_read() -> None:
    assert vitmix.create("(" * 10 + "cutmix" + ")" * 10, 10) == vitmix.create("cutmix", 10)
    assert vitmix.create("cutmix(alpha=000000000000000001)", 10) == vitmix.create("cutmix(alpha=1)", 10)


def test_any_tokens_are_a_method_or_a_sentence() -> None:
    words = [
        *"()[],=*+|",
        "cutmix",
        "mix",
        "htm",
        "mask",
        "box",
        "share",
        "alpha",
        "1",
        "0.5",
        "-1",
        "nan",
        "none",
        DIGITS,
    ]
    chance = random.Random(0)
    made = 0
    for _ in range(2000):
        text = "".join(chance.choice(words) for _ in range(chance.randrange(1, 12)))
        try:
            vitmix.create(text, 10)
            made += 1
        except ValueError:
            pass
    assert made > 10


PAIRS = zip("abcdefghi", "bcdefghij", strict=True)
SETTINGS = {
    "deep lists": "epochs: " + "[" * 100_000,
    "deep mappings": "model_args: " + "{a: " * 900 + "1" + "}" * 900,
    "deep blocks": "\n".join(" " * depth + "a:" for depth in range(600)),
    "itself": "model_args: &a\n  depth: *a",
    "a billion": "a: &a [x, x]\n" + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in PAIRS),
    "a number that is none": "!!int : 1",
    "a fraction that is none": "lr: !!float ''",
    "a switch that is none": "compile: !!bool maybe",
    "a date that is none": "data: !!timestamp x",
    "bytes": "model_args: {depth: !!binary aGVsbG8=}",
    "a set": "model_args: {depth: !!set {a, b}}",
    "numbers for names": "model_args: {1: 2}",
    "many digits": f"epochs: {DIGITS}",
    "more digits": f"epochs: {'9' * 10_000}",
    "many digits of a number": f"lr: {DIGITS}",
    "a long file": "epochs: 1 #" + "x" * 10_000_000,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_hostile_settings_are_one_sentence(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SETTINGS[name])
    start = time.process_time()
    with pytest.raises(ValueError):
        resolve(file=path)
    with pytest.raises(ValueError):
        read_matrix(str(path))
    assert cli.main(["train", "--config", str(path)]) == 2
    said = capfd.readouterr().err
    assert said.startswith("vitmix: error: ") and said.count("\n") == 1
    assert time.process_time() - start < 5


@pytest.mark.parametrize("value", ["[" * 2000 + "]" * 2000, "&a [*a]", "!!binary aGVsbG8=", "9" * 5000])
def test_hostile_arguments_are_one_sentence(value: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--model-args", f"depth={value}", "--epochs", "1"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("vitmix: error: ") and said.count("\n") == 1


@pytest.mark.parametrize("seeds", ["&a [*a]", "[[0], [1]]", "[{}]", f"[{DIGITS}]", "[0, null]", "3", "[]", "[0, 0]"])
def test_seeds_are_whole_numbers(seeds: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(f"rows: [cutmix, mixup]\nseeds: {seeds}")
    with pytest.raises(ValueError, match="seed|nested"):
        read_matrix(str(path))
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(ValueError, match="seed must be an integer"):
        parse_matrix({"rows": ["cutmix"], "seeds": itself}, "a program")


def test_dates_are_texts(tmp_path: Path) -> None:
    assert parse_yaml("[2024-01-31, 2024-01-31 10:00:00, 5, 1.5, yes, null]") == [
        *("2024-01-31", "2024-01-31 10:00:00", 5, 1.5, True, None)
    ]
    (tmp_path / "config.yaml").write_text("model_args: {depth: 2024-01-31}")
    run_for(resolve(file=tmp_path / "config.yaml"))  # which writes the settings down


def test_deep_json_is_refused_where_it_is_read(tmp_path: Path) -> None:
    deep = "[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1)
    assert parse_json(deep[1:-1]) and parse_yaml(deep[1:-1])
    for text in (deep, "[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match="deep"):
            parse_json(text)
    (tmp_path / "classes.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="must be a JSON list of class names"):
        class_names(tmp_path, 3)
    for text in ("[" * 100_000, "[]", '{"right": {}, "confidence": 3}', json.dumps({"right": "0", "confidence": "?"})):
        assert Answers.parse(text, 5).done == 0
