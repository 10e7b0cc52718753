"""A Lightning module around the learner. Its checkpoints store the number of draws, so a resumed fit is identical.

[--steps 600]; needs lightning.
"""

import argparse

import lightning
import timm
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

import vitmix
from vitmix.lab.data import Shapes


class Classifier(lightning.LightningModule):
    def __init__(self, method: str, classes: int) -> None:
        super().__init__()
        settings = dict(img_size=32, patch_size=4, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, qk_norm=True)
        model = timm.create_model("vit_tiny_patch16_224", num_classes=classes, **settings)
        self.learner = vitmix.Learner(model, vitmix.create(method, num_classes=classes))

    def training_step(self, batch, number):
        output = self.learner(*batch)
        self.log("loss", output.loss, prog_bar=True)
        return output.loss

    def validation_step(self, batch, number):
        images, labels = batch
        self.log("accuracy", (self.learner(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.learner.parameters(), lr=2e-3, weight_decay=0.05)

    def on_save_checkpoint(self, checkpoint) -> None:
        checkpoint["draws"] = self.learner.step

    def on_load_checkpoint(self, checkpoint) -> None:
        self.learner.step = checkpoint["draws"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    lightning.seed_everything(0, verbose=False)
    to_tensor = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
    train = DataLoader(Shapes(length=64 * steps, transform=to_tensor), batch_size=64, shuffle=True)
    test = DataLoader(Shapes(length=500, split="test", transform=to_tensor), batch_size=250)
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False)
    module = Classifier("none | tl_align", classes=12)
    trainer.fit(module, train)
    print(f"accuracy: {trainer.validate(module, test, verbose=False)[0]['accuracy']:.1%}")
