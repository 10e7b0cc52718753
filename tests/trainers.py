"""Small models and data for the tests of `vitmix.integrations`, which other processes import too."""

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from vitmix.integrations import MixTrainer, MixTrainerMixin

CLASSES = 5


class Images(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int = 24) -> None:
        generator = torch.Generator().manual_seed(7)
        self.images = torch.randn(count, 3, 16, 16, generator=generator)
        self.labels = torch.arange(count) % CLASSES

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


class OwnTrainer(MixTrainerMixin, Trainer):
    """A trainer of a user, with something of its own."""

    evaluated = 0

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.evaluated += 1
        return super().evaluate(*args, **kwargs)


def vit() -> ViTForImageClassification:
    torch.manual_seed(0)
    small = dict(image_size=16, patch_size=4, hidden_size=16, intermediate_size=32, num_hidden_layers=3)
    config = ViTConfig(**small, num_attention_heads=2, num_labels=CLASSES)  # pyright: ignore
    return ViTForImageClassification(config)


def lora(model: Any = None) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    return get_peft_model(vit() if model is None else model, config)


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    given: dict[str, Any] = dict(max_steps=4, per_device_train_batch_size=4, per_device_eval_batch_size=8)
    given |= dict(learning_rate=1e-2, report_to="none", use_cpu=True, save_steps=2, logging_steps=1)
    given |= dict(disable_tqdm=True, dataloader_pin_memory=False, lr_scheduler_type="constant")
    return TrainingArguments(str(folder), **(given | settings))


def trainer(folder: Path, method: Any = "smmix", *, model: Any = None, kind: Any = MixTrainer, **settings: Any) -> Any:
    own = {
        name: settings.pop(name)
        for name in ("guide", "mix_seed", "optimizers", "compute_loss_func")
        if name in settings
    }
    return kind(
        model=vit() if model is None else model,
        args=arguments(folder, **settings),
        train_dataset=Images(),
        eval_dataset=Images(16),
        mixer=method,
        **own,
    )


def logits(model: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(pixel_values=Images(6).images).logits
