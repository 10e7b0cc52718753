"""What methods do to two images: mask, mixed image, attention and target, side by side."""

from .figure import render_methods as render_methods
from .methods import MethodResult as MethodResult
from .methods import PairResults as PairResults
from .methods import run_methods as run_methods
