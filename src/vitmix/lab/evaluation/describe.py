"""Evaluations as text."""

from collections.abc import Iterable, Sequence

from vitmix.lab.columns import aligned
from vitmix.lab.runs import Estimate, Evaluation, Measurement, RobustnessResults

BRACKETS = "Values in brackets are 95 % intervals."


def scores(evaluation: Evaluation) -> dict[str, str]:
    """The main numbers of an evaluation, accuracies with their intervals over the images."""

    def accuracy(value: float) -> str:
        return _percent(Estimate.of_proportion(round(value * evaluation.n), evaluation.n), width=1)

    top5 = {"top-5": accuracy(evaluation.accuracy5)} if evaluation.top5_informative else {}
    rest = {"loss": f"{evaluation.loss:.4f}", "calibration error": f"{100 * evaluation.ece:.2f} %"}
    return {"top-1": accuracy(evaluation.accuracy), **top5, **rest}


def head(weights: str, model: str, data: str, remarks: Iterable[str]) -> list[str]:
    """Which weights were measured on which data, and notes."""
    return [f"Model  {weights} ({model})", f"Data   {data}", *remarks]


def describe(evaluation: Evaluation) -> str:
    """A summary of an evaluation."""
    found, flops, size = evaluation, evaluation.flops, evaluation.size
    lines = [
        *head(found.weights, found.model, found.data, found.remarks),
        "",
        _table((name, value, found.n) for name, value in scores(found).items()),
        BRACKETS,
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
        BRACKETS,
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


def _percent(found: Estimate, width: int = 6) -> str:
    """A value with its interval; numbers of the same width align in a column."""
    ends = [f"{100 * end:{width}.2f}" for end in found.interval or ()]
    return f"{100 * found.mean:.2f} %" + (f" [{', '.join(ends)}]" if ends else "")


def _mistakes(evaluation: Evaluation) -> list[str]:
    known = dict(enumerate(evaluation.classes))
    rows = [f"  {known.get(a, a)} taken for {known.get(b, b)}: {count}" for a, b, count in evaluation.mistakes(5)]
    return ["Most frequent mistakes:", *rows] if rows else ["No mistakes."]


def _not_read(images: Sequence[str]) -> list[str]:
    one = len(images) == 1
    said = f"{len(images)} {'image' if one else 'images'} could not be read and {'is' if one else 'are'} not counted"
    return [said] if images else []
