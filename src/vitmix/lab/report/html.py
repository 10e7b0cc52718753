"""HTML by the macros of `templates/blocks.html.j2`, as `html.note("text")`. They escape texts and no other HTML."""

from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

COLORS, DASHES = 8, 4  # in style.css
Html = str
"""Safe HTML from a macro, a text that macros escape, or a `Cell`."""


def look(number: int) -> str:
    """The style classes of a group: a color, and dashes once all colors are taken."""
    dashes = number // COLORS % DASHES
    return f"g{number % COLORS}" + (f" d{dashes}" if dashes else "")


def environment(package: str) -> Environment:
    """The templates of a package, without their line breaks and indentation."""

    def load(name: str) -> str:
        text = (files(package) / "templates" / name).read_text(encoding="utf-8")
        return "".join(line.strip() for line in text.splitlines())

    return Environment(autoescape=True, loader=FunctionLoader(load), undefined=StrictUndefined)


templates = environment("vitmix.lab.report")
templates.filters |= {"repr": repr, "look": look}
html: Any = templates.get_template("blocks.html.j2").module


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
