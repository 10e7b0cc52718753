"""Shards in object storage, read by URL through fsspec: `s3://BUCKET/train-{0000..0146}.tar`, `gs://`, `https://`, ...

Whole shards are fetched into a cache on this machine (`vitmix.lab.data.shard_cache`). Credentials and endpoints are
those of fsspec and its packages, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL.
"""

import errno
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .decoding import reason_of
from .images import DataLost

STREAMS = 8  # requests at a time
WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds between attempts to fetch a file
MOST_SMALL = 2**30  # bytes of a file beside the shards: names of classes, an index
FINAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)  # another attempt would not help


class RemoteShard(NamedTuple):
    """A tar file elsewhere. `stamp` changes if the URL names another file later."""

    url: str
    size: int
    stamp: str

    def __str__(self) -> str:
        return self.url


def is_url(pattern: str) -> bool:
    return re.match(r"[a-z][a-z0-9+]*://", pattern) is not None


def find_remote(pattern: str, urls: list[str]) -> list[RemoteShard]:
    """The shards that a pattern names, whose braces are expanded already; in order."""
    fs = _file_system(pattern)
    listed = cache(lambda path: _listed(fs, path))

    def found(url: str) -> list[RemoteShard]:
        path = fs._strip_protocol(url).rstrip("/")
        if re.search(r"[*?\[]", path):
            return [*listed(path).values()]
        if not path.endswith(".tar"):
            return [*listed(f"{path}/*.tar").values(), *listed(f"{path}/*/*.tar").values()]
        if url.startswith("http"):  # which need not list folders
            return [_shard(fs, path, fs.info(path))] if fs.exists(path) else []
        shard = listed(f"{path.rpartition('/')[0]}/*.tar").get(path)
        return [] if shard is None else [shard]

    try:
        with ThreadPoolExecutor(STREAMS if pattern.startswith("http") else 1) as pool:
            parts = [*pool.map(found, urls)]
    except Exception as problem:  # of the service, its library or the network
        raise ValueError(f"wds: {pattern!r} cannot be listed ({_reason(problem)}); check address and access") from None
    missing = [url for url, some in zip(urls, parts, strict=True) if not some]
    if missing:
        raise ValueError(f"wds: there is no shard {missing[0]!r}; correct the pattern")
    return [shard for some in parts for shard in some]


def _listed(fs: Any, pattern: str) -> dict[str, RemoteShard]:
    """The shards of a pattern by path."""
    details = fs.glob(pattern, detail=True)
    files = sorted(path for path, about in details.items() if about["type"] == "file" and path.endswith(".tar"))
    return {path: _shard(fs, path, details[path]) for path in files}


def _shard(fs: Any, path: str, about: Any) -> RemoteShard:
    stamps = (about.get(key) for key in ("ETag", "etag", "md5Hash", "mtime"))  # alike in listings and single answers
    stamp = next((str(each).strip('"') for each in stamps if each is not None), "")
    if about.get("size") is None:
        raise ValueError(f"the server does not say how large {path} is")
    return RemoteShard(fs.unstrip_protocol(path), int(about["size"]), stamp)


def fetch(shard: RemoteShard, target: Path) -> None:
    """Copies a shard to a file; on failure tries again a few times. What is left in the file then is not the shard."""
    for wait in (*WAITS, None):
        try:
            _copy(shard, target)
            return
        except DataLost:
            raise
        except Exception as problem:
            final = isinstance(problem, OSError) and problem.errno in FINAL
            if isinstance(problem, FileNotFoundError) and target.parent.exists():
                raise DataLost(f"{shard.url} is not there any more; put it back, or correct the pattern") from None
            if final or wait is None or isinstance(problem, PermissionError):
                tried = "" if final else f" after {1 + len(WAITS)} attempts"
                raise DataLost(f"{shard.url} could not be fetched{tried}: {_reason(problem)}") from problem
            time.sleep(wait)


def _copy(shard: RemoteShard, target: Path) -> None:
    fs = _file_system(shard.url)
    path = fs._strip_protocol(shard.url)
    fs.invalidate_cache()  # of listings
    now = _shard(fs, path, fs.info(path))
    if (now.size, now.stamp) != (shard.size, shard.stamp):
        raise DataLost(f"{shard.url} has changed since its index was made; run the command again")
    fs.get_file(path, str(target))
    size = target.stat().st_size
    if size != shard.size:
        raise OSError(f"{size:,} of {shard.size:,} bytes arrived")


def read_beside(shard: RemoteShard, name: str) -> bytes | None:
    """A small file in the folder of a shard, if there is one."""
    fs, path = _beside(shard, name)

    def read() -> bytes | None:
        if not fs.exists(path):
            return None
        if fs.info(path)["size"] > MOST_SMALL:
            raise ValueError(f"it has more than the {MOST_SMALL:,} bytes allowed")
        return fs.cat_file(path)

    return _small(read, f"{shard.url.rpartition('/')[0]}/{name}")


def write_beside(shard: RemoteShard, name: str, content: bytes) -> bool:
    """Writes a small file into the folder of a shard, if that is allowed."""
    fs, path = _beside(shard, name)
    try:
        fs.pipe_file(path, content)  # object stores show whole objects only
        return True
    except Exception:  # most storage is read-only, and each kind says so in its own way
        return False


def _beside(shard: RemoteShard, name: str) -> tuple[Any, str]:
    fs = _file_system(shard.url)
    return fs, f"{fs._strip_protocol(shard.url).rpartition('/')[0]}/{name}"


def _small(read: Callable[[], bytes | None], url: str) -> bytes | None:
    try:
        return read()
    except Exception as problem:
        raise ValueError(f"wds: {url} cannot be read ({_reason(problem)}); check address and access") from None


def _file_system(url: str) -> Any:
    """A new one for each use, because connections of one process do not work in another."""
    try:
        import fsspec

        return fsspec.filesystem(url.partition("://")[0])
    except ImportError as problem:
        raise ValueError(f"wds: {url!r} needs more packages ({problem}); pip install 'vitmix[shards]'") from None
    except ValueError as problem:
        raise ValueError(f"wds: {url!r} cannot be read by URL ({problem}); copy the shards to a disk") from None


def _reason(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{os.strerror(problem.errno)}; free some space, or lower VITMIX_SHARD_CACHE_SIZE"
    return reason_of(problem)
