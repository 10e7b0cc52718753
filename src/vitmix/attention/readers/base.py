"""What the library knows about a model: a `Reader`, and a `BlockReader` for each of its blocks.

This file has the general case, a sequence of equal blocks; the other files say what differs in a model family.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitmix._mix import Grid, expand_mask, initial_token_share, resample_mask
from vitmix.attention.flow import Flow, Products

if TYPE_CHECKING:
    from vitmix.attention.tap import BlockHooks

__all__ = [
    "BlockReader",
    "FrozenStatistics",
    "FusedBlock",
    "Handles",
    "ProjectedBlock",
    "Reader",
    "Readout",
    "ReplacedBlock",
    "ReplacedForward",
    "check_divides",
    "check_size",
    "exactly",
    "one_head_each",
    "project_heads",
    "split_heads",
    "stacked_heads",
    "with_places",
]

Readout = Literal["class", "mean", "sequence", "class and mean"]
Handles = list[Any]


class BlockReader:
    """How one block is read: where its tokens enter, and how its flow is found while it runs.

    Attributes:
        module: the block; its first argument is its tokens, `(B, N, C)` or `(B, H, W, C)`, or see `to_tokens`.
        attention: the module that mixes tokens.
        norm: the norm between the block's input and attention, None if there is none.
        prefix: number of class, distillation and register tokens before the patches.
        class_token: whether saliency is the class token's row in this block; otherwise it is the column mean.
        width: channels of a token.
        stage: number of its stage; blocks of one stage have the same grid and width.
        no_bank: why keys cannot be appended here (vertical TokenMixup); None if they can.
        bank_places: while keys are appended, the positions `(B, k)` that they had in their blocks.
    """

    no_bank: ClassVar[str | None] = None
    patch_queries = True
    bank_places: Tensor | None = None

    def __init__(
        self,
        module: Any,
        attention: Any,
        *,
        norm: Any,
        prefix: int,
        class_token: bool,
        width: int,
        stage: int = 0,
    ) -> None:
        self.module, self.attention, self.norm = module, attention, norm
        self.prefix, self.class_token, self.width, self.stage = prefix, class_token, width, stage
        self.listener: BlockHooks | None = None

    def saliency(self, flow: Flow) -> Tensor:
        """Saliency `(B, n)` of the patches in this block: the class token's row or the column mean."""
        return flow.saliency(class_token=self.class_token)

    @property
    def saliency_name(self) -> str:
        return "class attention" if self.class_token else "attention received"

    def to_tokens(self, features: Tensor) -> Tensor:
        """The tokens `(B, N, C)`, row by row, of the block's first argument."""
        return features.flatten(1, -2)

    def from_tokens(self, tokens: Tensor, features: Tensor) -> Tensor:
        """The block's first argument with these tokens, in the layout of `features`."""
        return tokens.view(features.shape)

    def listen(self, listener: "BlockHooks") -> Handles:
        """Sends the flow of every forward pass to `listener`, until the returned handles are removed."""
        self.listener = listener
        return self.hooks()

    def wanted(self) -> bool:
        return self.listener is not None and self.listener.wanted()

    def report(self, flow: Flow) -> None:
        assert self.listener is not None
        self.listener.receive(flow)

    def hooks(self) -> Handles:
        """Registers the hooks that find the flow."""
        raise NotImplementedError

    def bank_hooks(self) -> Handles:
        """Prepares the block for keys that are appended between its norm and its attention."""
        return []

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        """The flow that the block would have with these input tokens; `arguments` and `settings` are its other inputs.

        It calls `forward` of submodules directly, so no hook runs.
        """
        raise NotImplementedError


class ProjectedBlock(BlockReader):
    """A block whose queries and keys are parts of the output of `attention.qkv`."""

    def hooks(self) -> Handles:
        return [self.attention.qkv.register_forward_hook(self._on_projected)]

    def _on_projected(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if self.wanted():
            self.report(self.flow(output.detach()))  # what flows compute must not be saved for backward

    def flow(self, projected: Tensor) -> Flow:
        """The block's flow, from the output of the projection."""
        raise NotImplementedError

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        return self.flow(self.attention.qkv.forward(tokens if self.norm is None else self.norm.forward(tokens)))


class FusedBlock(BlockReader):
    """A block whose attention is timm's `Attention`, or has the same `qkv`, `q_norm`, `k_norm`, `num_heads`."""

    query: Tensor | None = None

    def hooks(self) -> Handles:
        return [
            self.attention.q_norm.register_forward_hook(self._on_query),
            self.attention.k_norm.register_forward_hook(self._on_key),
        ]

    def _on_query(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.query = output if self.wanted() else None

    def _on_key(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.query is not None:
            query, self.query = self.query, None
            self.report(self.flow(query, output))

    def flow(self, query: Tensor, key: Tensor) -> Flow:
        return Products(query, key, prefix=self.prefix)

    def attend(self, tokens: Tensor, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Flow:
        attention = self.attention
        normed = tokens if self.norm is None else self.norm.forward(tokens)
        query, key = project_heads(normed, attention.qkv, attention.num_heads, kinds=2)
        return self.flow(attention.q_norm.forward(query), attention.k_norm.forward(key))


class Reader:
    """How a model is read. `blocks` are in the order in which they run.

    Attributes:
        prefix: number of final tokens before the patches.
        readout: what the classifier reads: class tokens, the mean of the patches, both, or a learned weighting.
        read_tokens: with class tokens, how many of the first tokens are read (2 in distilled models).
        final_module: the module whose output is the final tokens.
        whole: the larger module that contains `model` and returns the logits, if there is one.
    """

    pooling: BlockReader | None = None
    whole: nn.Module | None = None

    def __init__(
        self,
        model: Any,
        blocks: list[BlockReader],
        *,
        final_module: nn.Module,
        prefix: int,
        readout: Readout,
        read_tokens: int = 1,
    ) -> None:
        self.model, self.blocks, self.final_module = model, blocks, final_module
        self.prefix, self.readout, self.read_tokens = prefix, readout, read_tokens

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def has_attention(self) -> bool:
        return True

    def hooks(self) -> Handles:
        """Prepares the whole model for reading its blocks."""
        return []

    def block(self, index: int) -> BlockReader:
        """The reader of a block; the one after the last block is attention pooling."""
        if index == self.depth:
            assert self.pooling is not None
            return self.pooling
        return self.blocks[index]

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def last(self) -> int:
        """The index of the last block, including attention pooling."""
        return self.depth - (self.pooling is None)

    @property
    def patch_depth(self) -> int:
        """Number of blocks whose queries are patches: all except class-attention blocks, which come last."""
        return sum(block.patch_queries for block in self.blocks)

    @property
    def width(self) -> int:
        """Channels of the final tokens."""
        return self.blocks[-1].width

    def resolve(self, block: int) -> int:
        """The index of a block counted from either end."""
        return self._resolve(block, self.depth, "blocks")

    def resolve_patches(self, block: int) -> int:
        """The same among the blocks whose queries are patches."""
        return self._resolve(block, self.patch_depth, "blocks with patches as queries")

    def _resolve(self, block: int, depth: int, what: str) -> int:
        if not -depth <= block < depth:
            raise ValueError(
                f"block {block} is out of range: {self.name} has {depth} {what}, 0..{depth - 1} or -{depth}..-1"
            )
        return block % depth

    def need_attention(self, what: str, instead: str = "") -> None:
        """Raises an error if the model has no attention; the message says what to do `instead`."""
        if not self.has_attention:
            hint = f"; {instead}" if instead else ""
            raise ValueError(f"{what} needs attention, which this {self.name} does not have{hint}")

    # Geometry

    def grids(self, size: Grid) -> tuple[Grid, ...]:
        """Rows and columns of tokens in each block, for images of a size that the model supports."""
        return (self.embed_grid(size),) * self.depth

    def embed_grid(self, size: Grid) -> Grid:
        """Rows and columns of tokens at the input of the first block."""
        embed = self.model.patch_embed
        patch = getattr(embed, "patch_size", None)
        if getattr(embed, "strict_img_size", True):
            check_size(size, tuple(getattr(embed, "img_size", None) or self.model.img_size))
        elif patch is not None:
            check_divides(size, (patch[0], patch[1]))
        return embed.dynamic_feat_size(size)

    def embed_stride(self, size: Grid) -> Grid:
        """Pixels between neighboring tokens of the first block.

        The tokens may leave a remainder at the bottom and the right, or the last ones may extend beyond the image.
        """
        embed: Any = getattr(self.model, "patch_embed", None)
        if hasattr(embed, "feat_ratio"):
            return embed.feat_ratio(as_scalar=False)
        if hasattr(embed, "patch_size"):
            return embed.patch_size[0], embed.patch_size[1]
        rows, columns = self.embed_grid(size)
        return size[0] // rows, size[1] // columns

    def mask_grid(self, size: Grid) -> Grid:
        """The grid on which token masks are drawn: the final grid, or in pyramids that of the second-to-last stage.

        For every pyramid of the papers, this is their grid of 16-pixel tokens.
        """
        stages = [block.stage for block in self.blocks]
        grids = self.grids(size)
        return grids[stages.index(stages[-1]) - 1] if stages[0] != stages[-1] else grids[-1]

    # Token shares

    def start_share(self, mask: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        """The token shares `(B, N)` at the input of the first block; prefix tokens have the image's share."""
        patches = self.embed_share(mask, size, image_share.dtype).flatten(1)
        patches = patches.to(image_share.dtype).expand(len(image_share), -1)
        return initial_token_share(patches, image_share, prefix=self.blocks[0].prefix)

    def embed_share(self, mask: Tensor, size: Grid, dtype: torch.dtype) -> Tensor:
        """The partner's part `(B or 1, rows, columns)` of the pixels of each patch."""
        grid, stride = self.embed_grid(size), self.embed_stride(size)
        covered = grid[0] * stride[0], grid[1] * stride[1]
        if covered == size or mask.shape[1:] == (1, 1):
            return resample_mask(mask, grid, rule="area", dtype=dtype)
        mask = expand_mask(mask, size)[:, : covered[0], : covered[1]]  # cells of the image are not patches then
        outside = (0, covered[1] - mask.shape[2], 0, covered[0] - mask.shape[1])
        share = resample_mask(functional.pad(mask, outside), grid, rule="area", dtype=dtype)
        if not any(outside):
            return share
        seen = resample_mask(functional.pad(torch.ones_like(mask), outside), grid, rule="area", dtype=dtype)
        return share / seen.clamp_min(torch.finfo(dtype).tiny)  # a token outside the image has no part of the partner

    def arrive(self, index: int, share: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        """The token shares at the input of a block, from those after the previous block."""
        return share

    def pass_by(self, index: int, share: Tensor, size: Grid) -> Tensor:
        """The token shares after a block that does not mix them, from those at its input."""
        return share

    def patch_share(self, mask: Tensor, image_share: Tensor, size: Grid) -> Tensor:
        """The partner's part `(B, n)` of the pixels of each final patch."""
        share = self.start_share(mask, image_share, size)
        for index in range(self.depth):
            share = self.pass_by(index, self.arrive(index, share, image_share, size), size)
        return share[:, self.prefix :]

    def patch_mask(self, mask: Tensor, index: int, size: Grid) -> Tensor:
        """A mask `(B or 1, h, w)` on the patches of a block, `(B or 1, n)`: its value at the top-left pixel of each."""
        (rows, columns), stride = self.grids(size)[index], self.embed_stride(size)
        merges = self.blocks[index].stage - self.blocks[0].stage
        down = torch.arange(rows, device=mask.device) * (stride[0] << merges)
        right = torch.arange(columns, device=mask.device) * (stride[1] << merges)
        down, right = down.clamp_max(size[0] - 1), right.clamp_max(size[1] - 1)
        down, right = down * mask.shape[1] // size[0], right * mask.shape[2] // size[1]
        return mask[:, down][:, :, right].flatten(1)

    def read_share(self, share: Tensor, final: Tensor | None) -> Tensor:
        """The share `(B,)` of what the classifier reads, from the shares `(B, N)` of the final tokens."""
        if self.readout == "class":
            return share[:, : self.read_tokens].mean(1)
        patches = share[:, self.prefix :].mean(1)
        return patches if self.readout == "mean" else (share[:, 0] + patches) / 2

    # The head

    def final_tokens(self, output: Tensor) -> Tensor:
        """The final tokens `(B, N, C)`, from the output of `final_module`."""
        return output.flatten(1, -2)

    def classify(self, pooled: Tensor) -> Tensor:
        """Logits of vectors `(B, C)` pooled from final tokens, through everything that follows pooling in the model."""
        return self.model.head(self.model.head_drop(pooled))

    def stop_after(self, block: int, images: Tensor) -> None:
        """Runs the model up to and including a block, to record statistics."""
        self.model.forward_intermediates(images, indices=[block], stop_early=True, intermediates_only=True)


class FrozenStatistics:
    """A context in which batch norms in training mode normalize as they do, but leave their running statistics alone.

    For a second pass of a head, whose input is no batch of images. This is a class, because older versions of
    `torch.compile` cannot trace a generator.
    """

    def __init__(self, module: nn.Module) -> None:
        tracking = (each for each in module.modules() if getattr(each, "track_running_stats", False))
        self.tracking: list[Any] = [each for each in tracking if each.training]

    def __enter__(self) -> None:
        for each in self.tracking:
            each.track_running_stats = False

    def __exit__(self, *error: object) -> None:
        for each in self.tracking:
            each.track_running_stats = True


def check_size(size: Grid, wanted: Grid) -> None:
    if wanted != size:
        raise ValueError(
            f"this model expects images of {wanted[0]}x{wanted[1]}, got {size[0]}x{size[1]}; "
            "resize them, or create the model with this image size"
        )


def check_divides(size: Grid, patch: Grid) -> None:
    if size[0] % patch[0] or size[1] % patch[1]:
        raise ValueError(
            f"images of {size[0]}x{size[1]} do not divide into patches of {patch[0]}x{patch[1]}; resize them"
        )


def exactly(module: Any, kind: type) -> Any:
    """The module, which must be of exactly this class: a similar one may add terms after the point that is read."""
    if type(module) is not kind:
        raise ValueError(f"a model with {type(module).__name__} instead of {kind.__name__} cannot be read")
    return module


def split_heads(tokens: Tensor, weight: Tensor, bias: Tensor | None, heads: int, *, kinds: int) -> tuple[Tensor, ...]:
    """Queries, keys, ... `(B, H, N, d)`: the first `kinds` of a projection that stacks three of them."""
    rows = weight.shape[0] // 3 * kinds
    both = nn.functional.linear(tokens, weight[:rows], None if bias is None else bias[:rows])
    return stacked_heads(both, heads, kinds=kinds)


def project_heads(tokens: Tensor, module: nn.Module, heads: int, *, kinds: int) -> tuple[Tensor, ...]:
    """The same for a module that may be more than a matrix, for example with low-rank adapters (LoRA)."""
    if type(module) is nn.Linear and "forward" not in module.__dict__:  # older torch.compile has no vars()
        return split_heads(tokens, module.weight, module.bias, heads, kinds=kinds)
    return stacked_heads(module.forward(tokens), heads, kinds=3)[:kinds]


def stacked_heads(projected: Tensor, heads: int, *, kinds: int) -> tuple[Tensor, ...]:
    """Views `(B, H, N, d)` of a projection `(B, N, kinds * H * d)`."""
    return projected.unflatten(-1, (kinds, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def one_head_each(projected: Tensor, heads: int) -> Tensor:
    """View `(B, H, N, d)` of a projection `(B, N, H * d)`."""
    return projected.unflatten(-1, (heads, -1)).transpose(1, 2)


def with_places(bias: Tensor | None, places: Tensor | None) -> Tensor | None:
    """A position bias `(G, H, N, N)` for tokens `(B, N + k)`: an appended token has the bias of its old position."""
    if bias is None or places is None:
        return bias
    tokens = bias.shape[-1]
    own = torch.arange(tokens, device=places.device).expand(len(places), -1)
    all_places = torch.cat([own, places], dim=1)[:, None]  # (B, 1, N + k)
    bias = bias.expand(len(places), -1, -1, -1)
    rows = bias.gather(2, all_places.unsqueeze(-1).expand(-1, bias.shape[1], -1, tokens))
    return rows.gather(3, all_places.unsqueeze(2).expand(-1, bias.shape[1], all_places.shape[2], -1))


class ReplacedForward:
    """Replaces the forward pass of a module by `block.forward` until removed. Several blocks can use it at a time.

    For attention whose queries and keys no submodule exposes. The replacement computes the same result. The blocks are
    attributes of the module, because older versions of `torch.compile` find objects only there.
    """

    def __init__(self, module: nn.Module, block: Any) -> None:
        if "forward" in vars(module) and "vitmix_blocks" not in vars(module):
            raise ValueError(
                f"the forward pass of a {type(module).__name__} was replaced, but reading its attention replaces it "
                "too; remove the other replacement"
            )
        self.module, self.block = module, block
        blocks = module.__dict__.setdefault("vitmix_blocks", [])
        if block not in blocks:
            blocks.append(block)
        module.__dict__["forward"] = partial(_forward_by_block, module)

    def remove(self) -> None:
        blocks = self.module.__dict__.get("vitmix_blocks", [])
        if self.block in blocks:
            blocks.remove(self.block)
        if not blocks:
            self.module.__dict__.pop("vitmix_blocks", None)
            self.module.__dict__.pop("forward", None)


def _forward_by_block(module: Any, *args: Any, **kwargs: Any) -> Any:
    return module.vitmix_blocks[0].forward(*args, **kwargs)


class ReplacedBlock(BlockReader):
    """A block whose attention runs through `forward`, which reports to every block that reads this attention."""

    def hooks(self) -> Handles:
        return [ReplacedForward(self.attention, self)]

    def appended(self) -> Tensor | None:
        """The positions of the keys that any of the blocks appends."""
        places = [block.bank_places for block in self.attention.vitmix_blocks if block.bank_places is not None]
        return places[0] if places else None

    def tell(self, flow: Flow) -> None:
        for block in self.attention.vitmix_blocks:
            if block.wanted():
                block.report(flow)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError
