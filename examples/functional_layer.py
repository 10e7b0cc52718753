"""TransMix with functions only: every step is explicit, and you control every random number."""

import timm
import torch

from vitmix import AttentionTap
from vitmix import functional as F

model = timm.create_model("deit_tiny_patch16_224", num_classes=100)
images, labels = torch.randn(8, 3, 224, 224), torch.arange(8)
gen = torch.Generator().manual_seed(0)

partner = F.reversed_pairs(len(images))
share = F.beta_share(len(images), 1.0, generator=gen)
boxes = F.draw_boxes((224, 224), share, generator=gen)  # numbers first ...
mask = F.box_mask(boxes, (224, 224))  # ... then tensors

with AttentionTap(model, class_row=[-1]) as tap:  # fused attention stays on
    logits = model(F.mix_images(images, mask, partner))

tokens = F.resample_mask(mask, (14, 14), rule="nearest").flatten(1)
share = (F.area_share(mask) + F.attention_share(tap.class_row(-1), tokens)) / 2
targets = F.mix_targets(F.label_rows(labels, 100), partner, share)
loss = F.soft_cross_entropy(logits, targets)
loss.backward()
print(f"area {F.area_share(mask)[0]:.3f}, with attention {share[0]:.3f}, loss {loss:.3f}")
