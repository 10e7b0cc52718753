"""Methods as text: one spelling for what differs in blanks alone, and whether two texts mean the same."""

import re


def spelled(method: str) -> str:
    """The text with blanks as the documentation has them: `"mixup|smmix"` as `"mixup | smmix"`."""
    text = re.sub(r"\s*([()\[\],=*|])\s*", r"\1", method.strip()).replace("|", " | ").replace(",", ", ")
    # A '+' before a name adds something; one before a digit belongs to the number.
    return re.sub(r"\s*\+\s*(?=[A-Za-z_])", " + ", text)


def same_method(first: str, second: str, *, smoothing: float) -> bool:
    """Whether the texts make the same mixer, as `mixup` and `mixup(alpha=0.8)` do; `smoothing` where they give none."""
    from vitmix.spec import create  # which brings torch along

    if first == second:
        return True
    try:
        one, two = (create(text, 2, defaults={"smoothing": smoothing}) for text in (first, second))
    except ValueError:  # of a version that knew other methods
        return False
    return one == two
