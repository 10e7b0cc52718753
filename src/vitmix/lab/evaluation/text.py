"""Old names of `vitmix.lab.evaluation.describe`, for callers that still pass dictionaries."""

from typing import Any

from vitmix.lab.runs import Evaluation, RobustnessResults

from . import describe as _describe


def head(model: dict[str, Any], data: dict[str, Any]) -> list[str]:
    return _describe.head(model["weights"], model["model"], data["data"], data["remarks"])


def describe_suite(found: dict[str, Any]) -> str:
    return _describe.describe_suite(RobustnessResults.from_json(found))


def describe(evaluation: dict[str, Any]) -> str:
    return _describe.describe(Evaluation.from_json(evaluation))
