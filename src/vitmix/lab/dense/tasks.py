"""The tasks by name: where each is, and what configurations must know of it before anything is imported."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vitmix.lab.dense.task import Task


class Entry(NamedTuple):
    """Where a task is, and the columns of its evaluation; the first one selects the best weights."""

    module: str
    scores: tuple[str, ...]
    heads: tuple[str, ...]


TASKS = {
    "segment": Entry(
        "vitmix.lab.dense.segmentation", ("miou", "pixel_accuracy", "eval_loss"), ("dpt", "upernet", "fpn", "setr")
    ),
    "detect": Entry("vitmix.lab.dense.detection", ("ap", "ap50", "ap75"), ("fasterrcnn", "maskrcnn", "retinanet")),
}


def task_named(name: str) -> "Task[Any, Any]":
    """The task, which its module has as `TASK`."""
    return import_module(TASKS[name].module).TASK
