"""Folders of activation maps, and the one map of each picture that training needs: its label's.

A folder holds `index.json` and shards. A shard is a safetensors file for some pictures in a row: `classes` and `values`
`(n, k, h, w)`, the k highest logits of each place of the whole picture and whose they are. The index says which data
and which teacher they are of, and the checksum of every shard.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from PIL import Image
from torch import Tensor

from vitmix.lab.reading import fits, is_count, read_bytes, read_json
from vitmix.parts.maps import class_maps

from .images import BrokenImage, ImageSet

INDEX = "index.json"
FORMAT = 1
SAMPLES = 16  # pictures whose looks are remembered
THUMBNAIL = 4  # pixels a side
LEVELS = 6  # by which decoders may differ in a thumbnail
MOST_PLACES, MOST_BYTES = 2**16, 2**31  # of a map; of a shard
SHAPE = {
    "data": {"name": str, "images": is_count, "labels": str, "looks": dict},
    "teacher": {"name": str},
    "top": is_count,
    "classes": [is_count],
    "grid": (None, [is_count]),
    "broken": [str],
    "shards": [{"file": str, "rows": [is_count], "sha256": str}],
}


def describe_data(images: ImageSet) -> dict[str, Any]:
    """What tells a data set from others, wherever it is stored: labels, class names, and the looks of some pictures."""
    digest = hashlib.sha256(json.dumps(images.classes).encode())
    digest.update(np.ascontiguousarray(images.labels, dtype="<i8").tobytes())
    rows = np.unique(np.linspace(0, len(images) - 1, SAMPLES).astype(int)).tolist()
    looks = {str(row): _look(images, row) for row in rows}
    return {"name": images.description, "images": len(images), "labels": digest.hexdigest(), "looks": looks}


def same_data(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether two descriptions are of the same pictures with the same labels, their names aside."""
    if any(ours[key] != theirs[key] for key in ("images", "labels")):
        return False
    return all(_alike(look, theirs["looks"].get(row)) for row, look in ours["looks"].items())


def _look(images: ImageSet, row: int) -> str | None:
    try:
        picture = images[row][0]
    except BrokenImage:
        return None
    small = picture.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    return np.asarray(small).tobytes().hex()


def _alike(first: str | None, second: str | None) -> bool:
    """Whether two thumbnails differ by no more than decoders do; a picture that cannot be read proves nothing."""
    if first is None or second is None:
        return True
    levels = [np.frombuffer(bytes.fromhex(each), dtype=np.uint8).astype(int) for each in (first, second)]
    return bool(np.abs(levels[0] - levels[1]).max() <= LEVELS)


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a folder of maps."""
    try:
        index = read_json(folder / INDEX)
        if index["format"] != FORMAT:
            raise ValueError(f"format {index['format']}, and this version reads {FORMAT}")
        wrong = [key for key, shape in SHAPE.items() if not fits(index, {key: shape})]
        wrong += ["looks"] if not all(isinstance(look, str | None) for look in index["data"]["looks"].values()) else []
        wrong += ["rows"] if any(len(shard["rows"]) != 2 for shard in index["shards"]) else []
        grid = index["grid"] or (1, 1)
        wrong += ["grid"] if len(grid) != 2 or not 0 < grid[0] * grid[1] <= MOST_PLACES else []
        if wrong:
            raise ValueError(f"{wrong[0]} is missing or of another form")
        return index
    except FileNotFoundError:
        raise ValueError(
            f"{str(folder)!r} is no folder of activation maps; make one with 'vitmix maps --data DATA "
            f"--teacher TEACHER --output {folder}'"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as problem:
        raise ValueError(f"{str(folder / INDEX)!r} is not an index of activation maps ({problem})") from None


def read_shard(folder: Path, shard: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a shard; a ValueError where it is missing or not what was written."""
    path = folder / Path(shard["file"]).name  # whatever the index says, a file of this folder
    try:
        content = read_bytes(path, MOST_BYTES)
    except OSError as problem:
        raise ValueError(f"{str(path)!r} cannot be read ({problem.strerror})") from None
    if hashlib.sha256(content).hexdigest() != shard["sha256"]:
        raise ValueError(f"{str(path)!r} is not what was written: its checksum differs")
    try:
        arrays = safetensors.numpy.load(content)
        values, classes = arrays["values"], arrays["classes"]
    except Exception:  # of safetensors, numpy or a missing name; the checksum is of the same origin
        raise ValueError(f"{str(path)!r} is not a file of activation maps") from None
    count = shard["rows"][1] - shard["rows"][0]
    if values.ndim != 4 or values.shape != classes.shape or len(values) != count or classes.dtype.kind not in "iu":
        raise ValueError(f"{str(path)!r} does not hold the maps of {count} images")
    return {"values": values, "classes": classes}


def read_label_maps(folder: str | Path, images: ImageSet) -> Tensor:
    """The map `(N, h, w)` float16 of each picture's own label, never negative, checked against data and checksums."""
    folder = Path(folder)
    index = read_index(folder)
    ours = describe_data(images)
    if not same_data(ours, index["data"]):
        raise ValueError(
            f"the activation maps in {str(folder)!r} are of other data ({index['data']['name']}, "
            f"{index['data']['images']} images) than {ours['name']} ({ours['images']} images); "
            "make maps of this data with 'vitmix maps'"
        )
    missing = len(images) - sum(shard["rows"][1] - shard["rows"][0] for shard in index["shards"])
    if missing or index["grid"] is None or len(index["classes"]) != len(images.classes):
        raise ValueError(
            f"{str(folder)!r} lacks the maps of {missing} of {len(images)} images; run the same 'vitmix maps' again"
        )
    wanted = torch.as_tensor(index["classes"])[torch.from_numpy(images.labels)]
    maps = torch.zeros(len(images), *index["grid"], dtype=torch.float16)
    for shard in index["shards"]:
        try:
            arrays = read_shard(folder, shard)
            if arrays["values"].shape[2:] != tuple(index["grid"]) or shard["rows"][1] > len(images):
                raise ValueError(f"{shard['file']!r} is of other images than the index says")
        except ValueError as problem:
            raise ValueError(f"{problem}; run the same 'vitmix maps' again, which makes it anew") from None
        rows = slice(*shard["rows"])
        # torch has few operations on unsigned numbers, so the class numbers become int32 here.
        values, classes = torch.from_numpy(arrays["values"]), torch.from_numpy(arrays["classes"].astype(np.int32))
        maps[rows] = class_maps(values, classes, wanted[rows]).clamp_min(0)
    return maps
