"""Folders of activation maps, and what training needs of them: the map of each image's label, or those of all classes.

A folder holds `index.json` and shards. A shard is a safetensors file for consecutive images: `classes` and `values`
`(n, k, h, w)`, the k highest logits of each location of the whole image, float16, and their classes. The index names
the data, the teacher, and the checksum of every shard.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from PIL import Image
from torch import Tensor

from vitmix.lab.data.images import BrokenImage, ImageSet
from vitmix.lab.reading import read_bytes, read_json
from vitmix.lab.runs.records import Record
from vitmix.parts.maps import class_maps

INDEX = "index.json"
FORMAT = 1
SAMPLES = 16  # images with a thumbnail in the index
THUMBNAIL = 4  # pixels a side
LEVELS = 6  # by which decoders may differ in a thumbnail
MOST_LOCATIONS, MOST_BYTES = 2**16, 2**31  # of a map; of a shard
MOST_CLASSES = 2**31  # class numbers become int32


@dataclass(frozen=True)
class DataFacts(Record):
    """What identifies a dataset wherever it is stored: labels, class names, and thumbnails of some images."""

    name: str
    images: int
    labels: str
    looks: dict[str, str | None]

    def same_as(self, other: "DataFacts") -> bool:
        """Whether both are the same images with the same labels, their names aside."""
        if (self.images, self.labels) != (other.images, other.labels):
            return False
        pairs = [(look, other.looks.get(row)) for row, look in self.looks.items()]
        return all(_alike(look, theirs) for look, theirs in pairs if look and theirs)  # None: unreadable


@dataclass(frozen=True)
class TeacherFacts(Record):
    """What decides a teacher's maps."""

    name: str
    weights: str = ""
    any_class: bool = False
    size: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    objects: bool = False


@dataclass(frozen=True)
class MapShard(Record):
    """A file with the maps of the images from `rows[0]` to before `rows[1]`."""

    file: str
    rows: tuple[int, int]
    sha256: str

    def __len__(self) -> int:
        return self.rows[1] - self.rows[0]


@dataclass(frozen=True)
class MapIndex(Record):
    """The index of a folder; `grid` is unknown before the first shard."""

    format: int
    data: DataFacts
    teacher: TeacherFacts
    top: int
    classes: tuple[int, ...]
    grid: tuple[int, int] | None
    broken: tuple[str, ...]
    shards: tuple[MapShard, ...]

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format}, and this version reads {FORMAT}")
        if self.grid is not None and not 0 < self.grid[0] * self.grid[1] <= MOST_LOCATIONS:
            raise ValueError("grid is out of bounds")
        if not all(0 <= first < end <= self.data.images for first, end in (shard.rows for shard in self.shards)):
            raise ValueError("a shard's rows are out of bounds")
        if any(after[0] < before[1] for before, after in itertools.pairwise(sorted(each.rows for each in self.shards))):
            raise ValueError("shards overlap")
        if not all(0 <= each < MOST_CLASSES for each in self.classes):
            raise ValueError("a class is out of bounds")


def describe_data(images: ImageSet) -> DataFacts:
    digest = hashlib.sha256(json.dumps(images.classes).encode())
    digest.update(np.ascontiguousarray(images.labels, dtype="<i8").tobytes())
    rows = np.unique(np.linspace(0, len(images) - 1, SAMPLES).astype(int)).tolist()
    looks = {str(row): _look(images, row) for row in rows}
    return DataFacts(images.description, len(images), digest.hexdigest(), looks)


def _look(images: ImageSet, row: int) -> str | None:
    try:
        image = images[row][0]
    except BrokenImage:
        return None
    small = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    return np.asarray(small).tobytes().hex()


def _alike(*looks: str) -> bool:
    """Whether two thumbnails differ by no more than decoders do."""
    first, second = (np.frombuffer(bytes.fromhex(each), dtype=np.uint8).astype(int) for each in looks)
    return bool(np.abs(first - second).max() <= LEVELS)


def read_index(folder: Path) -> MapIndex:
    """The index of a folder of maps."""
    try:
        return MapIndex.from_json(read_json(folder / INDEX))
    except FileNotFoundError:
        raise ValueError(
            f"{str(folder)!r} is not a folder of activation maps; make one with 'vitmix maps --data DATA "
            f"--model TEACHER --output {folder}'"
        ) from None
    except (ValueError, OSError) as problem:
        raise ValueError(f"{str(folder / INDEX)!r} is not an index of activation maps ({problem})") from None


def read_shard(folder: Path, shard: MapShard) -> tuple[np.ndarray, np.ndarray]:
    """The values and classes of a shard; a ValueError if it is missing or was changed."""
    path = folder / Path(shard.file).name  # whatever the index says, a file of this folder
    try:
        content = read_bytes(path, MOST_BYTES)
    except OSError as problem:
        raise ValueError(f"{str(path)!r} cannot be read ({problem.strerror})") from None
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise ValueError(f"{str(path)!r} is damaged: its checksum differs")
    try:
        arrays = safetensors.numpy.load(content)
        values, classes = arrays["values"], arrays["classes"]
    except Exception:  # from safetensors or numpy; the checksum does not help, because the same author wrote it
        raise ValueError(f"{str(path)!r} is not a file of activation maps") from None
    fitting = values.ndim == 4 and values.shape == classes.shape and len(values) == len(shard) and values.size
    if not fitting or values.dtype != np.float16 or classes.dtype.kind not in "iu":
        raise ValueError(f"{str(path)!r} does not hold the maps of {len(shard)} images")
    if not np.isfinite(values).all() or classes.min() < 0 or classes.max() >= MOST_CLASSES:
        raise ValueError(f"{str(path)!r} does not hold the maps of {len(shard)} images, but numbers out of bounds")
    return values, classes


def read_label_maps(folder: str | Path, images: ImageSet, *, objects: bool = False) -> Tensor:
    """The map `(N, h, w)` float16 of each image's label, never negative, checked against data and checksums.

    Args:
        objects: refuses maps that are not masks of objects.
    """
    folder = Path(folder)
    index, grid = _whole_index(folder, images)
    if objects and not index.teacher.objects:
        raise ValueError(
            f"labels by visible objects need object masks, and {str(folder)!r} has activations of "
            f"{index.teacher.name}; make maps with 'vitmix maps --masks FOLDER', or use label=activation"
        )
    wanted = torch.as_tensor(index.classes)[torch.from_numpy(images.labels)]
    maps = torch.zeros(len(images), *grid, dtype=torch.float16)
    for rows, values, classes in _shards(folder, index):
        maps[rows] = class_maps(values, classes, wanted[rows]).clamp(0, torch.finfo(torch.float16).max)
    return maps


def read_top_maps(folder: str | Path, images: ImageSet) -> tuple[Tensor, Tensor]:
    """All stored logits `(N, k, h, w)` float16 and their labels `(N, k, h, w)`, whole numbers, checked as above.

    The teacher's classes that the data does not have are -1.
    """
    folder = Path(folder)
    index, _ = _whole_index(folder, images)
    if index.teacher.any_class:
        raise ValueError(
            f"the maps in {str(folder)!r} are of {index.teacher.name}, which has no classes; labels of tokens need a "
            "classifier's, made with 'vitmix maps --model RUN|FILE|NAME'"
        )
    if len(set(index.classes)) < len(index.classes):
        raise ValueError(
            f"the maps in {str(folder)!r} have one teacher's class for several classes of the data; labels of tokens "
            "need a teacher that knows every class"
        )
    known, order = torch.as_tensor(index.classes, dtype=torch.int32).sort()
    small = torch.int16 if len(known) < 2**15 else torch.int32
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for rows, values, classes in _shards(folder, index):
        place = torch.searchsorted(known, classes).clamp_max(len(known) - 1)
        found[rows.start] = values, torch.where(known[place] == classes, order[place], -1).to(small)
    if len({values.shape[1] for values, _ in found.values()}) > 1:
        raise ValueError(f"the maps in {str(folder)!r} differ in how many classes they keep; make them again")
    maps, labels = zip(*(found[start] for start in sorted(found)), strict=True)
    return torch.cat(maps), torch.cat(labels)


def _whole_index(folder: Path, images: ImageSet) -> tuple[MapIndex, tuple[int, int]]:
    """The index of a folder with all maps of these images, and their grid."""
    index, ours = read_index(folder), describe_data(images)
    if not ours.same_as(index.data):
        raise ValueError(
            f"the activation maps in {str(folder)!r} belong to other data ({index.data.name}, {index.data.images} "
            f"images) than {ours.name} ({ours.images} images); make maps of this data with 'vitmix maps'"
        )
    missing = len(images) - sum(map(len, index.shards))
    if missing or index.grid is None or len(index.classes) != len(images.classes):
        raise ValueError(
            f"{str(folder)!r} lacks the maps of {missing} of {len(images)} images; run the same 'vitmix maps' again"
        )
    return index, index.grid


def _shards(folder: Path, index: MapIndex) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, values and classes `(n, k, h, w)` of each shard."""
    for shard in index.shards:
        try:
            values, classes = read_shard(folder, shard)
            if values.shape[2:] != index.grid:
                raise ValueError(f"{shard.file!r} does not fit the index")
        except ValueError as problem:
            raise ValueError(f"{problem}; run the same 'vitmix maps' again, which makes it again") from None
        # torch has few operations on unsigned numbers, so the class numbers become int32 here.
        yield slice(*shard.rows), torch.from_numpy(values), torch.from_numpy(classes.astype(np.int32))
