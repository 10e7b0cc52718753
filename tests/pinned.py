"""Values of an earlier version in `tests/behaviour`, and how today's are held against them."""

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "behaviour"


def read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def write(name: str, content: dict[str, Any]) -> None:
    """One line for each entry, so that a change of one of them is one line of a diff."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def check_sentence(said: str, stored: str, keywords: Sequence[str] = ()) -> None:
    """Wording may improve. The sentence must stay about the same thing: similar, or with all of the keywords."""
    if keywords and all(_has_word(said, word) for word in keywords):
        return
    ratio = difflib.SequenceMatcher(None, said, stored, autojunk=False).ratio()
    assert ratio >= 0.5, f"said:   {said}\nstored: {stored}"


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None
