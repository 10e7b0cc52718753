"""The labels of a grid with the smallest energy, for any distance between labels: dynamic programming."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["labeling", "labeling_energy"]

Floats = NDArray[np.float64]
MOST = 2**20  # labelings of a frontier that are compared; more would take seconds
CLOSE = 1e-12  # a label must be better by more than rounding to rule another one out


def labeling_energy(labels: NDArray[np.int64], unary: Floats, distance: Floats, edge: float) -> float:
    """The energy of labels `(rows, columns)`: `unary` `(rows, columns, L)`, plus `edge` times `distance` `(L, L)`.

    The distance is that of the labels of neighboring cells.
    """
    alone = np.take_along_axis(unary, labels[..., None], 2).sum()
    pairs = distance[labels[1:], labels[:-1]].sum() + distance[labels[:, 1:], labels[:, :-1]].sum()
    return float(alone + edge * pairs)


def labeling(unary: Floats, distance: Floats, edge: float) -> NDArray[np.int64]:
    """Labels `(rows, columns)` with the smallest `labeling_energy`; ties go to the first label.

    A label that another one of its cell beats, whatever the neighbors have, is ruled out first. What is left is solved
    exactly, unless more than `MOST` labelings of a row remain; then those of the largest cost are dropped.

    Args:
        distance: symmetric and at most 1, with a diagonal of zeros. It need not be a metric.
        edge: not negative.
    """
    shape = unary.shape[:2]
    if shape[1] > shape[0]:  # the frontier is as long as a row
        return labeling(unary.swapaxes(0, 1), distance, edge).T
    options = _at_most(_possible(unary, distance, edge), unary, shape[1])
    return _solve(options, unary, distance, edge)


def _possible(unary: Floats, distance: Floats, edge: float) -> list[NDArray[np.int64]]:
    """The labels of each cell that an optimum can have: dead-end elimination."""
    cost, (here, near) = unary.reshape(-1, unary.shape[2]), _neighbors(*unary.shape[:2])
    bound = cost.min(1) + edge * np.bincount(here, minlength=len(cost)) * distance.max()
    options = [np.flatnonzero(row) for row in cost <= bound[:, None] + CLOSE]
    while True:
        label = np.empty((len(options), max(map(len, options))), dtype=np.int64)
        for row, each in zip(label, options, strict=True):
            row[: len(each)], row[len(each) :] = each, each[0]  # a label twice changes nothing
        alone = np.take_along_axis(cost, label, 1)
        pair = distance[label[here][:, :, None], label[near][:, None, :]]
        more = alone[:, :, None] - alone[:, None, :]  # how much more the first label costs than the second, at least
        np.add.at(more, here, edge * (pair[:, :, None] - pair[:, None]).min(3))
        beaten = np.logical_or.reduce(more > CLOSE, axis=2)
        if not beaten.any():
            return options
        options = [np.unique(row[~lost]) for row, lost in zip(label, beaten, strict=True)]


def _neighbors(rows: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each cell and its neighbors, as pairs in both orders."""
    cell = np.arange(rows * columns).reshape(rows, columns)
    first = np.concatenate([cell[:-1].ravel(), cell[:, :-1].ravel()])
    second = np.concatenate([cell[1:].ravel(), cell[:, 1:].ravel()])
    return np.concatenate([first, second]), np.concatenate([second, first])


def _at_most(options: list[NDArray[np.int64]], unary: Floats, width: int) -> list[NDArray[np.int64]]:
    """The labels of each cell, with fewer where a frontier would have too many labelings."""
    flat = unary.reshape(-1, unary.shape[2])
    for last in range(len(options)):
        frontier = range(max(0, last - width), last + 1)
        while np.prod([float(len(options[cell])) for cell in frontier]) > MOST:
            cell = max(frontier, key=lambda each: len(options[each]))
            worst = options[cell][np.argmax(flat[cell][options[cell]])]
            options[cell] = options[cell][options[cell] != worst]
    return options


def _solve(options: list[NDArray[np.int64]], unary: Floats, distance: Floats, edge: float) -> NDArray[np.int64]:
    """The best labels, cell by cell; the state is the labels of the last row of cells."""
    width, flat = unary.shape[1], unary.reshape(-1, unary.shape[2])
    energy, choices = np.zeros(()), []  # one axis for each cell of the frontier, the oldest first
    for cell, here in enumerate(options):
        pair = flat[cell][here]
        if cell % width:
            pair = pair + edge * distance[np.ix_(options[cell - 1], here)]
        energy = energy[..., None] + pair  # broadcasts over the cells before the left one
        if cell >= width:
            above = edge * distance[np.ix_(options[cell - width], here)]
            energy = energy + above.reshape(len(above), *[1] * (energy.ndim - 2), len(here))
            choices.append(energy.argmin(0))
            energy = energy.min(0)
    best = list(np.unravel_index(int(energy.argmin()), energy.shape))
    for choice in reversed(choices):  # each names the label of the cell above the last one
        best.insert(0, choice[tuple(best[:width])])
    labels = [options[cell][int(index)] for cell, index in enumerate(best)]
    return np.array(labels, dtype=np.int64).reshape(unary.shape[:2])
