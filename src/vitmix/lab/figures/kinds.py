"""Each kind of figure: from models and images to a grid of tiles."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from vitmix._mixing import MixedBatch, Mixing
from vitmix._text import create
from vitmix.attention.readers import Reader, logits_of, read_model
from vitmix.lab.plotting.grid import ImageGrid, Section, Tile, TileRow, as_pixels, overlay
from vitmix.parts.hidden import HTM

from .attention import LabelMap, attention_rollout, block_attention, head_attention, label_maps
from .cam import grad_cam
from .gradient import gradient_figure
from .layout import SCALE_WORDS, FigureInputs, as_columns, as_rows, heat_tile
from .models import NamedModel
from .occlusion import occlusion_figure
from .samples import MANIFOLD, Observation, Sample, method_choices, observe, observe_mixed, pairs_of


def attention_figure(inputs: FigureInputs, *, blocks: Sequence[int] | None = None) -> ImageGrid:
    """The attention of each block; a row for each image and model."""

    def columns(model: NamedModel, sample: Sample) -> tuple[Observation, dict[str, Tile]]:
        seen = observe(model, sample, inputs.seed, lambda images: block_attention(model.model, images, blocks))
        return seen, {f"block {block}": heat_tile(seen, values[0]) for block, values in seen.found.items()}

    samples = inputs.samples()
    footer = inputs.footer(samples, _attention_words(inputs.models), SCALE_WORDS)
    return ImageGrid(as_rows(inputs, samples, columns), footer, "heat")


def rollout_figure(inputs: FigureInputs) -> ImageGrid:
    """Attention rollout, one column for each model."""

    def tiles(model: NamedModel, sample: Sample) -> tuple[Observation, list[Tile]]:
        seen = observe(model, sample, inputs.seed, lambda images: attention_rollout(model.model, images)[0])
        return seen, [heat_tile(seen, seen.found)]

    samples = inputs.samples()
    words = "Attention rolled out through all blocks, each as the mean of attention and identity."
    return as_columns(inputs, samples, tiles, [""], footer=inputs.footer(samples, words, SCALE_WORDS))


def heads_figure(inputs: FigureInputs, *, block: int = -1) -> ImageGrid:
    """The attention of each head of a block; a row for each pair, method and model."""
    mixed_at = _hidden_block(inputs.methods, inputs.models)
    methods = inputs.methods or ["none", MANIFOLD, f"htm(block={mixed_at})"]

    def columns(model: NamedModel, sample: Sample) -> tuple[Observation, dict[str, Tile]]:
        if sample.method == MANIFOLD:
            seen = _blended(model, sample, mixed_at, block)
        else:
            seen = observe(model, sample, inputs.seed, lambda images: head_attention(model.model, images, block)[0])
        return seen, {f"head {number}": heat_tile(seen, values) for number, values in enumerate(seen.found)}

    where = f"Block {block}." if block >= 0 else "Last block." if block == -1 else f"Block {-block} from the end."
    blend = f"{MANIFOLD}: tokens blended half and half at block {mixed_at}." if MANIFOLD in methods else ""
    samples = inputs.samples(methods)
    footer = inputs.footer(samples, where, _attention_words(inputs.models), blend, SCALE_WORDS)
    return ImageGrid(as_rows(inputs, samples, columns), footer, "heat")


def gradcam_figure(inputs: FigureInputs, *, only_right: bool = False) -> ImageGrid:
    """Grad-CAM for the class of an image, or for both classes of a mixed one; one column for each model."""
    for method in inputs.methods:
        if any(mixer.inner for mixer in create(method, 2).mixers):
            raise ValueError(f"{method} mixes inside the network and does not change the image; use another method")
    samples = inputs.samples()
    if only_right:
        samples = [sample for sample in samples if all(_right(model, sample) for model in inputs.models)]
        if not samples:
            raise ValueError("no image is classified correctly by all models; give more images")

    def tiles(model: NamedModel, sample: Sample) -> tuple[Observation, list[Tile]]:
        labels = model.labels(sample.images)

        def cams(images: Tensor) -> list[Tensor]:
            return [grad_cam(model.model, images[:1], [label])[0] for label in labels]

        def mixed_cams(mixing: Mixing, batch: MixedBatch) -> list[Tensor]:
            _targets(model, mixing, batch)  # from here on, the method records nothing
            return cams(batch.images)

        if sample.method is None:
            seen = observe(model, sample, inputs.seed, cams)
        else:
            seen = observe_mixed(model, sample, inputs.seed, mixed_cams)
        with torch.no_grad():
            probability = logits_of(model.model(model.inputs(seen.pixels[None]))).softmax(1)[0]
        captions = [f"{model.class_name(label)} {float(probability[label]):.0%}" for label in labels]
        found = zip(seen.found, captions, strict=True)
        return seen, [Tile(overlay(seen.pixels, cam, "heat", strength=0.6), caption) for cam, caption in found]

    footer = inputs.footer(samples, "Grad-CAM; below, the explained class and its probability.")
    parts = ["original", "partner"] if inputs.methods else [""]
    return as_columns(inputs, samples, tiles, parts, footer=footer, ends=("none", "most"))


def labels_figure(inputs: FigureInputs, *, blocks: Sequence[int] | None = None) -> ImageGrid:
    """Aligned label maps: the share of each token after each block, orange for the partner, blue for the original."""

    def columns(model: NamedModel, sample: Sample) -> tuple[Observation, dict[str, Tile]]:
        def find(mixing: Mixing, batch: MixedBatch) -> list[LabelMap]:
            _targets(model, mixing, batch)
            return label_maps(mixing, batch, blocks)

        seen = observe_mixed(model, sample, inputs.seed, find)
        return seen, {
            "input" if each.block < 0 else f"block {each.block}": Tile(
                overlay(seen.pixels, each.grid.clamp(0, 1), "share", strength=0.8), f"{each.read:.0%}"
            )
            for each in seen.found
        }

    words = "Below: the partner's part of the class token, or of the mean patch if there is none."
    samples = inputs.samples(inputs.methods or ["tl_align"])
    return ImageGrid(as_rows(inputs, samples, columns), inputs.footer(samples, words), "share", ("original", "partner"))


def gallery_figure(inputs: FigureInputs) -> ImageGrid:
    """The same pairs mixed by each method, with targets; a row for each model if a method reads the model."""
    reads_model = any(create(method, 2).looks_inside for method in inputs.methods)
    models = inputs.models if reads_model else inputs.models[:1]
    titles = [title for method in inputs.methods for title in method_choices(method)]
    rows = []
    for pair in pairs_of(inputs.images):
        for model in models:
            originals = zip(model.pixels(pair), pair, strict=True)
            tiles = [Tile(as_pixels(pixels), image.name) for pixels, image in originals]
            for title in titles:
                seen = observe_mixed(model, Sample(pair, title), inputs.seed, partial(_targets, model))
                tiles.append(Tile(as_pixels(seen.pixels), f"{seen.own:.0%} + {seen.partner:.0%}"))
            rows.append(TileRow(tuple(tiles), model.name if len(models) > 1 else ""))
    words = "Below: the parts of the original image and the partner in the target."
    footer = inputs.footer((), words) if reads_model else words
    return ImageGrid((Section(("original", "partner", *titles), tuple(rows), lead=2),), footer)


KINDS: dict[str, Callable[..., ImageGrid]] = {
    "attention": attention_figure,
    "rollout": rollout_figure,
    "heads": heads_figure,
    "gradcam": gradcam_figure,
    "gradient": gradient_figure,
    "occlusion": occlusion_figure,
    "labels": labels_figure,
    "gallery": gallery_figure,
}


def _targets(model: NamedModel, mixing: Mixing, batch: MixedBatch) -> Tensor:
    with torch.no_grad():
        model.model(batch.images)
        return mixing.targets(batch)


def _attention_words(models: Sequence[NamedModel]) -> str:
    names: dict[str, list[str]] = {}
    for model in models:
        names.setdefault(_whose_attention(read_model(model.model)), []).append(model.name)
    if len(names) == 1:
        return f"Attention {next(iter(names))}."
    return " ".join(f"{', '.join(each)}: attention {words}." for words, each in names.items())


def _whose_attention(reader: Reader) -> str:
    count = sum(block.class_token for block in reader.blocks)
    if count == len(reader.blocks):
        return "of the class token to the patches"
    received = "that each patch receives from the patches"
    return f"{received}; in the last {count} blocks, of the class token" if count else received


def _right(model: NamedModel, sample: Sample) -> bool:
    """Whether the model classifies each unmixed image correctly."""
    known = [model.known(image) for image in sample.images]
    if None in known:
        image = sample.images[known.index(None)]
        raise ValueError(
            f"the class of {image.name!r} is not known to {model.name}; name the images by their classes (--names), "
            "or leave --only-right out"
        )
    return model.predicted(sample.images) == known


def _hidden_block(methods: Sequence[str], models: Sequence[NamedModel]) -> int:
    """The block at which the methods mix tokens, otherwise HTM's default, limited by the depth of the models."""
    mixers = [mixer for method in methods if method != MANIFOLD for mixer in create(method, 2).mixers]
    depth = min(read_model(model.model).patch_depth for model in models)
    default = min(HTM().block, depth - 1)
    return next((part.block for mixer in mixers for part in mixer.inner if part.moves_tokens), default)


def _blended(model: NamedModel, sample: Sample, mixed_at: int, block: int) -> Observation[Tensor]:
    """Heads when the tokens of both images are blended half and half at the input of a block."""
    reader = read_model(model.model)
    module = reader.block(reader.resolve(mixed_at)).module

    def blend(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0] + args[0].flip(0)) / 2, *args[1:]

    pixels = model.pixels(sample.images)
    handle = module.register_forward_pre_hook(blend)
    try:
        found = head_attention(model.model, model.inputs(pixels), block)[0]
    finally:
        handle.remove()
    return Observation(pixels.mean(0), found, 0.5, 0.5)
