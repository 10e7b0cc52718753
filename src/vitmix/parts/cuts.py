"""Exact minimum cuts: the labels of a grid with the smallest energy, for pair costs that are squared differences."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

__all__ = ["batch_labels", "grid_energy", "grid_labels"]

Floats = NDArray[np.float64]
LARGEST = 2**30  # SciPy's flows are 32-bit integers and overflow silently
CELLS = 1024  # of the grids that are cut at once
PRECISION = 1e-14  # of the total cost, at which capacities count as used up


def grid_energy(labels: NDArray[np.int64], unary: Floats, down: Floats, right: Floats) -> float:
    """The energy of labels `(rows, columns)`, in float64.

    Args:
        unary: `(rows, columns, L)` cost of each label in each cell.
        down: `(rows - 1, columns)` weights of `((i - j) / (L - 1)) ** 2` between a cell and the one below.
        right: `(rows, columns - 1)` the same for the cell to the right.
    """
    fraction = labels / (unary.shape[2] - 1)
    alone = np.take_along_axis(unary, labels[..., None], 2).sum()
    pairs = (down * np.diff(fraction, axis=0) ** 2).sum() + (right * np.diff(fraction, axis=1) ** 2).sum()
    return float(alone + pairs)


def grid_labels(unary: Floats, down: Floats, right: Floats) -> NDArray[np.int64]:
    """Labels `(rows, columns)` with the smallest `grid_energy`; weights must not be negative."""
    return batch_labels(unary[None], down[None], right[None])[0]


def batch_labels(unary: Floats, down: Floats, right: Floats) -> NDArray[np.int64]:
    """The same for a batch, `(B, rows, columns)`, several grids in one graph: a call takes longer than a small cut."""
    at_once = max(1, CELLS // (unary.shape[1] * unary.shape[2]))
    parts = [slice(start, start + at_once) for start in range(0, len(unary), at_once)]
    return np.concatenate([_labels(unary[part], down[part], right[part]) for part in parts])


def _labels(unary: Floats, down: Floats, right: Floats) -> NDArray[np.int64]:
    """Labels `(B, rows, columns)` by one cut.

    Label i is written as L - 1 binary variables, "label > k" for each k, so squared differences are pairs of variables
    and the minimum is one cut of a graph with L - 1 layers.
    """
    count = unary.shape[3]
    layers, cells = count - 1, unary[..., 0].size
    first, second, weight = _neighbors(unary.shape[:3], down, right)
    # (i - j)^2 = sum over layers of (a_k - b_l)^2 + i^2 + j^2 - layers * (i + j)
    load = np.bincount(first, weight, cells) + np.bincount(second, weight, cells)
    label = np.arange(count)
    cost = unary.reshape(cells, count) + load[:, None] * (label**2 - layers * label) / layers**2
    step = np.diff(cost, axis=1)  # (cells, layers): what "label > k" adds
    above = _cut(step, first, second, weight / layers**2)
    return above.sum(1).reshape(unary.shape[:3])


def _neighbors(
    shape: tuple[int, ...], down: Floats, right: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    cell = np.arange(np.prod(shape)).reshape(shape)
    first = np.concatenate([cell[:, :-1].ravel(), cell[:, :, :-1].ravel()])
    second = np.concatenate([cell[:, 1:].ravel(), cell[:, :, 1:].ravel()])
    return first, second, np.concatenate([down.ravel(), right.ravel()])


def _cut(step: Floats, first: NDArray[np.int64], second: NDArray[np.int64], weight: Floats) -> NDArray[np.bool_]:
    """Which variables `(cells, layers)` are one in a cut of minimum cost."""
    cells, layers = step.shape
    node = np.arange(cells * layers).reshape(cells, layers)
    source, sink = cells * layers, cells * layers + 1
    flat = step.ravel()
    up, lower = np.meshgrid(np.arange(layers), np.arange(layers), indexing="ij")
    one, two = node[first][:, up.ravel()].ravel(), node[second][:, lower.ravel()].ravel()
    pairs = np.repeat(weight, layers * layers)
    costly, cheap = np.flatnonzero(flat > 0), np.flatnonzero(flat < 0)
    endless = np.abs(flat).sum() + 1  # "label > k + 1" without "label > k"
    starts = [one, two, np.full(len(costly), source), cheap, node[:, :-1].ravel()]
    ends = [two, one, costly, np.full(len(cheap), sink), node[:, 1:].ravel()]
    capacity = [pairs, pairs, flat[costly], -flat[cheap], np.full(cells * (layers - 1), endless)]
    size = sink + 1
    graph = coo_array((np.concatenate(capacity), (np.concatenate(starts), np.concatenate(ends))), (size, size)).tocsr()
    reached = _source_side(graph, source, sink)
    return ~reached[:source].reshape(cells, layers)


def _source_side(capacity: csr_array, source: int, sink: int) -> NDArray[np.bool_]:
    """The nodes on the source's side of a minimum cut of float64 capacities.

    Integer flows are computed on scaled and rounded capacities, then on what is left of them at a finer scale. `most`
    bounds what can still flow: the flow of rounded capacities misses less than one unit per edge.
    """
    residual = capacity
    most = total = float(min(capacity.sum(axis=1)[source], capacity.sum(axis=0)[sink]))
    while most > total * PRECISION:
        scale = 2.0 ** np.floor(np.log2(LARGEST / most))  # a power of two, so that scaling rounds nothing
        scaled = np.minimum(residual.data, most) * scale
        whole = csr_array((np.floor(scaled).astype(np.int32), residual.indices, residual.indptr), residual.shape)
        flow = maximum_flow(whole, source, sink).flow
        residual = csr_array(residual - flow / scale)
        residual.data[residual.data < 0] = 0
        most = len(scaled) / scale if (scaled != whole.data).any() else 0.0
    residual.data[residual.data <= most] = 0  # saturated, up to rounding
    residual.eliminate_zeros()
    reached = np.zeros(sink + 1, dtype=bool)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    return reached
