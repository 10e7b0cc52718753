"""The section of a report that shows mixed images with their targets."""

from collections.abc import Callable, Sequence
from html import escape

from .examples import Example, data_uri, draw_examples
from .html import note
from .runs import Group

MOST_GROUPS = 6
Pictures = list[tuple[Group, list[Example] | str]]  # the examples of a group, or why there are none


def draw_pictures(groups: Sequence[Group], count: int, say: Callable[[str], None]) -> Pictures:
    """Of each group's first run, the examples, or why there are none."""
    found: Pictures = []
    for group in groups[: MOST_GROUPS if count else 0]:
        say(f"Drawing examples of {group.name}")
        try:
            found.append((group, draw_examples(group.runs[0], count=count)))
        except (ValueError, OSError, RuntimeError) as error:
            found.append((group, f"No examples of {group.name} could be drawn: {' '.join(str(error).split())}"))
    return found


def pictures_section(pictures: Pictures) -> str:
    if not pictures:
        return ""
    parts = [
        '<p class="soft">Training images drawn anew from the configuration, the data and the seed, with the best '
        "weights: the mixed image with its target, and below it the two images it was made of.</p>"
    ]
    for group, found in pictures:
        if isinstance(found, str):
            parts.append(note(found))
            continue
        for method in dict.fromkeys(example.method for example in found):
            tiles = "".join(_tile(example) for example in found if example.method == method)
            title = f'<h3 class="key g{group.number % 8}"><span><code>{escape(method)}</code></span></h3>'
            parts.append(f'<figure>{title}<div class="tiles">{tiles}</div></figure>')
    return "".join(parts)


def _tile(example: Example) -> str:
    small = " pixels" if example.mixed.startswith(b"\x89PNG") else ""
    words = "".join(f"<div><span>{escape(name)}</span><b>{100 * part:.0f} %</b></div>" for name, part in example.target)
    bar = "".join(
        f'<i{" class=rest" * (name == "rest")} style="width:{100 * part:.2f}%"></i>' for name, part in example.target
    )
    sources = [example.own] if example.partner is None else [example.own, example.partner]
    below = "".join(f'<img src="{data_uri(each)}" alt="source image">' for each in sources)
    return (
        f'<figure class="tile{small}"><div class="picture"><img src="{data_uri(example.mixed)}" alt="mixed image">'
        f'<div class="target">{words}</div></div><div class="parts">{bar}</div>'
        f'<div class="sources">{below}</div></figure>'
    )
