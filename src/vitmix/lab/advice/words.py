"""The sentences of a recommendation. Every number comes from the evidence or the plan."""

import re
from collections.abc import Iterable

from vitmix.methods import METHODS

from .choice import MARGIN, SHORT, Advice, PlannedTraining, choose, is_loss, is_shown, largest_deviation
from .evidence import SCRATCH, WEIGHTS, Cost, Findings, Measured, Series

STARTS = {SCRATCH: "training from scratch", WEIGHTS: "fine-tuning"}
FAR = 2  # times as many updates, images or pixels as measured, or half: worth a sentence


def shown(evidence: Findings, plan: PlannedTraining, *, command: str, note: str = "") -> str:
    """The answer of `vitmix suggest`."""
    advice = choose(evidence, plan)
    lines = [("Use", command), *(("Why", line) for line in reasons(advice, plan, evidence))]
    if advice.series is not None:
        lines += _measured(advice, advice.series, plan, evidence)
    lines += [("Not", line) for line in when_not(advice, plan, evidence)]
    lines += [("Time", note)] if note else []
    lines += [("But", line) for line in caveats(advice, plan, evidence)]
    return "\n".join(f"{name:<6}{line}" for name, line in lines)


def _measured(advice: Advice, series: Series, plan: PlannedTraining, evidence: Findings) -> Iterable[tuple[str, str]]:
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


def gain_text(measured: Measured) -> str:
    """`+5.22 points (95 % interval +2.61 to +7.83, n = 3 seeds)`."""
    gain = measured.gain
    if gain is None:
        return "no mixing"
    interval = "no interval" if gain.low is None else f"95 % interval {gain.low:+.2f} to {gain.high:+.2f}"
    return f"{gain.mean:+.2f} points ({interval}, n = {gain.n} seed{'s' * (gain.n != 1)})"


def verdict(measured: Measured, deviation: float) -> str:
    """What the evidence says of a method against no mixing."""
    if is_shown(measured, deviation):
        return "a gain"
    return "a loss" if is_loss(measured, deviation) else "no difference shown"


def best_text(best: Measured, plan: PlannedTraining, evidence: Findings) -> str:
    """`CutMix, +0.45 points (95 % interval -0.75 to +1.64, n = 3 seeds): no difference shown`."""
    deviation = largest_deviation(evidence.alike(start=plan.start, built_in=plan.built_in))
    return f"{best.name}, {gain_text(best)}: {verdict(best, deviation)}"


def place_text(series: Series) -> str:
    """Where a series was measured."""
    return (
        f"results/{series.name}: {series.model}, {series.images:,} images of {series.size} pixels per epoch, "
        f"{series.updates:,} updates"
    )


def kind_text(series: Series) -> str:
    return "computer-generated images" if series.built_in else "photographs"


def cost_text(cost: Cost, measured: Measured) -> str:
    ratio = cost.of(measured.method)
    where = f"{cost.model}, batch {cost.batch}, {cost.device}; results/speed"
    return "not measured" if ratio is None else f"{ratio:.2f} times the step of the bare model ({where})"


def reasons(advice: Advice, plan: PlannedTraining, evidence: Findings) -> list[str]:
    """Why this is recommended."""
    kind = STARTS[plan.start]
    if advice.series is None:
        return [
            f"No {kind} with mixing has been measured, so there is no evidence for it.",
            *_short_hints(plan, evidence),
        ]
    series = advice.series
    if advice.short:
        return [
            f"The shortest training measured on {kind_text(series)} has {series.updates:,} updates, more than {SHORT} "
            "times as many as planned.",
            *_course(series, plan.updates),
        ]
    methods = len(series.methods) - 1
    if advice.chosen is not None:
        return [f"{advice.chosen.name} gained most of {methods} methods at {series.updates:,} updates."]
    working = "that works with this model" if advice.refused else f"of the {methods} measured"
    return [
        f"No method {working} showed a gain at {series.updates:,} updates.",
        "A gain counts if its whole interval is above zero or, with one seed, if it is more than "
        f"{MARGIN} times the standard deviation over seeds.",
    ]


def when_not(advice: Advice, plan: PlannedTraining, evidence: Findings) -> list[str]:
    """When mixing does not pay: in a short training, which `reasons` may have said, and with what lost accuracy."""
    series = advice.series
    if series is None:
        return []
    alike = evidence.alike(start=plan.start, built_in=plan.built_in)
    shortest, deviation = alike[0], largest_deviation(alike)
    early = min((at for each in shortest.methods for at, _ in each.course), default=0)
    few = (
        f"With fewer than {shortest.updates // SHORT:,} updates, train without mixing: nothing that short was measured."
    )
    lost = [each.name for each in series.methods if is_loss(each, deviation)]
    counted = f"{len(lost)} of {len(series.methods) - 1} methods lost accuracy at {series.updates:,} updates: "
    losses = [f"{counted}{'; '.join(lost)}."] if lost else []
    return losses if advice.short else [few, *_course(shortest, early), *losses]


def _short_hints(plan: PlannedTraining, evidence: Findings) -> list[str]:
    """What trainings from scratch say about few updates."""
    series = evidence.alike(start=SCRATCH, built_in=plan.built_in)
    return _course(series[0], plan.updates) if series else []


def _course(series: Series, updates: int) -> list[str]:
    """Who was ahead at the evaluation nearest to a number of updates, in the middle of a longer schedule."""
    courses = {each.name: dict(each.course) for each in series.methods if each.course}
    at = sorted(set.intersection(*(set(each) for each in courses.values()))) if courses else []
    if not at:
        return []
    nearest = min(at, key=lambda each: abs(each - updates))
    behind = [name for name, each in courses.items() if each[nearest] < 0]
    best = max(courses, key=lambda name: courses[name][nearest])
    late = "mixing pays off late: " if 2 * len(behind) > len(courses) else ""
    return [
        f"In {STARTS[series.start]}, {late}{nearest:,} updates into the schedule of results/{series.name}, "
        f"{len(behind)} of {len(courses)} methods were behind no mixing; the best, {best}, was at "
        f"{courses[best][nearest]:+.2f} points."
    ]


def caveats(advice: Advice, plan: PlannedTraining, evidence: Findings) -> list[str]:
    """Where the evidence is thin, or about something else."""
    series = advice.series
    found = [f"{name} gained more, but {reason}." for name, reason in advice.refused.items()]
    if series is None:
        return found
    if plan.model not in (None, series.model):
        found.append(f"Measured with {series.model}, not with {plan.model}.")
    if advice.chosen is not None and advice.chosen.n == 1:
        deviation = largest_deviation(evidence.alike(start=plan.start, built_in=plan.built_in))
        found.append(
            f"One seed: the gain counts because it is more than {MARGIN} times the largest standard deviation over "
            f"seeds in the other comparisons ({deviation:.2f} points)."
        )
    if plan.updates > FAR * series.updates:
        found.append(f"No training as long as {plan.updates:,} updates was measured, only {series.updates:,}.")
    if plan.images * FAR < series.images or plan.images > FAR * series.images:
        found.append(f"Measured on {series.images:,} images; this data has {plan.images:,}.")
    if plan.size is not None and (plan.size * FAR <= series.size or plan.size >= FAR * series.size):
        found.append(f"Measured on images of {series.size} pixels; this model takes {plan.size}.")
    missing = unmeasured(evidence, start=plan.start, built_in=plan.built_in)
    return [*found, missing] if missing else found


def unmeasured(evidence: Findings, *, start: str, built_in: bool) -> str:
    """The methods that no series with this start and kind of images has."""
    rows = [each.method for series in evidence.alike(start=start, built_in=built_in) for each in series.methods]
    known = {word for row in rows for word in re.findall(r"\w+", row)}
    missing = [name for name in METHODS if name not in known]
    return f"Not measured in {STARTS[start]}: {', '.join(missing)}." if missing else ""
