"""CPU time per image of what SaliencyMix, Puzzle Mix and Co-Mixup compute besides the passes of the model.

python benchmarks/host_masks.py [--batch 64] [--size 224]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from vitmix._mix import Frame
from vitmix.parts.cuts import batch_labels, grid_labels
from vitmix.parts.joint import JointMask, joint_mix
from vitmix.parts.peak import PeakMask, saliency_peak
from vitmix.parts.puzzle import PuzzleMask, block_saliency, puzzle_costs, puzzle_labels, transport_plan


def milliseconds(call: Callable[[], object], images: int, repeats: int = 3) -> float:
    """The median CPU time of a call per image; other processes do not count."""
    times = []
    for _ in range(repeats + 1):  # the first one is warm-up
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times[1:]) / images


def smooth(*shape: int, size: int) -> Tensor:
    return torch.nn.functional.interpolate(torch.rand(*shape) ** 3, (size, size), mode="bilinear")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    torch.manual_seed(0)
    count = options.batch
    images = smooth(count, 3, 14, 14, size=options.size)
    saliency = smooth(count, 1, 28, 28, size=options.size)[:, 0]
    partner, mask, puzzle = torch.arange(count).flip(0), PeakMask(), PuzzleMask()
    names = ("labels", "beta", "gamma", "eta", "neighborhood")
    make_costs = partial(
        puzzle_costs, saliency, images, partner, 0.4, **{name: getattr(puzzle, name) for name in names}
    )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {count}x3x{options.size}x{options.size}")
    peak = milliseconds(lambda: saliency_peak(mask.saliency(images)), count)
    print(f"SaliencyMix's peak {peak:.2f} ms per image")
    print(f"{'Puzzle Mix, blocks':20s}{'costs':>8s}{'cut':>8s}{'one by one':>12s}{'transport':>11s}")
    for blocks in puzzle.blocks:
        costs = make_costs(blocks=blocks)
        arrays, labels = [each.numpy() for each in costs], puzzle_labels(costs)
        shares = block_saliency(saliency, (blocks, blocks))
        calls: list[Callable[[], object]] = [
            lambda n=blocks: make_costs(blocks=n),
            lambda given=arrays: batch_labels(*given),
            lambda given=arrays: [grid_labels(*rows) for rows in zip(*given, strict=True)],
            lambda given=shares, shown=labels < puzzle.labels - 1: transport_plan(given, shown, cost=puzzle.cost),
        ]
        row = [milliseconds(call, count) for call in calls]
        print(f"{blocks:<20d}{row[0]:8.2f}{row[1]:8.2f}{row[2]:12.2f}{row[3]:11.2f}")
    for blocks in (2, 4):
        joint, frame = JointMask(blocks=blocks), Frame(count, (options.size, options.size))
        drawn = joint.draw(frame, torch.Generator().manual_seed(0))
        settings = [joint.beta, joint.gamma, joint.threshold, float(joint.rounds), joint.eta, joint.omega]
        given = images, saliency, drawn["weight"], drawn["start"], joint.group, settings
        spent = milliseconds(lambda given=given: joint_mix(*given), count, repeats=1)
        print(f"Co-Mixup, {blocks} blocks, groups of {joint.group}: {spent:.2f} ms per image")


if __name__ == "__main__":
    main()
