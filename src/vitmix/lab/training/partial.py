"""Training part of the weights: the classifier alone, or low-rank additions to the linear layers (LoRA).

LoRA is a parametrization of each linear layer's weight, weight + up @ down. So the model keeps its classes, hooks and
arithmetic, and every method works on it. Checkpoints store both parts; the weights files of a run have the sums.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.weights import Tensors, classifier_keys

INSIDE = ".parametrizations.weight."


class LowRank(nn.Module):
    """Adds a matrix of low rank, which is zero at first, to a weight."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.down = nn.Parameter(weight.new_empty(rank, inputs))
        self.up = nn.Parameter(weight.new_zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def choose_parameters(model: nn.Module, config: TrainConfig) -> None:
    """Freezes everything but the classifier and, with `lora`, the additions; without `freeze` and `lora`, nothing."""
    if not config.freeze and config.lora is None:
        return
    flag = "freeze" if config.freeze else "lora"
    if config.freeze and config.lora is not None:
        raise ValueError("freeze trains the classifier alone, lora trains more; give one of them")
    if not config.pretrained and config.checkpoint is None:
        raise ValueError(f"{flag} keeps the weights to start from; add --pretrained, or --checkpoint FILE")
    if config.fsdp:
        raise ValueError(f"{flag} cannot be combined with fsdp; leave one of them out")
    classifier = classifier_keys(model)
    if not classifier:
        raise ValueError(f"{config.model} does not say which layer is its classifier; leave {flag} out")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in classifier)
    if config.lora is not None:
        _add_low_rank(model, config.lora, classifier)


def _add_low_rank(model: nn.Module, rank: int, classifier: set[str]) -> None:
    linear = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    layers = [layer for name, layer in linear.items() if f"{name}.weight" not in classifier]
    if not layers:
        raise ValueError(f"lora adds to linear layers, but {model.__class__.__name__} has none; use --freeze instead")
    for layer in layers:
        register_parametrization(layer, "weight", LowRank(layer.weight, min(rank, *layer.weight.shape)))


def keep_statistics(model: nn.Module) -> None:
    """Sets frozen batch norms to evaluation mode, because their statistics belong to the weights."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not any(
            each.requires_grad for each in module.parameters()
        ):
            module.eval()


def trained_parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


@torch.no_grad()
def merged_weights(model: nn.Module) -> Tensors:
    """The model's weights, low-rank additions added, under the names that the plain model has."""
    found = {key: value for key, value in model.state_dict().items() if INSIDE not in key}
    layers = {name: each for name, each in model.named_modules() if is_parametrized(each, "weight")}
    return found | {f"{name}.weight": layer.weight.detach() for name, layer in layers.items()}  # pyright: ignore
