"""Evaluations as text."""

from collections.abc import Iterable, Sequence

from vitmix.lab.columns import aligned
from vitmix.lab.runs import Estimate, Evaluation, Measurement, RobustnessResults

PERCENT = ("accuracy", "accuracy5", "ece")
NAMES = {"accuracy": "top-1", "accuracy5": "top-5", "ece": "calibration error"}


def scores(evaluation: Evaluation) -> dict[str, float]:
    """The main numbers of an evaluation, by their names in `NAMES`."""
    names = ("accuracy", "accuracy5", "loss", "ece")
    informative = [name for name in names if name != "accuracy5" or evaluation.top5_informative]
    return {name: getattr(evaluation, name) for name in informative}


def head(weights: str, model: str, data: str, remarks: Iterable[str]) -> list[str]:
    """Which weights were measured on which data, and notes."""
    return [f"Model  {weights} ({model})", f"Data   {data}", *remarks]


def describe(evaluation: Evaluation) -> str:
    """A summary of an evaluation."""
    found, flops, size = evaluation, evaluation.flops, evaluation.size
    shown = {
        NAMES.get(name, name): f"{100 * value:.2f} %" if name in PERCENT else f"{value:.4f}"
        for name, value in scores(found).items()
    }
    lines = [
        *head(found.weights, found.model, found.data, found.remarks),
        "",
        _table((name, value, found.n) for name, value in shown.items()),
        "",
        f"parameters  {found.parameters:,}",
        f"FLOPs       {flops:,} per image of {size[0]} x {size[1]} ({flops / 2e9:.4g} G multiply-adds)",
        f"images/s    {found.images_per_second:,.0f}, model alone "
        f"(batch {found.batch}, {found.precision}, {found.device}, median of {found.passes_timed} passes)",
        "",
        *_mistakes(found),
        *_not_read(found.broken_images),
    ]
    return "\n".join(lines)


def describe_suite(results: RobustnessResults) -> str:
    """A summary of one `vitmix eval --suite`."""
    protocol = next(iter(results.parts.values()))  # the same for all parts of one command
    lines = [
        *head(results.weights, results.model, protocol.data, protocol.remarks),
        "",
        table(results.measurements),
        "Values in brackets are 95 % intervals.",
        *_not_read(protocol.broken_images),
    ]
    return "\n".join(lines)


def pixels_text(value: float) -> str:
    """A bound or step for pixels in 0..1: a short decimal, otherwise `8/255` or `0.5/255`."""
    short, of_255 = f"{value:g}", f"{value * 255:g}"
    return f"{of_255}/255" if float(short) != value and abs(float(of_255) - value * 255) < 1e-9 else short


def table(measurements: Iterable[Measurement]) -> str:
    """A line for each measurement, with its interval if it has one, and its n."""
    return _table((each.name, _percent(each.estimate), each.estimate.n) for each in measurements)


def _table(rows: Iterable[tuple[str, str, int]]) -> str:
    """A line for each (name, value, n)."""
    return aligned(((name, value, f"n = {n:,}") for name, value, n in rows), left=1)


def _percent(found: Estimate) -> str:
    interval = "" if found.interval is None else " [{:6.2f}, {:6.2f}]".format(*(100 * end for end in found.interval))
    return f"{100 * found.mean:.2f} %{interval}"


def _mistakes(evaluation: Evaluation) -> list[str]:
    known = dict(enumerate(evaluation.classes))
    rows = [f"  {known.get(a, a)} taken for {known.get(b, b)}: {count}" for a, b, count in evaluation.mistakes(5)]
    return ["Most frequent mistakes:", *rows] if rows else ["No mistakes."]


def _not_read(images: Sequence[str]) -> list[str]:
    one = len(images) == 1
    said = f"{len(images)} {'image' if one else 'images'} could not be read and {'is' if one else 'are'} not counted"
    return [said] if images else []
