"""Recipes: the papers' settings, as variants of families. A family is one YAML file:

base: deit                       # a recipe to start from; it and all else that stands here holds for every variant
crop_pct: 1.0                    # settings of `TrainConfig`
note: DeiT's stochastic depth.   # about, expected, cost and note are what a recipe says about itself
fitted: [batch, epochs]          # settings that follow from the number of images unless they are given, see `fitted.py`
variants:
  cait_xxs24: {about: CaiT-XXS-24 on ImageNet-1k. Touvron et al., model: cait_xxs24_224}

Recipes of `vitmix transfer` name their task; they are in `lab/dense/recipes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from vitmix.lab.settings import SettingValues, unknown

_FOLDERS = tuple(files(package) / "recipes" for package in ("vitmix.lab.training", "vitmix.lab.dense"))
MEASURES = {"segment": "mIoU", "detect": "AP"}


@dataclass(frozen=True)
class Recipe:
    """Settings of `TrainConfig` or `TransferConfig`, with the paper, the score to expect and the cost."""

    about: str
    expected: str
    cost: str
    note: str
    settings: SettingValues
    fitted: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that takes it."""
        return "transfer" if "task" in self.settings else "train"


@cache
def _variants() -> dict[str, SettingValues]:
    """The entries of each recipe, without its base, by name."""
    found: dict[str, SettingValues] = {}
    for file in (file for folder in _FOLDERS for file in folder.iterdir()):
        if file.name.endswith(".yaml"):
            family = yaml.safe_load(file.read_text(encoding="utf-8"))
            variants = family.pop("variants")
            found |= {name: family | variant for name, variant in variants.items()}
    return found


def list_recipes(command: str = "train") -> list[str]:
    """The names of a command's recipes."""
    return sorted(name for name in _variants() if read_recipe(name).command == command)


@cache
def read_recipe(name: str) -> Recipe:
    """A recipe with its bases, including their accuracy and cost unless it has its own."""
    if name not in _variants():
        raise unknown(f"recipe {name!r}", name, _variants(), "vitmix recipes")
    settings = dict(_variants()[name])
    base = read_recipe(settings.pop("base")) if "base" in settings else Recipe("", "", "", "", {})
    return Recipe(
        about=settings.pop("about"),
        expected=settings.pop("expected", base.expected),
        cost=settings.pop("cost", base.cost),
        note=settings.pop("note", ""),
        fitted=tuple(settings.pop("fitted", base.fitted)),
        settings=laid_over(base.settings, settings),
    )


def recipe_for(command: str, name: str) -> Recipe:
    """A recipe, if it is one of this command."""
    recipe = read_recipe(name)
    if recipe.command != command:
        raise ValueError(f"recipe {name} is for 'vitmix {recipe.command}'; use that command, or another recipe")
    return recipe


def laid_over(base: SettingValues, settings: SettingValues) -> SettingValues:
    """Settings that override a base; `model_args` of another model are dropped."""
    inherited = dict(base)
    if settings.get("model", inherited.get("model")) != inherited.get("model"):
        inherited.pop("model_args", None)
    arguments = inherited.get("model_args", {}) | settings.get("model_args", {})
    return {**inherited, **settings} | ({"model_args": arguments} if arguments else {})


def recipe_header(name: str) -> list[str]:
    """The description of a recipe, the paper first."""
    recipe = read_recipe(name)
    measure = MEASURES.get(recipe.settings.get("task", ""), "top-1")
    lines = [recipe.about, f"Expected {measure}: {recipe.expected}", f"Cost: {recipe.cost}", recipe.note]
    if recipe.fitted:
        lines.append(f"Fitted to the number of images, unless given: {', '.join(recipe.fitted)}.")
    return [line for each in lines for line in each.splitlines()]


def recipe_text(name: str) -> str:
    """A recipe as a YAML file of all its settings, which `--config` takes too."""
    lines = [f"# {line}" for line in recipe_header(name)]
    for setting, value in read_recipe(name).settings.items():
        text = yaml.safe_dump(value, default_flow_style=True, width=1000).splitlines()[0]
        lines.append(f"{setting}: {text}")
    return "\n".join(lines) + "\n"
