"""The notebooks: stored without outputs, and their cells run, without a network."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
OFFLINE = {"HF_HUB_OFFLINE": "1", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["01_mixing", "02_finetune"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and not [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None]
    assert all(max(map(len, cell["source"])) <= 150 for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run(path: Path, tmp_path: Path) -> None:
    """A short version, as one script, so that it needs no Jupyter."""
    pytest.importorskip("skimage", reason="the notebooks' photographs; pip install -e '.[notebooks]'")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    script = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    settings = os.environ | OFFLINE | {"VITMIX_QUICK": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(0 <= accuracy <= 100 for accuracy in accuracies(path, done.stdout))


def accuracies(path: Path, said: str) -> list[float]:
    """The accuracy of each training, in percent."""
    found = [float(number) for number in re.findall(r"accuracy.*?([\d.]+)%", said)]
    assert len(found) == {"01_mixing": 1, "02_finetune": 2}[path.stem], said
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_jupyter(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole notebook, as a reader runs it."""
    nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[notebooks]'")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("skimage")
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("VITMIX_QUICK", raising=False)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(each.get("text", "") for cell in notebook.cells for each in cell.get("outputs", []))
    chance = {"01_mixing": 100 / 12, "02_finetune": 100 / 4}[path.stem]
    assert all(chance < accuracy <= 100 for accuracy in accuracies(path, said)), said
    assert [each for cell in notebook.cells for each in cell.get("outputs", []) if "image/png" in each.get("data", {})]
