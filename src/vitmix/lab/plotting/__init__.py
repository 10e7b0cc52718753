"""The common look of all figures: colors, fonts, images in rows and columns with captions, and charts."""

from .grid import Curve as Curve
from .grid import ImageGrid as ImageGrid
from .grid import Section as Section
from .grid import Tile as Tile
from .grid import TileRow as TileRow
from .render import render_grid as render_grid
