"""Pictures of what the methods do: originals, mask, mixed image, attention statistic and target, side by side."""

from .figure import draw_figure as draw_figure
from .pictures import Picture as Picture
from .pictures import read_picture as read_picture
from .scene import Scene as Scene
from .scene import View as View
from .scene import observe as observe
