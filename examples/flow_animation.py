"""How labels flow through a vision transformer: an animation of TL-Align's carried share, block by block.

A box of the second image is pasted into the first one. Each token starts with the label of its pixels. Attention then
mixes tokens, and their labels with them. The label that the class token ends with is the target.

python examples/flow_animation.py [CAT.jpg CUP.jpg --weights FILE --arch deit_tiny_patch16_224] [--output flow.webp]
"""

import argparse
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import timm
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from vitmix.lab.data import Augmentation
from vitmix.lab.figures import NamedModel, label_maps, read_image
from vitmix.lab.figures.samples import Sample, observe_mixed
from vitmix.lab.plotting.canvas import FAINT, INK, OWN, PARTNER
from vitmix.lab.plotting.grid import as_pixels, overlay

SIDE = 224


@dataclass(frozen=True)
class Flow:
    """What the frames show: the mixed image, and after each block the shares of patches and of the class token."""

    pixels: torch.Tensor
    patches: torch.Tensor  # (blocks + 1, h, w); first the input
    read: list[float]
    names: Sequence[str]


def find_flow(model: Any, texts: list[str], names: Sequence[str] | None, seed: int) -> Flow:
    """Mixes two images with TL-Align and runs the model."""
    images = tuple(read_image(text, SIDE) for text in texts)
    named = NamedModel("model", model, Augmentation(SIDE, crop_pct=1.0), outputs=model.num_classes)

    def find(mixing, batch):
        with torch.no_grad():
            model(batch.images)
            mixing.targets(batch)
        return label_maps(mixing, batch)

    seen = observe_mixed(named, Sample(images, "tl_align"), seed, find)
    patches = torch.stack([each.grid for each in seen.found])
    return Flow(seen.pixels, patches, [each.read for each in seen.found], names or [each.name for each in images])


def draw_frame(flow: Flow, time: float, dpi: int) -> Image.Image:
    """The frame at a time between 0 (input) and the number of blocks."""
    before, part = min(int(time), len(flow.read) - 2), time - min(int(time), len(flow.read) - 2)
    patches = torch.lerp(flow.patches[before], flow.patches[before + 1], part)
    read = (1 - part) * flow.read[before] + part * flow.read[before + 1]
    figure = Figure(figsize=(7.2, 2.75), facecolor="white")
    mixed, labels, chart = (
        figure.add_axes(box) for box in ((0.01, 0.1, 0.3, 0.79), (0.33, 0.1, 0.3, 0.79), (0.72, 0.2, 0.26, 0.63))
    )
    _show(mixed, as_pixels(flow.pixels), "mixed image")
    block = round(time)
    after = "at the input" if block == 0 else f"after block {block} of {len(flow.read) - 1}"
    _show(labels, overlay(flow.pixels, patches.clamp(0, 1), "share", strength=0.8), f"labels of tokens, {after}")
    _plot(chart, flow, time, read)
    figure.text(0.33, 0.025, f"blue: {flow.names[0]}", color=OWN, fontsize=9)
    figure.text(0.63, 0.025, f"orange: {flow.names[1]}", color="#a06c00", fontsize=9, ha="right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return Image.open(buffer).convert("RGB")


def _show(axes: Axes, pixels: np.ndarray, title: str) -> None:
    axes.imshow(pixels)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9, color=INK, pad=4)


def _plot(axes: Axes, flow: Flow, time: float, read: float) -> None:
    """The class token's share so far."""
    blocks = list(range(int(time) + 1))
    axes.plot([*blocks, time], [*flow.read[: len(blocks)], read], color=PARTNER, linewidth=2)
    axes.plot([time], [read], "o", color=PARTNER, markersize=5)
    axes.axhline(flow.read[0], color=FAINT, linewidth=0.8, linestyle=":")
    low, high = min(flow.read), max(flow.read)
    room = max(0.05, high - low) * 0.35
    axes.set(xlim=(-0.4, len(flow.read) - 0.6), ylim=(low - room, high + room))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("block", fontsize=9, labelpad=1)
    axes.set_title(f"class token: {read:.1%} {flow.names[1]}\n(dotted: area of the box)", fontsize=9, color=INK, pad=5)


def save_animation(flow: Flow, output: str, *, between: int, dpi: int) -> int:
    """Writes a .webp or .gif file that repeats forever, and returns the number of frames."""
    blocks = len(flow.read) - 1
    times = [0.0, *((step + 1) / between for step in range(blocks * between))]
    frames = [draw_frame(flow, time, dpi) for time in times]
    waits = [1200, *(round(900 / between) for _ in times[1:-1]), 2500]
    frames[0].save(output, save_all=True, append_images=frames[1:], duration=waits, loop=0, quality=70, method=6)
    return len(frames)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", default=["shapes:1", "shapes:46"], help="two files, or shapes:N")
    parser.add_argument("--names", nargs=2)
    parser.add_argument("--arch", default="deit_tiny_patch16_224", help="timm model that TL-Align supports")
    parser.add_argument("--weights", default="", help="weights file; without it the model is untrained")
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--between", type=int, default=1, help="frames per block")
    parser.add_argument("--dpi", type=int, default=100)
    parser.add_argument("--output", default="flow.webp", help=".webp or .gif")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = timm.create_model(options.arch, checkpoint_path=options.weights).eval()
    flow = find_flow(model, options.images, options.names, options.seed)
    count = save_animation(flow, options.output, between=options.between, dpi=options.dpi)
    print(f"{options.output}: {count} frames; {flow.read[0]:.1%} of the area, {flow.read[-1]:.1%} of the target")


if __name__ == "__main__":
    main()
