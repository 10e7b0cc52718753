"""Where the files of runs lie between nodes that share no folder: a folder, or any place that fsspec knows by URL."""

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from vitmix.lab.extras import need
from vitmix.lab.writing import make_folder, write_file


class StoreError(OSError):
    """A store that does not answer or refuses; the text names it."""


class Store(Protocol):
    """Files by run and path. Writing is all or nothing."""

    def files(self, run: str) -> dict[str, str]:
        """The paths of a run's files, each with a text that changes with the file."""
        ...

    def read(self, run: str, path: str) -> bytes:
        """The content of a file; FileNotFoundError if there is none."""
        ...

    def write(self, run: str, path: str, content: bytes) -> None: ...

    def remove(self, run: str, path: str) -> None: ...


class FolderStore:
    """Files in `ROOT/RUN`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def files(self, run: str) -> dict[str, str]:
        found = {}
        for path in sorted((self.root / run).rglob("*")):
            try:
                if path.is_file():
                    state = path.stat()
                    found[path.relative_to(self.root / run).as_posix()] = f"{state.st_size} {state.st_mtime_ns}"
            except FileNotFoundError:  # removed in the meantime
                continue
        return found

    def read(self, run: str, path: str) -> bytes:
        return (self.root / run / checked(path)).read_bytes()

    def write(self, run: str, path: str, content: bytes) -> None:
        file = self.root / run / checked(path)
        make_folder(file.parent)
        write_file(file, content)

    def remove(self, run: str, path: str) -> None:
        file = self.root / run / checked(path)
        file.unlink(missing_ok=True)
        if file.parent != self.root / run and not any(file.parent.iterdir()):
            file.parent.rmdir()


class UrlStore:
    """Files under a URL of fsspec, such as `s3://bucket/folder`."""

    def __init__(self, url: str) -> None:
        self.url = url
        fsspec = need("fsspec")
        try:
            # Another machine writes there, so nothing may be remembered.
            self.system, self.root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            how = 'pip install "vitmix[cluster]" has that of s3'
            raise ValueError(f"the store {url} needs another package: {_said(error)}; {how}") from None
        except Exception as error:
            raise ValueError(
                f"cannot open the store {url}: {_said(error)}; give a URL such as s3://bucket/folder"
            ) from None
        self.root = self.root.rstrip("/")

    def files(self, run: str) -> dict[str, str]:
        folder = f"{self.root}/{run}/"
        found = self._ask(lambda: self.system.find(folder, detail=True), {})
        return {path.partition(folder)[2]: _mark(about) for path, about in found.items()}

    def read(self, run: str, path: str) -> bytes:
        return self._ask(lambda: self.system.cat_file(self._place(run, path)))

    def write(self, run: str, path: str, content: bytes) -> None:
        self._ask(lambda: self.system.pipe_file(self._place(run, path), content))

    def remove(self, run: str, path: str) -> None:
        self._ask(lambda: self.system.rm_file(self._place(run, path)), None)

    def _place(self, run: str, path: str) -> str:
        return f"{self.root}/{run}/{checked(path)}"

    def _ask(self, action: Callable[[], Any], absent: Any = FileNotFoundError) -> Any:
        """The answer, or `absent` if there is no such file; libraries of clouds raise errors of many kinds."""
        try:
            return action()
        except FileNotFoundError as error:
            if absent is FileNotFoundError:
                raise FileNotFoundError(f"{self.url}: {_said(error)}") from None
            return absent
        except Exception as error:
            how = "check its address and your credentials"
            raise StoreError(f"the store {self.url} does not answer as expected: {_said(error)}; {how}") from None


def open_store(url: str) -> Store:
    """The store of a URL."""
    if url.startswith("file://"):
        folder = Path(url.removeprefix("file://"))
        if not folder.is_absolute():
            raise ValueError(f"--store needs an absolute path such as file:///folder, got {url!r}")
        return FolderStore(folder)
    if "://" not in url:
        raise ValueError(f"--store needs a URL such as s3://bucket/folder or file:///folder, got {url!r}")
    return UrlStore(url)


def checked(path: str) -> str:
    """A path below the run's folder, since the names in a store are others' words."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise ValueError(f"{path!r} in the store is not a path below a run; remove it there")
    return path


def _mark(about: Mapping[str, object]) -> str:
    return " ".join(str(about.get(key)) for key in ("size", "ETag", "etag", "LastModified", "mtime"))


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
