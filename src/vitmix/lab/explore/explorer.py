"""What the page shows, as functions of its inputs, without Gradio."""

import base64
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from vitmix._registry import METHODS
from vitmix.lab.figures.images import NamedImage
from vitmix.lab.fitting import fitting_methods
from vitmix.lab.report.groups import group_runs
from vitmix.lab.report.page import render
from vitmix.lab.runs import Run
from vitmix.lab.show import PairResults, render_methods, run_methods

from .composition import COMPOSED, Composition, composition_of
from .markup import depth_html, framed_html, gallery_html, note_html, scene_html
from .messages import without_paths
from .models import Models, OpenedModel
from .photos import UPLOADED, credit, open_image
from .scene import Scene, Stage
from .state import State, read_query, usual_state


@dataclass(frozen=True)
class Answer:
    """What the page shows for a state.

    Attributes:
        scene, depth: HTML.
        about: what the method does, and what is known about model and images.
        code: trains with the method.
        query: restores the state, without its question mark.
    """

    scene: str
    depth: str
    about: str
    code: str
    query: str
    blocks: int
    result: Scene


class Explorer:
    """Computes what the page shows. Images are names or data URLs, models and runs are names: no input is a path."""

    def __init__(self, models: Models, runs: Mapping[str, Run] | None = None, *, state: State | None = None) -> None:
        self.models, self.runs, self.stage = models, dict(runs or {}), Stage()
        self.usual = state or usual_state(models.names[0])

    def restore(self, query: Mapping[str, str]) -> State:
        """The state in a link, with a method that parses and a known model."""
        state = read_query(query, self.usual)
        try:
            composition_of(state.method)
        except ValueError:
            state = replace(state, method=self.usual.method)
        return state

    def answer(self, state: State) -> Answer:
        """Data URLs are uploads, which the link leaves out."""
        opened = self.models[state.model]
        scene = self.stage.scene(opened.model, self._images(state, opened), state.method, state.seed)
        named = replace(state, first=_shown(state.first), second=_shown(state.second))
        return Answer(
            scene=scene_html(scene),
            depth=depth_html(scene, state.block),
            about=self.about(state, opened),
            code=code_of(state.method, opened),
            query=named.query(),
            blocks=len(scene.blocks),
            result=scene,
        )

    def about(self, state: State, opened: OpenedModel) -> str:
        """Markdown about the method, the model and its weights, and the sources of the images."""
        credits = dict.fromkeys(credit(_shown(each)) for each in (state.first, state.second))
        weights = opened.said if opened.model.trained else f"**{opened.said}**"
        return f"{method_text(state.method)}\n\nModel: {weights}.\n\nImages: {'; '.join(credits)}."

    def figure(self, state: State) -> str:
        """The figure of `vitmix show` as a data URL."""
        opened = self.models[state.model]
        pair = self.stage.run(self._results, opened, self._images(state, opened), [state.method], state.seed)
        said = opened.said if opened.model.trained else opened.said.upper()
        content = render_methods(pair, footer=f"{said}.")
        return f"data:image/png;base64,{base64.b64encode(content).decode()}"

    def gallery(self, state: State) -> str:
        """Every method that works with the model, on the pair."""
        opened = self.models[state.model]
        sides = opened.model.augmentation.sides
        methods, left_out = self.stage.run(fitting_methods, opened.model.model, sides)
        pair = self.stage.run(self._results, opened, self._images(state, opened), methods, state.seed)
        named = replace(state, first=_shown(state.first), second=_shown(state.second))
        links = [f"?{replace(named, method=result.title).query()}" for result in pair.results]
        return gallery_html(
            pair.results, links, [f"{name}, since {without_paths(why)}" for name, why in left_out.items()]
        )

    def compare(self, names: Sequence[str]) -> str:
        """The report of some runs, in a separate frame."""
        chosen = [self.runs[name] for name in names if name in self.runs]
        if not chosen:
            return note_html("Choose one or more runs.")
        page = _without_places(render(group_runs(chosen), examples=2), chosen)
        return framed_html("Report of the chosen runs", page)

    def _images(self, state: State, opened: OpenedModel) -> list[NamedImage]:
        side = max(opened.model.augmentation.sides)
        return [open_image(each, side) for each in (state.first, state.second)]

    @staticmethod
    def _results(opened: OpenedModel, images: Sequence[NamedImage], methods: Sequence[str], seed: int) -> PairResults:
        return run_methods(opened.model, images, methods, seed=seed)


def method_text(text: str) -> str:
    """What a method does, from its docstring; for a composition, what its parts do."""
    composition = composition_of(text)
    if composition is None:
        return "The seed draws one of these methods; training draws one for each batch."
    if composition.base != COMPOSED:
        lines = [_first_paragraph(METHODS[composition.base])]
    else:
        lines = ["A composition of parts."]
    lines += [f"*{title}*: {_first_paragraph(thing)}" for key, title, thing in _parts(composition) if key != "base"]
    return "\n\n".join(lines)


def code_of(text: str, opened: OpenedModel) -> str:
    """Lines that train with the method; `loader` is the reader's."""
    package = opened.code.partition("= ")[2].partition(".")[0]
    registers = type(opened.model.model).__module__.startswith("vitmix.models")  # its import names them for timm
    imports = [package, "torch", "vitmix.models" if registers else "vitmix"]
    return "\n".join(
        [
            f"import {', '.join(sorted(imports))}",
            opened.code,
            f"learner = vitmix.Learner(model, vitmix.create({text!r}, num_classes={opened.model.outputs}))",
            "optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3)",
            "for images, labels in loader:",
            "    learner(images, labels).loss.backward()",
            "    optimizer.step()",
            "    optimizer.zero_grad()",
        ]
    )


def _parts(composition: Composition) -> list[tuple[str, str, object]]:
    return [each for each in composition.groups() if each[0] != "pairing" or composition.pairing != "reversed"]


def _first_paragraph(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def _shown(source: str) -> str:
    """The name of an image; an upload has none that a link could keep."""
    return UPLOADED if source.startswith("data:") else source


def _without_places(page: str, runs: Sequence[Run]) -> str:
    """The page with names instead of paths, for folders and for files in a configuration."""
    found = {path: run.path.resolve().name for run in runs for path in (str(run.path), str(run.path.resolve()))}
    for run in runs:
        for value in vars(run.config).values():
            head, colon, tail = value.partition(":") if isinstance(value, str) else ("", "", "")
            for text in (head, tail) if colon else (head,):
                if "/" in text and Path(text).is_absolute():
                    found[text] = Path(text).name
    found = {path: name for path, name in found.items() if name and Path(path).is_absolute()}
    for path, name in sorted(found.items(), key=lambda each: -len(each[0])):
        page = page.replace(escape(path), escape(name)).replace(path, name)
    return page
