"""Every `vitmix` command of the documentation is one that the command accepts; those of the README's start run."""

import re
import shlex
from pathlib import Path

import pytest

import vitmix.models  # noqa: F401  registers models
from support import ROOT
from training import one_thread, whole_run  # noqa: F401
from vitmix._text import create
from vitmix.lab.cli import main as cli
from vitmix.lab.cli._parser import parse
from vitmix.lab.settings import fitted, kinds_of

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "results").rglob("*.md")),
]
OPEN = {"...", "[NAME]"}  # for the reader to complete


def commands(page: Path) -> list[list[str]]:
    """The words after `vitmix` of every command in a page's blocks, without the descriptions beside them."""
    found = []
    for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            if match := re.search(r"(?:^|&& |-m |bin/)vitmix\b(.*)", line):
                command = re.split(r" {3,}| {2,}(?=[a-z])", match[1].strip())[0]
                found.append([word for word in shlex.split(command, comments=True) if word not in OPEN])
    return found


def check(words: list[str]) -> None:
    found = parse(cli.make_parser(), words)
    for name, text in vars(found).items():
        kinds = kinds_of(found.command.settings)
        if name in kinds and kinds[name].base is not dict:
            value = fitted(found.command.settings, name, text, "the flags")
            values = value if isinstance(value, tuple) else (value,)
            if (choices := kinds[name].choices) and not set(values) <= {*choices, None}:
                raise ValueError(f"{name} {value!r}")
    methods = getattr(found, "method", None) or []
    for text in [methods] if isinstance(methods, str) else methods:
        if text != "copy_paste":  # of labels with boxes alone
            create(text, 10)


ACCEPTED = {str(page.relative_to(ROOT)): commands(page) for page in PAGES}


@pytest.mark.filterwarnings("ignore:.* will be trained with binary cross-entropy")
@pytest.mark.parametrize("page", [page for page, found in ACCEPTED.items() if found])
def test_documented_commands_are_accepted(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ACCEPTED[page]:
        if not words or "--plugin" in words or "--help" in words:
            continue
        check(words)
        assert not capsys.readouterr().err, words  # a flag with a new name


def test_the_pages_have_commands() -> None:
    assert sum(map(len, ACCEPTED.values())) > 100 and len(ACCEPTED["README.md"]) == 4


@pytest.mark.parametrize(
    "words",
    [["train", "--metod", "smmix"], ["train", "--method", "smix"], ["export", "RUN", "OUT", "--to", "tf"], ["trian"]],
    ids=" ".join,
)
def test_what_is_wrong_is_found(words: list[str]) -> None:
    with pytest.raises(ValueError, match="metod|smix|tf|trian"):
        check(words)


def test_the_readmes_commands_run(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    one_thread: None,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = whole_run(tmp_path_factory)
    monkeypatch.chdir(tmp_path)
    data = "shapes(size=16, length=48, test_length=24)"
    for words in ACCEPTED["README.md"][1:]:
        given = [data if word == "imagefolder:DIR" else word for word in words]
        if "--model" in given:  # smaller, and without a network
            assert "--pretrained" in given
            at = given.index("--model")
            given[at : at + 2] = ["--checkpoint", str(weights)]
            given.remove("--pretrained")
        if given[0] == "train":
            given += ["--epochs", "1", "--workers", "0", "--crop-pct", "1", "--cpu"]
        assert cli.main(given) == 0, (given, capsys.readouterr().err)
    assert (tmp_path / "runs" / "mine" / "best.safetensors").is_file() and (tmp_path / "report.html").is_file()
