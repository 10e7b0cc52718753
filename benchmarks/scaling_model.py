"""How data parallelism and FSDP would scale to many GPUs: a model, computed from measured step times and stated links.

`python benchmarks/scaling_model.py` prints the tables of docs/scaling.md.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[1] / "results" / "speed" / "scaling.json"  # by scaling_inputs.py
PER_MACHINE = 8  # GPUs
BUCKET = 25 * 2**20  # bytes of gradients that DDP sends at once
BYTES = 4  # of a weight or gradient that travels: float32
USED = 0.8  # of a link's nominal speed
LATENCY = 5e-6  # seconds of a step between machines


@dataclass(frozen=True)
class Model:
    """A vision transformer at 224 pixels with patches of 16; `timm` is the model that was measured."""

    name: str
    depth: int
    width: int
    timm: str

    @property
    def parameters(self) -> int:
        width = self.width
        block = 12 * width**2 + 13 * width
        outside = 769 + 198 + 2 + 1000  # patches, class token and positions, last norm, classifier
        return self.depth * block + outside * width + 1000

    def seconds(self, images: int, mode: str) -> float:
        """The time of a measured step, for a number of images on one GPU."""
        key = (self.timm, images, mode)
        (step,) = (each for each in measured()["steps"] if (each["model"], each["batch"], each["mode"]) == key)
        return step["median"] / 1e3


MODELS = (
    Model("ViT-S", 12, 384, "deit_small_patch16_224"),
    Model("ViT-B", 12, 768, "deit_base_patch16_224"),
    Model("ViT-L", 24, 1024, "vit_large_patch16_224"),
)
IMAGES = (8, 64, 128)  # per GPU


def measured() -> dict[str, Any]:
    return json.loads(MEASURED.read_text())


@dataclass(frozen=True)
class Links:
    """Bytes per second of one GPU, in each direction, to its machine and to other machines."""

    name: str
    inside: float
    between: float


FAST = Links("400 Gb/s per GPU", 450e9, 50e9)
SLOW = Links("100 Gb/s per machine", 450e9, 12.5e9 / PER_MACHINE)


def all_reduce(size: float, gpus: int, links: Links) -> float:
    """Seconds to add up `size` bytes: within machines, then between them an eighth by each GPU, by ring or tree."""
    machines = gpus // PER_MACHINE
    inside = 2 * (PER_MACHINE - 1) / PER_MACHINE * size / (USED * links.inside)
    part = size / PER_MACHINE / (USED * links.between)
    ring = 2 * (machines - 1) / machines * part + 2 * (machines - 1) * LATENCY
    tree = 2 * part + 2 * math.ceil(math.log2(machines)) * LATENCY if machines > 1 else 0.0
    return inside + min(ring, tree)


def exposed(transfers: int, one: float, compute: float) -> float:
    """Seconds by which transfers outlast the computation beside them; the last one begins when it is over."""
    return max(one, transfers * one - compute * (transfers - 1) / transfers)


def ddp_exposed(model: Model, compute: float, gpus: int, links: Links) -> float:
    """Seconds of communication that the backward pass, two thirds of a step, does not hide."""
    size = BYTES * model.parameters
    buckets = math.ceil(size / BUCKET)
    return exposed(buckets, all_reduce(size / buckets, gpus, links), 2 / 3 * compute)


def fsdp_exposed(model: Model, compute: float, gpus: int, links: Links) -> float:
    """Each block is gathered before forward and backward, and its gradients are scattered: half an all-reduce each."""
    machines, units = gpus // PER_MACHINE, model.depth + 1
    size = BYTES * model.parameters / units
    inside = (PER_MACHINE - 1) / PER_MACHINE * size / (USED * links.inside)
    between = (machines - 1) / machines * size / PER_MACHINE / (USED * links.between) + (machines - 1) * LATENCY
    return exposed(units, inside + between, compute / 3) + exposed(2 * units, inside + between, 2 / 3 * compute)


def throughput(model: Model, images: int, gpus: int, links: Links, *, fsdp: bool) -> tuple[float, float]:
    """Part of a step in which a GPU does not only communicate, and images per second of all GPUs.

    vitmix compiles with DDP, not with FSDP.
    """
    compute = model.seconds(images, "eager" if fsdp else "compiled")
    step = compute + (fsdp_exposed if fsdp else ddp_exposed)(model, compute, gpus, links)
    return compute / step, gpus * images / step


def step_table() -> str:
    """The measured steps of one GPU."""
    heads = (f"{images} images{of}" for images in IMAGES for of in (", compiled", ", eager"))
    lines = [f"| model | gradients | {' | '.join(heads)} |", "|---" * (2 + 2 * len(IMAGES)) + "|"]
    for model in MODELS:
        times = [model.seconds(images, mode) for images in IMAGES for mode in ("compiled", "eager")]
        cells = [f"{1e3 * time:.1f} ms" for time in times]
        lines.append(f"| {model.name} | {BYTES * model.parameters / 1e6:,.0f} MB | {' | '.join(cells)} |")
    return "\n".join(lines)


def scaling_table(batch: int | None) -> str:
    """Efficiency and images per second; with 128 images per GPU, or a global batch."""
    names = ("model", "GPUs", "images per GPU", "links between machines", "DDP", "images/s", "FSDP", "images/s")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for model in MODELS:
        for gpus in (64, 512):
            images = 128 if batch is None else batch // gpus
            for links in (FAST, SLOW):
                found = [throughput(model, images, gpus, links, fsdp=fsdp) for fsdp in (False, True)]
                shown = " | ".join(f"{100 * part:.0f} % | {rate:,.0f}" for part, rate in found)
                lines.append(f"| {model.name} | {gpus} | {images} | {links.name} | {shown} |")
    return "\n".join(lines)


def loader_table() -> str:
    """What GPUs with 128 images each ask of a machine's cores, of its network and of the storage."""
    names = ("model", "images/s per GPU", "cores per GPU", "decoding alone", "GB/s per machine", "GB/s of 512 GPUs")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    loader = measured()["loader"]
    cores, together = max((int(cores), rate) for cores, rate in loader["augmented"].items())
    for model in MODELS:
        rate = IMAGES[-1] / model.seconds(IMAGES[-1], "compiled")
        volume = rate * loader["bytes"] / 1e9
        needed = f"{rate * cores / together:.0f} | {rate / loader['decoded']:.1f}"
        lines.append(f"| {model.name} | {rate:,.0f} | {needed} | {PER_MACHINE * volume:.2f} | {512 * volume:.0f} |")
    return "\n".join(lines)


def tables() -> str:
    return "\n\n".join([step_table(), scaling_table(None), scaling_table(4096), loader_table()])


if __name__ == "__main__":
    print(tables())
