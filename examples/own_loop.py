"""A mixing method in your own training loop: attach it, then mix, run the model and compute the loss.

python examples/own_loop.py [--method "none | tl_align"] [--steps 1200]
"""

import argparse

import timm
import torch

import vitmix
from vitmix.lab.data import Shapes

parser = argparse.ArgumentParser()
parser.add_argument("--method", default="none | tl_align")
parser.add_argument("--steps", type=int, default=1200)
options = parser.parse_args()

torch.manual_seed(0)
data = Shapes(size=32, length=64 * options.steps)
settings = dict(img_size=32, patch_size=4, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, qk_norm=True)
model = timm.create_model("vit_tiny_patch16_224", num_classes=12, **settings)
mixer = vitmix.create(options.method, num_classes=12)

with mixer.attach(model) as mixing:  # removes its hooks at the end
    parameters = [*model.parameters(), *mixing.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.05, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.steps + 1)
    for step in range(options.steps):
        images, labels, _ = data.batch(range(64 * step, 64 * (step + 1)))
        batch = mixing.mix(images * 4 - 2, labels)
        loss = mixing.loss(model(batch.images), batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss:.3f}")

model.eval()
images, labels, _ = Shapes(size=32, length=1000, split="test").batch(range(1000))
with torch.no_grad():
    print(f"accuracy on 1000 held-out images: {(model(images * 4 - 2).argmax(1) == labels).float().mean():.1%}")
