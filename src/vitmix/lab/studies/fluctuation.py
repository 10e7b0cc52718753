"""Token fluctuation: how much of the partner is in a mixed image after each block, compared with the label rules.

TL-Align, appendix B and figures 3 and 4. The "true" share of a token compares it with the tokens of either unmixed
image after the same block. A share is always the partner's part.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._mix import mix_targets, smooth_rows
from vitmix._mixer import AnyMixer
from vitmix._mixing import MixedBatch, Mixing
from vitmix.attention.readers import Reader, read_model
from vitmix.attention.tap import AttentionTap
from vitmix.lab.runs import Table
from vitmix.parts.shares import AlignedShare, activation_weights, attention_share

from .estimates import Gathered, correlation, root_mean_square, spread
from .labels import assigned_share
from .pairs import ImageBatch, activation_maps, masks_alone, mixed_pairs, repeatable

STUDY = "token fluctuation"
FINAL, TARGETS = ("final", -1), ("targets", -1)  # columns beside those of (rule, block)
CHUNK = 256  # tokens compared at a time, because a pyramid has thousands in its first stage
SIMILARITY, AREA, ATTENTION, TRANSMIX, ACTIVATION, ALIGNED = RULES = (
    "similarity",
    "area",
    "attention",
    "TransMix",
    "activation",
    "aligned",
)


def similarity_share(mixed: Tensor, own: Tensor, partner: Tensor) -> Tensor:
    """The partner's part `(B, N)` of each mixed token, by the softmax of its best cosine similarity with either image.

    Args:
        mixed: tokens `(B, N, C)` of the mixed image; `own` and `partner` `(B, M, C)` of the two originals.
    """
    mixed, own, partner = (nn.functional.normalize(each.float(), dim=-1) for each in (mixed, own, partner))
    parts = mixed.split(CHUNK, 1)
    best = [torch.cat([(part @ each.mT).amax(-1) for part in parts], 1) for each in (own, partner)]
    return torch.stack(best).softmax(0)[1]


@contextmanager
def block_outputs(reader: Reader) -> Iterator[dict[int, Tensor]]:
    """The tokens `(B, N, C)` that leave each block, by its number."""
    found: dict[int, Tensor] = {}

    def keep(index: int, output: Any) -> None:
        found[index] = (output[0] if isinstance(output, tuple) else output).detach().flatten(1, -2)

    modules = [reader.block(index).module for index in range(reader.depth)]
    handles = [
        module.register_forward_hook(lambda _, args, output, index=index: keep(index, output))
        for index, module in enumerate(modules)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def class_tokens(reader: Reader, block: int) -> int:
    """How many of the first tokens of a block the classifier reads; 0 if it reads the others."""
    return min(reader.read_tokens, reader.block(block).prefix) if reader.readout == "class" else 0


def read_at(reader: Reader, block: int, values: Tensor) -> Tensor:
    """What the classifier reads from the values `(B, N)` of tokens: class token, mean of the patches, or both."""
    if read := class_tokens(reader, block):
        return values[:, :read].mean(1)
    prefix = reader.block(block).prefix
    patches = values[:, prefix:].mean(1)
    return (values[:, 0] + patches) / 2 if reader.readout == "class and mean" and prefix else patches


def similarity_at(reader: Reader, block: int, mixed: Tensor, own: Tensor, partner: Tensor) -> Tensor:
    """The similarity share `(B,)` after a block; only the tokens `(B, N, C)` that the classifier reads are compared."""
    read = class_tokens(reader, block)
    return read_at(reader, block, similarity_share(mixed[:, :read] if read else mixed, own, partner))


@torch.no_grad()
def block_shares(model: nn.Module, mixing: Mixing, given: ImageBatch, batch: MixedBatch) -> dict[str, list[Tensor]]:
    """The share `(B,)` by rule and block; the mixing must have aligned labels."""
    reader, mix, size = read_model(model), batch.mix, batch.frame.size
    with block_outputs(reader) as plain:
        with AttentionTap(model, saliency=range(reader.depth)) as tap:
            model(batch.images)
        mixed = dict(plain)
        aligned = dict(batch.tape.token_share)
        mixing.targets(batch)  # closes the tape, because the next pass is unmixed
        maps = activation_maps(model, mixing, given.images, given.labels)
    area = mixing.evidence(batch).area
    activation = assigned_share(activation_weights(maps, mix), area)
    found: dict[str, list[Tensor]] = {name: [] for name in RULES}
    for block in range(reader.depth):
        own = plain[block]
        found[SIMILARITY].append(similarity_at(reader, block, mixed[block], own, own[mix.partner]))
        saliency = tap.saliency(block)
        found[ATTENTION].append(attention_share(saliency, reader.patch_mask(mix.mask, block, size)))
        found[ALIGNED].append(read_at(reader, block, aligned[block]))
        found[AREA].append(area)
        found[ACTIVATION].append(activation)
    found[TRANSMIX] = [(area + found[ATTENTION][-1]) / 2] * reader.depth
    return found


@torch.no_grad()
def fluctuation_study(
    model: nn.Module, methods: Mapping[str, AnyMixer], batches: Iterable[ImageBatch], *, seed: int = 0
) -> list[Table]:
    """For each method the shares of every rule in every block beside the similarity-based one, and the RMSE of area
    and aligned."""
    read_model(model).need_attention(STUDY)
    batches = repeatable(batches)
    return [
        replace(table, title=f"{table.title}: {name}")
        for name, method in methods.items()
        for table in _tables(model, method, batches, seed)
    ]


def _tables(model: nn.Module, method: AnyMixer, batches: Iterable[ImageBatch], seed: int) -> list[Table]:
    reader, num_classes = read_model(model), 0
    aligning, found = masks_alone(method, AlignedShare(), study=STUDY), Gathered()
    for given, mixing, batch in mixed_pairs(model, aligning, batches, seed=seed):
        shares = block_shares(model, mixing, given, batch)
        final, area = batch.mixer.share.weights(mixing.evidence(batch)).partner, shares[AREA][0]
        by_area = mix_targets(smooth_rows(batch.rows, batch.mixer.smoothing), batch.mix.partner, area)
        squares, num_classes = (mixing.targets(batch) - by_area).double().square().sum(1), by_area.shape[1]
        by_block = {(name, block): each.double() for name, own in shares.items() for block, each in enumerate(own)}
        found.add({**by_block, FINAL: (final - area).double(), TARGETS: squares}, batch)
    if not len(found):
        raise ValueError(f"{STUDY} found no pair; give at least two images")
    couples, rows = found.couples, []
    example: dict[str, list[float]] = {name: [] for name in RULES}
    for block in range(reader.depth):
        truth = found.column((SIMILARITY, block))
        for name in RULES:
            share = found.column((name, block))
            values = {"share": spread(share, couples)}
            if name != SIMILARITY:
                values["difference"] = spread((share - truth).abs(), couples)
                values["correlation"] = correlation(share, truth, couples)
            rows.append(((str(block), name), values))
            example[name].append(float(share[0]))
    notes = (
        "Shares are the partner's part of what the classifier reads: the class token, or the mean over the patches.",
        "similarity is a softmax of two cosines and so stays between 0.12 and 0.88: compare by the correlation over "
        "the pairs rather than by difference, the mean distance from it.",
    )
    rmse = {  # figure 3; over all entries of the targets, it depends on the number of classes
        "of shares": root_mean_square(found.column(FINAL), couples),
        "of targets": root_mean_square((found.column(TARGETS) / num_classes).sqrt(), couples),
    }
    note = f"of targets: over the {num_classes} entries of each target, where a share's difference appears twice."
    return [
        Table("Token fluctuation", ("block", "rule"), rows, notes, example=example),
        Table("RMSE between area and aligned labels", ("labels",), [(("area and aligned",), rmse)], (note,)),
    ]
