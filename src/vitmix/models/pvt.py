"""PVT v1, the Pyramid Vision Transformer of Wang et al. (2021, arXiv:2102.12122), with timm's interface.

It has four stages with separate patches, positions and blocks. Keys and values come from a grid that a strided
convolution makes coarser (spatial reduction). A class token joins in the last stage, and the classifier reads it.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers.config import use_fused_attn
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import build_model_with_cfg, checkpoint, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PvtAttention", "PvtBlock", "PvtStage", "PyramidVisionTransformer", "checkpoint_filter_fn"]

# Positions are resampled as in the authors' code, in the forward pass and on loading
_resample: Callable[..., Tensor] = partial(resample_abs_pos_embed, interpolation="bilinear", antialias=False)
_layer_norm = partial(nn.LayerNorm, eps=1e-6)


class PvtAttention(nn.Module):
    """Attention of every token to the tokens of a grid that is `sr_ratio` times coarser.

    `sr` and `norm` create that grid. They are None if `sr_ratio` is 1; only then prefix tokens are allowed.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"the width must be a multiple of num_heads, got {dim} and {num_heads}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.sr_ratio = sr_ratio
        self.fused_attn = use_fused_attn()
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.sr = nn.Conv2d(dim, dim, sr_ratio, sr_ratio) if sr_ratio > 1 else None
        self.norm = nn.LayerNorm(dim) if sr_ratio > 1 else None  # eps 1e-5, unlike the blocks' norms
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        batch, length, dim = x.shape
        q = self.q(x).reshape(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        if self.sr is not None and self.norm is not None:
            x = self.sr(x.transpose(1, 2).reshape(batch, dim, *feat_size))
            x = self.norm(x.flatten(2).transpose(1, 2))
        k, v = self.kv(x).reshape(batch, -1, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused_attn:
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop.p if self.training else 0.0)
        else:
            x = self.attn_drop((q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1)) @ v
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(batch, length, dim)))


class PvtBlock(nn.Module):
    """Pre-norm encoder layer, called with its tokens and the (rows, columns) of their grid."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        drops = dict(attn_drop=attn_drop, proj_drop=proj_drop)
        self.norm1 = norm_layer(dim)
        self.attn = PvtAttention(dim, num_heads, sr_ratio=sr_ratio, qkv_bias=qkv_bias, **drops)
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = norm_layer(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x), feat_size))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class PvtStage(nn.Module):
    """One level of the pyramid: from a (B, C, H, W) map to the tokens of a coarser grid, prefix tokens first."""

    def __init__(
        self,
        dim_in: int,
        dim: int,
        *,
        img_size: tuple[int, int],
        patch_size: int,
        num_prefix_tokens: int,
        pos_drop: float,
        drop_path: list[float],
        block: Callable[..., PvtBlock],
    ) -> None:
        super().__init__()
        self.num_prefix_tokens = num_prefix_tokens
        self.grad_checkpointing = False
        # Any: timm types PatchEmbed's geometry as optional
        self.patch_embed: Any = PatchEmbed(
            img_size, patch_size, dim_in, dim, norm_layer=nn.LayerNorm, strict_img_size=False
        )
        length = self.patch_embed.num_patches + num_prefix_tokens
        self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, length, dim), std=0.02))
        self.pos_drop = nn.Dropout(pos_drop)
        self.blocks = nn.ModuleList(block(dim, drop_path=rate) for rate in drop_path)

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> tuple[Tensor, tuple[int, int]]:
        """Returns the (B, N, D) tokens and the (rows, columns) of their grid."""
        feat_size = self.patch_embed.dynamic_feat_size((x.shape[-2], x.shape[-1]))
        x = self.patch_embed(x)
        if prefix is not None:
            x = torch.cat((prefix.expand(x.shape[0], -1, -1), x), dim=1)  # len would fix the batch of an export
        own = self.patch_embed.grid_size
        x = self.pos_drop(x + _resample(self.pos_embed, feat_size, own, num_prefix_tokens=self.num_prefix_tokens))
        for block in self.blocks:
            x = checkpoint(block, x, feat_size) if self.grad_checkpointing else block(x, feat_size)
        return x, feat_size


class PyramidVisionTransformer(nn.Module):
    """PVT v1: four stages, final norm, linear head on the class token.

    Other image sizes than `img_size` work too, with interpolated positions. Their sides must be multiples of
    `size_multiple`, so that no patch and no cell of a reduced grid is cut off.

    Args:
        global_pool: 'token' (class token), 'avg' (mean of the patch tokens) or '' (no pooling).
        depths, embed_dims, num_heads, mlp_ratios, sr_ratios: One value per stage. The last `sr_ratios` must be 1,
            because a class token has no position in a grid.
        drop_rate: Dropout before the head. `pos_drop_rate` acts after each stage's positions, `proj_drop_rate` after
            each projection and in the MLP, `attn_drop_rate` on attention. `drop_path_rate` is that of the last block
            (0 in the first, linear over the blocks of all stages).
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        depths: tuple[int, ...] = (3, 4, 6, 3),
        embed_dims: tuple[int, ...] = (64, 128, 320, 512),
        num_heads: tuple[int, ...] = (1, 2, 5, 8),
        mlp_ratios: tuple[float, ...] = (8, 8, 4, 4),
        sr_ratios: tuple[int, ...] = (8, 4, 2, 1),
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = _layer_norm,
    ) -> None:
        super().__init__()
        if sr_ratios[-1] != 1:
            raise ValueError(f"the last stage has a class token, so the last sr_ratios must be 1, got {sr_ratios}")
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else (img_size[0], img_size[1])
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dims[-1]
        self.has_class_token = True
        self.num_prefix_tokens = 1
        patch_sizes = [4] + [2] * (len(depths) - 1)
        reductions = [math.prod(patch_sizes[: i + 1]) for i in range(len(depths))]
        self.size_multiple = math.lcm(*(cell * ratio for cell, ratio in zip(reductions, sr_ratios, strict=True)))
        self._check_size(self.img_size)

        drops = dict(proj_drop=proj_drop_rate, attn_drop=attn_drop_rate)
        total = sum(depths)
        linear = [drop_path_rate * index / max(total - 1, 1) for index in range(total)]
        rates = [linear[sum(depths[:i]) : sum(depths[: i + 1])] for i in range(len(depths))]
        self.stages: Any = nn.ModuleList()  # Any: a type checker sees plain modules
        self.feature_info: list[dict[str, Any]] = []
        for i, dim in enumerate(embed_dims):
            before = reductions[i] // patch_sizes[i]
            block = partial(PvtBlock, num_heads=num_heads[i], mlp_ratio=mlp_ratios[i], sr_ratio=sr_ratios[i])
            stage = PvtStage(
                embed_dims[i - 1] if i else in_chans,
                dim,
                img_size=(self.img_size[0] // before, self.img_size[1] // before),
                patch_size=patch_sizes[i],
                num_prefix_tokens=int(i == len(depths) - 1),
                pos_drop=pos_drop_rate,
                drop_path=rates[i],
                block=partial(block, qkv_bias=qkv_bias, norm_layer=norm_layer, **drops),
            )
            self.stages.append(stage)
            self.feature_info.append(dict(module=f"stages.{i}", num_chs=dim, reduction=reductions[i]))
        token = nn.init.trunc_normal_(torch.empty(1, 1, self.embed_dim), std=0.02)
        self.cls_token: nn.Parameter | None = nn.Parameter(token)
        self.norm = norm_layer(self.embed_dim)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.apply(_init_weights)

    def no_weight_decay(self) -> set[str]:
        """Returns the names of parameters without weight decay; like the authors, it decays positions."""
        return {"cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Returns the patterns with which timm groups parameters into layers: blocks or, with `coarse`, stages."""
        stem = r"^stages\.0\.(?:patch_embed|pos_embed)"  # timm reads a captured group as a layer number
        last = len(self.stages) - 1
        if coarse:
            return dict(stem=stem, blocks=[(r"^stages\.(\d+)", None), (r"^cls_token", (last,)), (r"^norm", (99999,))])
        blocks = [
            (r"^stages\.(\d+)\.(?:patch_embed|pos_embed)", (0,)),  # with the first block of the stage
            (r"^cls_token", (last, 0)),
            (r"^stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^norm", (99999,)),
        ]
        return dict(stem=stem, blocks=blocks)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes each block in the backward pass instead of storing its activations."""
        for stage in self.stages:
            stage.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """Returns the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces the head by a newly initialized one (none for 0 classes) and, if given, `global_pool`."""
        if global_pool is not None:
            if global_pool not in ("token", "avg", ""):
                raise ValueError(f"global_pool must be 'token', 'avg' or '' (no pooling), got {global_pool!r}")
            self.global_pool = global_pool
        self.num_classes = num_classes
        head = nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()
        self.head = head.to(next(self.stages.parameters())).apply(_init_weights)

    def _check_size(self, size: tuple[int, int]) -> None:
        if size[0] % self.size_multiple or size[1] % self.size_multiple:
            raise ValueError(
                f"image sides must be multiples of {self.size_multiple}, got {size[0]}x{size[1]}; resize or pad them"
            )

    def _run_stage(self, stage: PvtStage, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a stage's tokens (with prefix) and its (B, D, rows, columns) map, the input of the next stage."""
        tokens, feat_size = stage(x, self.cls_token if stage.num_prefix_tokens else None)
        patches = tokens[:, stage.num_prefix_tokens :]
        return tokens, patches.transpose(1, 2).reshape(x.shape[0], -1, *feat_size)

    def forward_features(self, x: Tensor) -> Tensor:
        """Returns the last stage's (B, 1 + N, D) tokens after the final norm, class token first."""
        self._check_size((x.shape[-2], x.shape[-1]))
        tokens = x
        for stage in self.stages:
            tokens, x = self._run_stage(stage, x)
        return self.norm(tokens)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Returns the final features and the maps of selected stages (without class token), as timm's PVT v2 does.

        Args:
            indices: The last n stages (int), these stages (list), or all (None).
            norm: Apply the final norm to the last stage's map, the only one of its width.
            stop_early: Skip the stages after the last selected one; the final features are then that stage's tokens.
            output_fmt: 'NCHW', because grids differ between stages.
            intermediates_only: Return only the list instead of (features, list).
        """
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt must be 'NCHW', got {output_fmt!r}")
        take, last = feature_take_indices(len(self.stages), indices)
        self._check_size((x.shape[-2], x.shape[-1]))
        stages = list(self.stages)[: last + 1] if stop_early else list(self.stages)
        maps: list[Tensor] = []
        tokens = x
        for i, stage in enumerate(stages):
            tokens, x = self._run_stage(stage, x)
            if i in take:
                maps.append(x.contiguous())
        prefix = stages[-1].num_prefix_tokens
        if prefix:  # the last stage, which has the width of the final norm
            tokens = self.norm(tokens)
            if norm and len(stages) - 1 in take:
                maps[-1] = tokens[:, prefix:].transpose(1, 2).reshape(x.shape).contiguous()
        return maps if intermediates_only else (tokens, maps)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops modules that these stages do not need, and returns the indices of the stages."""
        take, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if not self.stages[-1].num_prefix_tokens:
            self.cls_token = None
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def pool(self, x: Tensor) -> Tensor:
        """Returns the (B, D) vector that the head reads; with global_pool='', the unchanged tokens."""
        if self.global_pool == "avg":
            return x[:, self.num_prefix_tokens :].mean(dim=1)
        return x[:, 0] if self.global_pool == "token" else x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Returns logits or, with `pre_logits`, the vector they are computed from."""
        x = self.head_drop(self.pool(x))
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):  # convolutions keep torch's default
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: PyramidVisionTransformer) -> dict[str, Tensor]:
    """Returns a state dict that fits `model`, from our names or the authors', with resampled positions."""
    for wrapper in ("model", "state_dict"):
        state_dict = state_dict.get(wrapper, state_dict)
    weights: dict[str, Tensor] = {}
    for key, value in state_dict.items():
        theirs = re.match(r"(patch_embed|pos_embed|block)(\d+)(.*)", key)
        if theirs:
            kind, number, rest = theirs.groups()
            key = f"stages.{int(number) - 1}.{'blocks' if kind == 'block' else kind}{rest}"
        weights[key] = value
    for i, stage in enumerate(model.stages):
        positions = weights.get(f"stages.{i}.pos_embed")
        if positions is not None and positions.shape[1] != stage.pos_embed.shape[1]:
            grid = stage.patch_embed.grid_size
            weights[f"stages.{i}.pos_embed"] = _resample(positions, grid, num_prefix_tokens=stage.num_prefix_tokens)
    return weights


_depths: dict[str, tuple[int, ...]] = {
    "pvt_v1_tiny": (2, 2, 2, 2),
    "pvt_v1_small": (3, 4, 6, 3),
    "pvt_v1_medium": (3, 4, 18, 3),
    "pvt_v1_large": (3, 8, 27, 3),
}
_cfg: dict[str, Any] = dict(input_size=(3, 224, 224), pool_size=(7, 7), num_classes=1000, fixed_input_size=True)
_cfg.update(mean=IMAGENET_DEFAULT_MEAN, std=IMAGENET_DEFAULT_STD, crop_pct=0.9, interpolation="bicubic")
_cfg.update(first_conv="stages.0.patch_embed.proj", classifier="head")


def _entry_point(name: str) -> Callable[..., PyramidVisionTransformer]:
    """Returns the function that timm calls for a model."""

    def create(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
        return build_model_with_cfg(
            PyramidVisionTransformer,
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg=dict(out_indices=(0, 1, 2, 3), feature_cls="getter"),
            **{"depths": _depths[name], **kwargs},
        )

    create.__name__ = create.__qualname__ = name
    return create


default_cfgs = generate_default_cfgs({name: dict(_cfg) for name in _depths})
for _name in _depths:
    globals()[_name] = register_model(_entry_point(_name))  # timm lists the name in __all__, so it must exist
