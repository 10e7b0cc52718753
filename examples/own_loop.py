"""A mixing method in a training loop of your own: attach it, then mix, run the model, take the loss.

python examples/own_loop.py [--method tl_align] [--steps 300]
"""

import argparse

import timm
import torch

import vitmix
from vitmix.data import Shapes

parser = argparse.ArgumentParser()
parser.add_argument("--method", default="tl_align")
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()

torch.manual_seed(0)
data = Shapes(size=32, length=64 * options.steps)
model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=96, depth=4, num_classes=12)
mixer = vitmix.create(options.method, num_classes=12)

with mixer.attach(model) as mixing:  # hooks live exactly this long
    optimizer = torch.optim.AdamW([*model.parameters(), *mixing.parameters()], lr=1e-3, weight_decay=0.05)
    for step in range(options.steps):
        images, labels, _ = data.batch(range(64 * step, 64 * (step + 1)))
        batch = mixing.mix(images, labels)
        loss = mixing.loss(model(batch.images), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss:.3f}")

model.eval()
images, labels, _ = Shapes(size=32, length=1000, split="test").batch(range(1000))
with torch.no_grad():
    print(f"accuracy on 1000 held-out images: {(model(images).argmax(1) == labels).float().mean():.1%}")
