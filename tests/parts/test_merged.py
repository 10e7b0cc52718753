"""MergeMix: matching, merging, and what the guide pass with merged tokens finds."""

import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference_baselines
import vitmix
from support import close, same, tiny_batch, tiny_cct, tiny_vit
from vitmix import functional as F
from vitmix.parts.merged import MergedPass


@pytest.mark.parametrize("prefix", [0, 1, 2, 5])
def test_matching_and_merging_equal_the_slow_twin(prefix: int) -> None:
    keys, tokens = torch.randn(3, 11, 4).double(), torch.randn(3, 11, 6).double()
    sizes = torch.randint(1, 5, (3, 11)).double()
    found = F.match_tokens(keys, 4, prefix=prefix)
    merged, summed = F.merge_tokens(tokens, sizes, found, 7)
    for image in range(3):
        places, groups = reference_baselines.merged_places(keys[image], 4, prefix)
        assert found[image].tolist() == places
        for place, group in enumerate(groups):
            weight = sizes[image, group]
            close(summed[image, place], weight.sum(), 1e-12)
            close(merged[image, place], (weight[:, None] * tokens[image, group]).sum(0) / weight.sum(), 1e-12)


@given(st.integers(1, 30), st.integers(0, 300))
def test_a_schedule_merges_what_it_should(blocks: int, total: int) -> None:
    counts = F.merge_schedule(blocks, total)
    assert len(counts) == blocks and sum(counts) == total and min(counts) >= 0


def test_without_merging_the_attention_is_the_models_own() -> None:
    images, labels = tiny_batch(4)
    model = tiny_vit().eval()
    with vitmix.create("mergemix(merged=0.0, block=-1)", 10).attach(model) as mixing:
        observed = mixing.mix(images, labels).guidance.observed
    with vitmix.AttentionTap(model, class_row=[-1]) as tap, torch.no_grad():
        model(images)
        expected = tap.class_row(-1)
    assert observed is not None
    close(observed.flatten(1), expected, 1e-6)


def test_only_methods_that_observe_have_something_observed() -> None:
    for method, observes in (("smmix", False), ("mergemix", True)):
        with vitmix.create(method, 10).attach(tiny_vit(), seed=0) as mixing:
            assert (mixing.mix(*tiny_batch(4)).guidance.observed is not None) == observes


@pytest.mark.parametrize("settings", [dict(depth=1), dict(img_size=(8, 24)), dict(img_size=(24, 8))])
def test_the_part_that_is_kept_is_that_of_the_draw(settings: dict[str, Any]) -> None:
    model = tiny_vit(**settings)
    with vitmix.create("mergemix", 10).attach(model, seed=0) as mixing:
        batch = mixing.mix(*tiny_batch(4, size=settings.get("img_size", (16, 16))))
    cells = batch.mix.mask[0].numel()
    pasted = cells - math.floor((1 - float(batch.draw.values["mask.share"])) * cells)
    assert 0 < pasted < cells and batch.mix.mask.sum((1, 2)).tolist() == [pasted] * 4


@pytest.mark.parametrize("model", ["deit_tiny_distilled_patch16_224", "vit_medium_patch16_reg4_gap_256"])
def test_prefix_tokens_and_mean_pooling(model: str) -> None:
    """Class, distillation and register tokens never merge; without a class token, saliency is the column mean."""
    import timm

    small = dict(img_size=16, patch_size=4, embed_dim=12, depth=4, num_heads=2, num_classes=10)
    images, labels = tiny_batch(4)
    with vitmix.create("mergemix", 10).attach(timm.create_model(model, **small)) as mixing:
        observed = mixing.mix(images, labels).guidance.observed
        assert observed is not None and observed.shape == (4, 4, 4)
        assert len(observed[0].unique()) < 16  # merged tokens share theirs


def test_no_block_merges_more_than_half_of_the_tokens() -> None:
    """Blocks 0 to 2 would merge 7, 4 and 3 tokens; the last one has five left, so it merges two."""
    images, labels = tiny_batch(4)
    with vitmix.create("mergemix(merged=1.0, block=3)", 10).attach(tiny_vit(depth=4)) as mixing:
        observed = mixing.mix(images, labels).guidance.observed
    assert observed is not None and [len(each.unique()) for each in observed] == [3] * 4


def test_each_image_keeps_its_most_salient_tokens() -> None:
    images, labels = tiny_batch(6)
    with vitmix.create("mergemix", 10).attach(tiny_vit(), seed=0) as mixing:
        for _ in range(5):
            batch = mixing.mix(images, labels)
            scores, kept = batch.guidance.observed, ~batch.mix.mask
            assert scores is not None
            count = int(kept[0].sum())
            assert (kept.sum((1, 2)) == count).all()
            share = float(batch.draw.values["mask.share"])
            assert count == int((1 - share) * kept[0].numel() + 1e-9)
            for image in range(6):
                if 0 < count < kept[0].numel():
                    assert scores[image][kept[image]].min() >= scores[image][~kept[image]].max()


def test_other_models_are_refused_and_a_guide_helps() -> None:
    images, labels = tiny_batch(4)
    with pytest.raises(
        ValueError, match="plain vision transformers, which this CompactTransformer is not; use such a guide"
    ):
        vitmix.create("mergemix", 10).attach(tiny_cct())
    with pytest.raises(ValueError, match="block 9 is out of range"):
        vitmix.create("mergemix(block=9)", 10).attach(tiny_vit())
    with vitmix.create("mergemix", 10).attach(tiny_cct(), guide=tiny_vit()) as mixing:
        observed = mixing.mix(images, labels).guidance.observed
        assert observed is not None
        copy = pickle.loads(pickle.dumps(mixing._guide_pass._observers[0]))
        assert isinstance(copy, MergedPass)
        same(copy.reader.model.patch_embed.proj.weight, mixing.guide.patch_embed.proj.weight)
