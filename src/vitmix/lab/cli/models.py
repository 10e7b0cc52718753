"""`vitmix models`."""

import inspect
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitmix.lab.cli._parser import Command
from vitmix.lab.columns import aligned, markdown_table
from vitmix.lab.settings import Name, Settings, option

if TYPE_CHECKING:
    from torch import nn

    from vitmix.attention.readers import Reader


@dataclass(frozen=True, kw_only=True)
class Models(Settings):
    """Show which methods work on which families of models, or explain one model."""

    name: Name = option("", "explain this timm model: tokens, methods, settings", positional=True)
    why: bool = option(False, "also say why a method does not work")
    markdown: bool = option(False, "print the table as Markdown")


def run(settings: Models) -> int:
    if settings.name:
        return _explain(settings.name)
    from vitmix.lab.families import table

    rows, reasons = table()
    print(markdown_table(*rows) if settings.markdown else aligned(rows))
    if any("?" in row for row in rows):
        print("\n?: install transformers to see (pip install 'vitmix[hf]').")
    if settings.why:
        print("\n" + "\n".join(reasons))
    if not settings.markdown:  # pasted into a page as it is
        print("\n'vitmix models NAME' explains one model.")
    return 0


def _explain(name: str) -> int:
    import torch

    from vitmix.attention.readers import read_model
    from vitmix.lab.families import FAMILIES
    from vitmix.lab.fitting import fitting_methods
    from vitmix.lab.training.config import TrainConfig
    from vitmix.lab.training.prepare import build_model, check_model

    check_model(name)
    with torch.device("meta"):  # shapes without memory
        model, _ = build_model(TrainConfig(model=name), num_classes=1000)
    size = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))[-2:]
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    source = type(model).__module__.partition(".")[0]
    kind = f"{source}'s {type(model).__name__}"
    # Tiny models, which are built sooner with memory than without.
    near = {family: each.build() for family, each in FAMILIES.items() if each.source == source}
    kin = [family for family, tiny in near.items() if type(tiny) is type(model)]
    print(f"{name}: {kind}, {millions:.1f} million parameters, images of {size[0]} x {size[1]} pixels")
    print(f"Families of this class: {'; '.join(kin) or 'none that is tested'}")
    with suppress(ValueError):  # the methods that need a reader will say so
        print(_tokens(read_model(model), size))
    methods, refused = fitting_methods(model, size)
    print(f"Methods: {', '.join(methods)}")
    for reason in dict.fromkeys(refused.values()):
        print(
            f"Not supported: {', '.join(method for method in refused if refused[method] == reason)}, because {reason}."
        )
    print("\nSettings, as --model-args KEY=VALUE, with the class's defaults (the name may set others):")
    print(_arguments(type(model)))
    return 0


def _tokens(reader: "Reader", size: tuple[int, int]) -> str:
    grids = [f"{rows} x {columns}" for rows, columns in reader.grids(size)]
    stages = ", ".join(f"{grids.count(grid)} of {grid}" for grid in dict.fromkeys(grids))
    attention = "attention" if reader.has_attention else "no attention"
    prefix = f", {reader.prefix} prefix tokens" if reader.prefix else ""
    return f"Read by {type(reader).__name__}: {reader.depth} blocks ({stages} tokens{prefix}), {attention}"


def _arguments(kind: "type[nn.Module]") -> str:
    """The arguments of a class that a command line can give, with what its docstring says of them."""
    parameters = inspect.signature(kind).parameters.items()
    plain = {key: each.default for key, each in parameters if _is_plain(each.default) and key != "num_classes"}
    documented = f"{inspect.getdoc(kind)}\n{inspect.getdoc(kind.__init__)}"
    said = dict(re.findall(r"^\s*(\w+)(?: \(.*?\))?: +(.+)$", documented, re.MULTILINE))
    return aligned(("", f"{key}={value}", said.get(key, "")) for key, value in plain.items())


def _is_plain(default: Any) -> bool:
    return default is None or isinstance(default, (bool, int, float, str, tuple, list))


COMMAND = Command(Models, run)
