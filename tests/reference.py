"""Slow twins: each formula once more, in plain loops over one sample, one token, one class at a time.

Written from the papers, not from the library; nothing here imports it.
"""

import itertools
import math

import torch
from torch import Tensor, nn

# Images and labels


def mix_pixels(images: Tensor, mask: Tensor, partner: Tensor, source: Tensor | None) -> Tensor:
    """Walks every pixel: own or the partner's, from the source cell where one is given."""
    batch, channels, height, width = images.shape
    rows, columns = mask.shape[-2:]
    tall, wide = height // rows, width // columns
    out = torch.empty_like(images)
    for b, y, x in itertools.product(range(batch), range(height), range(width)):
        cell_row, cell_column = y // tall, x // wide
        weight = float(mask[b % len(mask), cell_row, cell_column])
        from_y, from_x = y, x
        if source is not None and weight:
            cell = int(source[b, cell_row * columns + cell_column])
            from_y = cell // columns * tall + y % tall
            from_x = cell % columns * wide + x % wide
        for c in range(channels):
            out[b, c, y, x] = (1 - weight) * images[b, c, y, x] + weight * images[partner[b], c, from_y, from_x]
    return out


def one_hot(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    out = torch.full((len(labels), classes), smoothing / classes, dtype=torch.float64)
    for b, label in enumerate(labels.tolist()):
        out[b, label] = 1 - smoothing + smoothing / classes
    return out


def best_window(scores: Tensor, height: int, width: int, largest: bool) -> tuple[int, int]:
    """The first window with the largest (or smallest) sum of a score map, by trying all."""
    best, place = -math.inf, (0, 0)
    for top in range(scores.shape[0] - height + 1):
        for left in range(scores.shape[1] - width + 1):
            total = float(scores[top : top + height, left : left + width].double().sum())
            total = total if largest else -total
            if total > best:
                best, place = total, (top, left)
    return place


def blocks(grid: tuple[int, int], wanted: int, smallest: int, uniform: list[list[float]]) -> Tensor:
    """TokenMix's mask of one sample: rectangles of given uniform numbers (area, aspect, top, left), one at a time."""
    mask = torch.zeros(grid, dtype=torch.bool)
    failures, numbers = 0, iter(uniform)
    while wanted > 0 and failures < 10:
        failures += 1
        first, second, third, fourth = next(numbers)
        area = max(smallest + first * (wanted - smallest), 0.0)
        aspect = 0.3 ** (1 - 2 * second)
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if not (0 < height < max(grid[0], 2) and 0 < width < max(grid[1], 2)):
            continue
        top, left = int(third * (grid[0] - height + 1)), int(fourth * (grid[1] - width + 1))
        cells = [(i, j) for i in range(top, top + height) for j in range(left, left + width) if not mask[i, j]]
        if 0 < len(cells) <= wanted:
            for cell in cells:
                mask[cell] = True
            wanted, failures = wanted - len(cells), 0
    return mask


# Attention


def attention_of(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Softmaxed attention of every block, by switching fused attention off and reading the dropout's input."""
    maps: list[Tensor] = []
    handles, fused = [], []
    for block in model.blocks:
        fused.append(block.attn.fused_attn)
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_pre_hook(lambda _, args: maps.append(args[0].detach())))
    with torch.no_grad():
        model(images)
    for block, was, handle in zip(model.blocks, fused, handles, strict=True):
        block.attn.fused_attn = was
        handle.remove()
    return maps


def class_row(attention: Tensor, prefix: int) -> Tensor:
    batch, heads, tokens, _ = attention.shape
    out = torch.zeros(batch, tokens - prefix, dtype=attention.dtype)
    for b, h, k in itertools.product(range(batch), range(heads), range(prefix, tokens)):
        out[b, k - prefix] += attention[b, h, 0, k] / heads
    return out


def column_mean(attention: Tensor, prefix: int) -> Tensor:
    batch, heads, tokens, _ = attention.shape
    out = torch.zeros(batch, tokens - prefix, dtype=attention.dtype)
    for b, h, q, k in itertools.product(range(batch), range(heads), range(prefix, tokens), range(prefix, tokens)):
        out[b, k - prefix] += attention[b, h, q, k] / heads / (tokens - prefix)
    return out


# TL-Align with K classes per token, as the paper writes it


def tl_align_targets(
    maps: list[Tensor],
    mask: Tensor,
    rows: Tensor,
    partner: Tensor,
    grid: tuple[int, int],
    prefix: int,
    *,
    blocks: set[int] | None = None,
    residual: bool = True,
    readout: str = "class",
) -> Tensor:
    """Dense targets `(B, K)`: a label row for each token, mixed by each block's attention, averaged over residuals."""
    batch, classes = rows.shape
    height, width = mask.shape[-2:]
    tall, wide = height // grid[0], width // grid[1]
    targets = torch.zeros(batch, classes, dtype=torch.float64)
    for b in range(batch):
        own, theirs, pixels = rows[b].double(), rows[partner[b]].double(), mask[b % len(mask)].double()
        labels = [(1 - pixels.mean()) * own + pixels.mean() * theirs for _ in range(prefix)]
        for i, j in itertools.product(range(grid[0]), range(grid[1])):
            part = pixels[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide].mean()
            labels.append((1 - part) * own + part * theirs)
        for number, attention in enumerate(maps):
            if blocks is not None and number not in blocks:
                continue
            mean = attention[b].double().mean(0)
            moved = [sum(mean[q, k] * labels[k] for k in range(len(labels))) for q in range(len(labels))]
            labels = [(new + old) / 2 if residual else new for new, old in zip(moved, labels, strict=True)]
        if readout == "class":
            targets[b] = labels[0]
        elif readout == "two":
            targets[b] = (labels[0] + labels[1]) / 2
        else:
            targets[b] = sum(labels[prefix:]) / (len(labels) - prefix)
    return targets


def transmix_share(attention: Tensor, mask: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """Half area, half class attention on the patches whose top-left pixel is the partner's."""
    shares = []
    tall, wide = mask.shape[-2] // grid[0], mask.shape[-1] // grid[1]
    for b in range(len(attention)):
        pixels, inside, total = mask[b % len(mask)].double(), 0.0, 0.0
        for i, j in itertools.product(range(grid[0]), range(grid[1])):
            weight = float(attention[b, :, 0, prefix + i * grid[1] + j].double().mean())
            total += weight
            inside += weight if bool(mask[b % len(mask), i * tall, j * wide]) else 0.0
        shares.append((inside / total + float(pixels.mean())) / 2)
    return torch.tensor(shares, dtype=torch.float64)


def activation_targets(
    maps: Tensor, mask: Tensor, source: Tensor | None, labels: Tensor, partner: Tensor, classes: int, smoothing: float
) -> Tensor:
    """TokenMix's target rows, cell by cell, unclamped."""
    out = torch.full((len(maps), classes), smoothing / classes, dtype=torch.float64)
    cells = maps.clamp_min(0).double().flatten(1)
    for b in range(len(maps)):
        p, inside = int(partner[b]), mask[b % len(mask)].flatten()
        own = sum(float(cells[b, t]) for t in range(len(inside)) if not inside[t]) / (float(cells[b].sum()) + 1e-8)
        places = [int(source[b, t]) if source is not None else t for t in range(len(inside)) if inside[t]]
        theirs = sum(float(cells[p, t]) for t in places) / (float(cells[p].sum()) + 1e-8)
        out[b, labels[b]] += own - smoothing / 2
        out[b, labels[p]] += theirs - smoothing / 2
    return out


# Losses


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> float:
    total = 0.0
    for row, target in zip(logits.double().tolist(), targets.double().tolist(), strict=True):
        peak = max(row)
        log_sum = peak + math.log(sum(math.exp(value - peak) for value in row))
        total -= sum(t * (value - log_sum) for value, t in zip(row, target, strict=True))
    return total / len(logits)


def soft_bce(logits: Tensor, targets: Tensor) -> float:
    total, count = 0.0, 0
    for value, target in zip(logits.double().flatten().tolist(), targets.double().flatten().tolist(), strict=True):
        probability = 1 / (1 + math.exp(-value))
        total -= target * math.log(probability) + (1 - target) * math.log(1 - probability)
        count += 1
    return total / count


def kl_consistency(logits: Tensor, clean: Tensor, partner: Tensor, share: Tensor, average: str) -> float:
    total = 0.0
    for b in range(len(logits)):
        s, p = float(share[b]), int(partner[b])
        if average == "logits":
            expected = ((1 - s) * clean[b].double() + s * clean[p].double()).softmax(0)
        else:
            expected = (1 - s) * clean[b].double().softmax(0) + s * clean[p].double().softmax(0)
        given = logits[b].double().softmax(0)
        total += sum(float(e) * (math.log(float(e)) - math.log(float(g))) for e, g in zip(expected, given, strict=True))
    return total / len(logits)


def region_loss(tokens: Tensor, mask: Tensor, head: nn.Module, rows: Tensor, partner: Tensor) -> float:
    """Half the cross-entropies of the two region means, each with its own image's label."""
    own, theirs = [], []
    for b in range(len(tokens)):
        inside = [tokens[b, t] for t in range(mask.shape[1]) if mask[b, t]]
        outside = [tokens[b, t] for t in range(mask.shape[1]) if not mask[b, t]]
        own.append(head(sum(outside) / len(outside)))
        theirs.append(head(sum(inside) / len(inside)))
    return (soft_cross_entropy(torch.stack(own), rows) + soft_cross_entropy(torch.stack(theirs), rows[partner])) / 2


# TokenMixup


def horizontal(saliency: Tensor, easy: list[bool], rho: float) -> tuple[float, list[int], Tensor, list[float]]:
    """Best total gain, its partners (by trying every assignment), tokens taken, own label weights."""
    batch, tokens = saliency.shape
    chosen = [b for b in range(batch) if easy[b]]
    gain = {
        (m, j): sum(max(float(saliency[j, t] - saliency[m, t]) - rho, 0.0) for t in range(tokens))
        for m in chosen
        for j in range(batch)
    }
    best, partners = -1.0, list(range(batch))
    for candidate in itertools.permutations(range(batch), len(chosen)):
        total = sum(gain[m, j] for m, j in zip(chosen, candidate, strict=True))
        if total > best + 1e-12:
            best, partners = total, list(range(batch))
            for m, j in zip(chosen, candidate, strict=True):
                partners[m] = j
    take = torch.zeros(batch, tokens, dtype=torch.bool)
    own = [1.0] * batch
    for m in chosen:
        kept = taken = 0.0
        for t in range(tokens):
            take[m, t] = float(saliency[partners[m], t] - saliency[m, t]) > rho
            if take[m, t]:
                taken += float(saliency[partners[m], t])
            else:
                kept += float(saliency[m, t])
        own[m] = kept / (kept + taken)
    return best, partners, take, own


def attend(query: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Multi-head attention of one sample, `(N, d)` queries on `(M, d)` keys and values, one query at a time."""
    width = query.shape[1] // heads
    out = torch.zeros_like(query)
    for h, q in itertools.product(range(heads), range(len(query))):
        part = slice(h * width, (h + 1) * width)
        weight = torch.stack([query[q, part] @ key[part] for key in keys]) / math.sqrt(width)
        weight = weight.softmax(0)
        out[q, part] = sum(w * value[part] for w, value in zip(weight, values, strict=True))
    return out


# Counting parts of a mask


def components(mask: Tensor) -> int:
    """Connected parts of a mask, 4-neighborhood, by flooding."""
    left = {(int(i), int(j)) for i, j in mask.nonzero()}
    parts = 0
    while left:
        parts += 1
        front = [left.pop()]
        while front:
            i, j = front.pop()
            for near in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                if near in left:
                    left.remove(near)
                    front.append(near)
    return parts
