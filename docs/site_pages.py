"""Pages of the site that are made from the package: API reference, commands, examples. And what differs on the site.

The API reference is complete by construction: it lists every name of the public modules, wherever it is defined.
"""

import contextlib
import dataclasses
import inspect
import io
import os
import re
import types
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import import_module, util
from pathlib import Path
from posixpath import normpath
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = "generated/examples"
TREE = re.compile(r"^```\{toctree\}\n.*?^```", re.MULTILINE | re.DOTALL)
RESULTS_TREE = "\n```{toctree}\n:hidden:\n:glob:\n\ntinyimagenet*/*\ncifar*/*\n*\n*/*\n```\n"
CARDS = "<!-- all-method-cards -->"
REST = "all-other-pages"  # in a toctree: every page of docs/ that no toctree names

# A name that several modules offer is documented in the first of them.
MODULES = (
    *("vitmix", "vitmix.functional", "vitmix.parts", "vitmix.attention", "vitmix.attention.readers"),
    *("vitmix.integrations", "vitmix.models"),
)
KINDS = {
    "Mask": "Masks: which cells come from the partner",
    "Share": "Shares: the partner's part of the label",
    "ExtraLoss": "Extra losses",
    "HiddenMixing": "Mixing inside the network",
    "Pairing": "Pairings: which samples are mixed",
}
HOMES = {  # where a formula is defined: the heading under which it is found
    "vitmix._mix": "Apply a mix to images, tokens and labels",
    "vitmix.dense.masks": "Label maps of segmentation",
    "vitmix.dense.boxes": "Boxes and instance masks",
    "vitmix.dense.pasting": "Copy-paste",
    "vitmix.parts.masks": "Masks",
    "vitmix.parts.pairing": "Pairings",
    "vitmix.parts.shares": "Shares",
    "vitmix.parts.prior": "Prior shares",
    "vitmix.parts.maps": "Activation maps",
    "vitmix.parts.losses": "Losses",
    "vitmix.parts.assignment": "Partners by assignment",
    "vitmix.parts.hidden": "Mixing inside the network",
    "vitmix.attention.flow": "How a block mixes tokens",
    "vitmix.attention.summaries": "Statistics of attention",
    "vitmix.attention.tap": "Record attention",
    "vitmix.attention.readers": "Read a model",
}


@dataclasses.dataclass(frozen=True)
class Public:
    """A public name: the module that documents it, and the other public modules that offer it too."""

    module: str
    name: str
    value: Any
    also: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def home(self) -> str:
        """The module where it is defined."""
        return getattr(self.value, "__module__", None) or self.module

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        text = inspect.getdoc(self.value) if callable(self.value) else None
        return (text or "").partition("\n")[0].replace("|", "\\|")


def public() -> list[Public]:
    """Every public name once, in alphabetical order within its module."""
    found: dict[int, Public] = {}
    for module in MODULES:
        if util.find_spec(module) is None:
            continue
        home = import_module(module)
        for name in sorted(home.__all__, key=str.lower):
            value = getattr(home, name)
            if isinstance(value, types.ModuleType):
                continue  # a module of this list
            first = found.setdefault(id(value), Public(module, name, value))
            if first.module != module:
                found[id(value)] = dataclasses.replace(first, also=(*first.also, f"{module}.{name}"))
    return list(found.values())


def pages() -> dict[str, str]:
    """The Markdown of each generated page."""
    names = public()
    of = {module: [each for each in names if each.module == module] for module in MODULES}
    methods = [each for each in of["vitmix"] if each.home.startswith("vitmix.methods")]
    parts = [each for each in (*of["vitmix"], *of["vitmix.parts"]) if each.home.startswith("vitmix.parts")]
    taken = {id(each) for each in (*methods, *parts)}
    main = [each for each in of["vitmix"] if id(each) not in taken]
    attention = (*of["vitmix.attention"], *of["vitmix.attention.readers"])
    written = {
        "api_main": _page("Create, attach, train", "Names of `vitmix`: what a training loop uses.", {"": main}),
        "api_methods": _page("Methods as functions", METHODS_WORDS, {"": methods}),
        "api_parts": _page("Parts", PARTS_WORDS, _by_kind(parts)),
        "api_functional": _page("Functions", FUNCTIONS_WORDS, _by_home(of["vitmix.functional"])),
        "api_attention": _page("Attention", ATTENTION_WORDS, _by_home(list(attention))),
        "api_models": _page("Models that timm does not have", _models_words(), {"": of["vitmix.models"]}),
        "api_settings": _settings_page(),
        "commands": _commands_page(),
        "examples": _examples_page(),
    }
    if of["vitmix.integrations"]:
        words = "Names of `vitmix.integrations`: callbacks and wrappers for trainers."
        written["api_integrations"] = _page("Integrations", words, {"": of["vitmix.integrations"]})
    return written


def write(folder: Path) -> None:
    """Writes the pages; files that did not change keep their time, so that Sphinx does not read them again."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


METHODS_WORDS = """Each method is a function that returns a `Mixer`.
`vitmix.create("NAME(setting=value)", num_classes=K)` calls it by name. The [gallery](../gallery.md) explains them."""
PARTS_WORDS = """Parts are immutable values: their settings are the arguments.
In texts, `mix(mask=..., share=...)` names them by `name`. [Design](../design.md#a-method-is-four-choices) lists these
names."""
FUNCTIONS_WORDS = """`vitmix.functional`: every formula as a function of tensors.
Nothing here has state, and random numbers come from a `generator`."""
ATTENTION_WORDS = """`vitmix.attention` reads attention, shares and tokens of a model's blocks while the model runs.
[Adapters](../adapters.md) shows how to read a model class of your own."""


SETTINGS_WORDS = """Every method and part by its name in texts, with its settings and their defaults:
`vitmix.create("fmix(decay=2.0) | cutmix", num_classes=K)`, `--method "mix(mask=fourier, share=aligned)"`.
Every method also takes `pairing`."""


def _models_words() -> str:
    import timm

    import_module("vitmix.models")
    names = [name for part in ("cct", "pvt") for name in timm.list_models(module=part)]
    return (
        "`import vitmix.models` registers these names with `timm.create_model`: "
        + ", ".join(f"`{name}`" for name in names)
        + ".\n\n[Models](../models.md) lists which method works on which model family."
    )


# Markdown


def _page(title: str, words: str, sections: dict[str, list[Public]]) -> str:
    body = [f"# {title}", words]
    for heading, names in sections.items():
        if heading:
            body.append(f"## {heading}")
        body += [_table(names), *(_entry(each) for each in names)]
    return "\n\n".join(body) + "\n"


def _table(names: list[Public]) -> str:
    rows = [f"| [{each.name}](#{each.path}) | {each.summary} |" for each in names]
    return "\n".join(["| name | |", "|---|---|", *rows])


def _entry(each: Public) -> str:
    kind = "class" if inspect.isclass(each.value) else "function" if callable(each.value) else "data"
    options = {"class": "   :members:\n", "function": "", "data": "   :no-value:\n"}[kind]
    also = "".join(f"\n   Also ``{name}``.\n" for name in each.also)
    return f"```{{eval-rst}}\n.. auto{kind}:: {each.path}\n{options}{also}```"


def _by_kind(names: list[Public]) -> dict[str, list[Public]]:
    """Parts by the base class they derive from, and the base classes last."""
    bases = {kind: getattr(import_module("vitmix"), kind) for kind in KINDS}
    sections: dict[str, list[Public]] = {heading: [] for heading in (*KINDS.values(), "For your own parts")}
    for each in names:
        kind = next((kind for kind, base in bases.items() if _derives(each.value, base)), None)
        sections[KINDS[kind] if kind else "For your own parts"].append(each)
    return sections


def _derives(value: Any, base: type) -> bool:
    return inspect.isclass(value) and issubclass(value, base) and value is not base


def _by_home(names: list[Public]) -> dict[str, list[Public]]:
    def heading(each: Public) -> str:
        found = max((home for home in HOMES if each.home.startswith(home)), key=len, default=None)
        return HOMES[found] if found else each.home.rpartition(".")[2].capitalize()

    order = [*HOMES.values()]
    headings = dict.fromkeys(sorted(map(heading, names), key=lambda each: order.index(each) if each in order else 99))
    return {each: [name for name in names if heading(name) == each] for each in headings}


def _settings_page() -> str:
    from vitmix._registry import METHODS as methods
    from vitmix._registry import parts

    titles = dict(zip(("mask", "share", "extra", "inner", "pairing"), KINDS.values(), strict=True))
    body = ["# Every setting", SETTINGS_WORDS, "## Methods", *(_settings(*each) for each in methods.items())]
    for kind, title in titles.items():
        body += [f"## {title}", *(_settings(*each) for each in parts(kind).items())]
    return "\n\n".join(body) + "\n"


def _settings(name: str, thing: Any) -> str:
    from vitmix._text import value_text
    from vitmix.lab.explore.controls import controls_of

    rows = [f"| `{each.name}` | `{value_text(each.default)}` | {each.help} |" for each in controls_of(thing)]
    table = ["| setting | default | |", "|---|---|---|", *rows] if rows else ["No settings."]
    said = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return "\n".join([f"### {name}", "", said, "", *table])


def _commands_page() -> str:
    from vitmix.lab.cli import NAMES
    from vitmix.lab.cli.figure import KINDS as figures

    body = [
        "# Every command and flag",
        "What `vitmix COMMAND --help` prints. [Commands](../commands.md) says what each is for.",
    ]
    for command in NAMES:
        body += [f"## {command}", f"```text\n{_help(command)}\n```"]
        if command == "figure":
            body += [f"### figure {kind}\n\n```text\n{_help('figure', kind)}\n```" for kind in figures]
    return "\n\n".join(body) + "\n"


def _help(*command: str) -> str:
    from vitmix.lab.cli import main

    said, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main.main([*command, "--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return said.getvalue().strip()


def _examples_page() -> str:
    body = ["# Examples", "Scripts and settings of the folder `examples`. A test runs every script."]
    for path in _examples():
        language = "python" if path.suffix == ".py" else "yaml"
        include = f"```{{literalinclude}} /{path.relative_to(ROOT).as_posix()}\n:language: {language}\n```"
        body += [f"({_anchor(path)})=\n## {path.relative_to(ROOT / 'examples').as_posix()}", include]
    return "\n\n".join(body) + "\n"


def _examples() -> Iterator[Path]:
    folder = ROOT / "examples"
    yield from sorted(path for path in folder.glob("*") if path.suffix in (".py", ".yaml"))
    yield from sorted(folder.glob("*/*.py"))


def _anchor(path: Path) -> str:
    return "example-" + re.sub(r"\W+", "-", path.relative_to(ROOT / "examples").as_posix())


# What differs on the site


def adapt(app: Any, page: str, source: list[str]) -> None:
    """Links to examples lead to their page; toctrees get the pages that exist; results get a toctree."""
    here = (ROOT / page).parent
    text = re.sub(r"\]\(((?:\.\./)*[\w/.]*examples[\w/.]*)\)", lambda found: _to_examples(found, here), source[0])
    text = TREE.sub(lambda tree: _with_pages(tree[0], here), text).replace(CARDS, cards_table())
    source[0] = text + (RESULTS_TREE if page == "results/README" else "")


def _with_pages(tree: str, here: Path) -> str:
    lines = tree.replace(REST, "\n".join(other_pages())).splitlines()
    return "\n".join(line for line in lines if "*" not in line or any(here.glob(f"{line}.md")))


def cards_table() -> str:
    """Each method card with its first paragraph."""
    rows = ["| method | what it does |", "|---|---|"]
    for card in sorted((ROOT / "docs" / "methods").glob("*.md")):
        title, words = card.read_text(encoding="utf-8").split("\n\n")[:2]
        words = re.sub(r"\]\((?!https?:|#)([^)]+)\)", lambda link: f"]({normpath(f'methods/{link[1]}')})", words)
        rows.append(f"| [{title.removeprefix('# ')}](methods/{card.name}) | {' '.join(words.split())} |")
    return "\n".join(rows)


def _to_examples(link: re.Match[str], here: Path) -> str:
    target = (here / link[1]).resolve()
    if target.is_dir():
        return f"](/docs/{EXAMPLES}.md)"
    return f"](#{_anchor(target)})" if target in _examples() else link[0]


def other_pages() -> list[str]:
    """Pages of docs/ that no toctree names, so that a new page appears on the site without an edit."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    lines = "\n".join(TREE.findall("\n".join(texts.values()))).splitlines()
    named = ["index", *(re.sub(r".*<(.*)>", r"\1", line) for line in lines)]
    return [page for page in texts if not any(fnmatchcase(page, pattern) for pattern in named if pattern)]
