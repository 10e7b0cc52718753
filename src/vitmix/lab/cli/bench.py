"""`vitmix bench`: what each method costs, beside plain CutMix on fused attention in the same run."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

from vitmix.lab.cli._common import Architecture, Place, check_method
from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import Count, Folder, Fraction, option

if TYPE_CHECKING:
    import torch

    from vitmix.lab.bench.growth import StatisticRow
    from vitmix.lab.bench.steps import StepRow, Workload


class Sizes(NamedTuple):
    """What is measured unless it is given."""

    batch: int
    tokens: tuple[int, ...]
    batches: tuple[int, ...]


ON_GPU = Sizes(1024, (64, 128, 256, 512, 1024, 2048, 4096), (64, 128, 256, 512, 1024, 2048))
ON_CPU = Sizes(8, (64, 128, 256), (1, 2, 4))
Method = Annotated[str, "METHOD", lambda name, text: text == "bare model" or check_method(name, text)]
BenchPart = Literal["steps", "kernels", "growth"]
COUNTS = ("repeats", "steps", "warmup")
ONE_MODEL = ("model", "arch", "model_args", "size", "modes", "against", "parts", "tokens", "batches")
SETTINGS = ("model", "batch", "size", "graphs", "easy", *COUNTS)


@dataclass(frozen=True, kw_only=True)
class Bench(Architecture):
    """Measure what each method costs, on this machine."""

    epilog = (
        "Ratios refer to the first method in the same round. Methods take turns, one repeat each; medians are shown, "
        "with the lowest and highest ratio of a round."
    )

    model: Place = option("deit_small_patch16_224", "run folder, weights file, or timm model; weights are random")
    batch: Count | None = option(None, "images per step (default: 1024, on a CPU 8)")
    suite: Literal["families"] | None = option(
        None, "measure compiled steps of several model families instead of --model; continues in --output"
    )
    only: tuple[str, ...] = option((), "families of the suite (default: all)")
    methods: tuple[Method, ...] = option(
        (), "methods (default: all that the model supports; with --suite: cutmix, tl_align and smmix)"
    )
    modes: tuple[Literal["eager", "compiled", "shared"], ...] = option(
        ("eager", "compiled"),
        "execution modes of the steps; shared: methods that do not look inside the model share one compiled model",
    )
    against: bool = option(False, "also measure eager steps that materialize attention")
    graphs: bool = option(False, "compile with CUDA graphs, for small models")
    easy: Fraction = option(0.05, "fraction of the samples that are easy for HTM")
    precision: Literal["bf16", "fp16", "fp32"] | None = option(None, "autocast (default: bf16 on a GPU, fp32 on a CPU)")
    repeats: Count = option(5, "repeats whose median is taken")
    steps: Count = option(6, "steps per repeat, or whole rounds of a | b")
    warmup: Count = option(8, "warm-up steps")
    parts: tuple[BenchPart, ...] = option((), "what to measure (default: all that apply)")
    tokens: tuple[Count, ...] = option(
        (), "numbers of tokens in the growth table (default: 64 to 4096; on a CPU, up to 256)"
    )
    batches: tuple[Count, ...] = option((), "batch sizes in the growth table (default: 64 to 2048; on a CPU, 1 to 4)")
    cpu: bool = option(False, "measure the CPU even if there is a GPU")
    output: Folder | None = option(None, "where bench.json and bench.png go")


def run(settings: Bench) -> int:
    import torch

    from vitmix.lab.environment import try_convolutions

    device = torch.device("cuda" if torch.cuda.is_available() and not settings.cpu else "cpu")
    if settings.only and settings.suite is None:
        raise ValueError("--only chooses families of a suite; give --suite families, too")
    if settings.suite is not None:
        usual_settings = Bench()
        given = [name for name in ONE_MODEL if getattr(settings, name) != getattr(usual_settings, name)]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"--suite chooses the models; leave out {flags}")
    precision = settings.precision or ("bf16" if device.type == "cuda" else "fp32")
    usual = ON_GPU if device.type == "cuda" else ON_CPU
    given = settings.batch
    settings = replace(
        settings,
        batch=settings.batch or usual.batch,
        tokens=settings.tokens or usual.tokens,
        batches=settings.batches or usual.batches,
    )
    if settings.graphs and device.type != "cuda":
        raise ValueError("--graphs needs a CUDA device; leave it out on a CPU")
    if settings.output is not None:
        Path(settings.output).mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    try_convolutions()
    if settings.suite is not None:
        return _measure_families(settings, given, device, precision)
    return _measure(settings, device, precision)


def _measure_families(settings: Bench, batch: int | None, device: "torch.device", precision: str) -> int:
    from vitmix.lab.bench import families
    from vitmix.lab.bench.clock import DTYPES
    from vitmix.lab.bench.steps import Workload
    from vitmix.lab.environment import describe_environment

    place = describe_environment(device)
    print(", ".join(f"{key} {value}" for key, value in place.items()), flush=True)
    facts = {name: getattr(settings, name) for name in ("graphs", "easy", *COUNTS)} | place | {"precision": precision}
    work = Workload("", 0, None, device, DTYPES[precision], settings.easy, settings.graphs)
    counts = {name: getattr(settings, name) for name in COUNTS}
    output = None if settings.output is None else Path(settings.output)
    methods = settings.methods or families.METHODS
    given = {"batch": batch, "output": output, "tell": _tell}
    found = families.measure_families(work, settings.only, methods, facts, **counts, **given)
    print(f"\n{families.family_table(found)}")
    if output is not None:
        print(f"\nwritten to {output / families.FILE}")
    return 0


def _workload(settings: Bench, device: "torch.device", dtype: "torch.dtype") -> "Workload":
    from vitmix.lab.bench.steps import Workload
    from vitmix.lab.evaluation.subject import open_subject

    assert settings.batch is not None
    model, arguments, size = settings.model, settings.model_args, settings.size
    if Path(model).exists():
        found = open_subject(model, model=settings.arch, model_args=arguments, size=size)
        model, arguments, size = found.config.model, found.settings, found.augmentation.sides[0]
    return Workload(model, settings.batch, size, device, dtype, settings.easy, settings.graphs, arguments)


def _measure(settings: Bench, device: "torch.device", precision: str) -> int:
    from vitmix.lab.bench import growth, report, steps
    from vitmix.lab.bench.clock import DTYPES
    from vitmix.lab.bench.materialized import materialize
    from vitmix.lab.environment import describe_environment
    from vitmix.lab.writing import write_file

    place, dtype = describe_environment(device), DTYPES[precision]
    work = _workload(settings, device, dtype)
    model = steps.workload_model(work)
    image = steps.batch_for(model, replace(work, batch=1))[0]
    steps.check_image(model, image)
    print(", ".join(f"{key} {value}" for key, value in place.items()))
    parts, shape = settings.parts or get_args(BenchPart), None
    if {"kernels", "growth"} & {*parts}:
        try:
            shape = growth.attention_shape(model, image)
        except ValueError as problem:
            if settings.parts:
                raise
            print(f"Left out: {problem}.")
    rows: list[steps.StepRow] = []
    facts = {name: getattr(settings, name) for name in SETTINGS} | place | {"precision": precision}

    def store(rows: Sequence[steps.StepRow], tables: Mapping[str, Sequence[growth.StatisticRow]] | None = None) -> None:
        if settings.output is not None:
            write_file(Path(settings.output) / "bench.json", report.as_json(facts, rows, tables or {}).encode())

    if "steps" in parts:
        modes = [*settings.modes, *(["materialized"] if settings.against else [])]
        counts = {name: getattr(settings, name) for name in COUNTS}
        if settings.against:
            materialize(steps.workload_model(work))  # refuses what it cannot do before anything is measured
        refused = steps.refused(settings.methods or steps.methods(), work)
        if refused and settings.methods:
            raise ValueError(next(iter(refused.values())))
        for method, reason in refused.items():
            print(f"Left out: {method}, because {reason}.")
        methods = settings.methods or [method for method in steps.methods() if method not in refused]
        rows = steps.measure_steps(methods, modes, work, **counts, tell=_tell, store=store)
        how = f"forward, backward and fused AdamW{', CUDA graphs' if settings.graphs else ''}"
        print(f"\n{settings.model}, batch {work.batch}, {precision}, {how}; ", end="")
        print(
            f"medians of {settings.repeats} x {settings.steps} steps\n{report.step_table(rows, work.batch)}", flush=True
        )
    kinds: dict[str, list[growth.Shape]] = {}
    if shape is not None:
        heads, tokens, depth = shape
        if "kernels" in parts:
            kinds["kernels"] = [(work.batch, heads, tokens, depth)]
        if "growth" in parts:
            kinds["tokens"] = [(min(settings.batches), heads, count, depth) for count in settings.tokens]
            kinds["batch"] = [(count, heads, tokens, depth) for count in settings.batches]
    tables = {}
    for kind, shapes in kinds.items():
        tables[kind] = growth.measure_statistics(shapes, device, dtype, repeats=4 * settings.repeats, tell=_tell)
        what = "ms, MiB above the inputs" if device.type == "cuda" else "ms"
        print(f"\nstatistics, {precision}, medians: {what}")
        print(report.statistic_table(tables[kind]), flush=True)
    if settings.output is not None:
        folder = Path(settings.output)
        store(rows, tables)
        title = f"{settings.model}, batch {work.batch}, {precision}\n{place['device']}, torch {place['torch']}"
        _plot(folder / "bench.png", rows, tables, title)
        print(f"\nwritten to {folder}")
    return 0


def _plot(path: Path, rows: "list[StepRow]", tables: "dict[str, Sequence[StatisticRow]]", title: str) -> None:
    """A figure, where matplotlib is installed: machines with GPUs often have torch alone."""
    try:
        from vitmix.lab.bench.plot import plot
    except ImportError:
        _tell(f"{path.name} is left out, because matplotlib is not installed; bench.json has all numbers")
    else:
        plot(path, rows, tables, title)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMAND = Command(Bench, run)
