"""A run's files on their way between a folder and a store.

A node can vanish at any moment, so files travel in an order in which every beginning of the journey is a state that a
killed process can also leave in a folder: results and weights before the checkpoint they precede, of a checkpoint the
manifest last, and what says that the run is finished after everything it speaks of.

A store can damage a file, so it keeps two checkpoints, and none is used or passed on before its checksums are compared.
"""

import re
from pathlib import Path

from vitmix.lab.reading import parse_json
from vitmix.lab.runs.folder import DENSE, EVALUATION, LEFT_OUT, LOG, METRICS, SUMMARY
from vitmix.lab.training.checkpoints import MANIFEST, FileFacts, facts_of, find_damage
from vitmix.lab.training.checkpoints import remove as remove_folder
from vitmix.lab.training.config import CONFIG
from vitmix.lab.writing import make_folder, write_file

from .stores import Store, checked

CHECKPOINT = re.compile(r"(checkpoints/update-([0-9]{9,}))/(.+)")
KEPT = 2  # complete checkpoints that a store keeps at least
EVALUATED = (EVALUATION, DENSE)  # one of them is the last file of a run
PROGRESS = (CONFIG, METRICS, LOG)  # what is shown of a run while it is training


class _Gone(Exception):
    """A file that the source had when it was listed."""


def complete_checkpoints(paths: "list[str] | dict[str, str]") -> list[str]:
    """The folders of the checkpoints that have a manifest, newest first."""
    found = [match for path in paths if (match := CHECKPOINT.fullmatch(path)) and match[3] == MANIFEST]
    return [match[1] for match in sorted(found, key=lambda match: int(match[2]), reverse=True)]


def newest_update(paths: "list[str] | dict[str, str]") -> int:
    """The update of the newest complete checkpoint; 0 if there is none."""
    return max(map(_update, complete_checkpoints(paths)), default=0)


def _update(checkpoint: str) -> int:
    return int(checkpoint.rpartition("-")[2])


def progress(paths: "list[str] | dict[str, str]") -> tuple[bool, int, bool]:
    """What orders two states of one run: finished, the newest checkpoint, begun."""
    return is_finished(paths), newest_update(paths), CONFIG in paths


def is_finished(paths: "list[str] | dict[str, str]") -> bool:
    """Whether these are the files of a run that is trained and evaluated."""
    return SUMMARY in paths and any(name in paths for name in EVALUATED)


def before_checkpoints(paths: "list[str] | dict[str, str]") -> list[str]:
    """The paths that travel before a checkpoint, in their order."""
    return sorted(path for path in paths if _travels(path) and path not in (SUMMARY, *EVALUATED))


def after_checkpoints(paths: "list[str] | dict[str, str]") -> list[str]:
    """The paths that travel after a checkpoint, in their order."""
    return [path for path in (SUMMARY, *EVALUATED) if path in paths]


def _travels(path: str) -> bool:
    hidden = any(part.startswith(".") for part in path.split("/"))
    return path == LEFT_OUT or not (hidden or path.startswith("checkpoints/"))


def copy(source: Store, target: Store, run: str, seen: dict[str, str], *, only: tuple[str, ...] = ()) -> None:
    """Copies what has changed since `seen`, then removes the target's oldest checkpoints.

    Args:
        seen: what was copied before, by path; it is updated.
        only: paths to copy instead of all.
    """
    there = source.files(run)  # first: what is read later is at least as new as the checkpoints in this list

    def copy_files(paths: list[str]) -> None:
        for path in paths:
            if (only and path not in only) or seen.get(path) == there[path]:
                continue
            try:
                content = source.read(run, path)
            except FileNotFoundError:
                continue
            target.write(run, path, content)
            seen[path] = there[path]

    copy_files(before_checkpoints(there))
    if not only:
        try:
            _copy_newest(source, target, run, seen, there)
        except _Gone:  # a newer one has replaced it: the next time
            return
        _remove_oldest(target, run)
    copy_files(after_checkpoints(there))


def _copy_newest(source: Store, target: Store, run: str, seen: dict[str, str], there: dict[str, str]) -> None:
    """Copies the newest checkpoint that is whole, unless the target has it."""
    for checkpoint in complete_checkpoints(there):
        manifest = f"{checkpoint}/{MANIFEST}"
        # A whole one of the same update stays: while it is overwritten, there might be none.
        if (
            seen.get(manifest) == there[manifest]
            or _is_whole(target, run, checkpoint)
            or _copy_checkpoint(source, target, run, checkpoint)
        ):
            seen[manifest] = there[manifest]
            return


def _copy_checkpoint(source: Store, target: Store, run: str, checkpoint: str) -> bool:
    """Copies a checkpoint; returns whether it was whole. Otherwise the target has nothing of it."""
    content = _read(source, run, f"{checkpoint}/{MANIFEST}")
    facts = _facts(content)
    if facts is None:
        return False
    _discard(target, run, checkpoint)
    for name, expected in facts.items():
        try:
            file = _read(source, run, f"{checkpoint}/{name}")
        except _Gone:
            if f"{checkpoint}/{MANIFEST}" not in source.files(run):
                raise
            file = b""  # missing for good
        if facts_of(file) != expected:
            _discard(target, run, checkpoint)
            return False
        target.write(run, f"{checkpoint}/{name}", file)
    target.write(run, f"{checkpoint}/{MANIFEST}", content)
    return True


def _is_whole(store: Store, run: str, checkpoint: str) -> bool:
    """Whether a store has every byte of a checkpoint."""
    try:
        facts = _facts(_read(store, run, f"{checkpoint}/{MANIFEST}"))
        if facts is None:
            return False
        return all(facts_of(_read(store, run, f"{checkpoint}/{name}")) == facts[name] for name in facts)
    except _Gone:
        return False


def _read(store: Store, run: str, path: str) -> bytes:
    try:
        return store.read(run, path)
    except FileNotFoundError:
        raise _Gone from None


def _facts(manifest: bytes) -> dict[str, FileFacts] | None:
    """What a manifest says of each file beside it; None if it is damaged."""
    try:
        facts = parse_json(manifest)
        return facts if isinstance(facts, dict) and all("/" not in checked(name) for name in facts) else None
    except ValueError:
        return None


def _discard(store: Store, run: str, checkpoint: str) -> None:
    """Removes a checkpoint, its manifest first."""
    paths = [path for path in store.files(run) if path.startswith(f"{checkpoint}/")]
    for path in sorted(paths, key=lambda path: path != f"{checkpoint}/{MANIFEST}"):
        store.remove(run, path)


def _remove_oldest(store: Store, run: str) -> None:
    """Removes what precedes the newest complete checkpoints."""
    paths = store.files(run)
    kept = complete_checkpoints(paths)[:KEPT]
    if len(kept) < KEPT:
        return
    found = {match[1] for path in paths if (match := CHECKPOINT.fullmatch(path))}
    for checkpoint in found:
        if _update(checkpoint) < _update(kept[-1]):
            _discard(store, run, checkpoint)


def bring(source: Store, run: str, folder: Path) -> None:
    """Copies a run into a new folder, and removes checkpoints from the source that turn out to be damaged."""
    there = source.files(run)

    def bring_files(paths: list[str]) -> None:
        for path in paths:
            content, file = source.read(run, path), folder / checked(path)
            make_folder(file.parent)
            write_file(file, content)

    bring_files(before_checkpoints(there))
    for checkpoint in complete_checkpoints(there):
        bring_files([path for path in there if path.startswith(f"{checkpoint}/")])
        why = find_damage(folder / checkpoint)
        if why is None:
            break
        remove_folder(folder / checkpoint)
        _discard(source, run, checkpoint)
        with open(folder / LOG, "a") as log:
            print(f"vitmix: note: {checkpoint} is damaged and was removed from the store: {why}", file=log)
    bring_files(after_checkpoints(there))
