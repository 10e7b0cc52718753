"""How data parallelism and FSDP would scale to many GPUs: a model, computed from measured step times and stated links.

`python benchmarks/scaling_model.py` prints the tables of docs/scaling.md.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

STEPS = Path(__file__).parents[1] / "results" / "speed" / "deit_small.json"
PER_MACHINE = 8  # GPUs
BUCKET = 25 * 2**20  # bytes of gradients that DDP sends at once
BYTES = 4  # of a weight or gradient that travels: float32
USED = 0.8  # of a link's nominal speed
LATENCY = 5e-6  # seconds of a step between machines
PER_CORE = 1107  # images per second that one core reads and decodes, without augmentation: docs/large_data.md
JPEG = 110e3  # bytes of an image of ImageNet-1k, on average


@dataclass(frozen=True)
class Model:
    """A vision transformer at 224 pixels with patches of 16."""

    name: str
    depth: int
    width: int

    @property
    def multiplications(self) -> float:
        """Of one image in the forward pass."""
        tokens, width = 197, self.width
        block = 12 * tokens * width**2 + 2 * tokens**2 * width
        return self.depth * block + 196 * 768 * width + 1000 * width

    @property
    def parameters(self) -> int:
        width = self.width
        block = 12 * width**2 + 13 * width
        outside = 769 + 198 + 2 + 1000  # patches, class token and positions, last norm, classifier
        return self.depth * block + outside * width + 1000


SMALL, BASE, LARGE = MODELS = Model("ViT-S", 12, 384), Model("ViT-B", 12, 768), Model("ViT-L", 24, 1024)


@dataclass(frozen=True)
class Links:
    """Bytes per second of one GPU, in each direction, to its machine and to other machines."""

    name: str
    inside: float
    between: float


FAST = Links("400 Gb/s per GPU", 450e9, 50e9)
SLOW = Links("100 Gb/s per machine", 450e9, 12.5e9 / PER_MACHINE)


def measured_rate() -> float:
    """Images per second of ViT-S on one H200."""
    stored = json.loads(STEPS.read_text())
    (step,) = (each for each in stored["steps"] if each["method"] == "cutmix")
    return stored["settings"]["batch"] / step["median"] * 1e3


def rate(model: Model) -> float:
    """Images per second of one GPU: measured for ViT-S; others at the same number of multiplications per second."""
    return measured_rate() * SMALL.multiplications / model.multiplications


def all_reduce(size: float, gpus: int, links: Links) -> float:
    """Seconds to add up `size` bytes: within machines, then between them an eighth by each GPU, by ring or tree."""
    machines = gpus // PER_MACHINE
    inside = 2 * (PER_MACHINE - 1) / PER_MACHINE * size / (USED * links.inside)
    part = size / PER_MACHINE / (USED * links.between)
    ring = 2 * (machines - 1) / machines * part + 2 * (machines - 1) * LATENCY
    tree = 2 * part + 2 * math.ceil(math.log2(machines)) * LATENCY if machines > 1 else 0.0
    return inside + min(ring, tree)


def ddp_exposed(model: Model, compute: float, gpus: int, links: Links) -> float:
    """Seconds of communication that the backward pass, two thirds of a step, does not hide."""
    size = BYTES * model.parameters
    buckets = math.ceil(size / BUCKET)
    one = all_reduce(size / buckets, gpus, links)
    hidden = 2 / 3 * compute * (buckets - 1) / buckets  # the last bucket is full when the backward pass ends
    return max(one, buckets * one - hidden)


def fsdp_exposed(model: Model, compute: float, gpus: int, links: Links) -> float:
    """Each block is gathered before forward and backward, and its gradients are scattered: half an all-reduce each."""
    machines, units = gpus // PER_MACHINE, model.depth + 1
    size = BYTES * model.parameters / units
    inside = (PER_MACHINE - 1) / PER_MACHINE * size / (USED * links.inside)
    between = (machines - 1) / machines * size / PER_MACHINE / (USED * links.between) + (machines - 1) * LATENCY
    one = inside + between
    forward, backward = max(0.0, units * one - compute / 3), max(0.0, 2 * units * one - 2 / 3 * compute)
    return 2 * one + forward + backward  # the first gathering and the last scattering have nothing to hide behind


def efficiency(model: Model, images: int, gpus: int, links: Links, *, fsdp: bool) -> float:
    """Part of the time that a GPU computes, with so many images each."""
    compute = images / rate(model)
    return compute / (compute + (fsdp_exposed if fsdp else ddp_exposed)(model, compute, gpus, links))


def scaling_table(batch: int | None) -> str:
    """Efficiency and images per second; with 128 images per GPU, or a global batch."""
    names = ("model", "GPUs", "images per GPU", "links between machines", "DDP", "images/s", "FSDP", "images/s")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for model in MODELS:
        for gpus in (64, 512):
            images = 128 if batch is None else batch // gpus
            for links in (FAST, SLOW):
                parts = [efficiency(model, images, gpus, links, fsdp=fsdp) for fsdp in (False, True)]
                shown = " | ".join(f"{100 * part:.0f} % | {part * gpus * rate(model):,.0f}" for part in parts)
                lines.append(f"| {model.name} | {gpus} | {images} | {links.name} | {shown} |")
    return "\n".join(lines)


def loader_table() -> str:
    """What the GPUs of a machine ask of its cores, its network and the storage."""
    names = ("model", "images/s per GPU", "gradients", "cores per GPU, decoding alone", "GB/s per machine")
    lines = [f"| {' | '.join(names)} | GB/s of 512 GPUs |", "|---" * (len(names) + 1) + "|"]
    for model in MODELS:
        needed, volume = rate(model), rate(model) * JPEG / 1e9
        gradients = f"{BYTES * model.parameters / 1e6:,.0f} MB"
        cells = (model.name, f"{needed:,.0f}", gradients, f"{needed / PER_CORE:.1f}", f"{PER_MACHINE * volume:.2f}")
        lines.append(f"| {' | '.join(cells)} | {512 * volume:.0f} |")
    return "\n".join(lines)


def tables() -> str:
    return "\n\n".join([scaling_table(None), scaling_table(4096), loader_table()])


if __name__ == "__main__":
    print(tables())
