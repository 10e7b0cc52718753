"""A tiny made-up data set in COCO's format: bright rectangles and ellipses on noise."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitmix.lab.dense.detection.outlines import encode_runs


def write_toys(folder: Path, *, train: int = 8, test: int = 6, side: int = 64, polygons: bool = False) -> Path:
    """`train.json` and `test.json` with images of 64 x 64 and 80 x 64 pixels."""
    for split, count, seed in (("train", train, 0), ("test", test, 1)):
        _write_split(folder, split, count, np.random.default_rng(seed), side, polygons)
    return folder


def _write_split(
    folder: Path, split: str, count: int, generator: np.random.Generator, side: int, polygons: bool
) -> None:
    (folder / split).mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number in range(count):
        size = (side, side + 16 * (number % 2))
        pixels = generator.integers(0, 60, (*size, 3), dtype=np.uint8)
        for category in range(1 + number % 2):
            annotation = _object(pixels, category, generator, polygons)
            annotations.append({"id": len(annotations), "image_id": number + 1, **annotation})
        Image.fromarray(pixels).save(folder / split / f"{number}.png")
        images.append({"id": number + 1, "file_name": f"{split}/{number}.png", "height": size[0], "width": size[1]})
    categories = [{"id": 2, "name": "rectangle"}, {"id": 5, "name": "ellipse"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / f"{split}.json").write_text(json.dumps(content))


def _object(pixels: np.ndarray, category: int, generator: np.random.Generator, polygons: bool) -> dict[str, Any]:
    height, width = pixels.shape[:2]
    h, w = (int(generator.integers(20, 40)) for _ in range(2))
    top, left = int(generator.integers(0, height - h)), int(generator.integers(0, width - w))
    rows, columns = np.mgrid[:height, :width]
    mask = (rows >= top) & (rows < top + h) & (columns >= left) & (columns < left + w)
    if category:
        mask &= ((rows + 0.5 - top - h / 2) / h * 2) ** 2 + ((columns + 0.5 - left - w / 2) / w * 2) ** 2 <= 1
    pixels[mask] = (230, 60, 60) if category == 0 else (60, 200, 230)
    corners = [[left, top, left + w, top, left + w, top + h, left, top + h]]
    runs = {"size": [height, width], "counts": encode_runs(mask)}
    return {
        "category_id": (2, 5)[category],
        "bbox": [left, top, w, h],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": corners if polygons and category == 0 else runs,
    }
