"""MixToken: tokens that are mixed after the stem, in models whose patches overlap and in others."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import vitmix
from support import close, same, tiny_batch, tiny_cct, tiny_vit
from vitmix.lab.families import FAMILIES
from vitmix.parts.base import Paste, Unmixed, Values
from vitmix.parts.embedded import Embedded, mix_embedded, on_tokens


@dataclass(frozen=True)
class Moving(vitmix.Mask):
    """A mask of one's own that moves cells and does not say so."""

    name: ClassVar[str] = "moving"

    def where(self, values: Values, batch: Unmixed) -> Paste:
        mask = torch.tensor([[[False, True], [False, False]]])
        return Paste(mask, source=torch.tensor([[[0, 2], [1, 3]]]).expand(len(batch.partner), 2, 2))


def test_mixed_tokens() -> None:
    tokens = torch.randn(3, 2 + 4, 5)
    mask = torch.tensor([[False, True, True, False]])
    partner = torch.tensor([2, 0, 1])
    mixed = mix_embedded(tokens, mask, partner, prefix=2)
    same(mixed[:, [0, 1, 2, 5]], tokens[:, [0, 1, 2, 5]])
    same(mixed[:, 3:5], tokens[partner, 3:5])
    half = mix_embedded(tokens, torch.full((1, 4), 0.5), partner, prefix=2)
    close(half[:, 2:], (tokens + tokens[partner])[:, 2:] / 2, 1e-6)


def test_a_mask_on_tokens_that_do_not_nest() -> None:
    mask = torch.arange(12).view(1, 3, 4)
    same(on_tokens(mask, (3, 4)), mask)
    same(on_tokens(mask[:, :2, :2], (7, 3)), mask[:, [0, 0, 0, 1, 1, 1, 1]][:, :, [0, 1, 1]])
    same(on_tokens(mask[:, :2, :1], (3, 3)), mask[:, [0, 1, 1]][:, :, [0, 0, 0]])


def test_a_mask_on_finer_and_on_coarser_tokens() -> None:
    mask = torch.rand(2, 4, 6)
    close(on_tokens(mask, (2, 3)), mask.unflatten(2, (3, 2)).unflatten(1, (2, 2)).mean((2, 4)), 1e-6)
    same(on_tokens(mask, (8, 6)), mask.repeat_interleave(2, 1))


def both(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, frozen: nn.Module | None = None
) -> list[vitmix.Output]:
    found = []
    for text in ("cutmix(aligned=true)", "cutmix(aligned=true) + embedded"):
        learner = vitmix.Learner(model, vitmix.create(text, 10), seed=3, step=0).train()
        if frozen is not None:
            frozen.eval()
        found.append(learner(images, labels))
        learner.mixing.close()
    return found


def test_patches_that_do_not_overlap_are_mixed_alike() -> None:
    images, labels = tiny_batch(6)
    pixels, tokens = both(tiny_vit(drop_path_rate=0.0).double(), images.double(), labels)
    close(tokens.logits, pixels.logits, 1e-10)
    same(tokens.targets, pixels.targets)


@pytest.mark.parametrize("frozen", ["first block", "model"])
def test_a_frozen_first_block_gets_mixed_pixels(frozen: str) -> None:
    """In evaluation mode hidden mixing does not act; targets are mixed, so the images must be."""
    images, labels = tiny_batch(6)
    model = tiny_vit(drop_path_rate=0.0).double()
    module = model.blocks[0] if frozen == "first block" else model
    pixels, tokens = both(model, images.double(), labels, module)
    assert (tokens.targets.amax(1) < 1).any()
    close(tokens.logits, pixels.logits, 1e-10)
    same(tokens.targets, pixels.targets)


class Inputs:
    """What the first block gets."""

    def __init__(self, block: nn.Module) -> None:
        self.seen: list[torch.Tensor] = []
        block.register_forward_pre_hook(lambda module, args: self.seen.append(args[0]))


def test_tokens_of_an_overlapping_stem_never_see_both_images() -> None:
    images, labels = tiny_batch(6)
    model = tiny_cct(drop_path_rate=0.0, attn_drop_rate=0.0).train()
    pixels, tokens = both(model, images, labels)
    assert (tokens.logits - pixels.logits).abs().max() > 1e-3
    before = Inputs(model.blocks[0])
    learner = vitmix.Learner(model, vitmix.create("cutmix(aligned=true) + embedded", 10), seed=3, step=0)
    after = Inputs(model.blocks[0])  # runs after the learner's hook
    draw = learner.mixing.draw(learner.mixing.frame(images))
    learner(images, labels, draw=draw)
    mask = learner.mixing.mix(images, labels, draw=draw).mix.mask.flatten(1)
    unmixed, mixed = before.seen[0], after.seen[0]
    assert mask.any() and not mask.all()
    same(mixed, torch.where(mask.unsqueeze(2), unmixed[draw.values["partner"]], unmixed))


@pytest.mark.parametrize("name", ["Swin", "PVT v2", "PiT", "VOLO", "LeViT", "CCT", "Hiera"])
def test_models_with_stages_and_stems(name: str) -> None:
    family = FAMILIES[name]
    if not family.available:
        pytest.skip(f"{family.package} is not installed")
    torch.manual_seed(0)
    model = family.build()
    images, labels = torch.randn(4, 3, family.size, family.size), torch.arange(4) % 2
    classes = model(images).shape[-1]
    learner = vitmix.Learner(model, vitmix.create("cutmix(aligned=true) + embedded", classes), seed=0, step=0).train()
    for _ in range(2):
        output = learner(images, labels)
        output.loss.backward()
        assert torch.isfinite(output.loss)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mix(mask=none) + embedded", "needs a mask that pastes cells of the partner in their places, not none"),
        ("resizemix + embedded", "in their places, not resized"),
        ("mix(mask=history) + embedded", "in their places, not history"),
    ],
)
def test_masks_that_do_not_stay_in_place_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        vitmix.create(text, 10)


def test_masks_that_move_cells_or_make_images_are_refused_at_work() -> None:
    images, labels = tiny_batch(4)
    with pytest.raises(ValueError, match="cells of the partner in their places, not salient_box"):
        vitmix.create("mix(mask=salient_box) + embedded", 10)
    moving = vitmix.Mixer(10, mask=Moving(), inner=(Embedded(),))
    with pytest.raises(ValueError, match="embedded cannot move cells"):
        vitmix.Learner(tiny_vit(), moving)(images, labels)
    with pytest.raises(ValueError, match="a puzzle mask makes the mixed images itself"):
        vitmix.Learner(tiny_vit(), vitmix.create("mix(mask=puzzle(transport=false)) + embedded", 10))(images, labels)


def test_a_compiled_step_and_checkpointing_mix_alike() -> None:
    images, labels = tiny_batch(4)
    model = tiny_cct(drop_path_rate=0.0, attn_drop_rate=0.0)
    losses = []
    for change in ("eager", "compiled", "checkpointing"):
        learner = vitmix.Learner(model, vitmix.create("cutmix(aligned=true) + embedded", 10), seed=0, step=0)
        if change == "compiled":
            learner.compile(backend="eager", fullgraph=True)
        if change == "checkpointing":
            model.set_grad_checkpointing()
        output = learner(images, labels)
        model.zero_grad()
        output.loss.backward()
        losses.append(torch.cat([output.loss.detach()[None], model.head.weight.grad.flatten()]))
        learner.mixing.close()
    close(losses[1], losses[0], 1e-5)
    close(losses[2], losses[0], 1e-5)
