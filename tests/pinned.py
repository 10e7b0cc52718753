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


def write(name: str, content: dict[str, Any], *, depth: int = 1) -> None:
    """One line for each entry, of mappings within mappings up to a depth, so that a diff shows which ones changed."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_text(_text(content, depth) + "\n", encoding="utf-8")


def _text(content: Any, depth: int) -> str:
    if depth == 0 or not isinstance(content, dict) or not content:
        return json.dumps(content, ensure_ascii=False)
    lines = [f"{json.dumps(key, ensure_ascii=False)}: {_text(value, depth - 1)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def check_sentence(said: str, stored: str, keywords: Sequence[str] = ()) -> None:
    """Wording may improve. The sentence must stay about the same thing: similar, or with all of the keywords."""
    if keywords and has_words(said, keywords):
        return
    ratio = difflib.SequenceMatcher(None, said, stored, autojunk=False).ratio()
    assert ratio >= 0.5, f"said:   {said}\nstored: {stored}"


def has_words(text: str, words: Sequence[str]) -> bool:
    return all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in words)
