"""Every `vitmix` command of the documentation is accepted, and one of each kind runs on small substitutes."""

import glob
import shutil
from pathlib import Path

import pytest

import vitmix.models  # noqa: F401  registers models
from documented import HELD_BACK, PAGES, commands, kinds_of_commands, make_workshop, only_parsed, prepared, substitute
from support import ROOT
from training import one_thread, whole_run  # noqa: F401
from vitmix._text import create
from vitmix.lab.cli import NAMES
from vitmix.lab.cli import main as cli
from vitmix.lab.cli._parser import parse
from vitmix.lab.settings import fitted, kinds_of


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


LONG = {"transfer", "compare", "bench", "score"}
LONG_TEXTS = {"show", "eval RUN --suite robustness"}
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


def runs() -> list[object]:
    """A documented command of each kind, with its text; those that take more than three CPU seconds are slow."""
    found = []
    for words in kinds_of_commands():
        text = " ".join(words)
        if only_parsed(words) is None:
            slow = (words[0] in LONG and "--list" not in words) or text in LONG_TEXTS or "autoattack" in text
            found.append(pytest.param(words, id=text, marks=[pytest.mark.slow] if slow else []))
    return found


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("workshop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_workshop(folder)
    return folder


@pytest.mark.filterwarnings("ignore:.* will be trained with binary cross-entropy")
@pytest.mark.parametrize("words", runs())
def test_a_command_of_each_kind_runs(
    words: list[str],
    workshop: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = tmp_path / "here"
    shutil.copytree(workshop, here)
    monkeypatch.chdir(here)
    small = substitute(words)
    for each in [*prepared(small), small]:
        given = [name for word in each for name in (sorted(glob.glob(word)) if "images/" in word else [word])]
        assert cli.main(given) == 0, (given, capsys.readouterr().err)
    assert capsys.readouterr().out.strip()


def test_substitutes_keep_subcommand_and_flags() -> None:
    """So a documented flag that does nothing here is one that `HELD_BACK` names."""
    for words in kinds_of_commands():
        if only_parsed(words) is None:
            small = substitute(words)
            lost = {word for word in words if word.startswith("--")} - {*small} - HELD_BACK
            assert small[0] == words[0] and lost <= {"--pretrained"} | (
                {"--model"} if "--checkpoint" in small else set()
            )


def test_every_subcommand_is_documented_and_runs() -> None:
    ran = {words[0] for words in kinds_of_commands() if only_parsed(words) is None}
    assert set(NAMES) - ran == {"explore", "models"}


def test_the_page_on_tests_says_what_is_only_parsed() -> None:
    page = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    reasons = {reason for words in kinds_of_commands() if (reason := only_parsed(words))}
    assert len(reasons) == 5 and all(each in page for each in reasons | HELD_BACK)
