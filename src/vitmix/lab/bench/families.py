"""Steps on models of several families, `vitmix bench --suite families`: one file, continued where it was stopped."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from vitmix._checks import check_choice
from vitmix.lab.bench.report import as_json, ratios
from vitmix.lab.bench.steps import StepRow, Workload, measure_steps, refused
from vitmix.lab.reading import JsonObject, read_json
from vitmix.lab.runs import Estimate
from vitmix.lab.settings import ModelArgs
from vitmix.lab.writing import write_file

FILE = "families.json"
METHODS = ("cutmix", "tl_align", "smmix")


@dataclass(frozen=True)
class Family:
    """A model and the batch it is measured with; `build` makes a model that is not timm's, from random weights."""

    model: str
    batch: int
    size: int | None = None
    model_args: ModelArgs = field(default_factory=dict)
    build: Callable[[], nn.Module] | None = None


def _torchvision() -> nn.Module:
    import torchvision.models

    return torchvision.models.vit_b_16()


def _transformers() -> nn.Module:
    import transformers

    config = transformers.ViTConfig()
    config.num_labels = 1000
    return transformers.ViTForImageClassification(config)


FAMILIES: Mapping[str, Family] = {
    "DeiT-S/16, 224": Family("deit_small_patch16_224", 512),
    "ViT-B/16, 384": Family("vit_base_patch16_384", 64),
    "ViT-S/14 with registers, 518": Family("vit_small_patch14_reg4_dinov2", 48, model_args={"num_classes": 1000}),
    "Swin-T, 224": Family("swin_tiny_patch4_window7_224", 256),
    "PVT v2-B1, 224": Family("pvt_v2_b1", 256),
    "CaiT-XXS-24, 224": Family("cait_xxs24_224", 256),
    "ViT-B/16 of transformers, 224": Family("ViTForImageClassification", 128, 224, build=_transformers),
    "ViT-B/16 of torchvision, 224": Family("vit_b_16", 128, 224, build=_torchvision),
    "DeiT-T/8, 64": Family("deit_tiny_patch16_224", 512, 64, {"img_size": 64, "patch_size": 8}),
}


def measure_families(
    work: Workload,
    names: Sequence[str],
    methods: Sequence[str],
    facts: JsonObject,
    *,
    batch: int | None,
    repeats: int,
    steps: int,
    warmup: int,
    output: Path | None,
    tell: Callable[[str], None],
) -> JsonObject:
    """What `FILE` holds: for each family the settings and rows of `bench.json`, those of earlier commands included.

    Args:
        work: what all families have in common; the model and its size are the family's, and the batch if none is given.
        names: families to measure (default: all). One that the file has, with all repeats, is not measured again.
        facts: settings and versions, stored beside the rows.
    """
    for name in names:
        check_choice("--only", name, tuple(FAMILIES))
    file = None if output is None else output / FILE
    found = {} if file is None else _stored(file)
    for name in names or FAMILIES:
        family = FAMILIES[name]
        about: ModelArgs = dict(model=family.model, size=family.size, batch=batch or family.batch)
        if name in found and _is_done(found[name], methods, facts | about):
            tell(f"{name}: measured already")
            continue
        tell(name)
        own = replace(work, **about, model_args=family.model_args, build=family.build)
        left_out = refused(methods, own)
        for method, reason in left_out.items():
            tell(f"Left out: {method}, because {reason}.")
        settings = facts | about | {"left_out": left_out}

        def store(rows: Sequence[StepRow], name: str = name, settings: JsonObject = settings) -> None:
            found[name] = json.loads(as_json(settings, rows, {}))
            if file is not None:
                write_file(file, (json.dumps(found, indent=1) + "\n").encode())

        kept = [method for method in methods if method not in left_out]
        counts: dict[str, int] = dict(repeats=repeats, steps=steps, warmup=warmup)
        measure_steps(kept, ["compiled"], own, **counts, tell=tell, store=store)
    return found


def _stored(file: Path) -> JsonObject:
    """What earlier commands measured; ValueError for a file of another kind."""
    if not file.exists():
        return {}
    try:
        found = read_json(file)
        family_table(found)
        for each in found.values():
            each["settings"]["left_out"].keys()
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        raise ValueError(f"{file} is not a file of this command; give another --output") from None
    return found


def _is_done(stored: JsonObject, methods: Sequence[str], settings: JsonObject) -> bool:
    """Whether all methods have all repeats, with these settings."""
    same = all(stored["settings"].get(key) == value for key, value in settings.items() if key != "repeats")
    rows = {row["method"]: len(row["times"]) for row in stored["steps"]}
    left_out, repeats = stored["settings"]["left_out"], settings["repeats"]
    return same and all(rows.get(method, 0) >= repeats or method in left_out for method in methods)


def family_table(found: JsonObject) -> str:
    """A line for each family and method: time and memory relative to the first method, with the interval of time."""
    lines = [f"{'':32}{'':22}{'images/s':>10}{'ratio':>8}{'95 % interval':>18}{'GiB':>8}{'ratio':>8}"]
    for name, stored in found.items():
        rows = [_row(each) for each in stored["steps"]]
        for row in rows:
            base, ratio = rows[0], interval_of(row, rows[0])
            shown = "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
            memory = "" if row.memory is None else f"{row.memory:8.2f}{row.memory / (base.memory or 1):8.3f}"
            speed = stored["settings"]["batch"] / row.median * 1e3
            median = ratios(row, base)[0]
            lines.append(f"{name:32}{row.method:22}{speed:10,.0f}{median:8.3f}{shown:>18}{memory}")
    return "\n".join(lines)


def interval_of(row: StepRow, base: StepRow) -> Estimate:
    """The mean over the rounds of a method's time divided by the base's, with its interval."""
    found = [time / other for time, other in zip(row.times, base.times, strict=True)]
    shifted = Estimate.paired(found, [0.0] * len(found))
    return shifted if row is not base else Estimate(1.0, None, len(found))


def _row(stored: JsonObject) -> StepRow:
    return StepRow(**{name: stored[name] for name in ("method", "mode", "times", "memory", "easy", "ahead", "steps")})
