"""WebDataset shards as a set of images that can be read in any order: tar files and an index of them.

    wds:DIR                                     DIR/*.tar or DIR/train/*.tar, split by the word in the names
    wds:DIR/train-{0000..0146}.tar              a pattern with braces, * or ?
    wds:s3://BUCKET/train-{0000..0146}.tar      by URL, see `vitmix.lab.data.remote`
    wds:PATTERN(window=32)                      shuffles the shards, and images only over 32 shards at a time

A sample is the files of a tar that share their name up to the first dot: an image (.jpg, .png, .webp, ...) and its
label, as a number in .cls or as "label" in .json. `classes.json` beside the shards may name the classes.

The index (where each image lies, and its label) is built once from the headers of the tars and stored beside the
shards, or in the user's cache where that folder cannot be written. With it, shards are like any other data: order and
augmentation are functions of the seed, ranks and workers read their own samples, and a resumed run continues exactly.
The price is random access: all shards must be at hand or, with a window, those of the window.
"""

import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from vitmix.lab.reading import parse_json

from .classes import class_names, count_classes, names_in, numbered
from .decoding import MAX_BYTES, decode
from .images import ImageSet
from .plan import Window
from .remote import RemoteShard, find_remote, is_url, read_beside
from .shard_cache import SIZE, in_units, shard_cache
from .splits import SPLIT_NAMES, Openers
from .tar_index import Index, Shard, open_shard, read_index

MOST_SHARDS, MOST_BRACES = 200_000, 20  # of a pattern
AHEAD = 2  # shards that loader workers may open before the window has reached them


class TarImages(ImageSet):
    """Images inside tar files.

    Args:
        window: how many shards an epoch mixes at a time; None mixes all of them.
    """

    def __init__(
        self, shards: list[Shard], index: Index, classes: list[str], description: str, window: int | None = None
    ) -> None:
        super().__init__(index.label, classes, description)
        self.shards, self.index = shards, index
        self.window = None if window is None else Window(index.shard, window)

    def name(self, index: int) -> str:
        row = self.rows[index]
        shard = os.path.basename(str(self.shards[self.index.shard[row]]))
        return f"{shard}[{os.fsdecode(bytes(self.index.name[row]))}]"

    def read(self, index: int) -> Image.Image:
        row = self.rows[index]
        # Opened for each image, because an epoch alternates between more shards than files may be open.
        with open_shard(self.shards[self.index.shard[row]]) as file:
            file.seek(int(self.index.offset[row]))
            return decode(file.read(min(int(self.index.size[row]), MAX_BYTES)))

    def check_shuffled(self) -> None:
        sizes = sorted(each.size for each in self._own_shards() if isinstance(each, RemoteShard))
        needed = sum(sizes if self.window is None else sizes[-self.window.size - AHEAD :])
        limit = shard_cache().limit if sizes else 0
        if needed > limit:
            needs = f"{len(sizes)} shards" if self.window is None else f"{self.window.size} + {AHEAD} shards at a time"
            smaller = "add (window=32) to the pattern" if self.window is None else "give a smaller window"
            raise ValueError(
                f"{self.description} needs {in_units(needed)} for {needs}, and the shard cache holds "
                f"{in_units(limit)}; {smaller}, or set {SIZE}='{in_units(needed)}'"
            )

    def _own_shards(self) -> list[Shard]:
        return [self.shards[number] for number in np.unique(self.index.shard[self.rows])]


def tar_splits(text: str) -> Openers:
    """For each split among the shards, a function that opens it."""
    pattern, window = _window(text)
    parts = split_shards(find_shards(pattern))
    index_of = cache(lambda split: read_index(parts[split]))

    def open_split(split: str) -> TarImages:
        known = index_of("train" if "train" in parts else split)  # the classes are those of the training labels
        classes = _class_names(parts[split][0], count_classes(known.label, f"wds:{pattern}"))
        return TarImages(parts[split], index_of(split), classes, f"wds:{pattern} ({split})", window)

    return {split: lambda split=split: open_split(split) for split in parts}


def _window(text: str) -> tuple[str, int | None]:
    """The pattern without `(window=32)` at its end, and the number."""
    found = re.fullmatch(r"(.*)\(window=([^()]*)\)", text)
    if found is None:
        return text, None
    if not re.fullmatch("[0-9]{1,6}", found[2]) or int(found[2]) == 0:
        raise ValueError(f"window must be a number of shards, at least 1, got {found[2]!r}; write (window=32)")
    return found[1], int(found[2])


def _class_names(shard: Shard, count: int) -> list[str]:
    """The names beside a shard, or numbers."""
    if isinstance(shard, str):
        return class_names(Path(shard).parent, count)
    content = read_beside(shard, "classes.json")
    place = f"{shard.url.rpartition('/')[0]}/classes.json"
    return numbered(count) if content is None else names_in(lambda: parse_json(content), place, count)


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
    """The texts of a pair of braces; at most one more than the limit."""
    numbers = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", group)
    if not numbers:
        return group.split(",")
    width = len(numbers[1]) if numbers[1].startswith("0") or len(numbers[1]) == len(numbers[2]) else 1
    named = range(int(numbers[1]), int(numbers[2]) + 1)[: MOST_SHARDS + 1]
    return [f"{number:0{width}d}" for number in named]


def find_shards(pattern: str) -> list[str] | list[RemoteShard]:
    """The tar files of a folder or a pattern, in order."""
    if is_url(pattern):
        return _fitting(find_remote(pattern, expand_braces(pattern)))
    if re.match(r"pipe:", pattern):
        raise ValueError(f"wds: {pattern!r} is a program; give the URL of the shards, such as s3://BUCKET/train-*.tar")
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


def _fitting(shards: list[RemoteShard]) -> list[RemoteShard]:
    """Refuses shards that the cache cannot hold."""
    largest, limit = max(shards, key=lambda shard: shard.size), shard_cache().limit
    if largest.size > limit:
        raise ValueError(
            f"wds: {largest.url!r} has {in_units(largest.size)}, and the shard cache holds {in_units(limit)}; "
            f"set {SIZE}='{in_units(4 * largest.size)}' or more"
        )
    return shards


def split_shards(shards: Sequence[Shard]) -> dict[str, list[Shard]]:
    """Shards by split: a word of the file's name, or else its folder's name; without either, all are training data."""
    parts: dict[str, list[Shard]] = {}
    for shard in shards:
        path = str(shard)
        name, folder = os.path.basename(path).lower(), os.path.basename(os.path.dirname(path)).lower()
        words = re.split("[^a-z]+", name)
        found = [split for split, known in SPLIT_NAMES.items() if any(word in known for word in words)]
        found += [split for split, known in SPLIT_NAMES.items() if folder in known]  # not just a word in it
        parts.setdefault(found[0] if found else "", []).append(shard)
    if "" in parts and len(parts) > 1:
        named = " and ".join(sorted(filter(None, parts)))
        raise ValueError(
            f"wds: some shards are named {named}, but {str(parts[''][0])!r} is not; give every shard its split"
        )
    return {"train": parts[""]} if "" in parts else {split: parts[split] for split in SPLIT_NAMES if split in parts}
