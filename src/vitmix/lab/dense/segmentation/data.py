"""Images with label maps, as text: `open_masks("masks:DIR(masks=trimaps, offset=1)", "train")`.

    masks:DIR       DIR/train/images/<image> and DIR/train/masks/<same name>.png, or DIR/images/train and
                    DIR/masks/train, or images below DIR/train and masks in the folder that `masks` names; without
                    folders of splits, a tenth is held out
    voc:DIR         Pascal VOC: JPEGImages, SegmentationClass, ImageSets/Segmentation/train.txt and val.txt
    ade20k:DIR      ADEChallengeData2016: images/training, annotations/training, and validation

A mask is a PNG of class numbers. 255 is ignored. Settings of `masks` in parentheses: `masks`, the folder of the masks;
`offset`, the number of the first class, below which pixels are ignored; `classes`, their names, separated by slashes.
Without names, classes.json is read, and without that file the training masks are looked through for the largest number.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from vitmix.lab.data.classes import MOST_UNSEEN_CLASSES, names_in, numbered
from vitmix.lab.data.decoding import MAX_BYTES, decode, reason_of
from vitmix.lab.data.folders import image_files
from vitmix.lab.data.images import BrokenImage, as_bytes
from vitmix.lab.data.sources import Source, open_from
from vitmix.lab.data.splits import SPLIT_NAMES, Openers, Split, by_split, parse_settings
from vitmix.lab.dense.task import IGNORED, DenseSet
from vitmix.lab.reading import is_fault, read_bytes, read_json

MASKS = ("masks", "labels", "annotations")  # usual names of the folder
IMAGES = ("images", "imgs")
VOC = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
ADE20K = 150  # classes
MOST_DIGITS = 9  # of an offset
LOOKED_AT = 16  # masks in which there must be a class
MOST_TEXT = 2**24  # bytes of a list of images


class MaskSet(DenseSet[torch.Tensor]):
    """Images with a PNG of class numbers each."""

    def __init__(
        self, root: Path, pairs: Sequence[tuple[str, str]], classes: Sequence[str], description: str, *, offset: int = 0
    ) -> None:
        super().__init__(os.fspath(root), [image for image, _ in pairs], classes, description)
        self.masks, self.offset = as_bytes(mask for _, mask in pairs), offset

    def target(self, index: int, image: Image.Image) -> tv_tensors.Mask:
        """The classes `(H, W)`, `IGNORED` where there is none."""
        labels = read_labels(Path(self.root) / os.fsdecode(bytes(self.masks[self.rows[index]])))
        if labels.shape != (image.height, image.width):
            size = f"{labels.shape[1]} x {labels.shape[0]}"
            raise ValueError(f"its mask is {size} pixels, the image is {image.width} x {image.height}")
        return tv_tensors.Mask(torch.from_numpy(from_offset(labels, self.offset, len(self.classes))))


def read_labels(path: Path) -> np.ndarray:
    """The numbers in a PNG; of a palette its indices."""
    try:
        labels = np.asarray(decode(read_bytes(path, MAX_BYTES)))
    except Exception as problem:  # decoders raise nearly anything on damaged bytes
        if isinstance(problem, MemoryError) or (isinstance(problem, OSError) and is_fault(problem)):
            raise
        raise ValueError(f"the mask {path} cannot be read: {reason_of(problem)}") from None
    if labels.ndim != 2 or labels.dtype.kind not in "biu":
        what = "colors" if labels.ndim != 2 else "fractions"
        raise ValueError(f"the mask {path} has {what}; save the numbers of classes as a gray or palette PNG")
    return labels


def from_offset(labels: np.ndarray, offset: int, classes: int) -> np.ndarray:
    """Classes from 0, from numbers that begin at `offset`; lower ones are ignored, and so is 255."""
    labels = labels.astype(np.int64)
    found = np.where((labels == IGNORED) | (labels < offset), IGNORED, labels - offset)
    unknown = found[(found >= classes) & (found != IGNORED)]
    if len(unknown):
        known = f"{offset}..{offset + classes - 1} or {IGNORED}"
        raise ValueError(f"its mask has the label {unknown.min() + offset}; labels must be {known}")
    return found


# masks:DIR


def mask_splits(argument: str) -> Openers:
    """For each split below a folder, a function that lists its images and masks."""
    location, settings = parse_settings(argument, "masks", ("masks", "offset", "classes"))
    root = Path(location)
    if not root.is_dir():
        raise ValueError(f"masks: {location!r} is not a folder; give one that holds images and masks")
    given = settings.get("offset") or "0"
    if not given.isdecimal() or len(given) > MOST_DIGITS:
        raise ValueError(f"masks: offset must be a whole number, the label of the first class, got {given!r}")
    offset = int(given)
    places = {split: _places(root, names, settings.get("masks")) for split, names in SPLIT_NAMES.items()}
    found = {split: place for split, place in places.items() if place is not None}
    if not found:
        whole = _folder(root, IMAGES), _folder(root, _mask_names(settings.get("masks")))
        if whole[0] is None or whole[1] is None:
            raise ValueError(
                f"masks: {location!r} holds no images with masks; put them into train/images and train/masks, or name "
                "the folder of the masks, as masks:DIR(masks=trimaps)"
            )
        found = {"train": (whole[0], whole[1])}
    first = found.get("train") or next(iter(found.values()))
    listed = partial(_listed, root, description=f"masks:{root}")
    classes = settings["classes"].split("/") if settings.get("classes") else _named(root, first, offset, listed)
    return {
        split: lambda split=split, place=place: _mask_set(
            root, listed(*place), classes, f"masks:{root} ({split})", offset
        )
        for split, place in found.items()
    }


def _mask_names(given: str | None) -> tuple[str, ...]:
    return MASKS if given is None else (given,)


def _folder(parent: Path, names: Sequence[str]) -> Path | None:
    return next((parent / name for name in names if (parent / name).is_dir()), None)


def _places(root: Path, names: Sequence[str], given: str | None) -> tuple[Path, Path] | None:
    """The folders of the images and masks of a split."""
    masks = _mask_names(given)
    inside = _folder(root, names)
    if inside is not None:
        own = _folder(inside, masks) or _folder(root, masks)
        return None if own is None else (_folder(inside, IMAGES) or inside, own)
    above, beside = _folder(root, IMAGES), _folder(root, masks)
    images = None if above is None else _folder(above, names)
    labels = None if beside is None else _folder(beside, names) or beside
    return None if images is None or labels is None else (images, labels)


def _listed(root: Path, images: Path, masks: Path, *, description: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs of an image and its mask, relative to `root`, and the images that have none."""
    known = {os.fspath(Path(path).with_suffix("")): path for path in image_files(masks, masks, description)}
    by_stem = {Path(name).name: path for name, path in known.items()}
    pairs, alone = [], []
    for path in image_files(images, images, description):
        name = Path(path).with_suffix("")
        if masks.is_relative_to(images) and (images / path).is_relative_to(masks):
            continue
        mask = known.get(os.fspath(name), by_stem.get(name.name))
        image = os.path.relpath(images / path, root)
        if mask is None:
            alone.append(image)
        else:
            pairs.append((image, os.path.relpath(masks / mask, root)))
    return pairs, alone


def _mask_set(
    root: Path,
    listed: tuple[list[tuple[str, str]], list[str]],
    classes: Sequence[str],
    description: str,
    offset: int,
) -> MaskSet:
    pairs, alone = listed
    _check_pairs(pairs, alone, description)
    images = MaskSet(root, pairs, classes, description, offset=offset)
    _check_labels(images)
    if alone:
        has, is_ = ("1 image has", "is") if len(alone) == 1 else (f"{len(alone):,} images have", "are")
        images.notes = (f"{has} no mask in {description} and {is_} left out; the first: {alone[0]}",)
    return images


def _check_labels(images: MaskSet) -> None:
    """Refuses masks without a class, as with a wrong offset: nothing could be learned, and no loss would show it."""
    found = 0
    for index in range(0, len(images), max(1, len(images) // LOOKED_AT)):
        try:
            labels = images.sample(index)[1]
        except BrokenImage:  # said in the training
            continue
        if (labels != IGNORED).any():
            return
        found += 1
    if found:
        below = f" and below offset={images.offset}" if images.offset else ""
        raise ValueError(f"{images.description}: none of the checked masks has a class; {IGNORED}{below} is ignored")


def _check_pairs(pairs: Sequence[tuple[str, str]], alone: Sequence[str], description: str) -> None:
    if not pairs and not alone:
        raise ValueError(f"{description} holds no images; put them into train/images and their masks into train/masks")
    if not pairs:
        raise ValueError(f"{description}: none of its {len(alone)} images has a mask of the same name; name them alike")


def _named(root: Path, place: tuple[Path, Path], offset: int, listed: partial) -> list[str]:
    """Names from classes.json; without it numbers, as many as the training masks have."""
    if (root / "classes.json").is_file():
        return names_in(lambda: read_json(root / "classes.json"), str(root / "classes.json"), None)
    pairs, alone = listed(*place)
    _check_pairs(pairs, alone, f"masks:{root}")
    most = -1
    for _, mask in pairs:
        most = max(most, _largest(read_labels(root / mask)))
        if most - offset >= MOST_UNSEEN_CLASSES:
            raise ValueError(
                f"the mask {root / mask} has the label {most}, and at most {MOST_UNSEEN_CLASSES:,} classes are "
                "allowed; number the classes without gaps"
            )
    if most < offset:
        raise ValueError(f"masks: the masks in {place[1]} have no label from {offset} on; check offset")
    return [str(int(name) + offset) for name in numbered(most - offset + 1)]


def _largest(labels: np.ndarray) -> int:
    """The largest label but `IGNORED`, -1 if there is none; in bands, because a mask may fill much of the memory."""
    bands = (labels[top : top + 256].astype(np.int64) for top in range(0, len(labels), 256))
    return max(int(band.max(where=band != IGNORED, initial=-1)) for band in bands)


# voc:DIR and ade20k:DIR


def voc_splits(argument: str) -> Openers:
    """The lists of a VOC year."""
    years = (Path(argument), *sorted(Path(argument).glob("VOC*")))
    root = next((each for each in years if (each / "SegmentationClass").is_dir()), None)
    if root is None:
        raise ValueError(f"voc: {argument!r} holds no SegmentationClass; give the folder VOC2012")
    lists = {path.stem: path for path in (root / "ImageSets" / "Segmentation").glob("*.txt")}
    if not lists:
        raise ValueError(f"voc: {str(root)!r} holds no lists in ImageSets/Segmentation, such as train.txt")
    return {split: partial(_voc, root, file, split) for split, file in by_split(lists).items()}


def _voc(root: Path, file: Path, split: str) -> MaskSet:
    names = read_bytes(file, MOST_TEXT).decode().split()
    pairs = [(f"JPEGImages/{name}.jpg", f"SegmentationClass/{name}.png") for name in names]
    return MaskSet(root, pairs, VOC, f"voc:{root} ({split})")


def ade20k_splits(argument: str) -> Openers:
    """Training and validation images of the scene parsing challenge."""
    root = Path(argument)
    if not (root / "annotations").is_dir() and (root / "ADEChallengeData2016").is_dir():
        root = root / "ADEChallengeData2016"
    folders = by_split({path.name: path for path in (root / "annotations").glob("*") if path.is_dir()})
    if not folders:
        raise ValueError(f"ade20k: {argument!r} holds no annotations/training; give the folder ADEChallengeData2016")
    classes = _ade20k_classes(root)

    def opened(split: str, masks: Path) -> MaskSet:
        listed = _listed(root, root / "images" / masks.name, masks, description=f"ade20k:{root}")
        return _mask_set(root, listed, classes, f"ade20k:{root} ({split})", 1)

    return {split: partial(opened, split, masks) for split, masks in folders.items()}


def _ade20k_classes(root: Path) -> list[str]:
    file = root / "objectInfo150.txt"
    if not file.is_file():
        return [str(int(name) + 1) for name in numbered(ADE20K)]
    lines = read_bytes(file, MOST_TEXT).decode().splitlines()[1:]
    names = [line.split("\t")[-1].split(",")[0].strip() for line in lines if line.strip()]
    if len(names) != ADE20K:
        raise ValueError(f"{file} names {len(names)} classes instead of {ADE20K}; get the file again, or remove it")
    return names


SOURCES = {"masks": Source(mask_splits), "voc": Source(voc_splits), "ade20k": Source(ade20k_splits)}


def open_masks(spec: str, split: Split) -> DenseSet:
    """The images with label maps that a text names."""
    if spec.startswith("coco:"):
        raise ValueError(f"{spec} has boxes, which --task detect learns; for segmentation, give masks:DIR")
    return open_from(SOURCES, spec, split)  # pyright: ignore[reportReturnType]
