"""How wrong is each label rule? Trains a small ViT on the built-in data, whose object masks are known, and measures.

The true share is the visible partner object divided by the visible objects, in pixels.

python examples/label_error.py [--steps 1560] [--pairs 4096]
"""

import argparse

import timm
import torch

import vitmix
from vitmix.lab.data import Shapes
from vitmix.lab.studies.labels import RULES, label_error


def normalize(images: torch.Tensor) -> torch.Tensor:
    return (images - 0.5) / 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1560)
    parser.add_argument("--pairs", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    train, test = Shapes(length=20_000), Shapes(length=max(options.pairs, 128), split="test")
    settings = dict(img_size=32, patch_size=4, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, weight_init="jax")
    model = timm.create_model("vit_tiny_patch16_224", num_classes=len(train.classes), **settings)
    torch.nn.init.normal_(model.pos_embed, std=0.5)  # makes token positions matter from the first step
    learner = vitmix.Learner(model, vitmix.create("0.5*cutmix | 0.5*none", len(train.classes)), seed=options.seed)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=3e-3, weight_decay=0.05, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.steps + 1, pct_start=0.3)
    images, labels, _ = train.batch(range(min(len(train), 64 * options.steps)))
    for _ in range(options.steps):
        rows = torch.randint(len(images), (64,))
        learner(normalize(images[rows]), labels[rows]).loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    images, labels, objects = test.batch(range(len(test)))
    images = normalize(images)
    model.eval()
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    print(f"{options.steps} steps, seed {options.seed}: accuracy on {len(labels)} held-out images {accuracy:.1%}\n")
    rules = {name: vitmix.create(text, len(train.classes)) for name, text in RULES.items()}
    batches = zip(images.split(64), labels.split(64), objects.split(64), strict=True)
    print(f"{'rule':36s}{'error':>8s}{'bias':>8s}{'pairs':>8s}")
    for name, result in label_error(model, rules, batches).items():
        print(f"{name:36s}{result.error:8.3f}{result.bias:+8.3f}{result.pairs:8d}")


if __name__ == "__main__":
    main()
