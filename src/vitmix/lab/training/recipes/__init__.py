"""Recipes: the papers' settings as YAML files. Each opens with its paper, the accuracy to expect and the cost.

A recipe holds settings of `TrainConfig`; `base:` names another recipe whose settings it starts from.
"""

import difflib
from importlib.resources import files
from typing import Any

import yaml

_FOLDER = files("vitmix.lab.training") / "recipes"


def list_recipes() -> list[str]:
    """The names of the recipes."""
    return sorted(each.name.removesuffix(".yaml") for each in _FOLDER.iterdir() if each.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The file of a recipe."""
    if name not in list_recipes():
        close = difflib.get_close_matches(name, list_recipes(), n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown recipe {name!r}; {hint}'vitmix recipes' lists them all")
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def recipe_header(name: str) -> list[str]:
    """The comment lines that a recipe opens with."""
    lines = []
    for line in recipe_text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return lines


def load_recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe over those of its bases; `model_args` of another model are left behind."""
    settings = yaml.safe_load(recipe_text(name)) or {}
    base = settings.pop("base", None)
    if base is None:
        return settings
    inherited = load_recipe(base)
    if settings.get("model", inherited.get("model")) != inherited.get("model"):
        inherited.pop("model_args", None)
    arguments = inherited.get("model_args", {}) | settings.get("model_args", {})
    return inherited | settings | ({"model_args": arguments} if arguments else {})
