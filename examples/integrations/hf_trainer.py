"""Hugging Face Trainer: a module that takes pixel_values and labels and returns loss and logits. [--steps 600]

Needs transformers.
"""

import argparse
import tempfile

import timm
import torch
from torch import nn
from torchvision import transforms
from transformers import Trainer, TrainingArguments, set_seed

import vitmix
from vitmix.lab.data import Shapes


class ForTrainer(nn.Module):
    def __init__(self, learner: vitmix.Learner) -> None:
        super().__init__()
        self.learner = learner

    def forward(self, pixel_values, labels=None):
        if labels is None:
            return {"logits": self.learner(pixel_values)}
        output = self.learner(pixel_values, labels)  # in evaluation the images are not mixed
        return {"loss": output.loss, "logits": output.logits}


def collate(samples):
    images, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=600)
steps = parser.parse_args().steps

set_seed(0)
settings = dict(img_size=32, patch_size=4, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, qk_norm=True)
model = timm.create_model("vit_tiny_patch16_224", num_classes=12, **settings)
learner = vitmix.Learner(model, vitmix.create("none | tl_align", num_classes=12))
to_tensor = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
with tempfile.TemporaryDirectory() as folder:
    given = dict(max_steps=steps, per_device_train_batch_size=64, per_device_eval_batch_size=250, use_cpu=True)
    given |= dict(learning_rate=2e-3, weight_decay=0.05, save_strategy="no", report_to="none")
    given |= dict(remove_unused_columns=False, dataloader_pin_memory=False, label_names=["labels"])
    trainer = Trainer(
        ForTrainer(learner),
        TrainingArguments(folder, logging_steps=50, **given),
        data_collator=collate,
        train_dataset=Shapes(length=64 * steps, transform=to_tensor),
        eval_dataset=Shapes(length=500, split="test", transform=to_tensor),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
    )
    trainer.train()
    print(f"accuracy: {trainer.evaluate()['eval_accuracy']:.1%}")
