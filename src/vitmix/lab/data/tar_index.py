"""Where each image of some tar files lies, and its label: read once from the headers of the tars, then stored."""

import hashlib
import io
import itertools
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from torchvision.datasets.folder import IMG_EXTENSIONS

from vitmix.lab.reading import open_regular, parse_json
from vitmix.lab.writing import make_folder, write_file

from .archive import read_arrays
from .remote import STREAMS, RemoteShard, read_beside, write_beside
from .shard_cache import shard_cache

INDEX_VERSION = 1
MOST_LABEL = 2**20  # bytes of a .cls or .json

Shard = str | RemoteShard  # a path on this machine, or a file elsewhere


def open_shard(shard: Shard) -> BinaryIO:
    """The tar file, on this machine or in its cache."""
    return open_regular(shard) if isinstance(shard, str) else shard_cache().open(shard)


def _facts(shard: Shard) -> tuple[str, int, int | str]:
    """Name, size and what changes with the content."""
    if not isinstance(shard, str):
        return os.path.basename(shard.url), shard.size, shard.stamp
    stat = os.stat(shard)
    return os.path.basename(shard), stat.st_size, stat.st_mtime_ns


class Index(NamedTuple):
    """Of each sample: number of the shard, first byte and length of the image, label, name."""

    shard: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    label: np.ndarray
    name: np.ndarray


def read_index(shards: Sequence[Shard]) -> Index:
    """The stored index of these shards, as they are now; built and stored if it is missing."""
    facts = [_facts(shard) for shard in shards]
    key = hashlib.sha256(json.dumps([INDEX_VERSION, facts]).encode()).hexdigest()[:16]
    name, sizes = f".vitmix-{key}.npz", [size for _, size, _ in facts]
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vitmix")
    first = shards[0]
    folders = [cache] if not isinstance(first, str) else [os.path.dirname(os.path.abspath(first)), cache]
    for folder in folders:
        if (index := _stored(folder, name, sizes)) is not None:
            return index
    if not isinstance(first, str) and (content := read_beside(first, name)) is not None:
        if _write(content, cache, name) and (index := _stored(cache, name, sizes)) is not None:
            return index
    index = _build(shards)
    content = _packed(index)
    if isinstance(first, str) or not write_beside(first, name, content):
        any(_write(content, folder, name) for folder in folders)
    return index


def _stored(folder: str, name: str, sizes: list[int]) -> Index | None:
    try:
        index = Index(*read_arrays(Path(folder) / name, Index._fields))
    except (OSError, ValueError):
        return None  # not there, or not whole
    return index if _is_index(index, sizes) else None


def _build(shards: Sequence[Shard]) -> Index:
    """Looks through all shards; those that come from elsewhere several at a time, each of them fetched once."""
    with ThreadPoolExecutor(1 if isinstance(shards[0], str) else STREAMS) as pool:
        parts = pool.map(lambda numbered: list(_samples(*numbered)), enumerate(shards))
        rows = list(itertools.chain.from_iterable(parts))
    if not rows:
        raise ValueError(
            f"wds: {str(shards[0])!r} holds no samples of an image and a label; name the files of one KEY.jpg and "
            "KEY.cls"
        )
    *numbers, names = zip(*rows, strict=True)
    shard, offset, size, label = (np.array(each, dtype=np.int64) for each in numbers)
    return Index(shard, offset, size, label, np.array(names))


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


def _packed(index: Index) -> bytes:
    content = io.BytesIO()
    np.savez(content, **index._asdict())
    return content.getvalue()


def _write(content: bytes, folder: str, name: str) -> bool:
    """Writes the index, if the folder allows it."""
    try:
        make_folder(Path(folder))
        write_file(Path(folder) / name, content)
    except OSError:
        return False
    return True


def _samples(number: int, shard: Shard) -> Iterator[tuple[int, int, int, int, bytes]]:
    """The rows of the index for one shard."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    path, length = str(shard), _facts(shard)[1]
    try:
        with open_shard(shard) as file, tarfile.open(fileobj=file, mode="r:") as tar:
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
