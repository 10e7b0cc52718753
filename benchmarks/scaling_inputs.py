"""What the scaling model needs from one machine: milliseconds of a step, and images per second of the loader.

    python benchmarks/scaling_inputs.py steps deit_small_patch16_224 deit_base_patch16_224 > FILE
    python benchmarks/scaling_inputs.py loader --cores 16 > FILE

Steps are those of `vitmix bench`, for different numbers of images per GPU. The loader reads JPEGs of ImageNet's usual
size from local shards and augments them as the recipe deit does, in one worker process, then in one for each core.
"""

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

from vitmix.lab.bench.steps import Workload, measure_steps
from vitmix.lab.data.augmentation import Augmentation
from vitmix.lab.data.images import ImageSet
from vitmix.lab.data.loader import TrainLoader
from vitmix.lab.data.sources import open_images
from vitmix.lab.environment import describe_environment, try_convolutions

BATCHES = (8, 64, 128)  # images per GPU
COUNTS = {"repeats": 9, "steps": 10, "warmup": 8}
SIZE, SIGMA, QUALITY = (500, 375), 0.7, 91  # of the images: pixels, blur and quality that give 110 kB, as in ImageNet
KINDS, PER_SHARD = 64, 500


def steps(model: str) -> list[dict[str, Any]]:
    """Milliseconds of CutMix steps in bf16, by mode and images per GPU."""
    torch.set_float32_matmul_precision("high")
    try_convolutions()
    found = []
    for batch in BATCHES:
        work = Workload(model, batch, None, torch.device("cuda"), torch.bfloat16, 0.05, False)
        for row in measure_steps(["cutmix"], ["compiled", "eager"], work, **COUNTS, tell=_tell):
            about = {"model": model, "batch": batch, "mode": row.mode, "precision": "bf16", **COUNTS}
            found.append({**about, "times": row.times, "median": row.median})
    return found


def loader(cores: int, seconds: float) -> dict[str, Any]:
    """Images per second: read and decoded by one process; also augmented, by one worker and by one for each core."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        size = write_shards(Path(name), shards=4 * cores)
        images = open_images(f"wds:{name}", "train")
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            images.readable(count)[0].load()
            count += 1
        decoded = count / (time.perf_counter() - began)
        augmented = {workers: augmented_rate(images, workers, seconds) for workers in sorted({1, cores})}
    return {"bytes": size, "pixels": SIZE, "seconds": seconds, "decoded": decoded, "augmented": augmented}


def augmented_rate(images: ImageSet, workers: int, seconds: float) -> float:
    """Images per second, once the workers have started and filled their queues."""
    batches = TrainLoader(images, Augmentation(size=224, erasing=0.25), batch=64, seed=0, workers=workers).epoch(0)
    for _ in range(4 * workers):
        next(batches)
    began, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch)
        if time.perf_counter() - began > seconds:
            break
    return count / (time.perf_counter() - began)


def write_shards(folder: Path, shards: int) -> float:
    """Shards of JPEGs of smoothed noise; returns the bytes of an image, on average."""
    rng, sizes = np.random.default_rng(0), []
    contents = [_jpeg(rng) for _ in range(KINDS)]
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:04d}.tar", "w") as tar:
            for number in range(PER_SHARD):
                content = contents[number % KINDS]
                sizes.append(len(content))
                for kind, each in (("jpg", content), ("cls", str(number % 1000).encode())):
                    about = tarfile.TarInfo(f"{number:06d}.{kind}")
                    about.size = len(each)
                    tar.addfile(about, io.BytesIO(each))
    return sum(sizes) / len(sizes)


def _jpeg(rng: np.random.Generator) -> bytes:
    pixels = gaussian_filter(rng.normal(size=(*SIZE[::-1], 3)), (SIGMA, SIGMA, 0))
    pixels = 255 * (pixels - pixels.min()) / (pixels.max() - pixels.min())
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("steps").add_argument("models", nargs="+")
    cores = kinds.add_parser("loader")
    cores.add_argument("--cores", type=int, default=os.cpu_count())
    cores.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {"place": describe_environment(device)}
    if given.kind == "steps":
        found["steps"] = [row for model in given.models for row in steps(model)]
    else:
        found["loader"] = loader(given.cores, given.seconds)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
