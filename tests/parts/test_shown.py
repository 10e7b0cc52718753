"""What parts show of a batch, for figures: numbers of its first image, under their names."""

import pytest
import torch
from torch import Tensor

import vitmix
from support import same, tiny_batch, tiny_vit
from vitmix.parts.base import Shown


def shown(text: str, maps: Tensor | None = None) -> tuple[tuple[Shown, ...], vitmix.MixedBatch]:
    """What every part of a method shows after a step on four images."""
    images, labels = tiny_batch(4)
    model = tiny_vit().train()
    with vitmix.create(text, 10).attach(model, seed=3) as mixing:
        batch = mixing.mix(images, labels, maps=maps)
        mixing.loss(model(batch.images), batch)
        evidence, mixer = mixing.evidence(batch), batch.mixer
        parts = (mixer.mask, mixer.share, *mixer.extra, *batch.tape.actors)
        return tuple(each for part in parts for each in part.shown(evidence)), batch


def test_attention_of_the_last_block() -> None:
    (found,), batch = shown("transmix")
    last = len(batch.frame.grids) - 1
    assert found.kind == "attention"
    same(found.grid, batch.tape.saliency[last][0].view(batch.frame.grids[last]))


def test_carried_shares_of_the_last_block() -> None:
    for blocks in ("all", "[0]"):
        (found,), batch = shown(f"tl_align(blocks={blocks})")
        last = max(batch.tape.token_share)
        grid = batch.frame.grids[last]
        assert (found.caption, found.kind) == ("carried share", "share") and last == (0 if blocks == "[0]" else 2)
        same(found.grid, batch.tape.token_share[last][0, -grid[0] * grid[1] :].view(grid))
    assert shown("tl_align(blocks=[])")[0] == ()


def test_activations_of_both_images() -> None:
    maps = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(0))
    found, batch = shown("mix(mask=box, share=activation, pairing=rolled)", maps)
    assert [each.caption for each in found] == ["own activation", "partner's activation"]
    same(found[0].grid, maps[0].clamp_min(0))
    same(found[1].grid, maps[int(batch.mix.partner[0])].clamp_min(0))


def test_object_masks_of_both_images() -> None:
    """Where a map is negative there is no object, as for the share."""
    maps = torch.rand(4, 4, 4, generator=torch.Generator().manual_seed(0)) - 0.3
    found, batch = shown("mix(mask=box, share=object, pairing=rolled)", maps)
    assert [each.caption for each in found] == ["own object", "partner's object"]
    same(found[0].grid, maps[0].clamp_min(0))
    same(found[1].grid, maps[int(batch.mix.partner[0])].clamp_min(0))


@pytest.mark.parametrize("text", ["smmix(pairing=rolled)", "mix(mask=box, share=guided, pairing=rolled)"])
def test_attention_of_the_guide_to_both_images(text: str) -> None:
    found, batch = shown(text)
    assert [each.caption for each in found] == ["own attention", "partner's attention"]
    assert batch.scores is not None
    same(found[0].grid, batch.scores[0])
    same(found[1].grid, batch.scores[int(batch.mix.partner[0])])


def test_attention_of_the_guide_to_what_is_pasted() -> None:
    (found,), batch = shown("attentive_cutmix(pairing=rolled)")
    assert found.caption == "partner's attention" and batch.scores is not None
    same(found.grid, batch.scores[int(batch.mix.partner[0])])


def test_nothing_is_shown_of_a_guide_that_is_not_asked() -> None:
    assert shown("smmix(blocks=[], source=random, destination=random)")[0] == ()


def test_saliency_that_hidden_mixing_looked_at() -> None:
    found, batch = shown("htm(block=1, tau=9, rho=0)")
    (actor,) = batch.tape.actors
    assert [each.caption for each in found] == ["own saliency", "partner's saliency"]
    for each, saliency in zip(found, actor.saliency, strict=False):
        same(each.grid, saliency.view(batch.frame.grids[1]).float())
    (found,), batch = shown("vtm(block=2)")
    assert found.caption == "saliency, block 1"
    same(found.grid, batch.tape.saliency[1][0].view(batch.frame.grids[1]))
    assert shown("vtm(block=2, choose=random)")[0] == ()


def test_the_prior() -> None:
    (found,), _ = shown("mix(mask=box, share=prior(width=0.3))")
    same(found.grid, vitmix.functional.gaussian_prior((16, 16), width=0.3))


@pytest.mark.parametrize("block", [0, -1])
def test_the_attention_that_a_progressive_share_reads(block: int) -> None:
    (found,), batch = shown(f"mix(mask=box, share=progressive(block={block}))")
    ((number, saliency),) = batch.tape.saliency.items()
    assert number == block % len(batch.frame.grids)
    same(found.grid, saliency[0].view(batch.frame.grids[number]))


def test_the_attention_after_merging() -> None:
    (found,), batch = shown("mergemix")
    assert found.caption == "own merged attention" and batch.guidance.observed is not None
    same(found.grid, batch.guidance.observed[0])


def test_gradients_of_both_images() -> None:
    found, batch = shown("mix(mask=puzzle(blocks=[4]), pairing=rolled)")
    assert [each.caption for each in found] == ["own gradient", "partner's gradient"]
    assert batch.guidance.gradient is not None
    same(found[0].grid, batch.guidance.gradient[0])
    same(found[1].grid, batch.guidance.gradient[int(batch.mix.partner[0])])
