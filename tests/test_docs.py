"""What the documents claim runs: every block of code, every example, every heading."""

import ast
import re
import runpy
import shlex
import sys
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import timm
import torch
import yaml

import vitmix
import vitmix.models
from vitmix._registry import KINDS, parts
from vitmix.attention.readers import read_model
from vitmix.lab.cli import main as cli
from vitmix.lab.cli._parser import parse, settings_from
from vitmix.lab.comparison.matrix import parse_matrix
from vitmix.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = sorted((ROOT / "results").rglob("*.md"))
CARDS = sorted((ROOT / "docs" / "methods").glob("*.md"))
HEADINGS = [
    "Use it",
    "What it computes",
    "The paper's λ and our share",
    "Differences from the paper and the released code",
    "Published results",
    "Measured here",
    "Cost",
    "Citation",
]
SHORT = {
    "own_loop": ["--steps", "3"],
    "label_error": ["--steps", "3", "--pairs", "64"],
    "flow_animation": ["--dpi", "40"],
}


# Lightning's advice on loaders, and what it uses of torch
@pytest.mark.filterwarnings(
    "ignore:.*(no `val_dataloader`|does not have many workers|is smaller than the logging|`srun` command)"
)
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*is deprecated:FutureWarning")
@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_run(page: Path, registry_kept: None) -> None:
    """Python runs; matrices are read; commands are understood, up to the data and the time that they need."""
    names: dict[str, object] = {}
    for language, block in re.findall(r"^```(\S*)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        if language == "python" and "gradio_client" not in block:  # which test_explore_server.py runs
            exec(compile(block, str(page), "exec"), names)  # blocks of a page build on each other
        elif language == "yaml":
            assert parse_matrix(yaml.safe_load(block), page.name).rows
        elif not language:
            assert not re.search("^(import|from) ", block, flags=re.MULTILINE), "Python that does not run"
            for words in commands(block):
                check_command(words)


def commands(block: str) -> list[list[str]]:
    """The words of each `vitmix` command, without the explanation behind it."""
    lines = block.replace("\\\n", " ").splitlines()
    found = [re.search(r"(?:^|&& |bin/|-m )vitmix (.*)", re.sub(" +--", " --", line)) for line in lines]
    return [shlex.split(re.split(r" {2,}| \.\.\.", each[1])[0], comments=True) for each in found if each]


def check_command(words: list[str]) -> None:
    if words[-1] == "--help":
        words = words[:-1]
    found = parse(cli.make_parser(), words)
    if found.command.read is None:  # otherwise it opens the data
        settings_from(found)
    methods = vars(found).get("method", [])
    for method in [methods] if isinstance(methods, str) else methods:
        if method not in ("manifold", "copy_paste"):  # of figures and of transfers alone
            with warnings.catch_warnings(action="ignore"):  # of a switch, which has one loss for all
                vitmix.create(method, 10)


def test_commands_of_the_documents_are_found() -> None:
    block = "vitmix a --b 1   says\nx && bin/vitmix c\nrun -m vitmix d \\\n    --e f ...\nvitmix g # says\n vitmix\n"
    assert commands(block) == [["a", "--b", "1"], ["c"], ["d", "--e", "f"], ["g"]]
    with pytest.raises(ValueError, match="epoch"):
        check_command(["train", "--epoch", "3"])
    with pytest.raises(ValueError, match="cutmx"):
        check_command(["show", "--method", "cutmx"])


def test_every_method_has_a_card_with_the_same_headings() -> None:
    assert {card.stem for card in CARDS} == set(METHODS) - {"none"}
    for card in CARDS:
        assert re.findall(r"^## (.*)$", card.read_text(), flags=re.MULTILINE) == HEADINGS, card.name


@pytest.mark.usefixtures("registry_kept")
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda script: script.stem)
def test_examples_run(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # some write a file
    monkeypatch.setattr(sys, "argv", [str(script), *SHORT.get(script.stem, [])])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_links_between_pages_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_parts_and_their_settings_are_in_the_design() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    for kind in KINDS:
        named = {name: ", ".join(field.name for field in fields(part)) for name, part in parts(kind).items()}
        row = ", ".join(f"`{name}({settings})`" if settings else f"`{name}`" for name, settings in named.items())
        assert f"| `{kind}` | {row} |" in page


def test_examples_of_the_support_table_are_read_as_their_library_builds_them() -> None:
    """A tiny model of a family may be built otherwise than the one that the table names."""
    columns, _, *rows = re.findall(r"^\|.*\|$", (ROOT / "docs" / "models.md").read_text(), re.MULTILINE)
    column = next(n for n, name in enumerate(columns.split("|")) if "tl_align" in name)
    found = {"yes": 0, "-": 0}
    for cells in (row.split(" | ") for row in rows if re.search(r"\| (timm|vitmix) \|", row)):
        name, _, given = cells[1].partition(", ")
        setting, _, value = given.partition("=")
        settings = {setting: ast.literal_eval(value)} if given else {}
        with torch.device("meta"):
            model = timm.create_model(name, **settings)
        try:
            read_model(model)
            read = "yes"
        except ValueError:
            read = "-"
        assert cells[column - 1] == read, cells[1]
        found[read] += 1
    assert found["yes"] > 30 and found["-"] >= 1


def test_support_table_is_the_generated_one(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="the table has rows of Hugging Face models")
    assert cli.main(["models", "--markdown", "--why"]) == 0
    table, _, reasons = capsys.readouterr().out.partition("\n\n")
    assert table in (ROOT / "docs" / "models.md").read_text()
    assert "XCiT, tl_align: Xcit cannot be read" in reasons
