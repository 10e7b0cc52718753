"""Arrays in an untrusted `.npz` file: none takes more memory than its stored bytes can fill."""

import math
import os
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Self

import numpy as np

from vitmix.lab.reading import open_regular

# The most bytes that one byte of an archive can unpack to, stored or deflated.
MOST_COMPRESSED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}


class Archive:
    """An open `.npz` file; errors are ValueErrors that name it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = None
        try:
            file = open_regular(path)
            if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise ValueError("it holds one array without a name")
            self._zip = zipfile.ZipFile(file)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, struct.error) as problem:
            if file is not None:
                file.close()
            raise ValueError(f"{self} is not a readable .npz file ({problem}); write it with numpy.savez") from None
        self._file = file
        self.names = {name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")}

    def __str__(self) -> str:
        return f"npz: {str(self.path)!r}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._zip.close()
        self._file.close()

    def first(self, *names: str) -> np.ndarray:
        """The first of these arrays that the file has."""
        for name in names:
            if name in self.names:
                return self.read(name)
        raise ValueError(
            f"{self} must hold the arrays images and labels, got {', '.join(sorted(self.names)) or 'nothing'}; "
            "vitmix.lab.data.npz describes two other layouts"
        )

    def read(self, name: str) -> np.ndarray:
        """An array by name."""
        try:
            entry = self._zip.getinfo(f"{name}.npy")
            with self._zip.open(entry) as file:
                self._check_length(file, entry)
            with self._zip.open(entry) as file:
                return np.lib.format.read_array(file, allow_pickle=False)
        except MemoryError:
            raise ValueError(f"{self}: array {name!r} does not fit into memory") from None
        except Exception as problem:  # from numpy, zipfile or zlib, depending on what is damaged
            raise ValueError(f"{self}: array {name!r} cannot be read: {problem}") from None

    def _check_length(self, file: IO[bytes], entry: zipfile.ZipInfo) -> None:
        """Refuses an array that claims more than its bytes can hold: numpy allocates before it reads."""
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = header(file)
        claimed = math.prod(shape) * kind.itemsize
        stored = min(entry.compress_size, self.path.stat().st_size)
        most = stored * MOST_COMPRESSED.get(entry.compress_type, 0)
        if min(shape, default=0) < 0 or claimed > min(most, entry.file_size, _memory()):
            raise ValueError(f"it claims {claimed:,} bytes, but {stored:,} are stored")


def read_arrays(path: Path, names: Iterable[str]) -> list[np.ndarray]:
    """Arrays of a file by name."""
    with Archive(path) as archive:
        return [archive.read(name) for name in names]


def _memory() -> float:
    """Bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return math.inf
