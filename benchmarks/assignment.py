"""HTM's partners on a GPU: the kernel and SciPy (with its copies), and whether both find the same total gain.

    python benchmarks/assignment.py [--easy 128x6 128x128 1024x51 1024x256 1024x1024] [--rho 0.005]

Saliency is random, with 256 tokens for batches up to 128 and 196 above. Times are medians in ms, with the gains.
"""

import argparse
import statistics
import time

import torch

from vitmix.parts.assignment import assign_on_host, assign_partners, saliency_gain


def milliseconds(function, repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = ["128x6", "128x128", "1024x51", "1024x256", "1024x1024"]
    parser.add_argument("--easy", nargs="+", default=sizes, metavar="BATCHxEASY")
    parser.add_argument("--rho", type=float, default=0.005, help="margin of the gain")
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'batch':>6} {'easy':>6} {'kernel':>10} {'SciPy':>10}")
    for size in given.easy:
        batch, count = map(int, size.split("x"))
        saliency = torch.randn(batch, 256 if batch <= 128 else 196, device="cuda").softmax(1)
        easy = torch.arange(batch, device="cuda") < count
        found, expected = (solve(saliency, easy, given.rho) for solve in (assign_partners, assign_on_host))
        gain = saliency_gain(saliency[:count], saliency, given.rho).double()
        totals = [float(gain.gather(1, each[:count, None]).sum()) for each in (found, expected)]
        repeats = 3 if count > 500 else 20
        times = [
            milliseconds(lambda solve=solve, s=saliency, e=easy: solve(s, e, given.rho), repeats)
            for solve in (assign_partners, assign_on_host)
        ]
        other = abs(totals[0] - totals[1]) > 1e-6 * abs(totals[1])
        remark = f"  total gain {totals[0]}, not {totals[1]}" if other else ""
        print(f"{batch:6} {count:6} {times[0]:10.2f} {times[1]:10.2f}{remark}")


if __name__ == "__main__":
    main()
