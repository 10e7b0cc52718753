"""`vitmix eval`."""

import argparse
import dataclasses
import json
from pathlib import Path

from vitmix._checks import check_output_file
from vitmix.lab.cli import _robustness, _subject
from vitmix.lab.cli._command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RUN|FILE|NAME", help="run folder, file of weights, or name of a timm model")
    _subject.add_arguments(parser)
    parser.add_argument("--batch", type=int, metavar="N", help="images per step")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that load images")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), help="a run's own on a GPU, or fp32")
    parser.add_argument("--cpu", action="store_true", help="use the CPU even where there is a GPU")
    parser.add_argument("--output", metavar="FILE", help="write everything as JSON to this file")
    _robustness.add_arguments(parser)


def _run(namespace: argparse.Namespace) -> int:
    # Not at the top: every other command would wait for these imports.
    from vitmix.lab.evaluation import stored, text
    from vitmix.lab.training.checkpoints import write_file

    suite = _robustness.settings_of(namespace)
    if namespace.output:
        check_output_file(namespace.output)
    found = _subject.open_named(namespace)
    needs_images = suite is None or suite.needs_images
    images = stored.own_images(found, data=namespace.data, split=namespace.split) if needs_images else None
    running = stored.running_of(found, images, cpu=namespace.cpu)
    given = {name: getattr(namespace, name) for name in ("precision", "batch", "workers")}
    if suite is not None:
        given["workers"] = _robustness.workers(namespace.workers)
    running = dataclasses.replace(running, **{name: value for name, value in given.items() if value is not None})
    best = found.run is not None and Path(found.weights) == found.run / "best.safetensors"
    own = best and not (namespace.data or namespace.split or namespace.size)
    if suite is not None:
        kept = {"own": own, "cells": namespace.cells, "output": namespace.output}
        return _robustness.run_suite(suite, found, images, running, **kept)
    assert images is not None
    evaluation = stored.evaluate(found, images, running)
    if own:
        stored.keep_evaluation(found, evaluation)
    print(text.describe(evaluation))  # first: a disk may be full by now
    if namespace.output:
        write_file(Path(namespace.output), json.dumps(evaluation, allow_nan=False).encode())
    return 0


COMMAND = Command("Evaluate a run, a file of weights or a timm model.", _add_arguments, _run)
