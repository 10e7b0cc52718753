"""The sections of a report with pictures: mixed images with their targets, and where the models look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from vitmix.lab.evaluation.subject import Subject, open_subject

from .examples import Example, Role, data_uri, draw_examples
from .gallery import draw_gallery
from .html import note
from .runs import Group
from .svg import look

MOST_GROUPS = 6
SOURCES: dict[Role, str] = {"own": "own image", "partner": "partner", "taken": "image whose tokens were taken"}


@dataclass(frozen=True)
class Drawn:
    """The examples and the gallery (HTML) of a group, or a sentence each: why there are none."""

    group: Group
    examples: list[Example] | str
    gallery: str


Pictures = list[Drawn]


def draw_pictures(groups: Sequence[Group], count: int, say: Callable[[str], None]) -> Pictures:
    """Of each group's first run, what can be drawn; its model is loaded once."""
    found: Pictures = []
    for group in groups[: MOST_GROUPS if count else 0]:
        say(f"Drawing pictures of {group.name}")
        try:
            subject = open_subject(group.runs[0].folder)
        except (ValueError, OSError, RuntimeError) as error:
            found.append(Drawn(group, f"No pictures of {group.name} could be drawn: {_words(error)}", ""))
            continue
        found.append(Drawn(group, _examples(group, subject, count), draw_gallery(subject)))
    return found


def _examples(group: Group, subject: Subject, count: int) -> list[Example] | str:
    try:
        return draw_examples(subject, count=count)
    except (ValueError, OSError, RuntimeError) as error:
        return f"No examples of {group.name} could be drawn: {_words(error)}"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())


def gallery_section(pictures: Pictures) -> str:
    parts = [
        f'<h3 class="key {look(drawn.group.number)}"><span>{escape(drawn.group.name)}</span></h3>{drawn.gallery}'
        for drawn in pictures
        if drawn.gallery
    ]
    said = (
        "The same held-out images through the best weights of each configuration: attention block by block, and after "
        "TL-Align's mixing, whose each token is: orange the partner's, blue the own, with the partner's part below."
    )
    return f'<p class="soft">{said}</p>{"".join(parts)}' if parts else ""


def pictures_section(pictures: Pictures) -> str:
    if not pictures:
        return ""
    parts = [
        '<p class="soft">Training images drawn anew from the configuration, the data and the seed, with the best '
        "weights: the mixed image, its target, and below it the images it was made of: "
        '<span class="own">own</span>, <span class="partner">partner</span>'
        f"{_about_htm(pictures)}.</p>"
    ]
    for group, found in ((drawn.group, drawn.examples) for drawn in pictures):
        if isinstance(found, str):
            parts.append(note(found))
            continue
        for method in dict.fromkeys(example.method for example in found):
            tiles = "".join(tile(example) for example in found if example.method == method)
            title = f'<h3 class="key {look(group.number)}"><span><code>{escape(method)}</code></span></h3>'
            parts.append(f'<figure>{title}<div class="tiles">{tiles}</div></figure>')
    return "".join(parts)


def _about_htm(pictures: Pictures) -> str:
    examples = [each for drawn in pictures if not isinstance(drawn.examples, str) for each in drawn.examples]
    if not any("taken" in example.sources for example in examples):
        return ""
    return (
        ', <span class="taken">the one whose tokens HTM took</span>. Tokens are drawn as if they were pixels, and as '
        "HTM's score net is not kept with the weights, every image counts as easy"
    )


def tile(example: Example) -> str:
    """A mixed image with its target and sources."""
    small = " pixels" if example.mixed.startswith(b"\x89PNG") else ""
    bar = "".join(f'<i class="{part.role}" style="width:{100 * part.share:.2f}%"></i>' for part in example.target)
    words = "".join(
        f'<div><span class="{part.role}">{escape(part.name)}</span><b>{100 * part.share:.0f} %</b></div>'
        for part in example.target
    )
    below = "".join(
        f'<img class="{role}" src="{data_uri(picture)}" alt="{SOURCES[role]}" title="{SOURCES[role]}">'
        for role, picture in example.sources.items()
    )
    return (
        f'<figure class="tile{small}"><img src="{data_uri(example.mixed)}" alt="mixed image">'
        f'<div class="parts">{bar}</div><div class="target">{words}</div><div class="sources">{below}</div></figure>'
    )
