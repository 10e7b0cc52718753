"""HTML by the macros of `templates/blocks.html.j2`, as `html.note("text")`. They escape texts and no other HTML."""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

COLORS, DASHES = 8, 4  # in style.css
_FOLDER = files("vitmix.lab.report") / "templates"
Html = str
"""Safe HTML from a macro, a text that macros escape, or a `Cell`."""


def look(number: int) -> str:
    """The style classes of a group: a color, and dashes once all colors are taken."""
    dashes = number // COLORS % DASHES
    return f"g{number % COLORS}" + (f" d{dashes}" if dashes else "")


def _load(name: str) -> str:
    """A template without its line breaks and indentation."""
    return "".join(line.strip() for line in (_FOLDER / name).read_text(encoding="utf-8").splitlines())


@cache
def templates() -> Environment:
    found = Environment(autoescape=True, loader=FunctionLoader(_load), undefined=StrictUndefined)
    found.filters |= {"repr": repr, "look": look}
    return found


html: Any = templates().get_template("blocks.html.j2").module


class Cell(str):
    """A text for READMEs and terminals, with its own HTML."""

    markup: str

    def __new__(cls, text: str, markup: str) -> "Cell":
        found = super().__new__(cls, text)
        found.markup = markup
        return found

    def __html__(self) -> str:
        return self.markup


def joined(*pieces: Html) -> Cell:
    return Cell("".join(pieces), Markup("").join(pieces))


NONE = Cell("-", html.span("soft", "–"))
