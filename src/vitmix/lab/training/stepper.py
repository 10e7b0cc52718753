"""The optimizer's part of an update: gradient clipping, fp16 loss scaling, skipped updates."""

import math

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vitmix.lab.training import processes, sharding
from vitmix.lab.training.config import AnyConfig


class Stepper:
    """Makes updates from gradients. Nothing here waits for a GPU, except with `skip_nonfinite`."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        accelerator: Accelerator,
        config: AnyConfig,
    ) -> None:
        self.parameters, self.optimizer, self.accelerator, self.config = parameters, optimizer, accelerator, config
        self._overflows = torch.zeros((), dtype=torch.long, device=accelerator.device)
        self._one = torch.ones((), device=accelerator.device)

    def clip(self, loss: Tensor) -> bool:
        """Clips the gradients; False if the update must be skipped."""
        scaler, config = self.accelerator.scaler, self.config
        if config.clip_grad is None and not config.skip_nonfinite:
            return True
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        norm = sharding.whole(nn.utils.clip_grad_norm_(self.parameters, config.clip_grad or math.inf))
        if not config.skip_nonfinite or torch.isfinite(norm):  # the same on every rank, so the decision is too
            return True
        # A loss scaler skips overflowing updates itself, except if the loss is not finite.
        lost = scaler is None or not bool(torch.isfinite(loss))
        return not processes.any_process(self.accelerator, lost)

    def apply(self) -> None:
        """The optimizer's step. A loss scaler skips it if gradients overflow; this is counted on the device."""
        scaler = self.accelerator.scaler
        if scaler is None:
            self.optimizer.step()
            return
        before = scaler.scale(self._one)
        scaler.step(self.optimizer)
        scaler.update()
        self._overflows += scaler.scale(self._one) < before

    def leave_out(self) -> None:
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.update()  # it has seen these gradients

    def take_overflows(self) -> int:
        """How many updates the loss scaler skipped since the last call."""
        if self.accelerator.scaler is None:
            return 0
        count = int(self._overflows)
        self._overflows.zero_()
        return count
