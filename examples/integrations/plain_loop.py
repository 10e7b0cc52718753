"""A plain PyTorch loop with three more lines (mixer, attach, mix) and another loss. [--steps 600]"""

import argparse

import timm
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

import vitmix
from vitmix.lab.data import Shapes

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=600)
steps = parser.parse_args().steps

torch.manual_seed(0)
to_tensor = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
train_set = Shapes(length=64 * steps, transform=to_tensor)
test_set = Shapes(length=min(1000, 64 * steps), split="test", transform=to_tensor)
settings = dict(img_size=32, patch_size=4, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, qk_norm=True)
model = timm.create_model("vit_tiny_patch16_224", num_classes=12, **settings)

mixer = vitmix.create("none | tl_align", num_classes=12)
with mixer.attach(model) as mixing:
    optimizer = torch.optim.AdamW([*model.parameters(), *mixing.parameters()], lr=2e-3, weight_decay=0.05)
    for step, (images, labels) in enumerate(DataLoader(train_set, batch_size=64, shuffle=True)):
        batch = mixing.mix(images, labels)
        loss = mixing.loss(model(batch.images), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}  loss {loss:.3f}")

model.eval()
with torch.no_grad():
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in DataLoader(test_set, 250))
print(f"accuracy on {len(test_set)} images: {right / len(test_set):.1%}")
