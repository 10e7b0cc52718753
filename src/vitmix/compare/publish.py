"""A comparison as a small folder for a repository: what was measured and how to repeat it, without weights.

README.md           the tables, where they were measured, and the command
matrix.yaml         `vitmix compare matrix.yaml` trains all of it again
compare.json, .csv  every number of the tables
runs/NAME.yaml      the resolved configuration of each training
runs/NAME.csv       its epochs
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vitmix.report.runs import Run
from vitmix.train.checkpoints import write_file
from vitmix.train.config import to_yaml
from vitmix.train.progress import duration

from .matrix import Matrix
from .results import GFLOPS, Comparison, Entry, csv_text, notes, plain, table_rows

KEPT = ("metrics.csv", "metrics.jsonl", "summary.json", "evaluation.json", "robustness.json", "analysis/*.json")
COST = ("", "epochs", "images/s", "memory, GiB", "time of a training")


def publish(matrix: Matrix, comparison: Comparison, folder: Path) -> None:
    """Writes the folder; files of another comparison in it are left alone or replaced by name."""
    content = {"about": matrix.about, "matrix": matrix.plain(), **plain(comparison)}
    for row in content["rows"]:
        row["runs"] = [Path(run).name for run in row["runs"]]  # where they were trained is nobody's business
    for entry in comparison.entries:
        for run in entry.runs.values():
            _publish_run(run, folder / "runs" / run.folder.name)
    write_file(folder / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
    write_file(folder / "compare.csv", csv_text(content["rows"]).encode())
    write_file(folder / "matrix.yaml", yaml.safe_dump(matrix.plain(), sort_keys=False, width=1000).encode())
    write_file(folder / "README.md", readme(matrix, comparison).encode())


def _publish_run(run: Run, folder: Path) -> None:
    for path in sorted(path for pattern in KEPT for path in run.folder.glob(pattern)):
        place = folder / path.relative_to(run.folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_file(place, path.read_bytes().replace(f"{run.folder.parent}/".encode(), b""))
    write_file(folder / "config.yaml", to_yaml(replace(run.config, output=None)).encode())


def readme(matrix: Matrix, comparison: Comparison) -> str:
    """The tables as Markdown, with what a reader must know to trust and to repeat them."""
    runs = [run for entry in comparison.entries for run in entry.runs.values()]
    places = {json.dumps(run.summary["environment"], sort_keys=True) for run in runs if run.summary}
    spent = sum(run.summary["seconds"] for run in runs if run.summary)
    head, *rows = table_rows(comparison)
    parts = [
        f"# {matrix.about or 'Comparison'}",
        "```\nvitmix compare matrix.yaml\n```",
        _markdown(head, rows),
        " ".join([*notes(comparison), GFLOPS]),
        _markdown(COST, [_cost(entry) for entry in comparison.entries if entry.runs]),
        "Images per second of the whole training loop: median over the epochs, mean over the seeds. Memory: what "
        "tensors on the GPU took at most. Trainings that ran side by side shared the device.",
        "\n".join(f"- {_place(json.loads(place))}" for place in sorted(places)),
        f"{len(runs)} trainings of {duration(spent)} in all, each its own clock's, evaluation included. "
        "`vitmix train --config runs/NAME/config.yaml` repeats one of them; `vitmix report runs` makes a page.",
    ]
    return "\n\n".join(parts) + "\n"


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


def _markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
