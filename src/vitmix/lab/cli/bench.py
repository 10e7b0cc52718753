"""`vitmix bench`: what each method costs, beside plain CutMix on fused attention in the same run."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix.lab.cli._command import Command

if TYPE_CHECKING:
    import torch

MODES = ("eager", "compiled")
PRECISIONS = ("bf16", "fp16", "fp32")
ON_GPU = {"batch": 1024, "tokens": (64, 128, 256, 512, 1024, 2048, 4096), "batches": (64, 128, 256, 512, 1024, 2048)}
ON_CPU = {"batch": 8, "tokens": (64, 128, 256), "batches": (1, 2, 4)}
PARTS = ("steps", "kernels", "growth")
SETTINGS = ("model", "batch", "size", "graphs", "easy", "repeats", "steps", "warmup")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Ratios refer to the first method. Repeats of all methods take turns; medians are shown."
    parser.add_argument("--model", default="deit_small_patch16_224", metavar="NAME", help="timm's name of a model")
    parser.add_argument("--size", type=int, metavar="PIXELS", help="side of the images (default: the model's)")
    parser.add_argument("--batch", type=int, metavar="N", help="images in a step (1024, on a CPU 8)")
    parser.add_argument(
        "--methods", nargs="+", metavar="TEXT", help="methods as text (default: all that the model allows)"
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--against", action="store_true", help="also the path that materializes attention, eagerly")
    parser.add_argument("--graphs", action="store_true", help="compile with CUDA graphs: for small models")
    parser.add_argument("--easy", type=float, default=0.05, metavar="PART", help="samples that HTM finds easy (0.05)")
    parser.add_argument("--precision", choices=PRECISIONS, help="autocast (default: bf16 on a GPU, fp32 on a CPU)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="repeats whose median is taken (5)")
    parser.add_argument("--steps", type=int, default=6, metavar="N", help="in a repeat (6), or whole rounds of a | b")
    parser.add_argument("--warmup", type=int, default=8, metavar="N", help="steps before all repeats (8)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="what to measure (default: all that can be)")
    parser.add_argument("--tokens", nargs="+", type=int, metavar="N", help="in the table of growth (64 to 4096)")
    parser.add_argument("--batches", nargs="+", type=int, metavar="N", help="in the table of growth (64 to 2048)")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU even where there is a GPU")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for bench.json and bench.png")


def _run(given: argparse.Namespace) -> int:
    import torch

    from vitmix.lab.environment import try_convolutions

    device = torch.device("cuda" if torch.cuda.is_available() and not given.cpu else "cpu")
    for name, value in (ON_GPU if device.type == "cuda" else ON_CPU).items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    counts = {name: [getattr(given, name)] for name in ("batch", "repeats", "steps", "warmup")}
    for name, values in (counts | {"tokens": given.tokens, "batches": given.batches}).items():
        if min(values) < 1:
            raise ValueError(f"--{name} must be at least 1, got {min(values)}")
    if not 0 <= given.easy <= 1:
        raise ValueError(f"--easy is a part between 0 and 1, got {given.easy}")
    if given.graphs and device.type != "cuda":
        raise ValueError("--graphs needs a CUDA device; leave it out on a CPU")
    if given.output is not None:
        given.output.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    try_convolutions()
    return _measure(given, device, given.precision or ("bf16" if device.type == "cuda" else "fp32"))


def _measure(given: argparse.Namespace, device: "torch.device", precision: str) -> int:
    from vitmix.lab.bench import growth, report, steps
    from vitmix.lab.bench.clock import DTYPES
    from vitmix.lab.bench.materialized import materialize
    from vitmix.lab.environment import describe_environment

    place, dtype = describe_environment(device), DTYPES[precision]
    work = steps.Workload(given.model, given.batch, given.size, device, dtype, given.easy, given.graphs)
    model = steps.build_model(work)
    image = steps.batch_for(model, replace(work, batch=1))[0]
    print(", ".join(f"{key} {value}" for key, value in place.items()))
    parts, shape = given.parts or PARTS, None
    if {"kernels", "growth"} & {*parts}:
        try:
            shape = growth.attention_shape(model, image)
        except ValueError as problem:
            if given.parts:
                raise
            print(f"Left out: {problem}.")
    rows: list[steps.StepRow] = []
    if "steps" in parts:
        modes = [*given.modes, *(["materialized"] if given.against else [])]
        counts = {"repeats": given.repeats, "steps": given.steps, "warmup": given.warmup}
        if given.against:
            materialize(steps.build_model(work))  # refuses what it cannot do before anything is measured
        refused = steps.refusals(given.methods or steps.methods(), work)
        if refused and given.methods:
            raise ValueError(next(iter(refused.values())))
        for method, reason in refused.items():
            print(f"Left out: {method}, since {reason}.")
        methods = given.methods or [method for method in steps.methods() if method not in refused]
        rows = steps.measure_steps(methods, modes, work, **counts, tell=_tell)
        how = f"forward, backward and fused AdamW{', CUDA graphs' if given.graphs else ''}"
        print(f"\n{given.model}, batch {given.batch}, {precision}, {how}; ", end="")
        print(f"medians of {given.repeats} x {given.steps} steps\n{report.step_table(rows, given.batch)}", flush=True)
    kinds: dict[str, list[growth.Shape]] = {}
    if shape is not None:
        heads, tokens, depth = shape
        if "kernels" in parts:
            kinds["kernels"] = [(given.batch, heads, tokens, depth)]
        if "growth" in parts:
            kinds["tokens"] = [(min(given.batches), heads, count, depth) for count in given.tokens]
            kinds["batch"] = [(count, heads, tokens, depth) for count in given.batches]
    tables = {}
    for kind, shapes in kinds.items():
        tables[kind] = growth.measure_statistics(shapes, device, dtype, repeats=4 * given.repeats, tell=_tell)
        what = "ms, MiB above the inputs" if device.type == "cuda" else "ms"
        print(f"\nstatistics, {precision}, medians: {what}")
        print(report.statistic_table(tables[kind]), flush=True)
    if given.output is not None:
        settings = {name: vars(given)[name] for name in SETTINGS} | place | {"precision": precision}
        (given.output / "bench.json").write_text(report.as_json(settings, rows, tables))
        title = f"{given.model}, batch {given.batch}, {precision}\n{place['device']}, torch {place['torch']}"
        report.plot(given.output / "bench.png", rows, tables, title)
        print(f"\nwritten to {given.output}")
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMAND = Command("Measure what each method costs, on this machine.", _add_arguments, _run)
