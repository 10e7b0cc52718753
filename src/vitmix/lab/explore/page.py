"""The Gradio page: widgets, and which function of the explorer answers which event."""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import gradio as gr

from vitmix._registry import METHODS, parts
from vitmix.lab.reading import JsonObject

from .composition import COMPOSED
from .explorer import Explorer
from .markup import note_html
from .messages import sentence_of
from .photos import MOST_BYTES, UPLOADED, photo_names
from .state import MOST_SEED, State
from .widgets import SLOTS, choose, menus_of, parsed, set_value, structure_of, type_text, widget_of

DROP = """<label class="vx-drop"><span role="status">Drop an image here, or press to choose one</span>
<input type="file" accept="image/*" aria-label="${label}"></label>"""
# The browser shrinks an image before it is sent; the server checks it again.
UPLOAD = """
const send = async (file) => {
  if (!file) return;
  const label = element.querySelector('.vx-drop span');
  if (!file.type.startsWith('image/') || file.size > MOST) {
    label.textContent = 'Choose an image file of at most MEGABYTES MB'; return;
  }
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, 640 / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement('canvas');
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    props.value = canvas.toDataURL('image/jpeg', 0.92);
    label.textContent = 'Drop another image, or press to choose one';
    trigger('input');
  } catch (problem) { label.textContent = 'This file is not an image that the browser can read'; }
};
element.addEventListener('change', (event) => { if (event.target.files) send(event.target.files[0]); });
for (const name of ['dragover', 'dragleave', 'drop']) {
  element.addEventListener(name, (event) => {
    event.preventDefault();
    element.querySelector('.vx-drop').classList.toggle('over', name === 'dragover');
    if (name === 'drop') send(event.dataTransfer.files[0]);
  });
}
""".replace("MOST", str(MOST_BYTES)).replace("MEGABYTES", str(MOST_BYTES // 2**20))
RESTORE = "(query) => { history.replaceState(null, '', '?' + query); return location.href; }"
SAVE = """(uri) => { if (!uri) return; const link = document.createElement('a'); link.href = uri;
link.download = 'vitmix.png'; document.body.append(link); link.click(); link.remove(); }"""


def look() -> dict[str, Any]:
    """Theme and style, with system fonts, so that none is downloaded."""
    fonts = ["system-ui", "sans-serif"]
    theme = gr.themes.Default(primary_hue="blue", font=fonts, font_mono=["ui-monospace", "monospace"])
    theme = theme.set(  # Gradio's gray has too little contrast
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
    )
    style = resources.files("vitmix.lab.explore").joinpath("style.css").read_text(encoding="utf-8")
    return {"theme": theme, "css": style}


def build_page(explorer: Explorer) -> gr.Blocks:
    """The page of an explorer."""
    with gr.Blocks(title="vitmix explore", analytics_enabled=False) as page:
        gr.Markdown("# vitmix explore\nWhat mixing methods do to two images, and what a model makes of it.")
        with gr.Tab("Explore"):
            view = _View(explorer)
        with gr.Tab("Gallery") as gallery:
            gr.Markdown("Every method on the pair of the first tab, with its model and seed. A title opens the method.")
            every = gr.HTML()
        if explorer.runs:
            with gr.Tab("Compare runs"):
                _compare_tab(explorer)
        gallery.select(_said(explorer.gallery, view.state), view.inputs, every, **_quiet())
        page.load(view.restore, None, view.restored, **_quiet())
        gr.api(_endpoint(explorer), api_name="explore", concurrency_limit=1, concurrency_id="model")
    return page


def _compare_tab(explorer: Explorer) -> None:
    names = list(explorer.runs)
    chosen = gr.CheckboxGroup(names, value=names, label="Runs")
    button = gr.Button("Compare", variant="primary")
    report = gr.HTML(note_html("Choose runs, then press the button."))

    def compare(names: list[str]) -> str:
        try:
            return explorer.compare(names)
        except Exception as problem:
            return note_html(sentence_of(problem), problem=True)

    button.click(compare, chosen, report, **_quiet())


def _quiet() -> dict[str, Any]:
    """Settings of an event: not in the API, one at a time."""
    return {"api_visibility": "private", "show_progress": "minimal", "concurrency_limit": 1, "concurrency_id": "model"}


def _menu() -> dict[str, Any]:
    """Settings of an event that needs no model: it does not wait for the model's last answer."""
    return {**_quiet(), "concurrency_id": "menu"}


def _said(function: Callable[[State], str], state: Callable[..., State]) -> Callable[..., str]:
    """A function of a state that turns errors into a message."""

    def call(*inputs: Any) -> str:
        try:
            return function(state(*inputs))
        except Exception as problem:
            return note_html(sentence_of(problem), problem=True)

    return call


def _endpoint(explorer: Explorer) -> Callable[..., JsonObject]:
    def explore(method: str, first: str, second: str, model: str = "", seed: int = 0, block: int = 1) -> JsonObject:
        """The answer to a state, for programs: target, rules, predictions, code, query and HTML."""
        state = State(method, first, second, model or explorer.usual.model, int(seed), int(block))
        try:
            answer = explorer.answer(state)
        except Exception as problem:
            return {"error": sentence_of(problem)}
        scene = answer.result
        return {
            "target": [scene.method.own, scene.method.partner],
            "rules": {bar.rule: [bar.own, bar.partner] for bar in scene.bars if not bar.missing},
            "predictions": [[[each.name, each.probability] for each in found] for found in scene.predictions],
            "code": answer.code,
            "query": answer.query,
            "scene": answer.scene,
            "depth": answer.depth,
            "seconds": scene.seconds,
        }

    return explore


class _View:
    """The first tab. The method's text is the one state of menus, controls and link."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, usual = explorer, explorer.usual
        self.text, self.structure = gr.State(""), gr.State("")
        with gr.Row(equal_height=False, elem_classes="vx-outer"):
            with gr.Column(scale=4, min_width=300, elem_classes="vx-left"):
                self._images(usual)
                self._menus()
                jump = gr.Button("Settings of the method", size="sm", elem_classes="vx-jump")  # on a phone
                jump.click(None, js="() => document.getElementById('vx-settings').scrollIntoView()")
                with gr.Column(elem_id="vx-settings"):
                    self._controls()
            with gr.Column(scale=7, min_width=300, elem_classes="vx-right"):
                self._results()
        self._events()

    # Widgets

    def _images(self, usual: State) -> None:
        names = [*photo_names(), UPLOADED]
        self.sources, self.uploads = [], []
        with gr.Row():
            for label, value in (("Original image", usual.first), ("Partner", usual.second)):
                with gr.Column(min_width=140):
                    self.sources.append(gr.Dropdown(names, value=value, label=label, filterable=False))
                    self.uploads.append(
                        gr.HTML("", html_template=DROP, js_on_load=UPLOAD, label=f"Upload: {label.lower()}")
                    )
        self.model = gr.Dropdown(
            self.explorer.models.names,
            value=usual.model,
            allow_custom_value=True,
            label="Model",
            info="Of the command line, or the name of a timm or Hugging Face model",
        )

    def _menus(self) -> None:
        bases = [(f"{COMPOSED}: build your own", COMPOSED), *((name, name) for name in METHODS)]
        self.menus: dict[str, Any] = {
            "base": gr.Dropdown(bases, value="cutmix", label="Method", elem_id="vx-base"),
            "mask": gr.Dropdown(list(parts("mask")), value="none", label="Mask", visible=False),
            "share": gr.Dropdown(list(parts("share")), value="area", label="Share (label rule)", visible=False),
        }
        with gr.Accordion("Add losses, mixing inside the network, pairing", open=False):
            self.menus["extra"] = gr.CheckboxGroup(list(parts("extra")), label="Extra losses")
            self.menus["inner"] = gr.CheckboxGroup(list(parts("inner")), label="Inside the network")
            self.menus["pairing"] = gr.Dropdown(list(parts("pairing")), value="reversed", label="Pairing")
        self.seed = gr.Number(0, precision=0, minimum=0, maximum=MOST_SEED, step=1, label="Seed", elem_id="vx-seed")

    def _controls(self) -> None:
        """A widget for each setting of what the menus chose."""

        @gr.render(inputs=[self.text], triggers=[self.structure.change], show_progress="hidden")
        def draw(text: str) -> None:
            composition = parsed(text)
            if composition is None:
                gr.Markdown("Edit the text of the method: menus show one method.")
                return
            title = ""
            for key, group, control in composition.controls():
                if group != title:
                    title = group
                    gr.Markdown(f"**{group}**")
                widget = widget_of(key, control, composition.values.get(key, control.default))
                # `input` events come from users only, so setting a widget from a link computes nothing twice.
                widget.input(  # pyright: ignore
                    partial(set_value, key),
                    [self.text, widget],
                    [self.text, self.method, self.problem],
                    trigger_mode="always_last",
                    **_menu(),
                )

    def _results(self) -> None:
        self.method = gr.Textbox(label="Method as text", buttons=["copy"], elem_id="vx-text", max_lines=3)
        self.problem = gr.HTML(elem_id="vx-problem")
        self.scene = gr.HTML(note_html("Computing the first answer..."), elem_id="vx-scene")
        self.block = gr.Slider(1, 12, value=1, step=1, label="Depth: block", elem_id="vx-block")
        self.depth = gr.HTML(elem_id="vx-depth")
        self.about = gr.Markdown()
        self.code = gr.Code(
            language="python", label="Code that trains with it", interactive=False, show_line_numbers=False
        )
        self.link = gr.Textbox(label="Link that restores this page", buttons=["copy"], interactive=False)
        self.query = gr.Textbox(visible="hidden")
        self.uri = gr.Textbox(visible="hidden")
        self.download = gr.Button("Download the figure", elem_id="vx-download")

    # Events

    def _events(self) -> None:
        changes = [self.text.change, self.seed.change, self.model.change, *(each.change for each in self.sources)]
        outputs = [self.scene, self.depth, self.about, self.code, self.query, self.block, self.problem]
        shown = gr.on(changes, self.show, self.inputs, outputs, trigger_mode="always_last", **_quiet())
        shown.then(None, self.query, self.link, js=RESTORE)
        moved = [self.depth, self.query]
        slid = self.block.input(self.slide, self.inputs, moved, trigger_mode="always_last", **_quiet())
        slid.then(None, self.query, self.link, js=RESTORE)
        for source, upload in zip(self.sources, self.uploads, strict=True):
            upload.input(lambda: UPLOADED, None, source, **_quiet())
            upload.input(self.show, self.inputs, outputs, trigger_mode="always_last", **_quiet())
        menus = [self.menus[slot] for slot in SLOTS]
        chosen = [self.text, self.method, self.structure, self.menus["mask"], self.menus["share"], self.problem]
        # Without it, Gradio drops a choice that is made while the one before is on its way.
        gr.on(
            [each.input for each in menus], choose, [self.text, *menus], chosen, trigger_mode="always_last", **_menu()
        )
        typed = [self.text, self.structure, *menus, self.problem]
        written = [self.method.submit, self.method.blur]
        gr.on(written, type_text, [self.text, self.method], typed, trigger_mode="always_last", **_menu())
        drawn = self.download.click(self.figure, self.inputs, [self.uri, self.problem], **_quiet())
        drawn.then(None, self.uri, None, js=SAVE)

    @property
    def inputs(self) -> list[Any]:
        return [self.text, *self.sources, *self.uploads, self.model, self.seed, self.block]

    @staticmethod
    def state(
        text: str, first: str, second: str, first_url: str, second_url: str, model: str, seed: Any, block: Any
    ) -> State:
        """The values of the widgets; an upload replaces its image."""
        first = first_url or "" if first == UPLOADED else first
        second = second_url or "" if second == UPLOADED else second
        return State(text, first, second, model or "", int(seed or 0), int(block or 1))

    def show(self, *inputs: Any) -> list[Any]:
        """Every output of the tab; after an error, the last answer stays and a sentence says why."""
        try:
            answer = self.explorer.answer(self.state(*inputs))
        except Exception as problem:
            return [gr.skip()] * 6 + [note_html(sentence_of(problem), problem=True)]
        depth = gr.Slider(maximum=max(answer.blocks, 2), visible=answer.blocks > 0)
        return [answer.scene, answer.depth, answer.about, answer.code, answer.query, depth, ""]

    def slide(self, *inputs: Any) -> tuple[Any, Any]:
        try:
            answer = self.explorer.answer(self.state(*inputs))
        except Exception as problem:
            return note_html(sentence_of(problem), problem=True), gr.skip()
        return answer.depth, answer.query

    def figure(self, *inputs: Any) -> tuple[str, str]:
        try:
            return self.explorer.figure(self.state(*inputs)), ""
        except Exception as problem:
            return "", note_html(sentence_of(problem), problem=True)

    @property
    def restored(self) -> list[Any]:
        menus = [self.menus[slot] for slot in SLOTS]
        return [self.text, self.method, self.structure, *menus, *self.sources, self.model, self.seed, self.block]

    def restore(self, request: gr.Request) -> list[Any]:
        """The widgets with the state of a link."""
        state = self.explorer.restore(dict(request.query_params))
        depth = gr.Slider(value=state.block, maximum=max(12, state.block))
        images = [state.first, state.second]
        return [
            state.method,
            state.method,
            structure_of(state.method),
            *menus_of(state.method),
            *images,
            state.model,
            state.seed,
            depth,
        ]
