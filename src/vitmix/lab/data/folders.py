"""Folders of image files: `imagefolder:DIR`, with DIR/train/<class>/<image> and DIR/val, or DIR/<class>/<image>."""

import os
from collections import Counter
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
    others: Counter[str] = Counter()
    for class_folder in _subfolders(folder):
        if class_folder.name not in classes:
            raise ValueError(
                f"imagefolder: {str(folder)!r} has a class {class_folder.name!r} that the training folder lacks; "
                "use the same class folders in every split"
            )
        found = image_files(class_folder, folder, f"imagefolder:{class_folder} ({split})", others)
        if not found and split == "train":
            raise ValueError(
                f"imagefolder: class folder {str(class_folder)!r} holds no images ({', '.join(IMG_EXTENSIONS)}); "
                "fill it or remove it"
            )
        files += found
        labels += [classes.index(class_folder.name)] * len(found)
    images = FileImages(folder, files, labels, classes, f"imagefolder:{folder} ({split})")
    images.skipped = dict(others)
    return images


def image_files(folder: Path, root: Path, description: str, others: Counter[str] | None = None) -> list[str]:
    """The image files below a folder, links followed, as sorted paths relative to `root`.

    Skips folders that were already read (a link may lead back to them), and anything named like an image that is not a
    regular file, such as a pipe. The log says how many. Files of other kinds are counted in `others`, by suffix.
    """
    files: list[str] = []
    skipped: list[str] = []
    seen: set[tuple[int, int]] = set()
    starts = [os.fspath(folder)]
    for start in starts:  # links are added at the end, so that files keep the name of the folder they are in
        for place, folders, names in os.walk(start, onerror=lambda error: skipped.append(error.filename)):
            facts = os.stat(place)
            if (facts.st_dev, facts.st_ino) in seen:
                skipped.append(place)
                folders.clear()
                continue
            seen.add((facts.st_dev, facts.st_ino))
            starts += filter(os.path.islink, (os.path.join(place, name) for name in sorted(folders)))
            for name in names:
                if name.lower().endswith(IMG_EXTENSIONS) and not name.startswith("."):
                    path = os.path.join(place, name)
                    # A dangling link is a broken image, named when it is read.
                    regular = os.path.isfile(path) or not os.path.exists(path)
                    (files if regular else skipped).append(path)
                elif others is not None and not name.startswith("."):
                    others[os.path.splitext(name)[1].lower() or "without a suffix"] += 1
    if skipped:
        log.warning(
            "skipped %d entries of %s that are not regular files, or folders read before; the first: %s",
            *(len(skipped), description, os.path.relpath(min(skipped), root)),
        )
    return sorted(os.path.relpath(path, root) for path in files)
