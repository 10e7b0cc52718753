"""Makes the figures of README and docs from photographs that scikit-image ships and a model that knows them.

python docs/make_figures.py --weights deit_tiny_patch16_224.safetensors [--only show flow]

The weights are timm's `deit_tiny_patch16_224` (ImageNet-1k). Needs the extras docs and eval. Takes
about a minute of CPU time on one core.
Photographs: chelsea (Stefan van der Walt, CC0), coffee (Rachel Michetti, CC0), camera (Lav Varshney, CC0), rocket
(SpaceX, public domain).
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import skimage.data
import timm
from PIL import Image

from vitmix.lab.fitting import fitting_methods

DOCS = Path(__file__).parent
ARCH = "deit_tiny_patch16_224"
NAMES = {"chelsea": "cat", "coffee": "espresso", "rocket": "rocket", "camera": "tripod"}
PAIR, FOUR = ["chelsea", "coffee"], [*NAMES]
SHOWN = ["mixup", "cutmix", "tokenmix", "transmix", "tl_align", "smmix", "htm(block=8)", "vtm(block=8)"]
SEED = "16"  # the box shows the cup, and the cat's other eye stays visible
FIGURES: dict[str, tuple[list[str], list[str]]] = {  # kind: the images, and further settings
    "attention": (PAIR, []),
    "rollout": (PAIR, ["--method", "none", "cutmix"]),
    "heads": (PAIR, ["--method", "none", "manifold", "htm(block=8)"]),
    "gradient": (PAIR, []),
    "gradcam": (FOUR, ["--method", "cutmix"]),
    "occlusion": (["coffee"], []),
    "labels": (PAIR, []),
    "gallery": (FOUR, []),
}


def gallery_methods() -> list[str]:
    """Every method that changes images; at its default block, HTM exchanges nothing here."""
    methods, _ = fitting_methods(timm.create_model(ARCH), (224, 224))
    hidden = ("vtm", "manifold_mixup")  # tokens, hidden states
    return ["htm(block=8)" if name == "htm" else name for name in methods if name not in hidden]


def save_photographs(folder: Path) -> None:
    for name, word in NAMES.items():
        Image.fromarray(getattr(skimage.data, name)()).convert("RGB").save(folder / f"{word}.png")


def commands(photographs: Path, weights: str) -> dict[str, tuple[Path, list[str]]]:
    """The file of each figure, and the command that makes it."""
    vitmix = [sys.executable, "-m", "vitmix"]

    def files(names: list[str]) -> list[str]:
        return [str(photographs / f"{NAMES[name]}.png") for name in names]

    show = [*vitmix, "show", *files(PAIR), "--model", weights, "--arch", ARCH, "--seed", SEED, "--method", *SHOWN]
    flow = [sys.executable, str(DOCS.parent / "examples" / "flow_animation.py"), *files(PAIR), "--between", "3"]
    made = {
        "show": (DOCS / "show.png", show),
        "flow": (DOCS / "figures" / "flow.webp", [*flow, "--arch", ARCH, "--weights", weights, "--seed", SEED]),
    }
    for kind, (names, settings) in FIGURES.items():
        settings = ["--method", *gallery_methods()] if kind == "gallery" else settings
        command = [*vitmix, "figure", kind, weights, "--arch", ARCH, "--images", *files(names), *settings]
        made[kind] = (
            DOCS / "figures" / f"{kind}.png",
            [*command, "--seed", SEED, "--dpi", "100" if kind == "gallery" else "120"],
        )
    return made


def shrink(path: Path) -> None:
    """256 colors, a third of the bytes."""
    if path.suffix == ".png":
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        if path.stem in ("show", "labels", "gallery"):  # dithered: photographs, and shares that differ by a percent
            image = image.quantize(256, Image.Quantize.MEDIANCUT)
        else:
            image = image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3)
        image.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--only", nargs="+", choices=["show", "flow", *FIGURES])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_photographs(Path(folder))
        for name, (path, command) in commands(Path(folder), options.weights).items():
            if options.only is None or name in options.only:
                subprocess.run([*command, "--output", str(path)], check=True)
                shrink(path)
                print(f"{path.relative_to(DOCS.parent)}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
