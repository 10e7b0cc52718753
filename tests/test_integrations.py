"""Every integration is short and runs."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "integrations"
STRICT = Path(__file__).with_name("strict_script.py")
SHORT = {
    "plain_loop": ["--steps", "3"],
    "timm_loop": ["--epochs", "1", "--images", "192"],
    "lightning_module": ["--steps", "3"],
    "hf_trainer": ["--steps", "3"],
    "torchvision_loop": ["--epochs", "1", "--images", "192"],
}
NEEDS = {"lightning_module": "lightning", "hf_trainer": "transformers"}


def test_all_are_here_and_short() -> None:
    scripts = {path.stem: path for path in FOLDER.glob("*.py")}
    assert scripts.keys() == SHORT.keys()
    for path in scripts.values():
        assert len(path.read_text().splitlines()) < 60, path.name


@pytest.mark.parametrize("name", SHORT)
def test_integration_runs(name: str) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed (extra dev)")
    command = [sys.executable, str(STRICT), str(FOLDER / f"{name}.py"), *SHORT[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"accuracy.*?([\d.]+) ?%", done.stdout)
    assert found and 0 <= float(found[-1]) <= 100, done.stdout
