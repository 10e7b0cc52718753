"""The library stands alone: it never imports the laboratory, names load lazily, help texts need no torch."""

import ast
import inspect
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import vitmix

ROOT = Path(vitmix.__file__).parent
DOORS = {"_command.py", "__main__.py"}  # the command's entry points, which open the laboratory when they are called
LIBRARY = [path for path in ROOT.rglob("*.py") if "lab" not in path.relative_to(ROOT).parts]
NEEDED = {"torch", "timm", "numpy", "scipy", "safetensors", "vitmix"}
READS = {
    "huggingface.py": {"transformers"},
    "huggingface_encoders.py": {"transformers"},
    "huggingface_pyramids.py": {"transformers"},
    "torchvision_models.py": {"torchvision"},
    "maps.py": {"torchvision"},
    "wrapping.py": {"torchvision"},
    "trainer.py": {"transformers"},
    "lightning_module.py": {"lightning"},
}  # only when such a model comes


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path} imports relatively"
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_library_never_imports_the_laboratory(path: Path) -> None:
    if path.name not in DOORS:
        assert not [name for name in imported(path) if name.startswith("vitmix.lab")]


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_library_needs_five_packages(path: Path) -> None:
    allowed = NEEDED | sys.stdlib_module_names | READS.get(path.name, set())
    if "_kernels" in path.parts:
        allowed |= {"triton"}  # which comes with torch for GPUs, and is imported where a kernel runs
    assert not {name.partition(".")[0] for name in imported(path)} - allowed


def run(code: str) -> tuple[str, float]:
    """What a fresh interpreter prints, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_importing_the_library_imports_nothing_heavy() -> None:
    said, _ = run("import vitmix, sys; print(sorted({'torch', 'timm', 'numpy', 'scipy'} & set(sys.modules)))")
    assert said.strip() == "[]"


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["compare", "--help"], ["--version"]])
def test_help_needs_no_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from vitmix._command import main
sys.argv = ["vitmix", *{arguments!r}]
try:
    main()
finally:
    assert "torch" not in sys.modules and "timm" not in sys.modules
"""
    said, seconds = run(code)
    assert "vitmix" in said
    assert seconds < 0.7


def test_a_reader_imports_only_the_package_of_its_model() -> None:
    code = """
import sys, torch, vitmix
vitmix.create("cutmix", 3).attach(torch.nn.Linear(3, 3)).close()
print(sorted({"timm", "torchvision", "transformers"} & set(sys.modules)))
"""
    assert run(code)[0].strip() == "[]"


def test_without_the_laboratory_the_command_says_what_to_install() -> None:
    code = """
import sys
from unittest import mock
from vitmix import _command
with mock.patch.object(_command, "find_spec", lambda name: None if name == "rich" else object()):
    print(_command.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "2"
    assert done.stderr == "vitmix: error: the command needs rich: pip install 'vitmix[lab]'\n"


def test_public_names_are_what_editors_see() -> None:
    """The names that load lazily are those that type checkers read."""
    (block,) = (
        node
        for node in ast.parse((ROOT / "__init__.py").read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {alias.asname: f"{node.module}" for node in block.body for alias in node.names}  # pyright: ignore
    assert seen.keys() == set(vitmix.__all__)
    for name, module in seen.items():
        assert getattr(vitmix, name) is not None and name in dir(vitmix)
        assert module in ("vitmix", f"vitmix.{vitmix._HOME.get(name)}")


@pytest.mark.parametrize(("old", "new"), [("Region", "RegionLoss"), ("Consistency", "ConsistencyLoss")])
def test_old_names_work_and_say_the_new_one(old: str, new: str) -> None:
    with pytest.warns(FutureWarning, match=f"vitmix.{old} is now vitmix.{new}"):
        assert getattr(vitmix, old) is getattr(vitmix, new)


@pytest.mark.parametrize("name", sorted(set(vitmix.__all__) - {"functional", "models"}))
def test_docstrings_name_every_setting(name: str) -> None:
    thing = getattr(vitmix, name)
    said = inspect.getdoc(thing) or ""
    named = [each.name for each in inspect.signature(thing).parameters.values() if each.kind is not each.VAR_KEYWORD]
    assert said and not [each for each in named if each != "num_classes" and not re.search(rf"\b{each}\b", said)]
