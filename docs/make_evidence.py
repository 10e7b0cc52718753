"""Writes what `vitmix suggest` knows, from the stored comparisons: the package's evidence.json, and the texts of it.

python docs/make_evidence.py      after every new comparison; a test compares the files with the results
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from vitmix.lab.advice.choice import Advice, PlannedTraining, choose
from vitmix.lab.advice.evidence import FILE, SCRATCH, WEIGHTS, Cost, Findings, Measured, Series, without_settings
from vitmix.lab.advice.words import STARTS, best_text, gain_text, kind_text, place_text, reasons, unmeasured
from vitmix.lab.columns import markdown_table
from vitmix.lab.comparison import compare, read_matrix
from vitmix.lab.runs import Estimate, Run
from vitmix.lab.runs.published import FILE as PUBLISHED

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PACKAGED = ROOT / "src" / "vitmix" / "lab" / "advice" / FILE
PAGE = ROOT / "docs" / "which_method.md"
CARDS = ROOT / "docs" / "methods"
DIGITS = 4
SECTION = "## Measured here"
BEFORE = "## Cost"  # where the section goes on a card
LENGTHS = (1_000, 10_000, 50_000)
WITHOUT_ATTENTION = ("mixup", "cutmix", "mixup | cutmix")


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


def collect() -> Findings:
    names = sorted(path.parent.name for path in RESULTS.glob(f"*/{PUBLISHED}"))
    found = [each for name in names if (each := series(name)) is not None]
    return Findings(tuple(found), cost())


def packaged(evidence: Findings) -> str:
    """The package's file: JSON with a line for each series and each method."""
    return evidence.encoded().decode().replace(', {"name": ', ',\n{"name": ') + "\n"


def contents() -> dict[Path, str]:
    """Every file that follows from the results."""
    evidence = collect()
    found = {PACKAGED: packaged(evidence), PAGE: page(evidence)}
    for card in sorted(CARDS.glob("*.md")):
        found[card] = with_section(card.read_text(encoding="utf-8"), card_section(evidence, card.stem))
    return found


# The page and the results on the cards


def page(evidence: Findings) -> str:
    """The whole page."""
    parts = [
        "# Which method should I use?",
        "Ask the command. It looks at your data and model, and answers from the results that are stored with this "
        "library, not from the papers' claims:",
        "```\nvitmix suggest --data imagefolder:DIR --model deit_tiny_patch16_224 --pretrained\n"
        "vitmix suggest --data imagefolder:DIR --model deit_small_patch16_224 --hours 8\n```",
        "It prints a command, the reason, the measured gain with its 95 % interval and the number of seeds (n), the "
        "cost, when mixing does not pay, and what the evidence does not cover. If it recommends no mixing, it names "
        "the best method measured. `python docs/make_evidence.py` makes this page and the package's evidence.json "
        "from the stored results; a test compares both with them.",
        "## In short",
        markdown_table(
            ["training", "updates", "attention can be read", "use", "gain over no mixing"], *_short(evidence)
        ),
        "If attention cannot be read, the table considers MixUp and CutMix; `vitmix models NAME` says what else a "
        "model takes.",
        *_reasons(evidence),
        "## What was measured",
        *(text for series in evidence.series for text in _table_of(series)),
        "Differences are in points of top-1 of the last epoch, paired by seed; intervals are those of the paired "
        "t-test. Several methods are compared, so the best one looks better than it is.",
        "## Cost",
        _costs(evidence),
        "## What was not measured",
        "\n".join(f"- {line}" for line in gaps(evidence)),
    ]
    return "\n\n".join(_wrapped(part) for part in parts) + "\n"


def _short(evidence: Findings) -> Iterable[list[str]]:
    for start in (SCRATCH, WEIGHTS):
        measured = evidence.alike(start=start, built_in=False)
        if not measured:
            yield [STARTS[start], "any", "yes or no", "`none`", "not measured"]
        for updates in LENGTHS if len(measured) > 1 else [each.updates for each in measured]:
            for readable in (True, False):
                plan = PlannedTraining(
                    0, updates, start, refusal=lambda text, all_=readable: None if all_ else _needs(text)
                )
                advice = choose(evidence, plan)
                method = "none" if advice.chosen is None else advice.chosen.method
                gain = _gain_text(advice, plan, evidence)
                yield [STARTS[start], f"{updates:,}", "yes" if readable else "no", f"`{method}`", gain]


def _gain_text(advice: Advice, plan: PlannedTraining, evidence: Findings) -> str:
    """The gain of the method, or what was measured without showing one."""
    if advice.chosen is not None:
        return gain_text(advice.chosen)
    if advice.series is None or advice.best is None:
        return "not measured"
    if advice.short:
        return f"not measured on photographs with fewer than {advice.series.updates:,} updates"
    return f"best: {best_text(advice.best, plan, evidence)}"


def _needs(method: str) -> str | None:
    words = " | ".join(without_settings(part) for part in method.split("|"))
    return None if words in WITHOUT_ATTENTION else "it reads attention"


def _reasons(evidence: Findings) -> list[str]:
    plans = [PlannedTraining(0, LENGTHS[0], start) for start in (SCRATCH, WEIGHTS)]
    return [
        f"{plan.updates:,} updates, {STARTS[plan.start]}: " + " ".join(reasons(choose(evidence, plan), plan, evidence))
        for plan in plans
    ]


def _table_of(series: Series) -> list[str]:
    rows = [
        [each.name, f"`{each.method}`", str(each.n), f"{each.top1:.2f}", gain_text(each)]
        for each in sorted(series.methods, key=lambda each: -each.top1)
    ]
    return [
        f"[results/{series.name}](../results/{series.name}/README.md), {STARTS[series.start]}: {series.model}, "
        f"{series.images:,} {kind_text(series)} of {series.size} pixels per epoch, {series.updates:,} updates.",
        markdown_table(["", "method", "seeds", "top-1, %", "gain over no mixing"], *rows),
    ]


def _costs(evidence: Findings) -> str:
    cost = evidence.cost
    shown = ", ".join(f"{method} {ratio:.2f}" for method, ratio in cost.ratios.items())
    return f"Time of a step over that of the bare model ({cost.model}, batch {cost.batch}, {cost.device}): {shown}."


def gaps(evidence: Findings) -> list[str]:
    """What no stored result answers."""
    photographs = [each for each in evidence.series if not each.built_in]
    starts = {each.start for each in photographs}
    lines = [f"{STARTS[start].capitalize()}: no comparison is stored." for start in STARTS if start not in starts]
    for series in photographs:
        single = [each.name for each in series.methods if each.n == 1 and each.gain is not None]
        if single:
            lines.append(f"One seed in results/{series.name}, so small differences mean nothing: {', '.join(single)}.")
    largest = max((each.size for each in photographs), default=0)
    most = max((each.images for each in photographs), default=0)
    models = sorted({each.model for each in photographs})
    missing = [unmeasured(evidence, start=start, built_in=False) for start in STARTS if start in starts]
    return [
        *lines,
        *filter(None, missing),
        f"Images of more than {largest} pixels, more than {most:,} images, and models other than {', '.join(models)}.",
    ]


def card_section(evidence: Findings, card: str) -> str:
    """What was measured of one method, for its card."""
    lines = []
    for series in evidence.series:
        for each in series.methods:
            if each.gain is not None and _is_about(each, card):
                kind = " (computer-generated images)" if series.built_in else ""
                lines.append(f"- `{each.method}`: {gain_text(each)}; {place_text(series)}{kind}.")
    if not lines:
        return f"{SECTION}\n\nNo training run with this method is stored yet."
    return "\n\n".join([SECTION, "Top-1 minus that without mixing, from the stored results:", "\n".join(lines)])


def _is_about(measured: Measured, card: str) -> bool:
    """Whether a row is the method alone, or beside no mixing; HTM and VTM are added to others."""
    words = [without_settings(part) for part in measured.method.split("|")]
    mixing = [word for word in words if word != "none"]
    return mixing in ([card], [f"cutmix + {card}"])


def with_section(text: str, section: str) -> str:
    """A card with this section before its cost, in place of the one it had."""
    text = re.sub(rf"{SECTION}\n.*?(?=^## )", "", text, flags=re.DOTALL | re.MULTILINE)
    wrapped = "\n\n".join(map(_wrapped, section.split("\n\n")))
    return text.replace(f"{BEFORE}\n", f"{wrapped}\n\n{BEFORE}\n", 1)


def _wrapped(text: str) -> str:
    """Lines of prose of at most 140 characters, as in the other pages; tables, code and headings stay."""
    if text.startswith(("|", "#", "```")):
        return text
    lines = text.splitlines() if text.startswith("- ") else [text]
    return "\n".join(textwrap.fill(line, 140, subsequent_indent="  " * line.startswith("- ")) for line in lines)


if __name__ == "__main__":
    for path, text in contents().items():
        path.write_text(text, encoding="utf-8")
    print(f"{len(contents())} files written", file=sys.stderr)
