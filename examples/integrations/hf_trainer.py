"""Hugging Face Trainer with a mixing method. The model stays a PreTrainedModel and is saved as one.

[--steps 600] [--lora]; needs transformers and accelerate, with --lora also peft.
"""

import argparse
import tempfile

import torch
from torchvision import transforms
from transformers import AutoModelForImageClassification, TrainingArguments, ViTConfig, ViTForImageClassification

from vitmix.integrations import MixTrainer
from vitmix.lab.data import Shapes


def collate(samples):
    images, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--lora", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
small = dict(image_size=32, patch_size=4, hidden_size=64, intermediate_size=128, num_hidden_layers=3)
model = ViTForImageClassification(ViTConfig(**small, num_attention_heads=4, num_labels=12))
if options.lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"]))
to_tensor = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
with tempfile.TemporaryDirectory() as folder:
    given = dict(max_steps=options.steps, per_device_train_batch_size=64, per_device_eval_batch_size=250, use_cpu=True)
    given |= dict(learning_rate=2e-3, weight_decay=0.05, report_to="none", dataloader_pin_memory=False)
    trainer = MixTrainer(
        model=model,
        args=TrainingArguments(folder, logging_steps=50, **given),
        mixer="none | smmix",  # everything else is as with Trainer
        data_collator=collate,
        train_dataset=Shapes(length=64 * options.steps, transform=to_tensor),
        eval_dataset=Shapes(length=500, split="test", transform=to_tensor),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
    )
    trainer.train()
    print(f"accuracy: {trainer.evaluate()['eval_accuracy']:.1%}")
    trainer.save_model(folder)
    if not options.lora:
        print("loaded again:", type(AutoModelForImageClassification.from_pretrained(folder)).__name__)
