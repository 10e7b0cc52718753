"""Folders of image files: `imagefolder:DIR`, with DIR/train/<class>/<image> and DIR/val, or DIR/<class>/<image>."""

import os
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS

from .images import FileImages, log
from .splits import Openers, by_split


def folder_splits(location: str) -> Openers:
    """For each split below a folder, a function that lists its files."""
    root = Path(location)
    if not root.is_dir():
        raise ValueError(f"imagefolder: {location!r} is not a folder; give one that holds train/<class>/<image>")
    folders = by_split({entry.name.lower(): entry for entry in _subfolders(root)}) or {"train": root}
    known = folders.get("train") or next(iter(folders.values()))
    classes = [folder.name for folder in _subfolders(known)]
    if not classes:
        raise ValueError(f"imagefolder: {str(known)!r} holds no class folders; put images into {known.name}/<class>/")
    if len(classes) == 1:
        raise ValueError(
            f"imagefolder: {str(known)!r} holds one class folder only ({classes[0]!r}), at least two are needed; "
            "is this the folder above or below the right one?"
        )
    return {split: lambda split=split: _open(folders[split], classes, split) for split in folders}


def _subfolders(folder: Path) -> list[Path]:
    hidden = (".", "__")  # such as .ipynb_checkpoints and __MACOSX
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(hidden))


def _open(folder: Path, classes: list[str], split: str) -> FileImages:
    files: list[str] = []
    labels: list[int] = []
    for class_folder in _subfolders(folder):
        if class_folder.name not in classes:
            raise ValueError(
                f"imagefolder: {str(folder)!r} has a class {class_folder.name!r} that the training folder lacks; "
                "use the same class folders in every split"
            )
        found = image_files(class_folder, folder, f"imagefolder:{class_folder} ({split})")
        if not found and split == "train":
            raise ValueError(
                f"imagefolder: class folder {str(class_folder)!r} holds no images ({', '.join(IMG_EXTENSIONS)}); "
                "fill it or remove it"
            )
        files += found
        labels += [classes.index(class_folder.name)] * len(found)
    return FileImages(folder, files, labels, classes, f"imagefolder:{folder} ({split})")


def image_files(folder: Path, root: Path, description: str) -> list[str]:
    """The image files below a folder, links followed, as sorted paths relative to `root`.

    Skips folders that were read already, to which a link may lead back, and anything named like an image that is not a
    regular file, such as a pipe. The log says how many.
    """
    files: list[str] = []
    skipped: list[str] = []
    seen: set[tuple[int, int]] = set()
    folders, links = [os.fspath(folder)], []  # links last, so that files keep the name of the folder they are in
    while folders or links:
        place = folders.pop() if folders else links.pop()
        try:
            facts = os.stat(place)
            entries = sorted(os.scandir(place), key=lambda entry: entry.name, reverse=True)
        except OSError:
            skipped.append(place)
            continue
        if (facts.st_dev, facts.st_ino) in seen:
            skipped.append(place)
            continue
        seen.add((facts.st_dev, facts.st_ino))
        for entry in entries:
            if os.path.isdir(entry) if entry.is_symlink() else entry.is_dir():
                (links if entry.is_symlink() else folders).append(entry.path)
            elif entry.name.lower().endswith(IMG_EXTENSIONS) and not entry.name.startswith("."):
                # A dangling link is a broken image, named when it is read.
                regular = os.path.isfile(entry) or not os.path.exists(entry)
                (files if regular else skipped).append(entry.path)
    if skipped:
        log.warning(
            "skipped %d entries of %s that are not regular files, or folders read before; the first: %s",
            *(len(skipped), description, os.path.relpath(min(skipped), root)),
        )
    return sorted(os.path.relpath(path, root) for path in files)
