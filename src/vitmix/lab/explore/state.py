"""What the page shows, as a query string: a link restores it. Values from a link are untrusted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from .photos import UPLOADED, photo_names

MOST_SEED = 2**31 - 1
MOST_BLOCK = 999


@dataclass(frozen=True)
class State:
    """The method as text, the two images by name, the model by name, the seed, and the block of the depth slider."""

    method: str = "tl_align"
    first: str = ""
    second: str = ""
    model: str = ""
    seed: int = 0
    block: int = 1

    def query(self) -> str:
        """Without uploaded images, which stay on this machine, and without defaults."""
        given = {
            "method": self.method,
            "first": "" if self.first == UPLOADED else self.first,
            "second": "" if self.second == UPLOADED else self.second,
            "model": self.model,
            "seed": str(self.seed) if self.seed else "",
            "block": str(self.block) if self.block > 1 else "",
        }
        return urlencode({key: value for key, value in given.items() if value})


def usual_state(model: str) -> State:
    """The state without a link: two photographs, if there are any."""
    first, second = photo_names()[:2]
    return State(first=first, second=second, model=model)


def read_query(query: Mapping[str, str], usual: State) -> State:
    """The state in a link; missing and invalid values get their defaults."""
    names = photo_names()
    return replace(
        usual,
        method=query.get("method", "")[:4000].strip() or usual.method,
        first=query["first"] if query.get("first") in names else usual.first,
        second=query["second"] if query.get("second") in names else usual.second,
        model=query.get("model", "")[:200] or usual.model,
        seed=_whole(query.get("seed", ""), usual.seed, MOST_SEED),
        block=_whole(query.get("block", ""), usual.block, MOST_BLOCK),
    )


def _whole(text: str, usual: int, most: int) -> int:
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 12 else usual
