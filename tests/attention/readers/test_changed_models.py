"""Models whose projections were replaced after they were built, as for fine-tuning: read as they now compute."""

import os
import subprocess
import sys

import pytest
import timm
import torch
from torch import Tensor, nn

import vitmix
from support import SMALL_SWIN, tiny_batch
from vitmix.attention.readers import read_model
from vitmix.attention.tap import AttentionTap

CLASSES = 10


class LowRank(nn.Linear):
    """A projection with a low-rank addition, as adapters of fine-tuning have it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None)
        self.load_state_dict(base.state_dict())
        self.down, self.up = (
            nn.Parameter(torch.randn(shape)) for shape in ((base.in_features, 2), (2, base.out_features))
        )

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + input @ self.down @ self.up


class Wrapped(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base

    def forward(self, tokens: Tensor) -> Tensor:
        return 2 * self.base(tokens)


@pytest.mark.parametrize("change", [LowRank, Wrapped])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vit_tiny_patch16_224", {}),
        ("eva02_tiny_patch14_224", {"qkv_bias": False}),
        ("cait_xxs24_224", {}),
        ("beit_base_patch16_224", {"qkv_bias": False}),
        ("beit_base_patch16_224", {}),
        ("swin_tiny_patch4_window7_224", SMALL_SWIN),
    ],
)
def test_saliency_sees_what_replaced_a_projection(name: str, settings: dict[str, object], change: type) -> None:
    torch.manual_seed(0)
    size = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    model = timm.create_model(name, **(settings if settings is SMALL_SWIN else size | settings)).eval()
    images, _ = tiny_batch(size=(32, 32) if settings is SMALL_SWIN else (16, 16))
    reader, seen = read_model(model), []
    for block in reader.blocks[: reader.patch_depth]:
        block.attention.qkv = change(block.attention.qkv)
    if getattr(reader.blocks[0].attention, "q_bias", None) is not None:  # and so `qkv` is called
        for block in reader.blocks:
            block.attention.qkv_bias_separate = True
    hook = reader.blocks[1].module.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args, kwargs)), with_kwargs=True
    )
    with torch.no_grad():
        plain = model(images)
        seen.clear()
        with AttentionTap(model, column_mean=[1]) as tap:
            torch.testing.assert_close(model(images), plain)
    hook.remove()
    ((tokens, *rest), kwargs) = seen[0]
    with torch.no_grad():
        found = reader.blocks[1].attend(tokens, tuple(rest), kwargs).column_mean()
    torch.testing.assert_close(found, tap.column_mean(1))


def test_a_forward_pass_that_another_replaced_is_refused() -> None:
    """Reading would put its own in that place, and take both away in the end."""
    model = timm.create_model(
        "beit_base_patch16_224", img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=CLASSES
    )
    attention = model.blocks[1].attn
    original, ran = attention.forward, []
    attention.forward = lambda *args, **kwargs: (ran.append(1), original(*args, **kwargs))[1]
    with pytest.raises(ValueError, match="the forward pass of a Attention was replaced"):
        vitmix.create("tl_align", CLASSES).attach(model)
    images, _ = tiny_batch()
    model(images)
    assert ran == [1]
    assert not any("vitmix_blocks" in vars(each) or "forward" in vars(each) for each in model.blocks[0].modules())


def test_another_version_of_a_package_works_without_reading() -> None:
    """Models of transformers are built otherwise before version 5."""
    pytest.importorskip("transformers", minversion="5")
    said = subprocess.run(
        [sys.executable, "-c", OLDER],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert said.returncode == 0, said.stderr
    assert "this transformers cannot be read: version 5 or later is needed" in said.stdout


OLDER = """
import sys, torch, vitmix
from transformers import ViTConfig, ViTForImageClassification
sys.modules["transformers"].__version__ = "4.57.1"
small = dict(image_size=16, patch_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
model = ViTForImageClassification(ViTConfig(**small, num_attention_heads=2, num_labels=4))
vitmix.Learner(model, vitmix.cutmix(4))(torch.randn(4, 3, 16, 16), torch.arange(4)).loss.backward()
try:
    vitmix.Learner(model, vitmix.tl_align(4))
except ValueError as problem:
    print(problem)
"""
