"""The flags that name what is measured, a model and its data, of `vitmix eval` and `vitmix analyze`."""

import argparse
from typing import TYPE_CHECKING

from vitmix.lab.cli.train import key_and_value

if TYPE_CHECKING:
    from vitmix.lab.evaluation import Subject

SPLITS = ("train", "val", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", metavar="TEXT", help="data, as vitmix train takes it; a run's own if none")
    add("--split", choices=SPLITS, help="split to measure on; a run's own, or test")
    add("--weights", choices=("best", "last"), default="best", help="of a run (default: best)")
    add("--model", metavar="NAME", help="timm model that a file of weights belongs to")
    add("--model-args", nargs="+", metavar="KEY=VALUE", default=[], help="settings of that model")
    add("--pretrained", action="store_true", help="timm's published weights of the named model")
    add("--size", type=int, metavar="N", help="image side in pixels; the model's own if none")


def open_named(namespace: argparse.Namespace) -> "Subject":
    """The model that the flags name."""
    from vitmix.lab.evaluation.subject import open_subject

    return open_subject(
        namespace.what,
        model=namespace.model,
        model_args=dict(map(key_and_value, namespace.model_args)),
        pretrained=namespace.pretrained,
        weights=namespace.weights,
        size=namespace.size,
    )
