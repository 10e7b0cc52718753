"""The sentences of a recommendation. Every number comes from the evidence or the plan."""

from .choice import MARGIN, SHORT, Advice, PlannedTraining, largest_deviation
from .evidence import SCRATCH, WEIGHTS, Cost, Evidence, Measured, Series

STARTS = {SCRATCH: "training from scratch", WEIGHTS: "fine-tuning"}
FAR = 2  # times as many updates, images or pixels as measured, or half: worth a sentence


def gain_text(measured: Measured) -> str:
    """`+5.22 points (95 % interval +2.61 to +7.83, n = 3 seeds)`."""
    gain = measured.gain
    if gain is None:
        return "no mixing"
    interval = "no interval" if gain.low is None else f"95 % interval {gain.low:+.2f} to {gain.high:+.2f}"
    return f"{gain.mean:+.2f} points ({interval}, n = {gain.n} seed{'s' * (gain.n != 1)})"


def place_text(series: Series) -> str:
    """Where a series was measured."""
    return (
        f"results/{series.name}: {series.model}, {series.images:,} images of {series.size} pixels per epoch, "
        f"{series.updates:,} updates"
    )


def cost_text(cost: Cost, measured: Measured) -> str:
    ratio = cost.of(measured.method)
    where = f"{cost.model}, batch {cost.batch}, {cost.device}; results/speed"
    return "not measured" if ratio is None else f"{ratio:.2f} times the step of the bare model ({where})"


def reasons(advice: Advice, plan: PlannedTraining, evidence: Evidence) -> list[str]:
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
            f"The shortest training measured has {series.updates:,} updates, more than {SHORT} times as many as "
            "planned.",
            *_course(series, plan.updates),
        ]
    if advice.chosen is None:
        return [f"No method that works with this model gained at {series.updates:,} updates."]
    return [f"{advice.chosen.name} gained most of {len(series.methods) - 1} methods at {series.updates:,} updates."]


def when_not(plan: PlannedTraining, evidence: Evidence) -> list[str]:
    """When mixing does not pay."""
    series = evidence.alike(start=plan.start, built_in=plan.built_in)
    shortest = series[0]
    early = min((at for each in shortest.methods for at, _ in each.course), default=0)
    few = (
        f"With fewer than {shortest.updates // SHORT:,} updates, train without mixing: nothing that short was measured."
    )
    return [few, *_course(shortest, early)]


def _short_hints(plan: PlannedTraining, evidence: Evidence) -> list[str]:
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
    return [
        f"From scratch, mixing pays off late: {nearest:,} updates into the schedule of results/{series.name}, "
        f"{len(behind)} of {len(courses)} methods were behind no mixing; the best, {best}, was at "
        f"{courses[best][nearest]:+.2f} points."
    ]


def caveats(advice: Advice, plan: PlannedTraining, evidence: Evidence) -> list[str]:
    """Where the evidence is thin, or about something else."""
    series = advice.series
    found = [f"{name} gained more, but {reason}." for name, reason in advice.refused.items()]
    if series is None:
        return found
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
    return found
