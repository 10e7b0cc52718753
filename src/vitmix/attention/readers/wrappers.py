"""What users put around a model: compilation, data parallelism, adapters, and classes derived from a known one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["WholePass", "check_wrappers", "known_base", "overridden", "unsharded_classes", "unwrap"]

SPLITTING = "torch.nn.parallel.data_parallel.DataParallel"
SHARDING = "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel"
# By name, so that no package is imported for a model of another: the attribute that holds the wrapped model.
WRAPPERS = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    SPLITTING: "module",
    SHARDING: "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.optim.swa_utils.AveragedModel": "module",
    "peft.peft_model.PeftModel": "base_model",
    "peft.tuners.tuners_utils.BaseTuner": "model",
    "transformers.models.timm_wrapper.modeling_timm_wrapper.TimmWrapperForImageClassification": "timm_model",
}
# Methods of a known class that a subclass may override: they change no number of a forward pass.
HARMLESS = {
    *("__init__", "__doc__", "__module__", "__annotations__", "__repr__", "extra_repr", "__firstlineno__"),
    *("__static_attributes__", "__type_params__", "__parameters__", "__orig_bases__", "__qualname__", "__slots__"),
    *("init_weights", "_init_weights", "fix_init_weight", "load_pretrained", "no_weight_decay", "group_matcher"),
    *("reset_classifier", "get_classifier", "set_grad_checkpointing", "set_input_size"),
    *("train", "eval", "to", "state_dict", "load_state_dict", "_load_from_state_dict", "parameters", "configure"),
    *("config_class", "base_model_prefix", "main_input_name", "_no_split_modules", "from_pretrained", "loss_function"),
}


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside wrappers that compute the same: compiled, data-parallel, averaged, sharded, with adapters."""
    while (attribute := _attribute(type(model))) is not None:
        model = getattr(model, attribute)
    return model


def _attribute(kind: type) -> str | None:
    return next((WRAPPERS[path] for path in _paths(kind) if path in WRAPPERS), None)


def _paths(kind: type) -> list[str]:
    return [f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__]


def check_wrappers(model: nn.Module) -> None:
    """Raises an error for wrappers around or inside a model whose blocks do not see the whole batch or its weights."""
    for module in model.modules():
        paths, devices = _paths(type(module)), getattr(module, "device_ids", None) or ()
        if SPLITTING in paths and len(devices) > 1:
            raise ValueError(
                f"nn.DataParallel splits a mixed batch over {len(devices)} devices, so attention of a whole batch is "
                "not seen; start one process for each GPU with torchrun"
            )
        if SHARDING in paths:
            raise ValueError(
                "a model in FullyShardedDataParallel cannot be read, because it flattens weights; use "
                "torch.distributed.fsdp.fully_shard"
            )


def known_base(kind: type, known: Any) -> type | None:
    """The nearest base class for which `known(base)` holds."""
    return next((base for base in kind.__mro__[1:] if known(base)), None)


def overridden(kind: type, base: type) -> list[str]:
    """Names that `kind` defines differently from its base class and that may change a forward pass."""
    own = {name for each in kind.__mro__[: kind.__mro__.index(base)] for name in vars(each) if not _sharding(each)}
    return sorted(name for name in own - HARMLESS if hasattr(base, name) and not name.startswith("_abc"))


def _sharding(kind: type) -> bool:
    return kind.__module__.startswith("torch.distributed.fsdp")


@contextmanager
def unsharded_classes(model: nn.Module) -> Iterator[bool]:
    """`fully_shard` derives a class for every module; inside this context modules have their original class again.

    The value is whether the model is sharded.
    """
    changed = [(each, type(each)) for each in model.modules() if _sharding(type(each).__mro__[1])]
    try:
        for module, kind in changed:
            module.__class__ = kind.__mro__[2]
        yield len(changed) > 0
    finally:
        for module, kind in changed:
            module.__class__ = kind


class WholePass:
    """Runs a whole module where a part of it would do: calling the part would bypass what is around it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def stop_after(self, block: int, images: Tensor) -> None:
        self.model(images)
