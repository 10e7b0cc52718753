"""The page docs/which_method.md and the measured results on the methods' cards, as texts made of the evidence."""

import re
from collections.abc import Iterable

from vitmix.lab.columns import markdown_table

from .choice import Advice, PlannedTraining, choose
from .evidence import SCRATCH, WEIGHTS, Evidence, Measured, Series, without_settings
from .words import (
    STARTS,
    best_text,
    caveats,
    cost_text,
    gain_text,
    kind_text,
    place_text,
    reasons,
    unmeasured,
    when_not,
)

SECTION = "## Measured here"
BEFORE = "## Cost"  # where the section goes on a card
LENGTHS = (1_000, 10_000, 50_000)
WITHOUT_ATTENTION = ("mixup", "cutmix", "mixup | cutmix")


def page(evidence: Evidence) -> str:
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
        *(text for series in evidence.series for text in _series(series)),
        "Differences are in points of top-1 of the last epoch, paired by seed; intervals are those of the paired "
        "t-test. Several methods are compared, so the best one looks better than it is.",
        "## Cost",
        _costs(evidence),
        "## What was not measured",
        "\n".join(f"- {line}" for line in gaps(evidence)),
    ]
    return "\n\n".join(_wrapped(part) for part in parts) + "\n"


def _short(evidence: Evidence) -> Iterable[list[str]]:
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
                gain = _gain(advice, plan, evidence)
                yield [STARTS[start], f"{updates:,}", "yes" if readable else "no", f"`{method}`", gain]


def _gain(advice: Advice, plan: PlannedTraining, evidence: Evidence) -> str:
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


def _reasons(evidence: Evidence) -> list[str]:
    plans = [PlannedTraining(0, LENGTHS[0], start) for start in (SCRATCH, WEIGHTS)]
    return [
        f"{plan.updates:,} updates, {STARTS[plan.start]}: " + " ".join(reasons(choose(evidence, plan), plan, evidence))
        for plan in plans
    ]


def _series(series: Series) -> list[str]:
    rows = [
        [each.name, f"`{each.method}`", str(each.n), f"{each.top1:.2f}", gain_text(each)]
        for each in sorted(series.methods, key=lambda each: -each.top1)
    ]
    return [
        f"[results/{series.name}](../results/{series.name}/README.md), {STARTS[series.start]}: {series.model}, "
        f"{series.images:,} {kind_text(series)} of {series.size} pixels per epoch, {series.updates:,} updates.",
        markdown_table(["", "method", "seeds", "top-1, %", "gain over no mixing"], *rows),
    ]


def _costs(evidence: Evidence) -> str:
    cost = evidence.cost
    shown = ", ".join(f"{method} {ratio:.2f}" for method, ratio in cost.ratios.items())
    return f"Time of a step over that of the bare model ({cost.model}, batch {cost.batch}, {cost.device}): {shown}."


def gaps(evidence: Evidence) -> list[str]:
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


def card_section(evidence: Evidence, card: str) -> str:
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
    import textwrap

    lines = text.splitlines() if text.startswith("- ") else [text]
    return "\n".join(textwrap.fill(line, 140, subsequent_indent="  " * line.startswith("- ")) for line in lines)


def shown(evidence: Evidence, plan: PlannedTraining, *, command: str, note: str = "") -> str:
    """The answer of `vitmix suggest`."""
    advice = choose(evidence, plan)
    lines = [("Use", command), *(("Why", line) for line in reasons(advice, plan, evidence))]
    if advice.series is not None:
        lines += _measured(advice, advice.series, plan, evidence)
    lines += [("Not", line) for line in when_not(advice, plan, evidence)]
    lines += [("Time", note)] if note else []
    lines += [("But", line) for line in caveats(advice, plan, evidence)]
    return "\n".join(f"{name:<6}{line}" for name, line in lines)


def _measured(advice: Advice, series: Series, plan: PlannedTraining, evidence: Evidence) -> Iterable[tuple[str, str]]:
    """Gain and cost of the recommended method and of the next one; of the best one if none is recommended."""
    chosen, best = advice.chosen, advice.best
    if chosen is not None:
        yield "Gain", f"{gain_text(chosen)} of top-1 over no mixing; {place_text(series)}"
        yield "Cost", cost_text(evidence.cost, chosen)
        if best is not None:
            yield "Next", f"{best_text(best, plan, evidence)}; cost: {cost_text(evidence.cost, best)}"
    elif best is not None:
        yield "Best", f"{best_text(best, plan, evidence)}; {place_text(series)}"
        yield "Cost", f"of {best.name}: {cost_text(evidence.cost, best)}"
