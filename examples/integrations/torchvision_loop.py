"""A loop like torchvision's classification reference: v2 transforms, mixing in the collate function, warm-up and EMA.

Methods that read no attention work like torchvision's mixers, for any model. [--epochs 6] [--images 6400]
"""

import argparse

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, default_collate
from torchvision.models import VisionTransformer
from torchvision.transforms import v2

import vitmix
from vitmix.lab.data import Shapes

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--images", type=int, default=6400)
options = parser.parse_args()

torch.manual_seed(0)
normalize = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
train_transform = v2.Compose([v2.RandomHorizontalFlip(), *normalize])
# In the reference: v2.RandomChoice([v2.MixUp(...), v2.CutMix(...)]). Blocks of tokens need the model's grid, 8 x 8.
mixer = vitmix.create("none | mixup(alpha=0.2) | tokenmix(grid=[8, 8], loss=ce)", num_classes=12)


def collate(batch):
    return mixer(*default_collate(batch))


train_set = Shapes(length=options.images, transform=train_transform)
train_loader = DataLoader(train_set, batch_size=64, shuffle=True, collate_fn=collate, drop_last=True)
test_loader = DataLoader(Shapes(length=500, split="test", transform=v2.Compose(normalize)), batch_size=250)
model = VisionTransformer(32, 4, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=12)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
criterion = nn.CrossEntropyLoss()  # takes soft targets
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
steps = options.epochs * len(train_loader)
warm = LinearLR(optimizer, 0.01, total_iters=max(1, steps // 10))
schedule = SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, steps)], [max(1, steps // 10)])

for epoch in range(options.epochs):
    for images, targets in train_loader:
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(model)
    averaged.eval()
    with torch.no_grad():
        right = sum(int((averaged(images).argmax(1) == labels).sum()) for images, labels in test_loader)
    print(f"epoch {epoch}  loss {loss:.3f}  accuracy of the EMA weights {right / 500:.1%}")
