"""A training task for timm's script, with a mixing method."""

from collections.abc import Callable
from typing import Any

import torch
from timm.models import group_parameters
from timm.task import TrainingTask
from timm.utils.model import unwrap_model
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from vitmix._learner import Learner, Output
from vitmix._mixer import AnyMixer

__all__ = ["MixTask"]

PREFIX = "model."


class MixTask(TrainingTask):
    """Trains a timm model with a mixing method: give it to timm's script in place of `ClassificationTask`.

    Checkpoints have the model alone under `state_dict`, so that `timm.create_model(..., checkpoint_path=FILE)` loads
    them. Added parameters, the seed and the number of draws are under `task_state`; `--resume` continues both. EMA and
    evaluation are of the model alone, unmixed.

    Args:
        model: the model.
        mixer: a method, as a mixer or as a text, which takes the number of classes from the model.
        guide: another model for the guide pass, see `vitmix.Learner`.
        seed: seed of the draws (default: drawn from torch's generator, which the script seeds).
        device, dtype, verbose: see `timm.task.TrainingTask`.
    """

    def __init__(
        self,
        model: nn.Module,
        mixer: AnyMixer | str,
        *,
        guide: nn.Module | None = None,
        seed: int | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(device=device, dtype=dtype, verbose=verbose)
        # `step` is given, because a task that is made again on purpose repeats its seed.
        self.trainable_module: nn.Module = _TaskLearner(model, mixer, guide=guide, seed=seed, step=0)

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        output: Output = self.trainable_module(input, target)
        return {"loss": output.loss, "output": output.logits, **output.parts}

    def prepare_distributed(self, device_ids: list[Any] | None = None, **ddp_kwargs: Any) -> "MixTask":
        self.trainable_module = nn.parallel.DistributedDataParallel(
            self.trainable_module, device_ids=device_ids, **ddp_kwargs
        )
        return self

    def compile(self, backend: str = "inductor", mode: str | None = None, **compile_kwargs: Any) -> nn.Module:
        self.learner.compile(backend=backend, mode=mode, **compile_kwargs)
        compiled: Any = torch.compile(self.learner.model, backend=backend, mode=mode, **compile_kwargs)
        self.eval_model: nn.Module = compiled
        return compiled

    @property
    def learner(self) -> Learner:
        """The learner inside the trainable module."""
        learner = unwrap_model(self.trainable_module)
        assert isinstance(learner, Learner)
        return learner

    def setup_ema(
        self,
        decay: float = 0.9999,
        use_warmup: bool = False,
        device: torch.device | None = None,
        **kwargs: Any,
    ) -> nn.Module:
        given: Any = dict(decay=decay, use_warmup=use_warmup, device=device, **kwargs)
        self.trainable_module_ema = ModelEmaV3(self.learner.model, **given)
        return self.trainable_module_ema

    def update_ema(self, step: int | None = None) -> None:
        if self.has_ema():
            self.trainable_module_ema.update(self.learner.model, step=step)

    def get_eval_model(self, module: nn.Module | None = None, ema: bool = False) -> nn.Module | None:
        found = super().get_eval_model(module=module, ema=ema)
        plain = None if found is None else unwrap_model(found)
        return plain.model if isinstance(plain, Learner) else found

    def get_clip_parameters(self, exclude_head: bool = False) -> list[nn.Parameter]:
        parameters = list(self.learner.model.parameters())
        return [*(parameters[:-2] if exclude_head else parameters), *self.learner.added.parameters()]

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        return {} if ema else self.learner.mixing.state_dict()

    def load_task_state(
        self,
        state: dict[str, Any] | None,
        strict: bool = True,
        module: nn.Module | None = None,
        ema: bool = False,
    ) -> None:
        if state and not ema:  # a checkpoint of another task has none
            self.learner.mixing.load_state_dict(state)


class _TaskLearner(Learner):
    """A learner that tells timm's optimizers what the model does: layers, and parameters without weight decay."""

    def no_weight_decay(self) -> set[str]:
        named: Any = getattr(unwrap_model(self.model), "no_weight_decay", set)
        return {PREFIX + name for name in named()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        model: Any = unwrap_model(self.model)
        layers: Any = group_parameters(model, model.group_matcher(coarse=coarse), reverse=True)
        last = max(layers.values())
        return lambda name: layers.get(name.removeprefix(PREFIX), last)
