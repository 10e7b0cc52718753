"""Widgets for settings, and how menus, controls and the text box change the text of the method."""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false
from dataclasses import replace
from typing import Any

import gradio as gr

from vitmix.lab.settings import SettingValues

from .composition import COMPOSED, Composition, composition_of
from .controls import Control
from .markup import note_html
from .messages import sentence_of

SLOTS = ("base", "mask", "share", "extra", "inner", "pairing")


def parsed(text: str) -> Composition | None:
    try:
        return composition_of(text)
    except ValueError:
        return None


def structure_of(text: str) -> str:
    """Determines which controls exist; they are rebuilt when it changes, so it is never the empty text of the start."""
    composition = parsed(text)
    return "no menus" if composition is None else repr([getattr(composition, slot) for slot in SLOTS])


def menus_of(text: str) -> list[Any]:
    composition = parsed(text)
    if composition is None:
        return [gr.Dropdown(value=None)] + [gr.skip()] * (len(SLOTS) - 1)
    composed = composition.base == COMPOSED
    return [
        gr.Dropdown(value=composition.base),
        gr.Dropdown(value=composition.mask, visible=composed),
        gr.Dropdown(value=composition.share, visible=composed),
        gr.CheckboxGroup(value=list(composition.extra)),
        gr.CheckboxGroup(value=list(composition.inner)),
        gr.Dropdown(value=composition.pairing),
    ]


def choose(text: str, *chosen: Any) -> list[Any]:
    """The text after a menu changed; settings are kept if the new choice has them too."""
    if chosen[0] is None:  # the text has several methods
        return [gr.skip()] * 5 + [note_html("choose a method from the menu first, or edit the text", problem=True)]
    before = parsed(text)
    given: list[Any] = [tuple(each) if isinstance(each, list) else each for each in chosen]
    composition = Composition(*given)  # in the order of `SLOTS`
    if composition.base == COMPOSED and (before is None or before.base != COMPOSED) and composition.mask == "none":
        composition = replace(composition, mask="box")  # so that the first composition mixes something
    if before is not None:
        kept = {key for key, _, _ in composition.controls()}
        same = before.base == composition.base
        values = {key: value for key, value in before.values.items() if key in kept}
        values = {key: value for key, value in values.items() if same or not key.startswith("base.")}
        composition = replace(composition, values=_of_same_parts(before, composition, values))
    written, composed = composition.text(), composition.base == COMPOSED
    mask, share = gr.Dropdown(value=composition.mask, visible=composed), gr.Dropdown(visible=composed)
    return [written, written, structure_of(written), mask, share, ""]


def _of_same_parts(before: Composition, after: Composition, values: SettingValues) -> SettingValues:
    """The settings of parts that both have: another mask's `alpha` is another setting."""
    differ = {slot for slot in ("mask", "share", "pairing") if getattr(before, slot) != getattr(after, slot)}
    return {key: value for key, value in values.items() if key.partition(".")[0] not in differ}


def type_text(text: str, typed: str) -> list[Any]:
    """The state after the user typed a method."""
    if typed.strip() == text:
        return [gr.skip()] * (3 + len(SLOTS))
    try:
        composition_of(typed)
    except ValueError as problem:
        return [gr.skip()] * (2 + len(SLOTS)) + [note_html(sentence_of(problem), problem=True)]
    return [typed.strip(), structure_of(typed), *menus_of(typed), ""]


def set_value(key: str, text: str, value: Any) -> list[Any]:
    """The text after a control changed."""
    composition = parsed(text)
    try:
        assert composition is not None
        control = next(each for name, _, each in composition.controls() if name == key)
        written = replace(composition, values={**composition.values, key: control.read(value)}).text()
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
