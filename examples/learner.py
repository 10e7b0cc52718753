"""Model and method as one module, for DistributedDataParallel, torch.compile, autocast and EMA."""

import timm
import torch

import vitmix

model = timm.create_model("deit_tiny_patch16_224", num_classes=10, drop_path_rate=0.1)
learner = vitmix.Learner(model, vitmix.create("mixup(alpha=0.8) | smmix", num_classes=10), seed=0)
# learner.compile(fullgraph=True)  # one graph for each method of the switch
optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3)

images, labels = torch.randn(4, 3, 224, 224), torch.tensor([1, 2, 3, 4])
for _ in range(2):
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=images.is_cuda):
        output = learner(images, labels)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {learner.step}: loss {output.loss:.3f}", {name: f"{part:.3f}" for name, part in output.parts.items()})

learner.eval()
print("logits without labels:", tuple(learner(images).shape))
print("the model's state-dict keys are unchanged:", list(learner.model.state_dict())[:2], "...")
