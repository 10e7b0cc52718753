"""A comparison as a small folder for a repository: what was measured and how to repeat it, without weights.

README.md     the tables, where they were measured, and the command
matrix.yaml   `vitmix compare matrix.yaml` trains all of it again
compare.json  every number of the tables; compare.csv has the first
runs/NAME     of each training its resolved configuration, its epochs, and all that was measured of it
"""

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vitmix.lab.evaluation.settings import PARTS
from vitmix.lab.reading import MOST_JSON, read_bytes
from vitmix.lab.report.runs import Run
from vitmix.lab.training.checkpoints import make_folder, write_file
from vitmix.lab.training.config import to_yaml
from vitmix.lab.training.progress import duration

from .matrix import Matrix
from .measured import Panel
from .measuring import Measuring, usual_parts
from .panels import markdown_table, plain_panels, sections
from .results import GFLOPS, Comparison, Entry, csv_text, notes, plain, table_rows

KEPT = ("metrics.csv", "metrics.jsonl", "summary.json", "evaluation.json", "robustness.json", "analysis/*.json")
SHARED = "Trainings that ran side by side slowed each other down: times and images/s then compare no methods."
COST = ("", "epochs", "images/s", "memory, GiB", "time of a training")


def content(matrix: Matrix, comparison: Comparison, panels: Sequence[Panel]) -> dict[str, Any]:
    """What compare.json holds."""
    measured = {"measured": plain_panels(comparison, panels)} if panels else {}
    return {"about": matrix.about, "matrix": matrix.plain(), **plain(comparison), **measured}


def publish(matrix: Matrix, comparison: Comparison, panels: Sequence[Panel], folder: Path) -> None:
    """Writes the folder; files of another comparison in it are left alone or replaced by name."""
    found = content(matrix, comparison, panels)
    for row in found["rows"]:
        row["runs"] = [Path(run).name for run in row["runs"]]  # where they were trained is nobody's business
    for entry in comparison.entries:
        for run in entry.runs.values():
            _publish_run(run, folder / "runs" / run.folder.name)
    write_file(folder / "compare.json", (json.dumps(found, indent=1) + "\n").encode())
    write_file(folder / "compare.csv", csv_text(found["rows"]).encode())
    write_file(folder / "matrix.yaml", yaml.safe_dump(matrix.plain(), sort_keys=False, width=1000).encode())
    write_file(folder / "README.md", readme(matrix, comparison, panels).encode())


def _publish_run(run: Run, folder: Path) -> None:
    # Evaluations and studies may have been called with another path to the run than the comparison has.
    elsewhere = re.compile(b'("weights": ")[^"]*/(?=%s/)' % re.escape(run.folder.name).encode())
    for path in sorted(path for pattern in KEPT for path in run.folder.glob(pattern)):
        place = folder / path.relative_to(run.folder)
        make_folder(place.parent)
        held = read_bytes(path, MOST_JSON).replace(f"{run.folder.parent}/".encode(), b"")
        write_file(place, elsewhere.sub(rb"\1", held))
    write_file(folder / "config.yaml", to_yaml(replace(run.config, output=None)).encode())


def readme(matrix: Matrix, comparison: Comparison, panels: Sequence[Panel]) -> str:
    """The tables as Markdown, with what a reader must know to trust and to repeat them."""
    runs = [run for entry in comparison.entries for run in entry.runs.values()]
    places = {json.dumps(run.summary["environment"], sort_keys=True) for run in runs if run.summary}
    spent = sum(run.summary["seconds"] for run in runs if run.summary)
    head, *rows = table_rows(comparison)
    parts = [
        f"# {matrix.about or 'Comparison'}",
        f"```\n{_command(runs)}\n```",
        markdown_table(head, rows),
        " ".join([*notes(comparison), GFLOPS, SHARED]),
        markdown_table(COST, [_cost(entry) for entry in comparison.entries if entry.runs]),
        "Images per second of the whole training loop: median over the epochs, mean over the seeds. Memory: what "
        "tensors on the GPU took at most.",
        "\n".join(f"- {_place(json.loads(place))}" for place in sorted(places)),
        f"{_trainings(len(runs), duration(spent))}, evaluation included. `vitmix train --config runs/NAME/config.yaml` "
        "repeats a training; `vitmix report runs` makes a page.",
        *sections(comparison, panels),
    ]
    return "\n\n".join(parts) + "\n"


def _command(runs: Sequence[Run]) -> str:
    """What trains all of it again, and measures it as it was, where that was done in the usual way."""
    measured = {part for run in runs if run.robustness for part in usual_parts(run.robustness)}
    suite = tuple(part for part in PARTS if part in measured)
    studies = any(True for run in runs for _ in (run.folder / "analysis").glob("*.json"))
    return " ".join(["vitmix compare matrix.yaml", *Measuring(suite, studies).flags])


def _trainings(number: int, time: str) -> str:
    return f"One training of {time}" if number == 1 else f"{number} trainings of {time} in all, each its own clock's"


def _place(environment: dict[str, str]) -> str:
    versions = [f"{name} {version}" for name, version in environment.items() if name != "device"]
    return f"{environment['device']}: {', '.join(versions)}"


def _cost(entry: Entry) -> list[str]:
    epochs = sorted({len(run.rows) for run in entry.runs.values()})
    speed, memory = entry.values("metrics.jsonl:median.images/s"), entry.values("summary.json:peak_memory")
    return [
        entry.row,
        " and ".join(map(str, epochs)),
        f"{statistics.fmean(speed):,.0f}" if speed else "-",
        f"{statistics.fmean(memory) / 2**30:.2f}" if memory else "-",
        duration(statistics.fmean(entry.values("summary.json:seconds"))),
    ]
