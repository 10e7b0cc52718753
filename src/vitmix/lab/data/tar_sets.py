"""WebDataset shards as a set of images that can be read in any order: tar files and an index of them.

    wds:DIR                                     DIR/*.tar or DIR/train/*.tar, split by the word in the names
    wds:DIR/train-{0000..0146}.tar              a pattern with braces, * or ?

A sample is the files of a tar that share their name up to the first dot: an image (.jpg, .png, .webp, ...) and its
label, as a number in .cls or as "label" in .json. `classes.json` beside the shards may name the classes.

The index (where each image lies, and its label) is built once from the headers of the tars and stored beside the
shards, or in the user's cache where that folder cannot be written. With it, shards are like any other data: order and
augmentation are functions of the seed, ranks and workers read their own samples, and a resumed run continues exactly.
The price is random access: whole shards are not read from end to end, as slow disks and remote storage prefer.
"""

import glob
import hashlib
import io
import itertools
import json
import os
import re
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from vitmix.lab.reading import open_regular, parse_json
from vitmix.lab.writing import make_folder, write_file

from .archive import read_arrays
from .classes import class_names, count_classes
from .decoding import MAX_BYTES, decode
from .images import ImageSet
from .splits import SPLIT_NAMES, Openers

INDEX_VERSION = 1
MOST_SHARDS, MOST_BRACES = 200_000, 20  # that a pattern may stand for, and have
MOST_LABEL = 2**20  # bytes of a .cls or .json


class Index(NamedTuple):
    """Of each sample: number of the shard, first byte and length of the image, label, name."""

    shard: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    label: np.ndarray
    name: np.ndarray


class TarImages(ImageSet):
    """Images inside tar files."""

    def __init__(self, shards: list[str], index: Index, classes: list[str], description: str) -> None:
        super().__init__(index.label, classes, description)
        self.shards, self.index = shards, index

    def name(self, index: int) -> str:
        row = self.rows[index]
        return f"{os.path.basename(self.shards[self.index.shard[row]])}[{os.fsdecode(bytes(self.index.name[row]))}]"

    def read(self, index: int) -> Image.Image:
        row = self.rows[index]
        # Opened for each image: samples of thousands of shards follow each other, more than files may be open.
        with open_regular(self.shards[self.index.shard[row]]) as file:
            file.seek(int(self.index.offset[row]))
            return decode(file.read(min(int(self.index.size[row]), MAX_BYTES)))


def tar_splits(pattern: str) -> Openers:
    """For each split among the shards, a function that opens it."""
    parts = split_shards(find_shards(pattern))
    index_of = cache(lambda split: read_index(parts[split]))

    def open_split(split: str) -> TarImages:
        known = index_of("train" if "train" in parts else split)  # the classes are those of the training labels
        classes = class_names(Path(parts[split][0]).parent, count_classes(known.label, f"wds:{pattern}"))
        return TarImages(parts[split], index_of(split), classes, f"wds:{pattern} ({split})")

    return {split: lambda split=split: open_split(split) for split in parts}


def expand_braces(text: str) -> list[str]:
    """`a{01..03}` as a01, a02, a03; `{a,b}c` as ac, bc; refuses more than `MOST_SHARDS`."""
    many = text.count("{") > MOST_BRACES
    found = [] if many else list(itertools.islice(_expanded(text), MOST_SHARDS + 1))
    if many or len(found) > MOST_SHARDS:
        raise ValueError(f"wds: {text[:80]!r} stands for more than {MOST_SHARDS:,} shards; correct the braces")
    return found


def _expanded(text: str) -> Iterator[str]:
    match = re.search(r"\{([^{}]*)\}", text)
    if match is None:
        yield text
        return
    for choice in _choices(match[1]):
        yield from _expanded(text[: match.start()] + choice + text[match.end() :])


def _choices(group: str) -> list[str]:
    """What a pair of braces stands for, cut one above the limit."""
    numbers = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", group)
    if not numbers:
        return group.split(",")
    width = len(numbers[1]) if numbers[1].startswith("0") or len(numbers[1]) == len(numbers[2]) else 1
    named = range(int(numbers[1]), int(numbers[2]) + 1)[: MOST_SHARDS + 1]
    return [f"{number:0{width}d}" for number in named]


def find_shards(pattern: str) -> list[str]:
    """The tar files that a folder or a pattern stands for, in order."""
    if re.match(r"(pipe|https?|s3|gs|hdfs):", pattern):
        raise ValueError(f"wds: {pattern!r} is not on this machine; copy the shards to a disk, or mount their storage")
    if os.path.isdir(pattern):
        found = sorted(glob.glob(f"{glob.escape(pattern)}/*.tar") + glob.glob(f"{glob.escape(pattern)}/*/*.tar"))
        if not found:
            raise ValueError(f"wds: the folder {pattern!r} holds no .tar files; name the one that does, or a pattern")
        wrong = [path for path in found if not os.path.isfile(path)]
        if wrong:
            raise ValueError(f"wds: {wrong[0]!r} is not a regular file; remove it, or name the shards by a pattern")
        return found
    found = []
    for text in expand_braces(pattern):
        some = sorted(glob.glob(text)) if re.search(r"[*?\[]", text) else [text]
        missing = [path for path in some if not os.path.isfile(path)] or ([] if some else [text])
        if missing:
            raise ValueError(f"wds: there is no shard {missing[0]!r}, as {pattern!r} asks for; correct the pattern")
        found += some
    compressed = [path for path in found if not path.endswith(".tar")]
    if compressed:
        raise ValueError(
            f"wds: {compressed[0]!r} is not a .tar file; unpack compressed ones, images are compressed already"
        )
    return found


def split_shards(shards: list[str]) -> dict[str, list[str]]:
    """Shards by split: a word of the file's name, or else its folder's name; without either, all are training data."""
    parts: dict[str, list[str]] = {}
    for path in shards:
        name, folder = os.path.basename(path).lower(), os.path.basename(os.path.dirname(path)).lower()
        words = re.split("[^a-z]+", name)
        found = [split for split, known in SPLIT_NAMES.items() if any(word in known for word in words)]
        found += [split for split, known in SPLIT_NAMES.items() if folder in known]  # not just a word in it
        parts.setdefault(found[0] if found else "", []).append(path)
    if "" in parts and len(parts) > 1:
        named = " and ".join(sorted(filter(None, parts)))
        raise ValueError(f"wds: some shards are named {named}, but {parts[''][0]!r} is not; give every shard its split")
    return {"train": parts[""]} if "" in parts else {split: parts[split] for split in SPLIT_NAMES if split in parts}


def read_index(shards: list[str]) -> Index:
    """The stored index of these shards, as they are now; built and stored where it is missing."""
    facts = [(os.path.basename(path), (stat := os.stat(path)).st_size, stat.st_mtime_ns) for path in shards]
    key = hashlib.sha256(json.dumps([INDEX_VERSION, facts]).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folders = [os.path.dirname(os.path.abspath(shards[0])), os.path.join(cache, "vitmix")]
    for folder in folders:
        try:
            index = Index(*read_arrays(Path(folder) / f".vitmix-{key}.npz", Index._fields))
        except (OSError, ValueError):
            continue  # not there, or not whole
        if _is_index(index, [size for _, size, _ in facts]):
            return index
    rows = list(itertools.chain.from_iterable(_samples(number, path) for number, path in enumerate(shards)))
    if not rows:
        raise ValueError(
            f"wds: {shards[0]!r} holds no samples of an image and a label; name the files of one KEY.jpg and KEY.cls"
        )
    *numbers, names = zip(*rows, strict=True)
    shard, offset, size, label = (np.array(each, dtype=np.int64) for each in numbers)
    index = Index(shard, offset, size, label, np.array(names))
    for folder in folders:
        if _store(index, folder, f".vitmix-{key}.npz"):
            break
    return index


def _is_index(index: Index, sizes: list[int]) -> bool:
    """Whether every image lies within its shard."""
    numbers, count = index[:4], len(np.atleast_1d(index.shard))
    if count == 0 or any(each.shape != (count,) for each in index):
        return False
    if index.name.dtype.kind != "S" or any(each.dtype != np.int64 for each in numbers):
        return False
    if index.shard.min() < 0 or index.shard.max() >= len(sizes) or index.offset.min() < 0 or index.size.min() < 0:
        return False
    ends = np.array(sizes)[index.shard]
    return bool(((index.offset <= ends) & (index.size <= ends - index.offset)).all())


def _store(index: Index, folder: str, name: str) -> bool:
    """Writes the index, if the folder allows it."""
    content = io.BytesIO()
    np.savez(content, **index._asdict())
    try:
        make_folder(Path(folder))
        write_file(Path(folder) / name, content.getvalue())
    except OSError:
        return False
    return True


def _samples(number: int, path: str) -> Iterator[tuple[int, int, int, int, bytes]]:
    """The rows of the index for one shard."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    length = os.path.getsize(path)
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.size < 0:  # the next one would be this one again
                    raise ValueError(f"wds: {member.name} in {path!r} has {member.size} bytes; get the file again")
                folder, _, name = member.name.rpartition("/")
                key, _, kind = name.partition(".")
                key, kind = f"{folder}/{key}" if folder else key, kind.lower()
                is_image = f".{kind}" in IMG_EXTENSIONS
                if not member.isfile() or not (is_image or kind in ("cls", "json")):
                    continue
                if member.issparse() or member.offset_data + member.size > length:
                    raise ValueError(f"wds: {member.name} in {path!r} is larger than the file; get it again")
                if is_image:
                    images[key] = (member.offset_data, member.size)
                    continue
                content = tar.extractfile(member)
                label = None if content is None else _label(content.read(MOST_LABEL), kind)
                if label is not None:
                    labels.setdefault(key, label)
                elif kind == "cls":
                    raise ValueError(f"wds: {member.name} in {path!r} must hold a class number")
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise ValueError(f"wds: {path!r} is not a complete tar file ({problem}); get it again") from None
    for key, (offset, size) in images.items():
        if key not in labels:
            raise ValueError(f"wds: {key!r} in {path!r} has no label; add {key}.cls with its class number")
        yield number, offset, size, labels[key], os.fsencode(key)


def _label(content: bytes, kind: str) -> int | None:
    try:
        value = int(content) if kind == "cls" else parse_json(content).get("label")
        return value if isinstance(value, int) and abs(value) < 2**63 else None  # the index holds 64 bits
    except (ValueError, AttributeError):
        return None
