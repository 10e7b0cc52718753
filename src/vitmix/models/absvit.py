"""AbsViT (Shi et al., CVPR 2023): a ViT that runs twice, the second time told what to look for.

State dicts have the authors' names. timm's `checkpoint_path` loads their files.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from timm.data.constants import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.models import generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["AbsViT", "TopDown"]


class TopDown(nn.Module):
    """Carries tokens from the output of a block down to its input, and says what to add to the block's values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.linear2 = nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.linear(tokens)
        return tokens, self.linear2(tokens)


class AbsViT(VisionTransformer):
    """timm's ViT with top-down attention. As a guide, it is told the labels and says where the objects are: `gaze`.

    `model(images)` returns the logits of a pass that looks for the learned `prompt`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.decoders = nn.ModuleList([TopDown(self.embed_dim) for _ in self.blocks])
        self.prompt = nn.Parameter(torch.randn(self.embed_dim))

    def gaze(self, images: Tensor, rows: Tensor) -> Tensor:
        """Where the classes of label rows `(B, K)` are, `(B, rows, columns)`: zero except in the best places."""
        head: Any = self.head
        weight = head.weight
        if rows.shape[1] != len(weight):
            raise ValueError(
                f"the gaze network knows {len(weight)} classes and the labels have {rows.shape[1]}; use a network with "
                "the classes of the data"
            )
        wanted = rows.to(weight) @ weight
        found = _likeness(self.look_for(images, wanted), wanted)[:, self.num_prefix_tokens :]
        high, low = found.amax(1, keepdim=True), found.amin(1, keepdim=True)
        best = (found - (0.7 * high + 0.3 * low)).clamp_min(0)
        return best.view(len(images), *self.patch_embed.grid_size)

    def look_for(self, images: Tensor, wanted: Tensor) -> Tensor:
        """The final tokens `(B, N, d)` of the second pass, which looks for tokens like `wanted` `(B, d)`."""
        tokens = self.embed_and_run(images, [None] * len(self.blocks))
        down = tokens * _likeness(tokens, wanted).unsqueeze(2).to(tokens.dtype)
        above: list[Tensor | None] = []
        for decoder in reversed(self.decoders):
            down, added = decoder(down)
            above.insert(0, added)
        return self.embed_and_run(images, above)

    def embed_and_run(self, images: Tensor, above: Sequence[Tensor | None]) -> Tensor:
        """The final tokens of one pass; each block adds the values of what comes from `above`, if anything."""
        tokens = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(images))))
        blocks: Any = self.blocks
        for block, added in zip(blocks, above, strict=True):
            attended = _attend(block.attn, block.norm1(tokens), added)
            tokens = tokens + block.drop_path1(block.ls1(attended))
            tokens = tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))
        return self.norm(tokens)

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.forward_head(self.look_for(x, self.prompt.expand(len(x), -1)))


def _attend(attention: Any, tokens: Tensor, above: Tensor | None) -> Tensor:
    """timm's attention, with values `V(tokens) + V(above)`."""

    def split(given: Tensor) -> Tensor:
        projected = attention.qkv(given).unflatten(2, (3, attention.num_heads, -1))
        return projected.permute(2, 0, 3, 1, 4)

    query, key, value = split(tokens)
    if above is not None:
        value = value + split(above)[2]
    mixed = functional.scaled_dot_product_attention(query, key, value)
    return attention.proj_drop(attention.proj(mixed.transpose(1, 2).flatten(2)))


def _likeness(tokens: Tensor, wanted: Tensor) -> Tensor:
    """The cosine `(B, N)` of tokens `(B, N, d)` and what is `wanted` `(B, d)`, from 0 to 1."""
    exact = torch.promote_types(tokens.dtype, torch.float32)  # of autocast's tokens
    pair = functional.normalize(tokens.to(exact), dim=2), functional.normalize(wanted.to(exact), dim=1)
    return (pair[0] * pair[1].unsqueeze(1)).sum(2).clamp(0, 1)


_widths = {"absvit_tiny_patch16_224": 192, "absvit_small_patch16_224": 384, "absvit_base_patch16_224": 768}
_cfg: dict[str, Any] = dict(input_size=(3, 224, 224), num_classes=1000, fixed_input_size=True, pool_size=None)
_cfg.update(mean=IMAGENET_INCEPTION_MEAN, std=IMAGENET_INCEPTION_STD, crop_pct=0.9, interpolation="bicubic")
_cfg.update(first_conv="patch_embed.proj", classifier="head")


def _entry_point(name: str) -> Callable[..., AbsViT]:
    """Returns the function that timm calls for a model."""

    def create(pretrained: bool = False, **settings: Any) -> AbsViT:
        if pretrained:
            raise ValueError(
                f"the weights of AbsViT are not on a model hub; download the authors' {name}.pth (the repository "
                "bfshi/AbSViT links to it) and give checkpoint_path=FILE instead of pretrained"
            )
        kept = {key: value for key, value in settings.items() if not key.startswith(("pretrained_cfg", "cache_dir"))}
        model: Any = AbsViT(**{"patch_size": 16, "embed_dim": _widths[name], "num_heads": _widths[name] // 64, **kept})
        model.pretrained_cfg = model.default_cfg = dict(_cfg, architecture=name, num_classes=model.num_classes)
        return model

    create.__name__ = create.__qualname__ = name
    return create


default_cfgs = generate_default_cfgs({name: dict(_cfg) for name in _widths})
for _name in _widths:
    globals()[_name] = register_model(_entry_point(_name))  # timm lists the name in __all__, so it must exist
