"""Computes the activation maps of a dataset once, in shards that are complete or absent, so a kill costs little."""

import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from PIL import Image
from timm.data.imagenet_info import ImageNetInfo
from torch import Tensor

from vitmix._checks import check_count
from vitmix.lab.data.classes import match_names
from vitmix.lab.data.images import ImageSet
from vitmix.lab.data.workers import Fetcher
from vitmix.lab.reading import read_json
from vitmix.lab.writing import make_folder, remove_abandoned, write_file

from .stored import FORMAT, INDEX, MapIndex, MapShard, describe_data, read_index, read_shard
from .teachers import Teacher

SHARD = 512  # images; what a kill may cost
Progress = Callable[[int, int], None]  # images done, of how many


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
    """Fills a folder with the maps of all images, from where an earlier call stopped; returns remarks for the user.

    Args:
        top: how many of the highest logits of each location are kept.
        classes: the teacher's class for each label of the data (default: matched by the teacher's class names, or by
            `match_classes` where it has none).
    """
    check_count("top", top)
    check_count("batch", batch)
    folder, shown = Path(folder), teacher.shown(images)
    teacher.module.to(device).eval()
    index, remarks = _open(folder, images, teacher, top, classes)
    make_folder(folder)
    remove_abandoned(folder)
    write_file(folder / INDEX, index.encoded(indent=1))  # before any shard, since a folder without an index is refused
    done = {shard.rows for shard in index.shards}
    todo = [span for span in _spans(0, len(images), SHARD) if span not in done]
    batches = [[range(*span) for span in _spans(*each, batch)] for each in todo]
    fetcher = Fetcher(partial(_whole_images, shown, teacher.size), workers)
    fetched = fetcher.fetched(lambda: map(list, itertools.chain(*batches)))
    progress(sum(map(len, index.shards)), len(images))
    for span, parts in zip(todo, batches, strict=True):
        found, broken = [], set(index.broken)
        for rows in parts:
            pixels, missing = next(fetched)
            images.note_broken(missing)
            broken.update(missing.values())
            labels = torch.as_tensor(index.classes)[torch.from_numpy(images.labels[rows.start : rows.stop])]
            values, whose = _highest(teacher, pixels.to(device), labels, top)
            values[[row in missing for row in rows]] = 0
            unfit = [row for row, each in zip(rows, values.isfinite().flatten(1).all(1), strict=True) if not each]
            if unfit:
                raise ValueError(
                    f"teacher {teacher.name} gives {images.name(unfit[0])} a map with values that are not finite in "
                    "half precision; use another teacher"
                )
            found.append((values, whose))
        values, whose = (torch.cat(each).numpy() for each in zip(*found, strict=True))
        index = replace(
            index,
            shards=tuple(
                sorted((*index.shards, _write_shard(folder, span, values, whose)), key=lambda each: each.rows)
            ),
            grid=values.shape[2:],
            broken=tuple(sorted(broken)),
        )
        write_file(folder / INDEX, index.encoded(indent=1))
        progress(sum(map(len, index.shards)), len(images))
    if len(index.broken) == 1:
        remarks.append(f"1 image could not be read and has an empty map: {index.broken[0]}.")
    elif index.broken:
        remarks.append(f"{len(index.broken)} images could not be read and have empty maps: {index.broken[0]}.")
    return remarks


def _spans(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def _write_shard(folder: Path, rows: tuple[int, int], values: np.ndarray, classes: np.ndarray) -> MapShard:
    small = classes.astype(np.uint16 if classes.max() < 2**16 else np.uint32)
    content = safetensors.numpy.save({"values": values, "classes": small})
    name = f"maps-{rows[0]:09d}.safetensors"
    write_file(folder / name, content)
    return MapShard(name, rows, hashlib.sha256(content).hexdigest())


def match_classes(names: Sequence[str], count: int) -> list[int]:
    """The teacher's class, out of `count`, for each label: the same number, or ImageNet's for WordNet names."""
    if all(re.fullmatch(r"n\d{8}", name) for name in names) and count == 1000:
        known = {name: number for number, name in enumerate(ImageNetInfo("imagenet-1k").label_names())}
        unknown = [name for name in names if name not in known]
        if not unknown:
            return [known[name] for name in names]
        raise ValueError(f"class {unknown[0]} is not one of ImageNet's 1000; use a teacher of this data")
    if len(names) == count:
        return list(range(count))
    raise ValueError(
        f"the data has {len(names)} classes and the teacher {count}, so they cannot be matched; "
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
) -> tuple[MapIndex, list[str]]:
    """The index to continue: a new one, or the folder's, without damaged shards; and remarks about those."""
    facts, data, spans = teacher.facts(), describe_data(images), _spans(0, len(images), SHARD)
    top = 1 if teacher.any_class else top
    if not (folder / INDEX).exists():
        if folder.exists() and (not folder.is_dir() or any(not each.name.startswith(".") for each in folder.iterdir())):
            raise ValueError(f"{str(folder)!r} exists and holds no activation maps; give another --output")
        wanted = tuple(_teacher_classes(images, teacher, classes))
        return MapIndex(FORMAT, data, facts, top, wanted, grid=None, broken=(), shards=()), []
    index = read_index(folder)
    if not data.same_as(index.data):
        raise ValueError(
            f"{str(folder)!r} holds maps of other data ({index.data.name}, {index.data.images} images); "
            "give another --output"
        )
    ours, theirs = facts.to_json(), index.teacher.to_json()
    different = [key for key in ours if theirs[key] != ours[key]]
    different += ["top"] if index.top != top else []
    different += ["classes"] if classes is not None and index.classes != tuple(classes) else []
    if different:
        raise ValueError(
            f"{str(folder)!r} holds maps of {index.teacher.name} that differ in {', '.join(different)}; "
            "give another --output, or the same settings"
        )
    whole, remarks = [], []
    for shard in index.shards:
        try:
            if shard.rows not in spans:
                raise ValueError(f"{shard.file!r} holds other images than a shard of this version")
            read_shard(folder, shard)
            whole.append(shard)
        except ValueError as problem:
            remarks.append(f"{problem}; it is made again.")
    return replace(index, shards=tuple(whole)), remarks


def _teacher_classes(images: ImageSet, teacher: Teacher, given: Sequence[int] | None) -> Sequence[int]:
    """The teacher's class for each label, after a look at the teacher's output."""
    height, width = teacher.size
    try:
        device = next((each.device for each in teacher.module.parameters()), torch.device("cpu"))
        count = teacher.maps(torch.zeros(1, 3, height, width, dtype=torch.uint8, device=device)).shape[1]
    except (RuntimeError, AssertionError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise ValueError(f"teacher {teacher.name} does not take images of {height} x {width}: {reason}") from None
    if teacher.any_class:
        return range(len(images.classes))
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
    return given


def _highest(teacher: Teacher, pixels: Tensor, labels: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The highest logits of each location and their classes; a single map is taken as that of the label."""
    maps = teacher.maps(pixels)
    if teacher.any_class:
        values, classes = maps, labels.view(-1, 1, 1, 1).expand(maps.shape)
    else:
        values, classes = maps.topk(min(top, maps.shape[1]), dim=1)  # before the copy, which is small then
    return values.cpu().half(), classes.cpu()


def _whole_images(images: ImageSet, size: tuple[int, int], rows: list[int]) -> tuple[Tensor, dict[int, str]]:
    """Pixels, and the reasons for unreadable images.

    Images are scaled to one size without cropping, so that each location of the map is that part of the image.
    """
    pixels = torch.zeros(len(rows), 3, *size, dtype=torch.uint8)
    broken: dict[int, str] = {}
    for row, image, _ in images.readable_ones(rows, broken):
        scaled = image.resize((size[1], size[0]), Image.Resampling.BICUBIC)
        pixels[rows.index(row)] = torch.from_numpy(np.array(scaled).transpose(2, 0, 1))
    return pixels, broken
