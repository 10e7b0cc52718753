"""The `vitmix` commands of the documentation, and small substitutes for the data, models and times that they name.

A substitute keeps the subcommand and every flag; what a reader must bring (data, weights, minutes) becomes tiny.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from coco_toys import write_toys
from mask_toys import write_masks
from support import ROOT
from training import TINY, train
from vitmix.lab.data import Shapes

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "results").rglob("*.md")),
]
OPEN = {"...", "[NAME]"}  # for the reader to complete

MODEL = "deit_tiny_patch16_224"
MODEL_ARGS = {"patch_size": 8, "embed_dim": 16, "depth": 9, "num_heads": 2}
SIZE = 32
WEIGHTS = "weights.safetensors"
SHAPES = f"shapes(size={SIZE}, length=48, test_length=24)"
IMAGES = "imagefolder:images"
PHOTOS = ("cat.jpg", "dog.jpg", "cup.jpg", "cat.png", "espresso.png")
RUNS = ("RUN", "runs/NAME", "runs/a", "runs/b", "runs/cutmix", "runs/smmix", "runs/htm", "runs/OTHER", "OTHER")

# Values that take time or hardware, and what they become
SMALL = {
    "--epochs": ["1"],
    "--batch": ["8"],
    "--workers": ["0"],
    "--jobs": ["1"],
    "--size": [str(SIZE)],
    "--steps": ["1"],
    "--limit": ["8"],
    "--attack-limit": ["4"],
    "--repeats": ["1"],
    "--warmup": ["1"],
    "--seeds": ["0"],
    "--hours": ["0.001"],
    "--arch": [MODEL],
    "--images": ["images/val/*/*.png"],
    "--checkpoint-every": ["2 steps"],
    "--masks": ["outlines"],
    "--modes": ["eager"],
}
MORE = {  # what makes a command short where the page says nothing
    "train": {"epochs": "1", "batch": "8", "workers": "0", "warmup-epochs": "0", "crop-pct": "1"},
    "eval": {"workers": "0"},
    "analyze": {"images": "8", "workers": "0"},
    "maps": {"workers": "0"},
    "bench": {"modes": "eager", "batch": "2", "repeats": "1", "steps": "1", "warmup": "1", "output": "bench"},
    "suggest": {},
    "transfer": {"epochs": "1", "batch": "4", "workers": "0", "warmup-epochs": "0", "size": str(SIZE)},
}
SWITCHES = {"train", "eval", "analyze", "maps", "bench", "suggest", "transfer"}  # which take --cpu
HELD_BACK = {  # flags that a substitute leaves out, because they need
    "--compile",  # a compiler
    "--fsdp",  # several processes
    "--graphs",  # a GPU
    "--only-right",  # a model that is right
}
COMPARED = {"data", "model", "method"}  # flags of `vitmix compare`
DETECTS = ["transfer", WEIGHTS, "--task", "detect", "--data", "coco:COCO", "--size", "32", "--epochs", "1"]
PREPARED = {  # what other commands must have made before
    "--maps": [["maps", "--data", IMAGES, "--model", "RUN", "--output", "maps/NAME", "--workers", "0", "--cpu"]],
    "--reference": [["eval", "OTHER", "--suite", "corruptions", "--limit", "8", "--workers", "0", "--cpu"]],
    "score": [[*DETECTS, "--batch", "4", "--warmup-epochs", "0", "--workers", "0", "--cpu", "--output", "trained"]],
}
BUILDS = {"train", "bench", "suggest"}  # which name a model to build, not one to open


def commands(page: Path) -> list[list[str]]:
    """The words after `vitmix` of every command in a page's blocks, without the descriptions beside them."""
    found = []
    for language, block in re.findall(r"^```(\S*)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        lines = re.sub(r"\s*\\\n\s*", " ", block).splitlines() if language in ("", "sh", "bash") else []
        for line in lines:
            if match := re.search(r"(?:^|&& |-m |bin/)vitmix\b(.*)", line):
                command = re.split(r" {3,}| {2,}(?=[a-z])", match[1].strip())[0]
                found.append([word for word in shlex.split(command, comments=True) if word not in OPEN])
    return found


def kinds_of_commands() -> Iterator[list[str]]:
    """One documented command of each kind: with the same subcommand, flags, and number of values beside them."""
    found: dict[object, list[str]] = {}
    for page in PAGES:
        for words in commands(page):
            flags = frozenset(word for word in words if word.startswith("--"))
            if words and not flags & {"--help", "--plugin"}:
                found.setdefault((words[0], flags, _places(words)), words)
    return iter(found.values())


def _places(words: list[str]) -> object:
    """What a command's kind depends on besides its flags: the values that choose what it does."""
    given = _split(words)[1]
    return tuple(
        tuple(given.get(flag, ())) for flag in ("--study", "--suite", "--task", "--head", "--parts", "--label")
    )


def _split(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The words before the flags, and the values of each flag."""
    places, given = [], {}
    values = places
    for word in words:
        if word.startswith("--"):
            values = given.setdefault(word, [])
        else:
            values.append(word)
    return places, given


def only_parsed(words: list[str]) -> str | None:
    """Why no substitute of a command runs here; None if one does."""
    (name, *_), given = _split(words)
    reasons = {
        "explore": "it serves until it is stopped",
        "compare --on": "it needs a cluster",
        "eval --folders": "it needs shifted copies of a data set",
        "transfer --recipe": "recipes of transfers name large models",
        "compare task": "a matrix of transfers takes minutes",
    }
    transfers = name == "compare" and "transfer" in "".join(words) or "task=segment" in words
    found = [name, *(f"{name} {flag}" for flag in given), *(["compare task"] if transfers else [])]
    return next((reasons[each] for each in found if each in reasons), None)


def substitute(words: list[str]) -> list[str]:
    """The command with tiny data, a tiny model and short times."""
    (name, *places), given = _split(words)
    given = {flag: SMALL.get(flag, values) for flag, values in given.items() if flag not in HELD_BACK}
    if name == "analyze":
        given.pop("--images", None)
    for flag, value in MORE.get(name, {}).items():
        given.setdefault(f"--{flag}", [value])
    if name == "eval" and "--suite" in given:
        given.setdefault("--limit", SMALL["--limit"])
    if given.get("--recipe") == ["tl_align_deit_base"]:  # whose weights need a network
        given["--no-pretrained"] = []
    if given.get("--recipe") == ["finetune"]:
        given.setdefault("--checkpoint", [WEIGHTS])
    if "--data" in given:
        given["--data"] = [_data(given["--data"][0])]
    elif name == "train":
        given["--data"] = [SHAPES]
    if name in SWITCHES and "--list" not in given:
        given["--cpu"] = []
    if given.pop("--pretrained", None) is not None:  # weights without a network
        places = [
            WEIGHTS if word in ("deit_small_patch16_224", "swin_tiny_patch4_window7_224", "resnet50") else word
            for word in places
        ]
        if name in BUILDS:
            given["--checkpoint"] = [WEIGHTS]
            given.pop("--model", None)
        elif "--model" in given or name in ("show", "explore"):
            given["--model"] = [WEIGHTS]
    elif (
        "--model" in given and name not in BUILDS and given["--model"][0] not in RUNS and ":" not in given["--model"][0]
    ):
        given["--model"] = [WEIGHTS]
    if "--checkpoint" in given and given["--checkpoint"][0] not in RUNS:
        given["--checkpoint"] = [WEIGHTS]
    if name in BUILDS and "--checkpoint" not in given:
        given |= {"--model": [MODEL], "--size": [str(SIZE)]}
    if "--model" in given and name in BUILDS:
        given["--model"] = [MODEL]
    if "--arch" in given or "--model" in given and name in BUILDS:
        given["--model-args"] = [f"{key}={value}" for key, value in MODEL_ARGS.items()]
    if name in ("train", "transfer"):
        given["--output"] = ["trained"]
    places = [WEIGHTS if word.endswith((".safetensors", ".pth")) else word for word in places]
    if name == "score":
        places = ["COCO/test.json", "trained/detections.json"]
    if name == "compare" and "--list" not in given:
        places = [] if "--method" in given else ["MINE.yaml"]
        given |= {"--rows": ["no mixing", "CutMix"]} if "--rows" in given else {}
        settings = TINY | {"model_args": MODEL_ARGS, "epochs": 1} if "--method" in given else {"precision": "bf16"}
        if "--method" in given or "--set" in given:
            texts = {key: json.dumps(value).strip('"') for key, value in settings.items() if key not in COMPARED}
            given["--set"] = [f"{key}={text}" for key, text in texts.items()]
        if "--method" in given:
            given |= {"--method": ["cutmix"], "--model": [MODEL], "--data": [SHAPES]}
    return [name, *places, *(word for flag, values in given.items() for word in (flag, *values))]


def _data(text: str) -> str:
    if text.startswith(("masks:", "ade20k:")):
        return "masks:masked"
    return "coco:COCO" if text.startswith("coco:") else IMAGES


def prepared(words: list[str]) -> list[list[str]]:
    """The commands that a substitute needs before it."""
    return [each for word, before in PREPARED.items() if word in words for each in before]


def make_workshop(folder: Path) -> None:
    """Everything that the substitutes name, in the current folder: runs, weights, images, masks, a matrix."""
    dataset = Shapes(size=SIZE, length=24, split="train", seed=0)
    batch = dataset.batch(list(range(24)))
    for number, (pixels, label) in enumerate(zip(batch.pixels(), batch.labels.tolist(), strict=True)):
        for split in ("train", "val", "test"):
            _write(folder / "images" / split / Shapes.classes[label] / f"{number}.png", pixels)
        outline = batch.masks[number].numpy().astype("uint8")
        _write(folder / "outlines" / Shapes.classes[label] / f"{number}.png", outline)
        if number < len(PHOTOS):
            _write(folder / PHOTOS[number], pixels)
    write_masks(folder / "masked")
    write_toys(folder / "COCO", train=4, test=2, polygons=True)
    model = {"model": MODEL, "model_args": MODEL_ARGS, "size": SIZE, "drop": 0.0, "drop_path": 0.0}
    train(folder / "RUN", data=SHAPES, method="cutmix + htm(block=1, tau=9)", epochs=1, **model)
    for name in RUNS[1:]:
        shutil.copytree(folder / "RUN", folder / name)
    shutil.copy(folder / "RUN" / "best.safetensors", folder / WEIGHTS)
    rows = {"no mixing": "none", "CutMix": "cutmix", "MixUp or CutMix": "mixup | cutmix"}
    settings = {**TINY, **model, "data": SHAPES, "epochs": 1}
    matrix = {"about": "tiny", "baseline": "no mixing", "settings": settings, "rows": rows, "seeds": [0]}
    (folder / "MINE.yaml").write_text(yaml.safe_dump(matrix))
    (folder / "docs").mkdir()
    shutil.copytree(ROOT / "results" / "finetune_pets", folder / "results" / "mine")


def _write(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
