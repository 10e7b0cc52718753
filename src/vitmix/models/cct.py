"""CCT, CVT and ViT-Lite, the compact transformers of Hassani et al. (2021, arXiv:2104.05704), with timm's interface.

They differ in two choices:

| model    | tokenizer                                     | what the classifier reads  |
|----------|-----------------------------------------------|----------------------------|
| CCT      | convolutions, each with ReLU and max-pooling  | sequence pooling           |
| CVT      | patches                                       | sequence pooling           |
| ViT-Lite | patches                                       | class token                |

Names consist of kind, depth, tokenizer and image side: `cct_7_3x1_32` has depth 7, one 3x3 convolution and 32 pixels.
As in the authors' code, `_sine` means fixed positions, and `_c100` (CIFAR-100) or `_fl` (Flowers-102) sets the default
classes and normalization. Without a suffix these are for CIFAR-10 at 32 pixels, for Flowers-102 with `cct_7_7x2_224`,
and for ImageNet otherwise.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers.attention import Attention
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import build_model_with_cfg, checkpoint_seq, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn

__all__ = ["CompactBlock", "CompactTransformer", "ConvTokenizer", "checkpoint_filter_fn", "sine_positions"]


def sine_positions(length: int, dim: int) -> Tensor:
    """Returns the fixed (1, length, dim) table: sines in even channels, cosines in odd ones, with falling frequency."""
    channel = torch.arange(dim, dtype=torch.float64)
    angle = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (2 * (channel // 2) / dim)
    angle = angle.float()  # the table in released checkpoints is rounded here
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())[None]


class ConvTokenizer(nn.Module):
    """Converts (B, C, H, W) images to (B, N, D) tokens by `n_conv` stages of convolution, ReLU and max-pooling.

    It has the geometry attributes of timm's `PatchEmbed`, so code that reads a model's grid works for both.
    """

    inner_width = 64  # of all stages except the last, independent of the model's width

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 32,
        in_chans: int = 3,
        embed_dim: int = 256,
        n_conv: int = 1,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 1,
        pool_size: int = 3,
        pool_stride: int = 2,
        pool_padding: int = 1,
    ) -> None:
        super().__init__()
        widths = [in_chans, *[self.inner_width] * (n_conv - 1), embed_dim]
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size, stride, padding, bias=False)
            for before, after in zip(widths[:-1], widths[1:], strict=True)
        )
        self.act = nn.ReLU()
        self.pool = nn.MaxPool2d(pool_size, pool_stride, pool_padding)
        self._windows = [(kernel_size, stride, padding), (pool_size, pool_stride, pool_padding)] * n_conv
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.grid_size = self.dynamic_feat_size(self.img_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Returns the (rows, columns) of tokens for an image of this (height, width)."""
        rows, columns = img_size
        for size, stride, padding in self._windows:
            rows = (rows + 2 * padding - size) // stride + 1
            columns = (columns + 2 * padding - size) // stride + 1
        return rows, columns

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        """Returns the pixels between neighboring tokens, for both axes if not `as_scalar`."""
        ratio = math.prod(stride for _, stride, _ in self._windows)
        return ratio if as_scalar else (ratio, ratio)

    def forward(self, x: Tensor) -> Tensor:
        # Tokens are channels-last: no transposition, and the pooling gradient is read in order.
        x = x.contiguous(memory_format=torch.channels_last)
        for conv in self.convs:
            x = self.act(self.pool(conv(x)))  # ReLU and maximum commute; after pooling, a quarter is left
        return x.flatten(2).transpose(1, 2)


class CompactBlock(nn.Module):
    """Encoder layer; the second norm replaces the residual stream instead of feeding a branch."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 2.0,
        proj_drop: float = 0.0,
        attn_drop: float = 0.1,
        drop_path: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = Attention(dim, num_heads, qkv_bias=False, attn_drop=attn_drop, proj_drop=proj_drop)
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = norm_layer(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        x = self.norm2(x)
        return x + self.drop_path2(self.mlp(x))


class CompactTransformer(nn.Module):
    """A compact transformer: tokenizer, positions, blocks, final norm, pooling, linear head.

    There is no `no_weight_decay`: like the authors, it decays positions, which start large, and the class token.

    Args:
        embed_layer: Creates the tokenizer from img_size, in_chans, embed_dim: `ConvTokenizer` or timm's `PatchEmbed`.
        class_token: Whether the classifier reads a class token; otherwise it pools the sequence.
        global_pool: None means 'token' or 'seqpool', depending on `class_token`; '' leaves the tokens unpooled.
        positional_embedding: 'learnable', 'sine' (fixed) or 'none'. A class token has a position too.
        drop_rate: Dropout before the head. `proj_drop_rate` acts after each projection and in the MLP, `attn_drop_rate`
            on attention. `drop_path_rate` is that of the last block (0 in the first, linear between).
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 32,
        in_chans: int = 3,
        num_classes: int = 10,
        embed_dim: int = 256,
        depth: int = 7,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        embed_layer: Callable[..., nn.Module] = ConvTokenizer,
        class_token: bool = False,
        global_pool: str | None = None,
        positional_embedding: str = "learnable",
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.1,
        drop_path_rate: float = 0.1,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else (img_size[0], img_size[1])
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.has_class_token = class_token
        self.num_prefix_tokens = int(class_token)
        self.positional_embedding = positional_embedding
        self.grad_checkpointing = False

        # Any: timm types PatchEmbed's geometry as optional, and another tokenizer needs only the same attributes
        self.patch_embed: Any = embed_layer(img_size=self.img_size, in_chans=in_chans, embed_dim=embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if class_token else None
        length = self.patch_embed.num_patches + self.num_prefix_tokens
        if positional_embedding == "learnable":
            self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, length, embed_dim), std=0.2))
        elif positional_embedding == "sine":
            self.pos_embed = nn.Parameter(sine_positions(length, embed_dim), requires_grad=False)
        elif positional_embedding == "none":
            self.pos_embed = None
        else:
            raise ValueError(
                f"positional_embedding must be 'learnable', 'sine' or 'none', got {positional_embedding!r}"
            )
        block = partial(CompactBlock, embed_dim, num_heads, mlp_ratio=mlp_ratio, norm_layer=norm_layer)
        block = partial(block, proj_drop=proj_drop_rate, attn_drop=attn_drop_rate)
        rates = [drop_path_rate * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.Sequential(*(block(drop_path=rate) for rate in rates))
        reduction = self.patch_embed.feat_ratio()
        self.feature_info = [dict(module=f"blocks.{i}", num_chs=embed_dim, reduction=reduction) for i in range(depth)]
        self.norm = norm_layer(embed_dim)
        self.head_drop = nn.Dropout(drop_rate)
        self.attention_pool: nn.Linear | None = None
        native = "token" if class_token else "seqpool"
        self.reset_classifier(num_classes, native if global_pool is None else global_pool)
        self.apply(_init_weights)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Returns the patterns with which timm groups parameters into layers."""
        stem = r"^(?:cls_token|pos_embed|patch_embed)"  # timm reads a captured group as a layer number
        return dict(stem=stem, blocks=[(r"^blocks\.(\d+)", None), (r"^norm", (99999,))])

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes each block in the backward pass instead of storing its activations."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """Returns the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces the head by a newly initialized one (none for 0 classes) and, if given, `global_pool`."""
        weight = next(self.patch_embed.parameters())
        self.num_classes = num_classes
        if global_pool is not None:
            native = "token" if self.has_class_token else "seqpool"
            if global_pool not in (native, ""):
                raise ValueError(f"global_pool must be {native!r} or '' (no pooling), got {global_pool!r}")
            if global_pool == "":
                self.attention_pool = None
            elif native == "seqpool" and self.attention_pool is None:
                self.attention_pool = nn.Linear(self.embed_dim, 1).to(weight).apply(_init_weights)
            self.global_pool = global_pool
        head = nn.Linear(self.embed_dim, num_classes) if num_classes > 0 else nn.Identity()
        self.head = head.to(weight).apply(_init_weights)

    def _embed(self, x: Tensor) -> Tensor:
        """Returns the (B, N, D) input of the first block."""
        if tuple(x.shape[-2:]) != self.img_size:
            raise ValueError(
                f"expected images of size {self.img_size}, got {tuple(x.shape[-2:])}; "
                f"resize them or create the model with img_size={tuple(x.shape[-2:])}"
            )
        x = self.patch_embed(x)
        if self.cls_token is not None:
            x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)
        return x if self.pos_embed is None else x + self.pos_embed

    def forward_features(self, x: Tensor) -> Tensor:
        """Returns the (B, N, D) tokens after the final norm, class token first."""
        x = self._embed(x)
        x = checkpoint_seq(self.blocks, x) if self.grad_checkpointing else self.blocks(x)
        return self.norm(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
    ) -> Any:
        """Returns the final features and the outputs of selected blocks, as timm's VisionTransformer does.

        Args:
            indices: The last n blocks (int), these blocks (list), or all (None).
            return_prefix_tokens: Return (patch tokens, class token) pairs if there is a class token.
            norm: Apply the final norm to the intermediates.
            stop_early: Skip the blocks after the last selected one; the final features are then that block's.
            output_fmt: 'NCHW' or 'NLC'.
            intermediates_only: Return only the list instead of (features, list).
            output_dict: Return a dict with image_features, image_intermediates and image_intermediates_prefix.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt must be 'NCHW' or 'NLC', got {output_fmt!r}")
        take, last = feature_take_indices(len(self.blocks), indices)
        x = self._embed(x)
        outputs = []
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = checkpoint_seq([block], x) if self.grad_checkpointing else block(x)
            if i in take:
                outputs.append(self.norm(x) if norm else x)

        prefix = [y[:, : self.num_prefix_tokens] for y in outputs]
        outputs = [y[:, self.num_prefix_tokens :] for y in outputs]
        if output_fmt == "NCHW":
            outputs = [y.transpose(1, 2).unflatten(2, self.patch_embed.grid_size).contiguous() for y in outputs]

        with_prefix = return_prefix_tokens and self.num_prefix_tokens > 0
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": outputs}
            if with_prefix:
                result["image_intermediates_prefix"] = prefix
            return result if intermediates_only else {**result, "image_features": self.norm(x)}
        if with_prefix:
            outputs = list(zip(outputs, prefix, strict=True))
        return outputs if intermediates_only else (self.norm(x), outputs)

    def get_intermediate_layers(
        self,
        x: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> list[Any]:
        """Returns the outputs of the last n (or the listed) blocks; DINO's name for `forward_intermediates`."""
        return self.forward_intermediates(
            x,
            n if isinstance(n, int) else list(n),
            return_prefix_tokens=return_prefix_tokens,
            norm=norm,
            output_fmt="NCHW" if reshape else "NLC",
            intermediates_only=True,
        )

    def sequence_pool_weights(self, tokens: Tensor) -> Tensor:
        """Returns the (B, N) weights of sequence pooling for `forward_features` tokens; rows sum to one."""
        if self.attention_pool is None:
            raise ValueError(f"pooling weights need global_pool='seqpool', got {self.global_pool!r}")
        return self.attention_pool(tokens).squeeze(-1).softmax(dim=1)

    def pool(self, x: Tensor) -> Tensor:
        """Returns the (B, D) vector that the head reads; with global_pool='', the unchanged tokens."""
        if self.global_pool == "seqpool":
            return (self.sequence_pool_weights(x).unsqueeze(1) @ x).squeeze(1)
        return x[:, 0] if self.global_pool == "token" else x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Returns logits or, with `pre_logits`, the vector they are computed from."""
        x = self.head_drop(self.pool(x))
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight)  # the bias of a patch embedding keeps torch's default


# Applied in this order, to the authors' keys only: their norm1 is our norm2, their pre_norm our norm1.
_RENAMES = (
    ("classifier.class_emb", "cls_token"),
    ("classifier.positional_emb", "pos_embed"),
    ("classifier.fc.", "head."),
    ("classifier.", ""),
    (".norm1.", ".norm2."),
    (".pre_norm.", ".norm1."),
    (".self_attn.", ".attn."),
    (".linear1.", ".mlp.fc1."),
    (".linear2.", ".mlp.fc2."),
)


def checkpoint_filter_fn(state_dict: Mapping[str, Tensor], model: CompactTransformer) -> dict[str, Tensor]:
    """Returns a state dict that fits `model`, from our names or those of the authors of CCT and TokenMixup.

    Separate query, key and value weights are stacked. TokenMixup's score nets (`small_h_*`) are dropped. Learned
    positions of another square grid are resampled; fixed positions are replaced by the model's.
    """
    tokenizer = r"patch_embed.convs.\1." if isinstance(model.patch_embed, ConvTokenizer) else "patch_embed.proj."
    weights: dict[str, Tensor] = {}
    for key, value in state_dict.items():
        if "small_h_" in key:
            continue
        key = re.sub(r"^tokenizer\.conv_layers\.(\d+)\.0\.", tokenizer, key)
        if key.startswith("classifier."):
            for theirs, ours in _RENAMES:
                key = key.replace(theirs, ours)
        weights[key] = value
    for key in [key for key in weights if key.endswith(".attn.query.weight")]:
        attn = key.removesuffix("query.weight")
        parts = [weights.pop(f"{attn}{part}.weight") for part in ("query", "key", "value")]
        weights[f"{attn}qkv.weight"] = torch.cat(parts)
    positions = weights.get("pos_embed")
    if positions is not None and model.pos_embed is not None and positions.shape[1] != model.pos_embed.shape[1]:
        if model.positional_embedding == "sine":
            weights["pos_embed"] = model.pos_embed.detach()
        else:
            grid, prefix = list(model.patch_embed.grid_size), model.num_prefix_tokens
            weights["pos_embed"] = resample_abs_pos_embed(positions, grid, num_prefix_tokens=prefix)
    return weights


_sizes: dict[str, dict[str, Any]] = {
    "2": dict(depth=2, embed_dim=128, num_heads=2, mlp_ratio=1.0),
    "4": dict(depth=4, embed_dim=128, num_heads=2, mlp_ratio=1.0),
    "6": dict(depth=6, embed_dim=256, num_heads=4, mlp_ratio=2.0),
    "7": dict(depth=7, embed_dim=256, num_heads=4, mlp_ratio=2.0),
    "14": dict(depth=14, embed_dim=384, num_heads=6, mlp_ratio=3.0),
}
_tokenizers: dict[str, Callable[..., nn.Module]] = {
    "3x1": partial(ConvTokenizer, n_conv=1),
    "3x2": partial(ConvTokenizer, n_conv=2),
    "7x2": partial(ConvTokenizer, n_conv=2, kernel_size=7, stride=2, padding=3),
    "4": partial(PatchEmbed, patch_size=4),
    "8": partial(PatchEmbed, patch_size=8),
    "16": partial(PatchEmbed, patch_size=16),
}
_data: dict[str, dict[str, Any]] = {
    "c10": dict(num_classes=10, crop_pct=1.0, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "c100": dict(num_classes=100, crop_pct=1.0, mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761)),
    "fl": dict(num_classes=102, crop_pct=1.0, mean=(0.4353, 0.3773, 0.2872), std=(0.2966, 0.2455, 0.2698)),
    "in": dict(num_classes=1000, crop_pct=0.9, mean=IMAGENET_DEFAULT_MEAN, std=IMAGENET_DEFAULT_STD),
}
_both_positions = (
    ["cct_2_3x2_32", "cct_4_3x2_32", "cct_6_3x1_32", "cct_6_3x2_32", "cct_7_3x1_32", "cct_7_3x2_32", "cct_7_7x2_224"]
    + ["cvt_2_4_32", "cvt_4_4_32", "cvt_6_4_32", "cvt_7_4_32"]
    + ["vit_lite_2_4_32", "vit_lite_4_4_32", "vit_lite_6_4_32", "vit_lite_7_4_32"]
)
_names = (
    _both_positions
    + [f"{name}_sine" for name in _both_positions]
    + ["cct_7_3x1_32_c100", "cct_7_3x1_32_sine_c100", "cct_14_7x2_224", "cct_14_7x2_384", "cct_14_7x2_384_fl"]
    + ["cvt_7_8_32", "vit_lite_7_8_32", "vit_lite_7_16_32"]
)


def _read_name(name: str) -> tuple[str, str, str, int, bool, str]:
    """Returns kind, depth, tokenizer, image side, whether positions are sines, and the dataset in a name."""
    parts = re.fullmatch(r"(cct|cvt|vit_lite)_(\d+)_(\d+(?:x\d)?)_(\d+)(_sine)?(?:_(c100|fl))?", name)
    assert parts is not None, name
    kind, depth, tokenizer, side, sine, data = parts.groups()
    if data is None:  # among the 224-pixel models, the authors publish CCT-7 for Flowers only
        data = "c10" if side == "32" else "fl" if depth == "7" else "in"
    return kind, depth, tokenizer, int(side), sine is not None, data


def _cfg(name: str) -> dict[str, Any]:
    kind, _, _, side, _, data = _read_name(name)
    first_conv = "patch_embed.convs.0" if kind == "cct" else "patch_embed.proj"
    model = dict(fixed_input_size=True, first_conv=first_conv, classifier="head")
    return {**model, **_data[data], "input_size": (3, side, side), "interpolation": "bicubic"}


def _entry_point(name: str) -> Callable[..., CompactTransformer]:
    """Returns the function that timm calls for a model; its name contains the settings."""
    kind, depth, tokenizer, _, sine, _ = _read_name(name)
    settings: dict[str, Any] = dict(embed_layer=_tokenizers[tokenizer], class_token=kind == "vit_lite")
    settings.update(_sizes[depth], positional_embedding="sine" if sine else "learnable")

    def create(pretrained: bool = False, **kwargs: Any) -> CompactTransformer:
        return build_model_with_cfg(
            CompactTransformer,
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg=dict(out_indices=2, feature_cls="getter"),
            **{**settings, **kwargs},
        )

    create.__name__ = create.__qualname__ = name
    return create


default_cfgs = generate_default_cfgs({name: _cfg(name) for name in _names})
for _name in _names:
    globals()[_name] = register_model(_entry_point(_name))  # timm lists the name in __all__, so it must exist
