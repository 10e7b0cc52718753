"""A run's files on their way between a folder and a store.

A node can vanish at any moment, so files travel in an order in which every beginning of the journey is a state that a
killed process can also leave in a folder: results and weights before the checkpoint they precede, of a checkpoint the
manifest last, and what says that the run is finished after everything it speaks of.
"""

import re
from pathlib import Path

from vitmix.lab.runs.folder import DENSE, EVALUATION, LEFT_OUT, LOG, METRICS, SUMMARY
from vitmix.lab.training.config import CONFIG
from vitmix.lab.writing import make_folder, write_file

from .stores import Store, checked

CHECKPOINT = re.compile(r"checkpoints/update-([0-9]{9,})/(.+)")
MANIFEST = "manifest.json"
EVALUATED = (EVALUATION, DENSE)  # one of them is the last file of a run
PROGRESS = (CONFIG, METRICS, LOG)  # what is shown of a run while it is training


def newest_update(paths: "list[str] | dict[str, str]") -> int:
    """The update of the newest complete checkpoint; 0 if there is none."""
    found = [CHECKPOINT.fullmatch(path) for path in paths]
    return max((int(match[1]) for match in found if match and match[2] == MANIFEST), default=0)


def progress(paths: "list[str] | dict[str, str]") -> tuple[bool, int, bool]:
    """What orders two states of one run: finished, the newest checkpoint, begun."""
    return is_finished(paths), newest_update(paths), CONFIG in paths


def is_finished(paths: "list[str] | dict[str, str]") -> bool:
    """Whether these are the files of a run that is trained and evaluated."""
    return SUMMARY in paths and any(name in paths for name in EVALUATED)


def in_order(paths: "list[str] | dict[str, str]") -> list[str]:
    """The paths that travel, in their order; of the checkpoints only the newest complete one."""
    newest = newest_update(paths)
    return sorted((path for path in paths if _travels(path, newest)), key=lambda path: (_rank(path), path))


def _travels(path: str, newest: int) -> bool:
    checkpoint = CHECKPOINT.fullmatch(path)
    if checkpoint:
        return int(checkpoint[1]) == newest
    hidden = any(part.startswith(".") for part in path.split("/"))
    return path == LEFT_OUT or not (hidden or path.startswith("checkpoints/"))


def _rank(path: str) -> int:
    if CHECKPOINT.fullmatch(path):
        return 2 if path.endswith(f"/{MANIFEST}") else 1
    return 4 if path in EVALUATED else 3 if path == SUMMARY else 0


def copy(source: Store, target: Store, run: str, seen: dict[str, str], *, only: tuple[str, ...] = ()) -> None:
    """Copies what has changed since `seen`, then removes checkpoints that the source no longer has.

    Args:
        seen: what was copied before, by path; it is updated.
        only: paths to copy instead of all.
    """
    there = source.files(run)  # first: what is read later is at least as new as the checkpoints in this list
    for path in in_order(there):
        if (only and path not in only) or seen.get(path) == there[path]:
            continue
        try:
            content = source.read(run, path)
        except FileNotFoundError:
            if CHECKPOINT.fullmatch(path):  # a newer one has replaced it: the next time
                return
            continue
        target.write(run, path, content)
        seen[path] = there[path]
    newest = newest_update(there)
    if only or not newest:
        return
    for path in target.files(run):
        checkpoint = CHECKPOINT.fullmatch(path)
        if checkpoint and int(checkpoint[1]) < newest:
            target.remove(run, path)


def bring(source: Store, run: str, folder: Path) -> None:
    """Copies a run into a new folder."""
    for path in in_order(source.files(run)):
        content, file = source.read(run, path), folder / checked(path)
        make_folder(file.parent)
        write_file(file, content)
