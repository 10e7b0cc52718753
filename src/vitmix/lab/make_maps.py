"""Making activation maps of a whole data set, once: in shards, each complete or absent, so that a kill costs little."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from PIL import Image
from timm.data.imagenet_info import ImageNetInfo
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitmix._checks import check_count, check_workers
from vitmix.lab.data.classes import match_names
from vitmix.lab.data.images import BrokenImage, ImageSet, log
from vitmix.lab.data.label_maps import FORMAT, INDEX, describe_data, read_index, read_shard, same_data
from vitmix.lab.reading import read_json
from vitmix.lab.teachers import Teacher
from vitmix.lab.training.checkpoints import make_folder, write_file

SHARD = 512  # pictures; what a kill may cost
Progress = Callable[[int, int], None]  # pictures done, of how many


def make_maps(
    images: ImageSet,
    teacher: Teacher,
    folder: str | Path,
    *,
    top: int = 5,
    classes: Sequence[int] | None = None,
    batch: int = 32,
    workers: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = lambda done, total: None,
) -> list[str]:
    """Fills a folder with the maps of all pictures, from where an earlier call stopped; returns what there is to say.

    Args:
        top: how many of the highest logits of each place are kept.
        classes: the teacher's class for each label of the data; if not given, found by the teacher's class names, or
            by `match_classes` where it has none.
    """
    check_count("top", top)
    check_count("batch", batch)
    check_workers(workers)
    folder = Path(folder)
    teacher.module.to(device).eval()
    index, remarks = _open(folder, images, teacher, top, classes)
    make_folder(folder)
    _write_index(folder, index)  # before any shard: a folder without one is somebody else's
    done = {tuple(shard["rows"]) for shard in index["shards"]}
    spans = [(start, min(start + SHARD, len(images))) for start in range(0, len(images), SHARD)]
    ready = sum(stop - start for start, stop in done)
    progress(ready, len(images))
    todo = [span for span in spans if span not in done]
    fetched = _fetch(images, teacher.size, todo, batch, workers)
    for start, stop in todo:
        parts, broken = [], []
        for rows in _batches(start, stop, batch):
            pixels, missing = next(fetched)
            images.note_broken(missing)
            broken += missing.values()
            labels = torch.as_tensor(index["classes"])[torch.from_numpy(images.labels[rows.start : rows.stop])]
            unreadable = torch.tensor([row in missing for row in rows])
            parts.append(_best(teacher, pixels.to(device), labels, unreadable, top))
        shard = {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}
        shard["classes"] = shard["classes"].astype(np.uint16 if shard["classes"].max() < 2**16 else np.uint32)
        content = safetensors.numpy.save(shard)
        name = f"maps-{start:09d}.safetensors"
        write_file(folder / name, content)
        entry = {"file": name, "rows": [start, stop], "sha256": hashlib.sha256(content).hexdigest()}
        index["shards"] = sorted([*index["shards"], entry], key=lambda each: each["rows"])
        index["grid"] = list(shard["values"].shape[2:])
        index["broken"] = sorted({*index["broken"], *broken})
        _write_index(folder, index)
        ready += stop - start
        progress(ready, len(images))
    if index["broken"]:
        first, count = index["broken"][0], len(index["broken"])
        what = (
            "image could not be read and has an empty map"
            if count == 1
            else "images could not be read and have empty maps"
        )
        remarks.append(f"{count} {what}: {first}.")
    return remarks


def _write_index(folder: Path, index: dict[str, Any]) -> None:
    write_file(folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())


def match_classes(names: Sequence[str], count: int) -> list[int]:
    """The teacher's class, out of `count`, for each label: the same number, or ImageNet's where names are WordNet's."""
    if all(re.fullmatch(r"n\d{8}", name) for name in names) and count == 1000:
        known = {name: number for number, name in enumerate(ImageNetInfo("imagenet-1k").label_names())}
        unknown = [name for name in names if name not in known]
        if not unknown:
            return [known[name] for name in names]
        raise ValueError(f"class {unknown[0]} is none of ImageNet's 1000; use a teacher of this data")
    if len(names) == count:
        return list(range(count))
    raise ValueError(
        f"the data has {len(names)} classes and the teacher {count}, so it is not known which is which; "
        "give --classes a JSON file with the teacher's class number for each class name"
    )


def read_classes(path: str | Path, names: Sequence[str]) -> list[int]:
    """The teacher's class for each label, from a JSON object of class name → number, or a list in the labels' order."""
    try:
        stored = read_json(Path(path))
        numbers = [stored[name] for name in names] if isinstance(stored, dict) else list(stored)
    except KeyError as missing:
        raise ValueError(f"{str(path)!r} has no number for class {missing}; name every class of the data") from None
    except (OSError, ValueError, TypeError) as problem:
        raise ValueError(f"{str(path)!r} is not a JSON file of class numbers ({problem})") from None
    if len(numbers) != len(names) or any(not isinstance(number, int) or number < 0 for number in numbers):
        raise ValueError(f"{str(path)!r} must hold a class number for each of the {len(names)} classes of the data")
    return numbers


def _open(
    folder: Path, images: ImageSet, teacher: Teacher, top: int, classes: Sequence[int] | None
) -> tuple[dict[str, Any], list[str]]:
    """The index to go on with: a new one, or the folder's, without shards that were damaged."""
    about, data = teacher.about(), describe_data(images)
    if not (folder / INDEX).exists():
        if folder.exists() and (not folder.is_dir() or any(not each.name.startswith(".") for each in folder.iterdir())):
            raise ValueError(f"{str(folder)!r} exists and holds no activation maps; give another --output")
        wanted = _classes(images, teacher, classes)
        fresh = {"format": FORMAT, "data": data, "teacher": about, "top": 1 if teacher.any_class else top}
        return fresh | {"classes": wanted, "grid": None, "broken": [], "shards": []}, []
    index = read_index(folder)
    if not same_data(data, index["data"]):
        raise ValueError(
            f"{str(folder)!r} holds maps of other data ({index['data']['name']}, {index['data']['images']} images); "
            "give another --output"
        )
    different = [key for key in about if index["teacher"].get(key) != about[key]]
    different += ["top"] if index["top"] != (1 if teacher.any_class else top) else []
    different += ["classes"] if classes is not None and index["classes"] != list(classes) else []
    if different:
        raise ValueError(
            f"{str(folder)!r} holds maps of {index['teacher']['name']} that differ in {', '.join(different)}; "
            "give another --output, or these settings as they were"
        )
    whole, remarks = [], []
    for shard in index["shards"]:
        try:
            read_shard(folder, shard)
            whole.append(shard)
        except ValueError as problem:
            remarks.append(f"{problem}; it is made anew.")
    return index | {"shards": whole}, remarks


def _classes(images: ImageSet, teacher: Teacher, given: Sequence[int] | None) -> list[int]:
    """The teacher's class for each label, after a look at what the teacher gives."""
    height, width = teacher.size
    try:
        device = next((each.device for each in teacher.module.parameters()), torch.device("cpu"))
        count = teacher.maps(torch.zeros(1, 3, height, width, dtype=torch.uint8, device=device)).shape[1]
    except (RuntimeError, AssertionError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise ValueError(f"teacher {teacher.name} does not take pictures of {height} x {width}: {reason}") from None
    if teacher.any_class:
        return list(range(len(images.classes)))
    if given is None and teacher.classes is not None:
        return match_names(
            images.classes, teacher.classes, description=images.description, whose=f"teacher {teacher.name}"
        )
    if given is None:
        return match_classes(images.classes, count)
    if len(given) != len(images.classes) or max(given) >= count:
        raise ValueError(
            f"classes must give each of the {len(images.classes)} labels one of the teacher's {count} classes, "
            f"0..{count - 1}, got {len(given)} numbers up to {max(given)}"
        )
    return list(given)


def _batches(start: int, stop: int, size: int) -> list[range]:
    return [range(first, min(first + size, stop)) for first in range(start, stop, size)]


def _fetch(
    images: ImageSet, size: tuple[int, int], spans: list[tuple[int, int]], batch: int, workers: int
) -> Iterator[tuple[Tensor, dict[int, str]]]:
    """The pictures of all spans in batches that end with their span."""
    loader = DataLoader(
        _WholePictures(images, size),
        batch_sampler=[list(rows) for start, stop in spans for rows in _batches(start, stop, batch)],
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=_quiet,
        generator=torch.Generator(),
    )
    return iter(loader)


def _best(teacher: Teacher, pixels: Tensor, labels: Tensor, unreadable: Tensor, top: int) -> dict[str, Tensor]:
    """The highest logits of each place and their classes; of a teacher with a single map that one, as the label's."""
    maps = teacher.maps(pixels)
    if teacher.any_class:
        values, classes = maps, labels.view(-1, 1, 1, 1).expand(maps.shape)
    else:
        values, classes = maps.topk(min(top, maps.shape[1]), dim=1)  # before the copy, which then is small
    return {"values": values.cpu().masked_fill(unreadable.view(-1, 1, 1, 1), 0).half(), "classes": classes.cpu()}


class _WholePictures(Dataset):
    """Pictures scaled to one size without cropping, so that a place of the map is that part of the picture."""

    def __init__(self, images: ImageSet, size: tuple[int, int]) -> None:
        self.images, self.size = images, size

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, dict[int, str]]:
        pixels = torch.zeros(len(rows), 3, *self.size, dtype=torch.uint8)
        broken: dict[int, str] = {}
        for place, row in enumerate(rows):
            try:
                picture = self.images[row][0].resize((self.size[1], self.size[0]), Image.Resampling.BICUBIC)
            except BrokenImage as problem:
                broken[row] = str(problem)
                continue
            pixels[place] = torch.from_numpy(np.array(picture).transpose(2, 0, 1))
        return pixels, broken


def _as_it_is(fetched: Any) -> Any:
    return fetched


def _quiet(number: int) -> None:
    log.disabled = True  # the main process hears of every unreadable image and reports it once
