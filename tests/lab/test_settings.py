"""Typed settings: what annotations say, and the arguments that are made of them."""

import re
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import pytest

from vitmix.lab.cli import COMMANDS, Command, CommandGroup
from vitmix.lab.cli._parser import Parser, add_arguments, flag, parse, settings_from
from vitmix.lab.settings import Count, Fraction, Kind, Settings, fitted, kinds_of, option, section_of, usual

EVERY = {
    f"{name} {kind}".strip(): command
    for name, each in COMMANDS.items()
    for kind, command in (each.kinds.items() if isinstance(each, CommandGroup) else (("", each),))
}


@dataclass(frozen=True, kw_only=True)
class Base(Settings):
    section = "Shared"

    seed: int = option(0, "decides everything")


@dataclass(frozen=True, kw_only=True)
class Example(Base):
    """Do something."""

    places: tuple[Annotated[str, "PLACE"], ...] = option(..., "where", positional=True)
    count: Count = option(3, "how many")
    part: Fraction | None = option(None, "how much (default: the run's)")
    pair: tuple[float, float] | None = option((0.5, 1.0), "from and to")
    mode: Literal["fast", "slow"] = option("fast", "how")
    given: dict[str, int] = option({}, "more")
    dry_run: bool = option(False, "do nothing")
    amount: int | None = option(None, "the count", now="--count")


def read(*arguments: str) -> Example:
    parser = Parser(prog="example")
    add_arguments(parser, Command(Example, lambda settings: 0))
    return settings_from(parse(parser, arguments))


def test_annotations_are_kinds() -> None:
    kinds = kinds_of(Example)
    assert kinds["places"] == Kind(str, length=0, metavar="PLACE")
    assert kinds["part"].optional and kinds["part"].base is float and kinds["part"].checks
    assert kinds["pair"] == Kind(float, optional=True, length=2)
    assert kinds["mode"] == Kind(str, choices=("fast", "slow"))
    assert kinds["given"] == Kind(dict)
    assert usual(Example, "pair") == (0.5, 1.0) and usual(Example, "given") == {}
    assert section_of(Example, "seed") == "Shared" and section_of(Example, "count") == ""


def test_arguments_become_typed_values() -> None:
    found = read("a", "b", "--part", "0.25", "--pair", "1", "2", "--given", "x=1", "y=[2]", "--dry_run", "--seed=4")
    expected = {"part": 0.25, "pair": (1.0, 2.0), "given": {"x": 1, "y": [2]}, "dry_run": True, "seed": 4}
    assert found == Example(places=("a", "b"), **expected)
    assert read("a", "--pair", "none", "--part", "none") == Example(places=("a",), pair=None)
    assert read("a", "--part", "8/255", "--pair", ".5/2", "1").part == 8 / 255


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a", "--count", "many"], "count in the flags must be a whole number, got 'many'"),
        (["a", "--count", "0"], "count must be an integer of at least 1, got 0"),
        (["a", "--part", "2"], "part must lie between 0 and 1, got 2.0"),
        (["a", "--part", "x"], "part in the flags must be a number or none, got 'x'"),
        (["a", "--part", "1/0"], "part in the flags must be a number or none, got '1/0'"),
        (["a", "--pair", "1"], "pair takes 2 numbers, got 1: [1.0]"),
        (["a", "--mode", "fats"], "unknown mode 'fats', known: fast, slow; did you mean 'fast'?"),
        (["a", "--given", "x"], "given takes KEY=VALUE, such as depth=6, got 'x'"),
        (["a", "--cuont", "2"], "unknown argument '--cuont'; did you mean --count? 'example --help' lists them all"),
        ([], "the following arguments are required: PLACE; 'example --help' shows how it is used"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=".*") as refusal:
        read(*arguments)
    assert str(refusal.value) == sentence


def test_an_earlier_spelling_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert read("a", "--amount", "2").amount == 2
    assert capsys.readouterr().err == "vitmix: note: --amount is now --count\n"


def test_help_has_values_defaults_and_sections() -> None:
    parser = Parser(prog="example")
    add_arguments(parser, Command(Example, lambda settings: 0))
    text = re.sub(r"\s+", " ", parser.format_help())
    assert "--count N how many (default: 3)" in text and "--mode fast|slow how (default: fast)" in text
    assert "--pair NUMBER [NUMBER ...] from and to (default: 0.5 1)" in text and "how much (default: the run's)" in text
    assert "Shared: --seed N decides everything (default: 0)" in text
    assert text.endswith("Earlier spellings, for one more version: --amount N the count; now --count ")


def test_values_of_files_are_checked_alike() -> None:
    assert fitted(Example, "pair", [1, "2"], "a file") == (1.0, 2.0)
    assert fitted(Example, "pair", "1, 2", "a file") == (1.0, 2.0)
    for value in (True, None, [1], "x", 1.5):
        with pytest.raises(ValueError, match="count in a file must be a whole number"):
            fitted(Example, "count", value, "a file")


@pytest.mark.parametrize("name", EVERY)
def test_every_setting_of_every_command_is_documented_in_one_style(name: str) -> None:
    command = EVERY[name]
    assert command.about or command.settings.__doc__
    for each in fields(command.settings):
        text = each.metadata["help"]
        assert text and not text.endswith(".") and "picture" not in text, each.name
        assert not re.search(r"\bif none\b|\bif not given\b", text), f"{flag(each.name)}: {text}"
