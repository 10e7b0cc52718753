"""Comparisons: a matrix of runs that can be stopped at any time, and what may be concluded from it."""

from .matrix import RunMatrix as RunMatrix
from .matrix import Training as Training
from .matrix import list_matrices as list_matrices
from .matrix import read_matrix as read_matrix
from .rows import compare as compare
from .runner import run_trainings as run_trainings
