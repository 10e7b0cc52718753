"""Widgets for settings, and how menus, controls and the text box change the text of the method."""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false
from typing import Any

import gradio as gr

from .controls import Control
from .draw import note_html
from .messages import sentence_of
from .recipe import COMPOSED, Recipe, recipe_of

SLOTS = ("base", "mask", "share", "extra", "inner", "pairing")


def parsed(text: str) -> Recipe | None:
    try:
        return recipe_of(text)
    except ValueError:
        return None


def structure_of(text: str) -> str:
    """Determines which controls exist; they are rebuilt when it changes."""
    recipe = parsed(text)
    return "" if recipe is None else repr([getattr(recipe, slot) for slot in SLOTS])


def menus_of(text: str) -> list[Any]:
    recipe = parsed(text)
    if recipe is None:
        return [gr.skip()] * len(SLOTS)
    composed = recipe.base == COMPOSED
    return [
        gr.Dropdown(value=recipe.base),
        gr.Dropdown(value=recipe.mask, visible=composed),
        gr.Dropdown(value=recipe.share, visible=composed),
        gr.CheckboxGroup(value=list(recipe.extra)),
        gr.CheckboxGroup(value=list(recipe.inner)),
        gr.Dropdown(value=recipe.pairing),
    ]


def choose(text: str, *chosen: Any) -> list[Any]:
    """The text after a menu changed; settings are kept if the new choice has them too."""
    before = parsed(text)
    fields: dict[str, Any] = dict(
        zip(SLOTS, (tuple(each) if isinstance(each, list) else each for each in chosen), strict=True)
    )
    if fields["base"] == COMPOSED and (before is None or before.base != COMPOSED) and fields["mask"] == "none":
        fields["mask"] = "box"  # so that the first composition mixes something
    recipe = Recipe(**fields)
    if before is not None:
        kept = {key for key, _, _ in recipe.controls()}
        same = before.base == recipe.base
        values = {key: value for key, value in before.values.items() if key in kept}
        values = {key: value for key, value in values.items() if same or not key.startswith("base.")}
        recipe = Recipe(**fields, values=_of_same_parts(before, recipe, values))
    written, composed = recipe.text(), recipe.base == COMPOSED
    mask, share = gr.Dropdown(value=recipe.mask, visible=composed), gr.Dropdown(visible=composed)
    return [written, written, structure_of(written), mask, share, ""]


def _of_same_parts(before: Recipe, after: Recipe, values: dict[str, Any]) -> dict[str, Any]:
    """The settings of parts that both have: another mask's `alpha` is another setting."""
    differ = {slot for slot in ("mask", "share", "pairing") if getattr(before, slot) != getattr(after, slot)}
    return {key: value for key, value in values.items() if key.partition(".")[0] not in differ}


def type_text(text: str, typed: str) -> list[Any]:
    """The state after the user typed a method."""
    if typed.strip() == text:
        return [gr.skip()] * (3 + len(SLOTS))
    try:
        recipe_of(typed)
    except ValueError as problem:
        return [gr.skip()] * (2 + len(SLOTS)) + [note_html(sentence_of(problem), problem=True)]
    return [typed.strip(), structure_of(typed), *menus_of(typed), ""]


def set_value(key: str, text: str, value: Any) -> list[Any]:
    """The text after a control changed."""
    recipe = parsed(text)
    try:
        assert recipe is not None
        control = next(each for name, _, each in recipe.controls() if name == key)
        written = Recipe(**{**vars(recipe), "values": {**recipe.values, key: control.read(value)}}).text()
    except ValueError as problem:
        return [gr.skip(), gr.skip(), note_html(sentence_of(problem), problem=True)]
    return [written, written, ""]


def widget_of(key: str, control: Control, value: Any) -> Any:
    """The widget of a setting."""
    name = f"vx-{key}".replace(".", "-")
    settings = {"label": control.name, "info": control.help or None, "elem_id": name, "interactive": True}
    value = control.to_widget(value)
    if control.kind == "fraction":
        return gr.Slider(0, 1, value=value, step=0.01, **settings)
    if control.kind in ("number", "whole"):
        precision = 0 if control.kind == "whole" else None
        return gr.Number(value, precision=precision, step=1 if control.kind == "whole" else 0.1, **settings)
    if control.kind == "switch":
        return gr.Checkbox(value, **settings)
    if control.kind == "choice":
        return gr.Dropdown(list(control.choices), value=value, filterable=False, **settings)
    return gr.Textbox(value, max_lines=1, **settings)
