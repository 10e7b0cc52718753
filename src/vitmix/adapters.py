"""How a model is read: its blocks, its token geometry, and what its classifier looks at.

A reader is chosen by the model's exact class. Subclasses and look-alikes may add rotary terms or biases after the
place where queries and keys are read, which would make the statistics wrong without a word, so they are refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from timm.layers.attention import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from vitmix.mix import Frame, Grid
from vitmix.models.cct import CompactBlock, CompactTransformer

Readout = Literal["class", "mean", "sequence"]


@dataclass
class Reader:
    """What the rest of the library knows of a model.

    Attributes:
        prefix: how many class, distillation and register tokens precede the patches.
        readout: what the classifier looks at: class tokens, the mean of the patches, or a learned weighting of them.
        read_tokens: with `readout="class"`, how many of the first tokens are read (2 in distilled models).
    """

    model: Any
    prefix: int
    readout: Readout
    read_tokens: int = 1

    @property
    def class_token(self) -> bool:
        """Whether saliency is the class token's row; where no class token is read it is the column mean."""
        return self.readout == "class"

    @property
    def depth(self) -> int:
        return len(self.model.blocks)

    @property
    def width(self) -> int:
        return self.model.embed_dim

    def block(self, index: int) -> Any:
        return self.model.blocks[index]

    @property
    def final_norm(self) -> nn.Module:
        """The module whose output is the final tokens."""
        return self.model.norm

    def grid(self, size: Grid) -> Grid:
        """Rows and columns of tokens for images of a size, which must be one that the model takes."""
        embed = self.model.patch_embed
        if getattr(embed, "strict_img_size", True):
            wanted = tuple(getattr(embed, "img_size", None) or self.model.img_size)
            if wanted != size:
                raise ValueError(
                    f"this model takes images of {wanted[0]}x{wanted[1]}, got {size[0]}x{size[1]}; "
                    "resize them, or build the model with this img_size"
                )
        patch = getattr(embed, "patch_size", None)
        if patch is not None and not embed.dynamic_img_pad and (size[0] % patch[0] or size[1] % patch[1]):
            raise ValueError(
                f"images of {size[0]}x{size[1]} do not divide into patches of {patch[0]}x{patch[1]}; resize them"
            )
        return embed.dynamic_feat_size(size)

    def resolve(self, block: int) -> int:
        """The index of a block counted from either end."""
        if not -self.depth <= block < self.depth:
            raise ValueError(
                f"block {block} is out of range: {type(self.model).__name__} has {self.depth} blocks, "
                f"0..{self.depth - 1} or -{self.depth}..-1"
            )
        return block % self.depth

    def queries_keys(self, index: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of a block for given input tokens. Calls `forward` directly, so no hook runs."""
        block = self.block(index)
        attention = block.attn
        normed = block.norm1.forward(tokens)
        batch, count, _ = normed.shape
        weight, bias = attention.qkv.weight, attention.qkv.bias
        inner = attention.num_heads * attention.head_dim
        both = nn.functional.linear(normed, weight[: 2 * inner], None if bias is None else bias[: 2 * inner])
        query, key = both.view(batch, count, 2, attention.num_heads, attention.head_dim).permute(2, 0, 3, 1, 4)
        return attention.q_norm.forward(query), attention.k_norm.forward(key)

    def read_share(self, share: Tensor, final: Tensor | None) -> Tensor:
        """The classifier's view `(B,)` of one number per token `(B, N)`."""
        if self.readout == "class":
            return share[:, : self.read_tokens].mean(1)
        if self.readout == "mean":
            return share[:, self.prefix :].mean(1)
        assert final is not None
        with torch.no_grad():
            weight = self.model.sequence_pool_weights(final)
        return (weight.to(share.dtype) * share).sum(1)

    def classify(self, pooled: Tensor) -> Tensor:
        """Logits of vectors `(B, d)` pooled from final tokens, through whatever follows pooling in the model."""
        if isinstance(self.model, VisionTransformerDistilled):
            return (self.model.head(pooled) + self.model.head_dist(pooled)) / 2
        if isinstance(self.model, VisionTransformer):
            pooled = self.model.fc_norm(pooled)
        return self.model.head(self.model.head_drop(pooled))

    def stop_after(self, block: int, images: Tensor) -> None:
        """Runs the model up to and including a block, for what hooks record on the way."""
        self.model.forward_intermediates(images, indices=[block], stop_early=True, intermediates_only=True)


def _read_vit(model: VisionTransformer) -> Reader:
    _check_blocks(model, Block)
    if not isinstance(model.patch_drop, nn.Identity):
        raise ValueError("a model with patch dropout has no fixed token grid; build it with patch_drop_rate=0")
    if isinstance(model, VisionTransformerDistilled):
        return Reader(model, prefix=2, readout="class", read_tokens=2)
    if model.global_pool == "token":
        return Reader(model, prefix=model.num_prefix_tokens, readout="class")
    if model.global_pool == "avg" and not model.pool_include_prefix:
        return Reader(model, prefix=model.num_prefix_tokens, readout="mean")
    raise ValueError(
        f"a VisionTransformer with global_pool={model.global_pool!r} cannot be read: "
        "the classifier must look at the class token ('token') or at the mean of the patches ('avg')"
    )


def _read_compact(model: CompactTransformer) -> Reader:
    _check_blocks(model, CompactBlock)
    readout: Readout = "class" if model.has_class_token else "sequence"
    return Reader(model, prefix=model.num_prefix_tokens, readout=readout)


READERS: dict[type[nn.Module], Callable[[Any], Reader]] = {
    VisionTransformer: _read_vit,
    VisionTransformerDistilled: _read_vit,
    CompactTransformer: _read_compact,
}


def read_model(model: nn.Module) -> Reader:
    """The reader of a model, compiled or wrapped for data parallelism or not."""
    model = unwrap(model)
    reader = READERS.get(type(model))
    if reader is None:
        known = ", ".join(kind.__name__ for kind in READERS)
        raise ValueError(
            f"{type(model).__name__} has no attention this library can read; "
            f"known classes (matched exactly): {known}. Methods that need no attention work on any model"
        )
    return reader(model)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.get_submodule("module")
        if inner is None:
            return model
        model = inner


def frame_of(images: Tensor, reader: Reader | None) -> Frame:
    """The frame of a batch of images `(B, C, H, W)`."""
    if images.ndim != 4:
        raise ValueError(f"images must be (B, C, H, W), got {tuple(images.shape)}; add the batch dimension")
    size = (images.shape[2], images.shape[3])
    dtype = torch.float64 if images.dtype == torch.float64 else torch.float32
    if reader is None:
        return Frame(len(images), size, dtype=dtype)
    return Frame(len(images), size, reader.grid(size), dtype, reader.depth)


def _check_blocks(model: Any, kind: type[nn.Module]) -> None:
    for index, block in enumerate(model.blocks):
        if type(block) is not kind or type(block.attn) is not Attention:
            attention = type(getattr(block, "attn", block)).__name__
            raise ValueError(
                f"block {index} of this {type(model).__name__} is a {type(block).__name__} with {attention}; "
                f"only {kind.__name__} with timm's Attention can be read"
            )
