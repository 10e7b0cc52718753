"""The comparison's side of a cluster: what nodes are told, and how the files of their runs come back."""

import os
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitmix._registry import PLUGINS
from vitmix.lab.training.config import CONFIG, AnyConfig, differences, resolve_any, to_yaml
from vitmix.lab.writing import make_folder, write_file

from .base import Say
from .files import PROGRESS, copy, is_finished, newest_update, progress
from .local import THREADS
from .node import MARK, JobSpec
from .stores import FolderStore, Store, StoreError, open_store

if TYPE_CHECKING:
    from vitmix.lab.comparison.matrix import Training

GLANCE_SECONDS = 10.0
# Besides plugins and threads: variables that decide the last digits of a run.
TRAVEL = (PLUGINS, *THREADS, "ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG")


class Home:
    """The folder of a comparison's runs, and the store through which they travel, if they do."""

    def __init__(self, runs: Path, url: str | None) -> None:
        self.runs, self.url = runs.absolute(), url
        self.here = FolderStore(self.runs)
        self.store: Store | None = None if url is None else open_store(url)
        self._seen = defaultdict[str, dict[str, str]](dict)  # what was fetched, by run
        self._glanced = dict[str, float]()

    def hand_over(self, training: "Training", flags: Sequence[str], cpus: int, *, look: bool = True) -> JobSpec:
        """Brings folder and store to one state; returns what a node is told.

        Args:
            look: whether the node looks for this folder; if not, files travel in any case.
        """
        mark = self._mark() if look else secrets.token_hex(8)
        self._send(training, mark)
        environment = {name: str(cpus) for name in THREADS}
        environment |= {name: os.environ[name] for name in TRAVEL if name in os.environ}
        return JobSpec(
            name=training.name,
            settings=to_yaml(training.config),
            output=str(training.config.output),
            flags=list(flags),
            runs=str(self.runs),
            mark=mark,
            folder=os.getcwd(),
            environment=environment,
            store=self.url,
            attempt=secrets.token_hex(8),
        )

    def _mark(self) -> str:
        """The content of a file by which nodes recognize the folder; two commands may share it."""
        file = self.runs / MARK
        if not file.exists():
            make_folder(self.runs)
            write_file(file, secrets.token_hex(8).encode())
        return file.read_text()

    # With a store

    def bring_results(self, trainings: "Sequence[Training]", say: Say) -> None:
        """Fetches the runs that an earlier command left finished in the store."""
        if self.store is None:
            return
        for training in trainings:
            if training.run.is_trained:
                continue
            files = self.store.files(training.name)
            self._check_settings(training, self.store, files)
            if is_finished(files):
                say(f"{training.name} is finished in {self.url}; fetching it")
                self.fetch(training)

    def _check_settings(self, training: "Training", store: Store, files: dict[str, str]) -> None:
        """Refuses the run of another comparison: the name of a run does not tell all of its settings."""
        if not any(progress(files)):
            return
        with tempfile.TemporaryDirectory(prefix="vitmix-") as scratch:
            file = Path(scratch) / CONFIG
            try:
                write_file(file, store.read(training.name, CONFIG))
                different = differences(resolve_any(file=file), training.config)
            except StoreError:
                raise
            except (OSError, ValueError) as error:
                why = str(error).replace(str(file), CONFIG)
                how = "remove that run there or give another --store"
                raise ValueError(
                    f"the settings of {training.name} in {self.url} cannot be read: {why}; {how}"
                ) from None
        if different:
            raise ValueError(
                f"{self.url} holds a run {training.name} with another configuration ({', '.join(different)}); "
                "give another --store, or the run's own settings"
            )

    def _send(self, training: "Training", mark: str) -> None:
        """Brings the store up to date before a job starts, or this folder if the store is ahead of it."""
        if self.store is None:
            return
        self._check_settings(training, self.store, self.store.files(training.name))
        try:
            self.store.write(training.name, MARK, mark.encode())
        except StoreError:
            raise
        except OSError as error:
            how = "make it writable or give another --store"
            raise StoreError(f"cannot use the store {self.url}: {error}; {how}") from None
        here, there = progress(self.here.files(training.name)), progress(self.store.files(training.name))
        if here > there:
            copy(self.here, self.store, training.name, {})
        elif there > here:
            self.fetch(training)

    def glance(self, training: "Training") -> None:
        """Fetches, now and then, what shows how far a run is. A store that is silent now may answer later."""
        now = time.monotonic()
        if self.store is None or now - self._glanced.get(training.name, 0) < GLANCE_SECONDS:
            return
        self._glanced[training.name] = now
        try:
            copy(self.store, self.here, training.name, self._seen[training.name], only=PROGRESS)
        except OSError:
            return

    def fetch(self, training: "Training") -> None:
        """Fetches everything that the run has in the store."""
        if self.store is not None:
            copy(self.store, self.here, training.name, self._seen[training.name])

    def try_fetch(self, training: "Training") -> str:
        """Fetches; returns why that failed, and what to do."""
        try:
            self.fetch(training)
            return ""
        except OSError as error:
            return f"its files could not be fetched: {error}; rerun the command to fetch them"

    def update(self, training: "Training") -> int:
        """The newest checkpoint of a run, wherever it is."""
        try:
            return newest_update((self.store or self.here).files(training.name))
        except OSError:
            return 0


def cores_of(config: AnyConfig, asked: int | None) -> int:
    """The CPU cores that a run asks for: as many as it has loader workers, unless told."""
    return asked or max(1, config.workers)
