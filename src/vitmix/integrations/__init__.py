"""Mixing in trainers of other libraries. Names are imported on first use, and only then the library they belong to."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitmix.integrations.lightning_module import MixModule as MixModule
    from vitmix.integrations.timm_task import MixTask as MixTask
    from vitmix.integrations.trainer import MixTrainer as MixTrainer
    from vitmix.integrations.trainer_mixin import MixTrainerMixin as MixTrainerMixin

_HOME = {
    "MixModule": "lightning_module",
    "MixTask": "timm_task",
    "MixTrainer": "trainer",
    "MixTrainerMixin": "trainer_mixin",
}
_NEEDS = {"lightning_module": ("lightning", "lightning"), "trainer": ("transformers", "hf")}  # package and extra

__all__ = ["MixModule", "MixTask", "MixTrainer", "MixTrainerMixin"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vitmix.integrations' has no attribute {name!r}")
    module = _HOME[name]
    try:
        return getattr(import_module(f"vitmix.integrations.{module}"), name)
    except ModuleNotFoundError as error:
        package, extra = _NEEDS.get(module, ("", ""))
        if error.name != package:
            raise
        raise ImportError(f"{name} needs {package}: pip install 'vitmix[{extra}]'") from None


def __dir__() -> list[str]:
    return list(__all__)
