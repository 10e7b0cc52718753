"""An evaluation as a table for people."""

from collections.abc import Iterable, Sequence
from typing import Any

from .measure import Measurement

PERCENT = ("accuracy", "accuracy5", "ece")
NAMES = {"accuracy": "top-1", "accuracy5": "top-5", "ece": "calibration error"}


def top5_tells(evaluation: dict[str, Any]) -> bool:
    """Whether five guesses can miss: of five classes or fewer they are all."""
    return len(evaluation["classes"]) > 5


def measures(evaluation: dict[str, Any]) -> list[str]:
    """What of an evaluation is worth a line."""
    names = ("accuracy", "accuracy5", "loss", "ece")
    return [name for name in names if name != "accuracy5" or top5_tells(evaluation)]


def table(measurements: Iterable[Measurement]) -> str:
    """A line for each measurement, with its interval if it has one, and its n."""
    rows = [(NAMES.get(each.name, each.name), _shown(each), f"n = {each.n:,}") for each in measurements]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {n}" for name, value, n in rows)


def head(model: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """Which weights were measured, on what, and what there is to say about that."""
    return [f"Model  {model['weights']} ({model['model']})", f"Data   {data['data']}", *data["remarks"]]


def describe_suite(found: dict[str, Any]) -> str:
    """What `vitmix eval --suite` found, in short."""
    facts = next(iter(found["parts"].values()))  # of one command
    lines = [*head(found, facts), ""]
    lines.append(table(Measurement(**each) for each in found["measurements"]))
    lines.append("Values in brackets are intervals of 95 %.")
    if facts["broken_images"]:
        lines.append(_not_read(facts["broken_images"]))
    return "\n".join(lines)


def describe(evaluation: dict[str, Any]) -> str:
    """The whole of `evaluate`'s result, in short."""
    n = evaluation["n"]
    measured = [Measurement(name, evaluation[name], n) for name in measures(evaluation)]
    flops, size = evaluation["flops"], evaluation["size"]
    batch, passes, where = evaluation["batch"], evaluation["passes_timed"], evaluation["device"]
    lines = [
        *head(evaluation, evaluation),
        "",
        table(measured),
        "",
        f"parameters  {evaluation['parameters']:,}",
        f"FLOPs       {flops:,} an image of {size[0]} x {size[1]} ({flops / 2e9:.4g} G multiply-adds)",
        f"images/s    {evaluation['images_per_second']:,.0f}, model alone "
        f"(batch {batch}, {evaluation['precision']}, {where}, median of {passes} passes)",
    ]
    lines += ["", *_confusions(evaluation)]
    if evaluation["broken_images"]:
        lines.append(_not_read(evaluation["broken_images"]))
    return "\n".join(lines)


def pixels_text(value: float) -> str:
    """A bound or step in pixels of 0..1 as people write it: as a short decimal, or else as `8/255` or `0.5/255`."""
    short, of_255 = f"{value:g}", f"{value * 255:g}"
    return f"{of_255}/255" if float(short) != value and abs(float(of_255) - value * 255) < 1e-9 else short


def top_confusions(evaluation: dict[str, Any], most: int) -> list[tuple[int, int, int]]:
    """The most frequent mistakes as (label, predicted, images)."""
    wrong = [tuple(each) for each in evaluation["confusion"] if each[0] != each[1]]
    return sorted(wrong, key=lambda each: (-each[2], each))[:most]  # pyright: ignore[reportReturnType]


def _confusions(evaluation: dict[str, Any], most: int = 5) -> list[str]:
    found, names = top_confusions(evaluation, most), evaluation["classes"]
    if not found:
        return ["No mistakes."]
    known = dict(enumerate(names))
    rows = [f"  {known.get(a, a)} taken for {known.get(b, b)}: {count}" for a, b, count in found]
    return ["Most frequent mistakes:", *rows]


def _not_read(images: Sequence[str]) -> str:
    one = len(images) == 1
    return f"{len(images)} {'image' if one else 'images'} could not be read and {'is' if one else 'are'} not counted"


def _shown(each: Measurement) -> str:
    if each.low is not None and each.high is not None:  # of the suites, whose numbers all are shares
        return f"{100 * each.value:.2f} % [{100 * each.low:6.2f}, {100 * each.high:6.2f}]"
    return f"{100 * each.value:.2f} %" if each.name in PERCENT else f"{each.value:.4f}"
