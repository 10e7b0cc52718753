"""A loop like timm's train.py: its loaders, task, optimizer, schedule, EMA and checkpoints, with a mixing method.

[--epochs 6] [--images 6400]
"""

import argparse
import tempfile

import timm
import torch
from timm.data.loader import create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, CheckpointSaver, accuracy

from vitmix.integrations import MixTask
from vitmix.lab.data import Shapes

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--images", type=int, default=6400)
options = parser.parse_args()

torch.manual_seed(0)
settings = dict(img_size=32, patch_size=4, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, qk_norm=True)
model = timm.create_model("vit_tiny_patch16_224", num_classes=12, drop_path_rate=0.05, **settings)
data = dict(input_size=(3, 32, 32), batch_size=64, use_prefetcher=False, mean=(0.5,) * 3, std=(0.25,) * 3)
train_loader = create_loader(Shapes(length=options.images), is_training=True, scale=(0.8, 1.0), num_workers=0, **data)
eval_loader = create_loader(Shapes(length=640, split="test"), is_training=False, crop_pct=1.0, num_workers=0, **data)

# The task replaces ClassificationTask of train.py, and its mixup_fn.
task = MixTask(model, "none | tl_align", verbose=False)
task.setup_ema(decay=0.99)
optimizer = create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=2e-3, weight_decay=0.05)
per_epoch = len(train_loader)
scheduler, epochs = create_scheduler_v2(
    optimizer, num_epochs=options.epochs, warmup_epochs=1, updates_per_epoch=per_epoch, step_on_epochs=False
)
folder = tempfile.TemporaryDirectory()
saver = CheckpointSaver(model, optimizer, task=task, checkpoint_dir=folder.name, recovery_dir=folder.name)

for epoch in range(epochs):
    task.train()
    losses, top1 = AverageMeter(), AverageMeter()
    for step, (images, labels) in enumerate(train_loader):
        loss = task(images, labels)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update = epoch * per_epoch + step + 1
        task.update_ema(step=update)
        scheduler.step_update(num_updates=update)
        losses.update(loss.item(), len(labels))
    averaged = task.get_eval_model(ema=True).eval()
    with torch.no_grad():
        for images, labels in eval_loader:
            top1.update(accuracy(averaged(images), labels)[0].item(), len(labels))
    saver.save_checkpoint(epoch, metric=top1.avg)  # timm.create_model(checkpoint_path=...) loads it; --resume continues
    print(f"epoch {epoch}  loss {losses.avg:.3f}  accuracy of the EMA weights {top1.avg:.1f} %")
