"""Slow twins of the baselines: each formula once more, in plain loops. Nothing here imports the library."""

import cmath
import itertools
import math

import torch
from torch import Tensor


def low_frequency(normals: Tensor, size: tuple[int, int], decay: float) -> list[list[float]]:
    """FMix's gray image by the definition of the inverse transform, the half spectrum mirrored."""
    height, width = size
    half = width // 2 + 1
    spectrum = {}
    for u, v in itertools.product(range(height), range(half)):
        down = (u if u < (height + 1) // 2 else u - height) / height
        amplitude = max(math.hypot(down, v / width), 1 / max(size)) ** -decay
        spectrum[u, v] = amplitude * complex(*normals[u, v].tolist())
    image = [[0.0] * width for _ in range(height)]
    for y, x in itertools.product(range(height), range(width)):
        total = 0.0
        for v in range(half):
            column = sum(spectrum[u, v] * cmath.exp(2j * math.pi * u * y / height) for u in range(height))
            turned = column * cmath.exp(2j * math.pi * v * x / width)
            # A frequency and its mirror image add up to twice the real part; 0 and the highest even one have none.
            total += turned.real * (1 if v == 0 or 2 * v == width else 2)
        image[y][x] = total
    flat = [value for row in image for value in row]
    return [[(value - min(flat)) / (max(flat) - min(flat)) for value in row] for row in image]


def saliency(gray: list[list[int]]) -> list[list[int]]:
    """OpenCV's fine-grained saliency of gray levels, pixel by pixel."""
    height, width = len(gray), len(gray[0])

    def mirrored(position: int, side: int) -> int:
        return -position if position < 0 else 2 * (side - 1) - position if position >= side else position

    def blurred(image: list[list[int]]) -> list[list[int]]:
        weight = (1, 2, 1)
        out = [[0] * width for _ in range(height)]
        for y, x in itertools.product(range(height), range(width)):
            total = 0
            for dy, dx in itertools.product((-1, 0, 1), (-1, 0, 1)):
                total += weight[dy + 1] * weight[dx + 1] * image[mirrored(y + dy, height)][mirrored(x + dx, width)]
            out[y][x] = (total + 8) // 16
        return out

    image = blurred(blurred(gray))
    on, off = [[0] * width for _ in range(height)], [[0] * width for _ in range(height)]
    for reach in (12, 24, 48, 28, 56, 112):
        for y, x in itertools.product(range(height), range(width)):
            rows = range(max(y - reach + 1, 0), min(y + reach + 1, height))
            columns = range(max(x - reach + 1, 0), min(x + reach + 1, width))
            total = sum(image[j][i] for j in rows for i in columns) - image[y][x]
            contrast = image[y][x] - total / (len(rows) * len(columns) - 1)
            on[y][x] += int(max(contrast, 0))
            off[y][x] += int(max(-contrast, 0))

    def scaled(levels: list[list[int]]) -> list[list[int]]:
        top = max(max(row) for row in levels)
        return [[value * 255 // max(top, 1) for value in row] for row in levels]

    on, off = scaled(on), scaled(off)
    return scaled([[a + b for a, b in zip(first, second, strict=True)] for first, second in zip(on, off, strict=True)])


def decoupled(logits: Tensor, own: list[int], partner: list[int], share: list[float], scaled: bool) -> float:
    """DecoupleMix's regularizer from probabilities, as the paper writes it."""
    total = 0.0
    for row, a, b, part in zip(logits.softmax(1).tolist(), own, partner, share, strict=True):
        if a == b or part < 1e-3 or part > 1 - 1e-3:
            continue
        weights = (1 - part, part) if scaled else (1.0, 1.0)
        total -= weights[0] * math.log(row[a] / (1 - row[b])) + weights[1] * math.log(row[b] / (1 - row[a]))
    return total / len(own)


def objects(masks: Tensor, mask: Tensor, partner: list[int], relative: float, blend: float) -> list[float]:
    """OA-CutMix's share, pixel by pixel."""
    shares = []
    pixels = list(itertools.product(range(masks.shape[1]), range(masks.shape[2])))
    for number, other in enumerate(partner):
        inside = mask[number % len(mask)]
        own = sum(float(masks[number, y, x]) for y, x in pixels if not inside[y, x])
        theirs = sum(float(masks[other, y, x]) for y, x in pixels if inside[y, x])
        area = sum(bool(inside[y, x]) for y, x in pixels) / len(pixels)
        sizes = float(masks[number].sum()), float(masks[other].sum())
        absolute = theirs / (own + theirs) if own + theirs > 0 else area
        fraction = area
        if min(sizes) > 0 and own + theirs > 0:
            fraction = (theirs / sizes[1]) / (own / sizes[0] + theirs / sizes[1])
        shares.append(blend * ((1 - relative) * absolute + relative * fraction) + (1 - blend) * area)
    return shares


def top_cells(scores: Tensor, count: int) -> Tensor:
    """The cells with the highest scores, one after the other, the first of equal ones."""
    taken = torch.zeros(scores.shape, dtype=torch.bool)
    for _ in range(count):
        best = max(
            (float(scores[cell]), -number)
            for number, cell in enumerate(itertools.product(*map(range, scores.shape)))
            if not taken[cell]
        )
        cell = -best[1]
        taken[cell // scores.shape[1], cell % scores.shape[1]] = True
    return taken


def holes(
    size: tuple[int, int], share: float, count: int, area: float, aspect: float, place: tuple[float, float]
) -> Tensor:
    """GridMix's mask, hole by hole; the crop is cut to the image."""
    width = int(math.sqrt(int(size[0] * size[1] * area) / aspect))
    height = min(int(width * aspect), size[0])
    width = min(width, size[1])
    left, top = int((size[1] - width) * place[0]), int((size[0] - height) * place[1])
    patch = math.ceil(width / count)
    hole = min(max(int(patch * math.sqrt(share)), 1), max(patch - 1, 1))
    mask = torch.zeros(size, dtype=torch.bool)
    for y in range(top, top + height, patch):
        for x in range(left, left + width, patch):
            mask[y : min(y + hole, top + height), x : min(x + hole, left + width)] = True
    return mask


def resized(images: Tensor, partner: list[int], boxes: list[list[int]], scale: float) -> Tensor:
    """ResizeMix with nearest neighbors, pixel by pixel."""
    out = images.clone()
    step = float(torch.tensor(1 / scale, dtype=torch.float32))
    for number, (other, (top, bottom, left, right)) in enumerate(zip(partner, boxes, strict=True)):
        for y, x in itertools.product(range(bottom - top), range(right - left)):
            row, column = min(int(y * step), images.shape[2] - 1), min(int(x * step), images.shape[3] - 1)
            out[number, :, top + y, left + x] = images[other, :, row, column]
    return out


def token_labels(labels: Tensor, share: Tensor, partner: list[int], source: Tensor | None) -> Tensor:
    """The label of each mixed token, one token at a time."""
    out = torch.empty_like(labels)
    for number, token in itertools.product(range(labels.shape[0]), range(labels.shape[1])):
        cell = token if source is None else int(source[number, token])
        part = float(share[number % len(share), token])
        out[number, token] = (1 - part) * labels[number, token] + part * labels[partner[number], cell]
    return out


def least_energy(unary: list, down: list, right: list) -> float:
    """The smallest energy of a grid of labels, by trying all of them."""
    rows, columns, count = len(unary), len(unary[0]), len(unary[0][0])
    best = math.inf
    for flat in itertools.product(range(count), repeat=rows * columns):
        labels = [flat[row * columns : (row + 1) * columns] for row in range(rows)]
        total = 0.0
        for y, x in itertools.product(range(rows), range(columns)):
            total += unary[y][x][labels[y][x]]
            if y + 1 < rows:
                total += down[y][x] * ((labels[y][x] - labels[y + 1][x]) / (count - 1)) ** 2
            if x + 1 < columns:
                total += right[y][x] * ((labels[y][x] - labels[y][x + 1]) / (count - 1)) ** 2
        best = min(best, total)
    return best


def plan(saliency: list[list[float]], visible: list[list[bool]], cost: float) -> list[tuple[int, int]]:
    """Puzzle Mix's transport, bid by bid: the moves (from, to) that win in the last round."""
    side = len(saliency)
    cells = list(itertools.product(range(side), repeat=2))
    price = [
        [cost * ((y - j) ** 2 + (x - i) ** 2) / (side - 1) ** 2 - saliency[y][x] * visible[j][i] for j, i in cells]
        for y, x in cells
    ]
    winners: list[tuple[int, int]] = []
    for _ in range(side):
        bids = [row.index(min(row)) for row in price]
        winners = []
        for place in range(len(cells)):
            offers = [price[number][place] if bid == place else 0.0 for number, bid in enumerate(bids)]
            best = offers.index(min(offers))  # who does not bid counts as zero, so a positive price never wins
            for number, bid in enumerate(bids):
                if bid == place and number == best:
                    winners.append((number, place))
                elif bid == place:
                    price[number][place] += 1
    return winners


def joint_costs(
    saliency: Tensor,
    weight: list[float],
    peaks: list[tuple[int, int]],
    uses: list[list[float]],
    own: list[float],
    settings: dict[str, float],
) -> list[list[list[float]]]:
    """Co-Mixup's cost of each input in each block of one output, block by block.

    `peaks` are the most salient places of the inputs, `uses` the blocks of each input that the other outputs show,
    `own` the inputs that this output has to give up.
    """
    count, side = len(saliency), len(saliency[0])
    n = settings["blocks"]
    block, total = side // n, n * n
    far = [[abs(a[0] - b[0]) + abs(a[1] - b[1]) for b in peaks] for a in peaks]
    scale = count / sum(map(sum, far))
    alike = [
        [(1 - settings["omega"]) * (i == j) + settings["omega"] * far[i][j] * scale for j in range(count)]
        for i in range(count)
    ]
    costs = []
    for y in range(n):
        row = []
        for x in range(n):
            cell = []
            for i in range(count):
                part = saliency[i, y * block : (y + 1) * block, x * block : (x + 1) * block].sum() / saliency[i].sum()
                price = -float(part) - settings["eta"] / total * math.log(weight[i] + 1e-8)
                crowd = sum(alike[i][j] * sum(use[j] for use in uses) for j in range(count))
                if crowd > settings["threshold"] * total:
                    price += 2 * settings["gamma"] / total * crowd
                cell.append(price + settings["gamma"] / total * own[i])
            row.append(cell)
        costs.append(row)
    return costs


def least_labeling(unary: list, distance: list[list[float]], edge: float) -> float:
    """The smallest energy of a grid of labels with a distance between labels, by trying all of them."""
    rows, columns, count = len(unary), len(unary[0]), len(distance)
    best = math.inf
    for flat in itertools.product(range(count), repeat=rows * columns):
        labels = [flat[row * columns : (row + 1) * columns] for row in range(rows)]
        total = 0.0
        for y, x in itertools.product(range(rows), range(columns)):
            total += unary[y][x][labels[y][x]]
            if y + 1 < rows:
                total += edge * distance[labels[y][x]][labels[y + 1][x]]
            if x + 1 < columns:
                total += edge * distance[labels[y][x]][labels[y][x + 1]]
        best = min(best, total)
    return best


def guided(scores: Tensor, mask: Tensor, source: Tensor, partner: list[int], blend: float) -> list[float]:
    """TdAttenMix's share, cell by cell."""
    shares = []
    for number, other in enumerate(partner):
        cells = list(enumerate(mask[number].flatten().tolist()))
        own = sum(float(scores[number].flatten()[cell]) for cell, inside in cells if not inside)
        theirs = sum(float(scores[other].flatten()[source[number, cell]]) for cell, inside in cells if inside)
        area = sum(inside for _, inside in cells) / len(cells)
        attention = theirs / (own + theirs) if own + theirs > 0 else area
        shares.append(blend * attention + (1 - blend) * area)
    return shares


def placed_logits(values: Tensor, indices: Tensor, places: Tensor, grid: tuple[int, int], classes: int) -> Tensor:
    """One class, one cell, one sample at a time: bilinear samples of each class's own dense map, averaged by cell."""
    batch, top, rows, columns = values.shape
    found = torch.zeros(batch, classes, *grid, dtype=values.dtype)
    down, along = places.shape[2] // grid[0], places.shape[3] // grid[1]
    for image in range(batch):
        for own in range(classes):
            dense = torch.zeros(rows, columns, dtype=values.dtype)
            for k in range(top):
                dense += values[image, k] * (indices[image, k] == own)
            for row in range(places.shape[2]):
                for column in range(places.shape[3]):
                    y, x, inside = places[image, :, row, column].tolist()
                    y = min(max(y * rows - 0.5, 0), rows - 1)
                    x = min(max(x * columns - 0.5, 0), columns - 1)
                    total = 0.0
                    for r in range(rows):
                        for c in range(columns):
                            total += max(0, 1 - abs(y - r)) * max(0, 1 - abs(x - c)) * float(dense[r, c])
                    found[image, own, row // down, column // along] += inside * total / (down * along)
    return found


def merged_places(keys: Tensor, count: int, prefix: int) -> tuple[list[int], list[list[int]]]:
    """One image's patches: the new place of each, and the patches at each new place, one pair at a time."""
    patches = len(keys)
    even = [each for each in range(patches) if (each + prefix) % 2 == 0]
    odd = [each for each in range(patches) if (each + prefix) % 2 == 1]
    offers = []
    for one in even:
        cosines = [float(keys[one] @ keys[other] / keys[one].norm() / keys[other].norm()) for other in odd]
        offers.append((max(cosines), one, odd[cosines.index(max(cosines))]))
    taken = {one: other for _, one, other in sorted(offers, key=lambda each: -each[0])[:count]}
    groups = [[one] for one in even if one not in taken]
    groups += [[other, *(one for one, chosen in taken.items() if chosen == other)] for other in odd]
    return [next(n for n, group in enumerate(groups) if patch in group) for patch in range(patches)], groups
