"""A Lightning module around a learner."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from vitmix._learner import Learner
from vitmix._mixer import AnyMixer

__all__ = ["MixModule"]

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
ADAMW = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.05)


class MixModule(LightningModule):
    """Trains a model with a mixing method. Derive from it to change the optimizer, the metrics or the log.

    Its checkpoints hold the model, the parameters that the method adds, the seed and the number of draws, so that a
    resumed fit continues: `MixModule.load_from_checkpoint(path, model=model, mixer=mixer)`. Validation and test are
    unmixed and log loss and accuracy; predictions are logits.

    Args:
        model: the model, which returns logits.
        mixer: the method, as a mixer or as a text, which takes the number of classes from the model.
        guide: another model for the guide pass, see `vitmix.Learner`.
        seed: seed of the draws (default: drawn from torch's generator, see `lightning.seed_everything`).
        optimizer: makes the optimizer from parameters (default: AdamW with learning rate 1e-3 and weight decay 0.05).
    """

    def __init__(
        self,
        model: nn.Module,
        mixer: AnyMixer | str,
        *,
        guide: nn.Module | None = None,
        seed: int | None = None,
        optimizer: MakeOptimizer = ADAMW,
    ) -> None:
        super().__init__()
        self.learner = Learner(model, mixer, guide=guide, seed=seed, step=None if seed is None else 0)
        self.make_optimizer = optimizer

    @property
    def model(self) -> nn.Module:
        """The given model, with its state-dict keys."""
        return self.learner.model

    def forward(self, images: Tensor) -> Tensor:
        return self.learner(images)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output = self.learner(*batch[:2], maps=batch[2] if len(batch) > 2 else None)
        self.log("loss", output.loss, prog_bar=True)
        return output.loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._measure(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._measure(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.learner(batch[0] if isinstance(batch, list | tuple) else batch)

    def _measure(self, batch: Any, name: str) -> None:
        images, labels = batch[:2]
        output = self.learner(images, labels)  # in evaluation mode nothing is mixed
        classes = labels if labels.ndim == 1 else labels.argmax(1)
        right = (output.logits.argmax(1) == classes).float().mean()
        self.log_dict({f"{name}_loss": output.loss, f"{name}_accuracy": right}, prog_bar=True, batch_size=len(images))

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.learner.parameters())
