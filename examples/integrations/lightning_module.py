"""A Lightning module with a mixing method. Its checkpoints store seed and step, so a resumed fit is identical.

[--steps 600]; needs lightning.
"""

import argparse
import tempfile

import lightning
import timm
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

import vitmix
from vitmix.integrations import MixModule
from vitmix.lab.data import Shapes


def build_model():
    settings = dict(img_size=32, patch_size=4, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, qk_norm=True)
    return timm.create_model("vit_tiny_patch16_224", num_classes=12, **settings)


class Classifier(MixModule):
    def configure_optimizers(self):  # learner.parameters() includes those that a method adds
        return torch.optim.AdamW(self.learner.parameters(), lr=2e-3, weight_decay=0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    lightning.seed_everything(0, verbose=False)
    to_tensor = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
    train = DataLoader(Shapes(length=64 * steps, transform=to_tensor), batch_size=64, shuffle=True)
    test = DataLoader(Shapes(length=500, split="test", transform=to_tensor), batch_size=250)
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False)
    mixer = vitmix.create("none | tl_align", num_classes=12)
    module = Classifier(build_model(), mixer)
    trainer.fit(module, train)
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        module = Classifier.load_from_checkpoint(f"{folder}/last.ckpt", model=build_model(), mixer=mixer)
    print(f"accuracy: {trainer.validate(module, test, verbose=False)[0]['val_accuracy']:.1%}")
