"""Methods and parts by name: those of the library, and those that `register` adds.

This module imports nothing heavy, so the names of methods are known without torch.
"""

import dataclasses
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any, TypeVar, overload

__all__ = ["KINDS", "METHODS", "PLUGINS", "Method", "additions", "load_plugins", "parts", "register"]

Registered = TypeVar("Registered", bound=Callable[..., Any])
PLUGINS = "VITMIX_PLUGINS"  # modules or files, separated by commas, that register parts and methods
KINDS = ("mask", "share", "extra", "inner", "pairing")


@dataclasses.dataclass(frozen=True)
class Method:
    """The factory of a method, or the module that contains it.

    Attributes:
        small: a method string that works on tiny models (default: the method's name).
        bench: a method string to measure the method's cost (default: the method's name); empty if a step of a large
            batch takes so long that the cost is measured on request alone.
    """

    factory: Callable[..., Any] | str
    small: str | None = None
    bench: str | None = None


class _Methods(Mapping[str, Callable[..., Any]]):
    """The factories by name. Iterating over the names imports nothing."""

    def __init__(self, entries: dict[str, Method]) -> None:
        self.entries = entries

    def __getitem__(self, name: str) -> Callable[..., Any]:
        entry = self.entries[name]
        if isinstance(entry.factory, str):
            factory = getattr(import_module(f"vitmix.methods.{entry.factory}"), name)
            entry = self.entries[name] = dataclasses.replace(entry, factory=factory)
        assert callable(entry.factory)
        return entry.factory

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def small(self) -> dict[str, str]:
        """For each method, a string that works on tiny models."""
        return {name: entry.small or name for name, entry in self.entries.items()}

    def bench(self) -> dict[str, str]:
        """For each method, a string to measure its cost."""
        texts = {name: name if entry.bench is None else entry.bench for name, entry in self.entries.items()}
        return {name: text for name, text in texts.items() if text}


METHODS = _Methods(
    {
        "none": Method("basic"),
        "mixup": Method("basic", bench="mixup(alpha=0.8)"),
        "cutmix": Method("basic"),
        "tokenmix": Method("tokenmix"),
        "transmix": Method("transmix"),
        "tl_align": Method("tl_align"),
        "smmix": Method("smmix"),
        "htm": Method("tokenmixup", small="htm(block=1)", bench="cutmix + htm"),
        "vtm": Method("tokenmixup", small="vtm(block=1, tokens=2)", bench="cutmix + vtm(block=3)"),
        "fmix": Method("fmix"),
        "resizemix": Method("resizemix"),
        "gridmix": Method("gridmix"),
        "saliencymix": Method("saliencymix"),
        "attentive_cutmix": Method("attentive_cutmix"),
        "manifold_mixup": Method("manifold_mixup"),
        "mixpro": Method("mixpro", small="mixpro(tokens=2)"),
        "decouplemix": Method("decouplemix"),
        "oa_cutmix": Method("oa_cutmix"),
        "token_labeling": Method("token_labeling"),
        "puzzlemix": Method("puzzlemix"),
        "comixup": Method("comixup", bench=""),
        "recursivemix": Method("recursivemix"),
        "tdattenmix": Method("tdattenmix"),
        "mergemix": Method("mergemix"),
    }
)
_PARTS: dict[str, dict[str, type]] = {kind: {} for kind in KINDS}


def parts(kind: str) -> dict[str, type]:
    """The parts of a kind ("mask", "share", "extra", "inner", "pairing") by name."""
    import_module("vitmix.parts")
    return _PARTS[kind]


def additions() -> dict[str, type]:
    """The parts that a method string can add with '+': hidden mixings and extra losses."""
    return {**parts("inner"), **parts("extra")}


@overload
def register(thing: Registered, *, small: str | None = None, bench: str | None = None) -> Registered: ...


@overload
def register(*, small: str | None = None, bench: str | None = None) -> Callable[[Registered], Registered]: ...


def register(thing: Any = None, *, small: str | None = None, bench: str | None = None) -> Any:
    """Makes a part or a method available by name in method strings, listings, figures and benchmarks. Also a decorator.

    Args:
        thing: a frozen dataclass that derives from `Mask`, `Share`, `ExtraLoss`, `HiddenMixing` or `Pairing`, or a
            function `(num_classes, *, ...settings, **common)` that returns a `Mixer`.
        small: for a method: a string that works on tiny models, if its defaults do not.
        bench: for a method: a string to measure its cost, if not by itself.
    """
    if thing is None:
        return partial(register, small=small, bench=bench)
    kind = getattr(thing, "kind", None)
    name = getattr(thing, "name", None) if kind is not None else getattr(thing, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a part or method needs an identifier as its name, got {name!r}; set its `name`")
    if name in ("mix", "main", "loss"):
        raise ValueError(f"the name {name!r} is reserved; choose another name")
    if isinstance(thing, type):
        _add_part(thing, kind, name)
    else:
        _add_method(thing, name, small, bench)
    return thing


def _add_method(method: Any, name: str, small: str | None, bench: str | None) -> None:
    if not inspect.isfunction(method):
        raise ValueError(f"register the class or the function itself, got {method!r}")
    parameters = inspect.signature(method).parameters
    if next(iter(parameters), None) != "num_classes":
        raise ValueError(f"the method {name} must take num_classes as its first argument")
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        raise ValueError(f"the method {name} must take **common (smoothing and others) and pass it to its Mixer")
    _check_free(name, method, {key: entry.factory for key, entry in METHODS.entries.items()})
    METHODS.entries[name] = Method(method, small, bench)


def _add_part(part: type, kind: Any, name: str) -> None:
    if kind not in KINDS:
        raise ValueError(
            f"{part.__name__} is not a part; derive it from vitmix.Mask, Share, ExtraLoss, HiddenMixing or Pairing"
        )
    if not dataclasses.is_dataclass(part) or not part.__dataclass_params__.frozen:  # pyright: ignore
        raise ValueError(
            f"{part.__name__} must be a frozen dataclass, so that a method string can contain its settings; add "
            "@dataclass(frozen=True)"
        )
    kinds = ("extra", "inner") if kind in ("extra", "inner") else (kind,)  # '+' can add both kinds
    _check_free(name, part, {key: each for other in kinds for key, each in _PARTS[other].items()})
    _PARTS[kind][name] = part


def _check_free(name: str, thing: Any, taken: Mapping[str, Any]) -> None:
    """Raises an error if another definition has the name. The same one may return, as when a notebook cell reruns."""
    before = taken.get(name, thing)
    if getattr(before, "__qualname__", None) != thing.__qualname__ or before.__module__ != thing.__module__:
        raise ValueError(f"another part or method has the name {name!r}; choose another name")


def load_plugins() -> None:
    """Imports plugins, which register parts and methods: entry points of the group `vitmix`, and `VITMIX_PLUGINS`."""
    for entry in metadata.entry_points(group="vitmix"):
        entry.load()
    for name in filter(None, (each.strip() for each in os.environ.get(PLUGINS, "").split(","))):
        try:
            _import_plugin(name)
        except Exception as error:  # a plugin can raise anything
            raise ValueError(f"the plugin {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _import_plugin(name: str) -> None:
    if not name.endswith(".py"):
        import_module(name)
        return
    path = Path(name).resolve()
    module_name = f"vitmix_plugin_{path.stem}_{zlib.crc32(str(path).encode()):08x}"  # file names can repeat
    if module_name in sys.modules:
        return
    found = util.spec_from_file_location(module_name, path)
    if found is None or found.loader is None:
        raise ImportError("it is not a Python file")
    module = util.module_from_spec(found)
    sys.modules[module_name] = module  # dataclasses look up their module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
