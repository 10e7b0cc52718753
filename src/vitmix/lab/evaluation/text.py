"""Old names of `vitmix.lab.evaluation.describe`, for callers that still pass files' contents."""

from typing import Any

from vitmix.lab.runs import Evaluation, RobustnessResults

from . import describe as _describe
from .describe import NAMES as NAMES
from .describe import PERCENT as PERCENT
from .describe import pixels_text as pixels_text
from .describe import table as table


def top5_tells(evaluation: dict[str, Any]) -> bool:
    return len(evaluation["classes"]) > 5


def measures(evaluation: dict[str, Any]) -> list[str]:
    return list(_describe.scores(Evaluation.from_json(evaluation)))


def head(model: dict[str, Any], data: dict[str, Any]) -> list[str]:
    return _describe.head(model["weights"], model["model"], data["data"], data["remarks"])


def describe_suite(found: dict[str, Any]) -> str:
    return _describe.describe_suite(RobustnessResults.from_json(found))


def describe(evaluation: dict[str, Any]) -> str:
    return _describe.describe(Evaluation.from_json(evaluation))


def top_confusions(evaluation: dict[str, Any], most: int) -> list[tuple[int, int, int]]:
    return list(Evaluation.from_json(evaluation).mistakes(most))
