"""`transformers.Trainer` with a mixing method."""

from transformers import Trainer

from vitmix.integrations.trainer_mixin import MixTrainerMixin

__all__ = ["MixTrainer"]


class MixTrainer(MixTrainerMixin, Trainer):
    """A `transformers.Trainer` that trains with a mixing method. The model and its files stay what they are.

    All arguments of `Trainer`, and those of `MixTrainerMixin`: `mixer`, a method or its text, `guide` and `mix_seed`.
    """
