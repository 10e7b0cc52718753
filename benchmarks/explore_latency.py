"""How long the page of `vitmix explore` takes to answer, over HTTP, after the first answer.

    vitmix explore --model FILE --arch deit_tiny_patch16_224 --port 7870 &
    python benchmarks/explore_latency.py --port 7870

Asks for every method and a few compositions in turn, with a new seed each time, and prints wall times: of all methods
that need no gradient of the input, and of those that do.
"""

import argparse
import os
import statistics
import time

from gradio_client import Client

from vitmix import create
from vitmix._registry import METHODS

COMPOSITIONS = (
    "mix(mask=block, share=aligned) + consistency",
    "mixup | smmix",
    "cutmix + htm",
    "mix(mask=scattered, share=prior(times=attention))",
)


def needs_gradient(text: str) -> bool:
    return any(mixer.needs.guide_gradient for mixer in create(text, 2).mixers)


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    client = Client(f"http://127.0.0.1:{options.port}", verbose=False)
    texts = [name for name in METHODS if name != "none"] + list(COMPOSITIONS)
    client.predict("cutmix", first="cat", second="coffee", seed=0, api_name="/explore")
    times: dict[str, list[float]] = {text: [] for text in texts}
    for seed in range(1, options.rounds + 1):
        for text in texts:
            start = time.perf_counter()
            client.predict(text, first="cat", second="coffee", seed=seed, api_name="/explore")
            times[text].append(time.perf_counter() - start)
    for text, values in times.items():
        print(f"{text:<52} {1000 * statistics.median(values):5.0f} ms")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, chosen in (("without gradients", False), ("with gradients", True)):
        values = [value for text, each in times.items() if needs_gradient(text) is chosen for value in each]
        if values:
            median, late = statistics.median(values), quantile(values, 0.95)
            print(f"{name}: n = {len(values)}, median {1000 * median:.0f} ms, 95th percentile {1000 * late:.0f} ms")


if __name__ == "__main__":
    main()
