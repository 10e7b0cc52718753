"""Comparisons: a matrix of trainings, run so that it can be stopped anywhere, and what may be concluded from it."""

from .matrix import Cell as Cell
from .matrix import Matrix as Matrix
from .matrix import list_matrices as list_matrices
from .matrix import read_matrix as read_matrix
from .results import compare_cells as compare_cells
from .runner import run_cells as run_cells
from .statistics import Paired as Paired
from .statistics import paired_difference as paired_difference
