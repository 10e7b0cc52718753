"""Fonts for names in any script: where matplotlib's own has no sign for a letter, an installed one that is known to."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
from matplotlib.font_manager import FontProperties, findfont, get_font, get_font_names

USUAL = "DejaVu Sans"  # comes with matplotlib
OTHERS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans SC", "WenQuanYi Zen Hei",
    "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic",
    "Noto Sans", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai",
    "Arial Unicode MS", "Nirmala UI", "Unifont",
)  # fmt: skip


def families() -> list[str]:
    """Fonts to look for a letter in, in this order; only installed ones, since matplotlib complains of others."""
    installed = set(get_font_names())
    return [USUAL, *(name for name in OTHERS if name in installed)]


@contextmanager
def any_script() -> Iterator[None]:
    """Texts made and drawn inside use all these fonts; what none of them has is `unknown_letters`' to say, once."""
    with matplotlib.rc_context({"font.family": families()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def unknown_letters(words: str) -> str:
    """The letters, each once, that would be drawn as boxes."""
    left = {letter: None for letter in words if not letter.isspace()}
    for family in families():
        known = get_font(findfont(FontProperties(family=family))).get_charmap()
        left = {letter: None for letter in left if ord(letter) not in known}
    return "".join(left)


def remarks_on(names: list[str]) -> list[str]:
    """A sentence where a figure cannot show these names."""
    letters = unknown_letters("".join(names))
    if not letters:
        return []
    return [f"No installed font has the letters {letters}; they are boxes until one is, such as Noto Sans CJK."]
