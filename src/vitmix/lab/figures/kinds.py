"""Each kind of picture: from models and pictures to a sheet of panels."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vitmix._mix import Grid
from vitmix._mixing import MixedBatch, Mixing
from vitmix._text import create
from vitmix.attention.readers import Reader, logits_of, read_model
from vitmix.lab.show.scene import observe
from vitmix.parts.hidden import HTM

from .cam import grad_cam
from .layout import Subjects, banded, columns, heat_panel, picture_panel
from .looks import LabelMap, attention_rollout, block_attention, head_attention, label_maps
from .occlude import PARTS, cell_orders, confidence, occluded
from .sheet import Band, Curve, Panel, Row, Sheet, as_pixels, overlay
from .sights import MANIFOLD, Look, Shot, Sight, look, look_mixed, pairs_of

ORDERS = 16  # in which cells are occluded, to average over
UNREAD_GRID = (14, 14)  # of occlusion, where the first model's tokens are unknown
FEWEST = "Color: each map from its least to its largest value, on a square-root scale."


def draw_attention(subjects: Subjects, *, blocks: Sequence[int] | None = None) -> Sheet:
    """The attention of each block, by rows: pictures, and for each of them the models."""

    def row(sight: Sight, shot: Shot) -> tuple[tuple[str, ...], list[Panel]]:
        seen = look(sight, shot, subjects.seed, lambda images: block_attention(sight.model, images, blocks))
        maps = [heat_panel(seen, values[0]) for values in seen.found.values()]
        heads = ("picture", *(f"block {block}" for block in seen.found))
        return heads, [picture_panel(seen, shot), *maps]

    shots = subjects.shots()
    footer = subjects.footer(shots, _attention_words(subjects.sights), FEWEST)
    return Sheet(banded(subjects, row, shots), footer, "heat")


def draw_rollout(subjects: Subjects) -> Sheet:
    """Attention rollout, one column for each model."""

    def panels(sight: Sight, shot: Shot) -> tuple[Look, list[Panel]]:
        seen = look(sight, shot, subjects.seed, lambda images: attention_rollout(sight.model, images)[0])
        return seen, [heat_panel(seen, seen.found)]

    shots = subjects.shots()
    said = "Attention rolled out through all blocks, each as the mean of attention and identity."
    return columns(subjects, shots, panels, [""], footer=subjects.footer(shots, said, FEWEST))


def draw_heads(subjects: Subjects, *, block: int = -1) -> Sheet:
    """The attention of each head of a block, by rows: pairs, and for each of them the methods and the models."""
    mixed_at = _hidden_block(subjects.methods, subjects.sights)
    methods = subjects.methods or ["none", MANIFOLD, f"htm(block={mixed_at})"]

    def row(sight: Sight, shot: Shot) -> tuple[tuple[str, ...], list[Panel]]:
        if shot.method == MANIFOLD:
            seen = _manifold(sight, shot, mixed_at, block)
        else:
            seen = look(sight, shot, subjects.seed, lambda images: head_attention(sight.model, images, block)[0])
        maps = [heat_panel(seen, values) for values in seen.found]
        heads = ("picture", *(f"head {number}" for number in range(len(maps))))
        return heads, [picture_panel(seen, shot), *maps]

    said = f"Block {block}." if block >= 0 else "Last block." if block == -1 else f"Block {-block} from the end."
    words = _attention_words(subjects.sights)
    blend = f"{MANIFOLD}: tokens blended half and half at block {mixed_at}." if MANIFOLD in methods else ""
    shots = subjects.shots(methods)
    return Sheet(banded(subjects, row, shots), subjects.footer(shots, said, words, blend, FEWEST), "heat")


def draw_gradcam(subjects: Subjects, *, only_right: bool = False) -> Sheet:
    """Grad-CAM of what a picture shows, and of a mixed one for both of its classes, one column for each model."""
    for method in subjects.methods:
        if any(arm.inner for arm in create(method, 2).mixers):
            raise ValueError(f"{method} mixes inside the network and leaves the picture as it is; draw another method")
    shots = subjects.shots()
    if only_right:
        shots = [shot for shot in shots if all(_right(sight, shot) for sight in subjects.sights)]
        if not shots:
            raise ValueError("no picture is classified rightly by all of the models; give more pictures")

    def panels(sight: Sight, shot: Shot) -> tuple[Look, list[Panel]]:
        labels = sight.labels(shot.pictures)

        def cams(images: Tensor) -> list[Tensor]:
            return [grad_cam(sight.model, images[:1], [label])[0] for label in labels]

        def mixed_cams(mixing: Mixing, batch: MixedBatch) -> list[Tensor]:
            with torch.no_grad():
                sight.model(batch.images)
            mixing.targets(batch)  # from here on the method does not listen any more
            return cams(batch.images)

        if shot.method is None:
            seen = look(sight, shot, subjects.seed, cams)
        else:
            seen = look_mixed(sight, shot, subjects.seed, mixed_cams)
        with torch.no_grad():
            part = logits_of(sight.model(sight.images(seen.pixels[None]))).softmax(1)[0]
        captions = [f"{sight.class_name(label)} {float(part[label]):.0%}" for label in labels]
        found = zip(seen.found, captions, strict=True)
        return seen, [Panel(overlay(seen.pixels, cam, "heat", strength=0.6), words) for cam, words in found]

    footer = subjects.footer(shots, "Grad-CAM; below, the class that is explained and its probability.")
    parts = ["own", "partner"] if subjects.methods else [""]
    return columns(subjects, shots, panels, parts, footer=footer, ends=("none", "most"))


def draw_occlusion(subjects: Subjects) -> Sheet:
    """Confidence under growing occlusion: of each picture, a strip of occluded copies above the models' curves."""
    if subjects.methods:
        raise ValueError("occlusion is drawn of unmixed pictures; leave the methods out")
    bands = []
    for picture in subjects.pictures:
        curves = []
        labels = [sight.labels([picture])[0] for sight in subjects.sights]
        seen = [sight.class_name(label) for sight, label in zip(subjects.sights, labels, strict=True)]
        alike = len(set(seen)) == 1
        grid = _occlusion_grid(subjects.sights[0])
        orders = cell_orders(grid, ORDERS, subjects.seed)
        for sight, label, words in zip(subjects.sights, labels, seen, strict=True):
            pixels = sight.pixels([picture])[0]
            copies = torch.stack([occluded(pixels, order, part, grid) for order in orders for part in PARTS])
            values = confidence(sight.model, sight.images(copies), label).view(ORDERS, len(PARTS))
            mean, spread = values.mean(0), values.std(0)
            low, high = (mean - spread).clamp_min(0), (mean + spread).clamp_max(1)
            name = sight.name if alike else f"{sight.name}: {words}"
            curves.append(Curve(name, mean.tolist(), low.tolist(), high.tolist()))
        first = subjects.sights[0]
        shown = first.pixels([picture])[0]
        strip = tuple(Panel(as_pixels(occluded(shown, orders[0], part, grid))) for part in PARTS)
        heads = tuple(f"{part:.0%}" for part in PARTS)
        said = f"probability\n“{seen[0]}”" if alike else "probability\nof the class"
        bands.append(Band(heads, (Row(strip),), curves=tuple(curves), axes=("occluded", said)))
    rows, columns = _occlusion_grid(subjects.sights[0])
    said = f"Mean and standard deviation over {ORDERS} random orders of {rows} x {columns} cells; shown is the first."
    return Sheet(tuple(bands), subjects.footer((), said))


def draw_labels(subjects: Subjects, *, blocks: Sequence[int] | None = None) -> Sheet:
    """Aligned label maps: whose each token is after each block, orange the partner's and blue the own."""

    def find(sight: Sight, mixing: Mixing, batch: MixedBatch) -> list[LabelMap]:
        with torch.no_grad():
            sight.model(batch.images)
            mixing.targets(batch)
        return label_maps(mixing, batch, blocks)

    def row(sight: Sight, shot: Shot) -> tuple[tuple[str, ...], list[Panel]]:
        seen = look_mixed(sight, shot, subjects.seed, lambda mixing, batch: find(sight, mixing, batch))
        maps = [
            Panel(overlay(seen.pixels, each.grid.clamp(0, 1), "share", strength=0.8), f"{each.read:.0%}")
            for each in seen.found
        ]
        heads = ("picture", *("input" if each.block < 0 else f"block {each.block}" for each in seen.found))
        return heads, [picture_panel(seen, shot), *maps]

    said = "Below: the partner's part of the class token, or of the mean patch where there is none."
    shots = subjects.shots(subjects.methods or ["tl_align"])
    return Sheet(banded(subjects, row, shots), subjects.footer(shots, said), "share", ("own", "partner"))


def draw_gallery(subjects: Subjects) -> Sheet:
    """What methods make of the same pairs, with targets; the models are told apart where a method looks into them."""
    pairs = pairs_of(subjects.pictures)
    looks_inside = any(create(method, 2).looks_inside for method in subjects.methods)
    sights = subjects.sights if looks_inside else subjects.sights[:1]
    rows, heads = [], ("own", "partner")
    for pair in pairs:
        for sight in sights:
            classes = list(sight.classes) or None
            scene = observe(
                sight.model, sight.augmentation, pair, subjects.methods, classes=classes, seed=subjects.seed
            )
            own, partner = (
                Panel(as_pixels(pixels), name) for pixels, name in zip(scene.pictures, scene.names, strict=True)
            )
            mixed = [Panel(as_pixels(view.mixed), f"{view.own:.0%} + {view.partner:.0%}") for view in scene.views]
            heads = ("own", "partner", *(view.title for view in scene.views))
            rows.append(Row((own, partner, *mixed), sight.name if len(sights) > 1 else ""))
    said = "Below: the own and the partner's part of the target."
    looking = subjects.footer((), said) if looks_inside else said
    return Sheet((Band(heads, tuple(rows), lead=2),), looking)


KINDS: dict[str, Callable[..., Sheet]] = {
    "attention": draw_attention,
    "rollout": draw_rollout,
    "heads": draw_heads,
    "gradcam": draw_gradcam,
    "occlusion": draw_occlusion,
    "labels": draw_labels,
    "gallery": draw_gallery,
}


def _attention_words(sights: Sequence[Sight]) -> str:
    said: dict[str, list[str]] = {}
    for sight in sights:
        said.setdefault(_whose_attention(read_model(sight.model)), []).append(sight.name)
    if len(said) == 1:
        return f"Attention {next(iter(said))}."
    return " ".join(f"{', '.join(names)}: attention {words}." for words, names in said.items())


def _whose_attention(reader: Reader) -> str:
    count = sum(block.class_token for block in reader.blocks)
    if count == len(reader.blocks):
        return "of the class token to the patches"
    received = "that each patch receives from the patches"
    return f"{received}; in the last {count} blocks, of the class token" if count else received


def _right(sight: Sight, shot: Shot) -> bool:
    """Whether the model names each unmixed picture by its class."""
    known = [sight.known(picture) for picture in shot.pictures]
    if None in known:
        picture = shot.pictures[known.index(None)]
        raise ValueError(
            f"which class {picture.name!r} shows is not known to {sight.name}; name the pictures by their classes "
            "(--names), or leave --only-right out"
        )
    return sight.predicted(shot.pictures) == known


def _hidden_block(methods: Sequence[str], sights: Sequence[Sight]) -> int:
    """The block at which the methods mix tokens, or else HTM's own as far as every model is deep enough."""
    arms = [arm for method in methods if method != MANIFOLD for arm in create(method, 2).mixers]
    depth = min(read_model(sight.model).patch_depth for sight in sights)
    own = min(HTM().block, depth - 1)
    return next((part.block for arm in arms for part in arm.inner if part.moves_tokens), own)


def _manifold(sight: Sight, shot: Shot, mixed_at: int, block: int) -> Look:
    """Heads where the tokens of both pictures are blended half and half at the input of a block."""
    reader = read_model(sight.model)
    module = reader.block(reader.resolve(mixed_at)).module

    def blend(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0] + args[0].flip(0)) / 2, *args[1:]

    pixels = sight.pixels(shot.pictures)
    handle = module.register_forward_pre_hook(blend)
    try:
        found = head_attention(sight.model, sight.images(pixels), block)[0]
    finally:
        handle.remove()
    return Look(pixels.mean(0), found, 0.5, 0.5)


def _occlusion_grid(sight: Sight) -> Grid:
    try:
        return read_model(sight.model).mask_grid(sight.augmentation.sides)
    except ValueError:
        return UNREAD_GRID
