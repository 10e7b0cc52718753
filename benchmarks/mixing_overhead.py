"""Cost of mixing alone (draw and apply, no model) relative to `images.clone()`, interleaved in one run.

python benchmarks/mixing_overhead.py [--batch 128] [--size 224] [--repeats 15]
"""

import argparse
import statistics
import time

import torch

import vitmix

METHODS = {
    "mixup": "mixup",
    "cutmix": "cutmix",
    "cutmix, a box per sample": "cutmix(per=sample)",
    "cutmix, aligned": "cutmix(aligned=True, grid=[14, 14])",
    "tokenmix": "tokenmix(grid=[14, 14])",
    "tokenmix, blocks per sample": "tokenmix(per=sample, grid=[14, 14])",
    "fmix": "fmix",
    "resizemix": "resizemix",
    "resizemix, bilinear": "resizemix(interpolation=bilinear)",
    "gridmix": "gridmix",
    "mixpro's mask": "mix(mask=cells(grid=[14, 14]))",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()

    images = torch.rand(options.batch, 3, options.size, options.size)
    labels = torch.arange(options.batch)
    mixers = {name: vitmix.create(text, options.batch) for name, text in METHODS.items()}
    calls = {"images.clone()": lambda _: images.clone()}
    for name, mixer in mixers.items():
        calls[name] = lambda gen, mixer=mixer: mixer(images, labels, generator=gen)

    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(options.repeats + 2):  # the first two rounds are warm-up
        for name, call in calls.items():
            generator = vitmix.generator_for(repeat)
            start = time.perf_counter()
            call(generator)
            if repeat >= 2:
                times[name].append(time.perf_counter() - start)

    medians = {name: statistics.median(values) for name, values in times.items()}
    clone = medians["images.clone()"]
    shape = f"{options.batch}x3x{options.size}x{options.size}"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {shape}, median of {options.repeats}")
    print(f"{'':30s}{'ms':>8s}{'x clone':>9s}")
    for name, median in medians.items():
        print(f"{name:30s}{median * 1e3:8.1f}{median / clone:9.2f}")


if __name__ == "__main__":
    main()
