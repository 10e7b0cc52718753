"""Writes what `vitmix suggest` knows, from the stored comparisons: the package's evidence.json, and the texts of it.

python docs/make_evidence.py      after every new comparison; a test compares the files with the results
"""

import json
import sys
from pathlib import Path
from statistics import fmean

from vitmix.lab.advice.evidence import FILE, SCRATCH, WEIGHTS, Cost, Evidence, Measured, Series, without_settings
from vitmix.lab.advice.page import card_section, page, with_section
from vitmix.lab.comparison import compare, read_matrix
from vitmix.lab.runs import Estimate, Run
from vitmix.lab.runs.published import FILE as PUBLISHED

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PACKAGED = ROOT / "src" / "vitmix" / "lab" / "advice" / FILE
PAGE = ROOT / "docs" / "which_method.md"
CARDS = ROOT / "docs" / "methods"
DIGITS = 4


def accuracies(run: Run) -> dict[int, float]:
    """Top-1 in % by the number of updates."""
    assert run.summary is not None
    per_epoch = run.summary.updates // run.summary.epochs
    found = {each.number * per_epoch: each.get("accuracy") for each in run.epochs}
    return {updates: 100 * value for updates, value in found.items() if value is not None}


def measured(name: str, runs: dict[int, Run], plain_runs: dict[int, Run]) -> Measured:
    """A row, compared with the runs without mixing of the same seeds."""
    own = {seed: accuracies(run) for seed, run in runs.items()}
    last = [each[max(each)] for each in own.values()]
    method = next(iter(runs.values())).config.method
    if method == "none":
        return Measured(name, method, len(own), round(fmean(last), DIGITS))
    seeds = sorted(own.keys() & plain_runs.keys())
    others = {seed: accuracies(plain_runs[seed]) for seed in seeds}
    common = sorted(set.intersection(*(own[seed].keys() & others[seed].keys() for seed in seeds)))
    course = tuple((at, round(fmean(own[seed][at] - others[seed][at] for seed in seeds), DIGITS)) for at in common)
    gain = Estimate.paired([own[seed][common[-1]] for seed in seeds], [others[seed][common[-1]] for seed in seeds])
    return Measured(name, method, len(own), round(fmean(last), DIGITS), _rounded(gain), course[:-1])


def _rounded(gain: Estimate) -> Estimate:
    values = {key: round(value, DIGITS) if isinstance(value, float) else value for key, value in vars(gain).items()}
    return Estimate(**values)


def series(name: str) -> Series | None:
    """A comparison as evidence; None if it has nothing to compare with a row without mixing, or is of transfers."""
    matrix = read_matrix(str(RESULTS / name))
    if "task" in matrix.settings:
        return None
    rows = {row.row: row.by_seed for row in compare(matrix, matrix.trainings(RESULTS / name)).rows if row.runs}
    unmixed = [runs for runs in rows.values() if next(iter(runs.values())).config.method == "none"]
    if not unmixed or len(rows) == len(unmixed):
        return None
    run = next(iter(unmixed[0].values()))
    config, summary, evaluation = run.config, run.summary, run.evaluation
    assert summary is not None and evaluation is not None
    return Series(
        name,
        WEIGHTS if config.pretrained or config.checkpoint is not None else SCRATCH,
        config.data.startswith("shapes"),
        config.model,
        max(evaluation.size),
        summary.updates // summary.epochs * config.batch,
        summary.updates,
        tuple(measured(row, runs, unmixed[0]) for row, runs in rows.items() if runs.keys() & unmixed[0].keys()),
    )


def cost() -> Cost:
    """The steps of DeiT-S, over that of the bare model; switches follow from their methods."""
    stored = json.loads((RESULTS / "speed" / "deit_small.json").read_text())
    times = {without_settings(row["method"]): row["median"] for row in stored["steps"] if "|" not in row["method"]}
    bare = times.pop("bare model")
    settings = stored["settings"]
    ratios = {method: round(time / bare, DIGITS) for method, time in times.items()}
    return Cost(settings["model"], settings["batch"], settings["device"], ratios)


def collect() -> Evidence:
    names = sorted(path.parent.name for path in RESULTS.glob(f"*/{PUBLISHED}"))
    found = [each for name in names if (each := series(name)) is not None]
    return Evidence(tuple(found), cost())


def packaged(evidence: Evidence) -> str:
    """The package's file: JSON with a line for each series and each method."""
    return evidence.encoded().decode().replace(', {"name": ', ',\n{"name": ') + "\n"


def contents() -> dict[Path, str]:
    """Every file that follows from the results."""
    evidence = collect()
    found = {PACKAGED: packaged(evidence), PAGE: page(evidence)}
    for card in sorted(CARDS.glob("*.md")):
        found[card] = with_section(card.read_text(encoding="utf-8"), card_section(evidence, card.stem))
    return found


if __name__ == "__main__":
    for path, text in contents().items():
        path.write_text(text, encoding="utf-8")
    print(f"{len(contents())} files written", file=sys.stderr)
