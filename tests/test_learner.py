"""The learner: compiled whole and by itself, erased images, what it returns."""

import pytest
import torch
from torch import nn

import vitmix
from support import tiny_batch, tiny_vit

CLASSES = 10


def test_a_compiled_switch_may_be_long_and_see_batches_of_several_sizes() -> None:
    torch._dynamo.reset()
    mixer = vitmix.create("mixup | cutmix | tokenmix | transmix | tl_align", CLASSES)
    learner = vitmix.Learner(tiny_vit().train(), mixer)
    learner.compile(fullgraph=True, backend="eager")
    for size in (6, 4):
        images, labels = tiny_batch(size)
        for choice, each in enumerate(mixer.mixers):
            values = each.draw(learner.mixing.frame(images)).values
            assert learner(images, labels, draw=vitmix.Draw(choice, values)).loss.isfinite()


def test_a_learner_compiled_as_a_module_trains() -> None:
    """With Inductor: other backends do not take the loss and its only part for one tensor."""
    torch._dynamo.reset()
    learner = vitmix.Learner(tiny_vit(depth=1).train(), vitmix.create("cutmix", CLASSES), seed=0)
    images, labels = tiny_batch()
    draw = learner.mixing.draw(learner.mixing.frame(images))
    output = torch.compile(learner)(images, labels, draw=draw)
    output.loss.backward()
    assert not output.parts["main"].requires_grad
    torch.testing.assert_close(output.parts["main"], output.loss.detach())
    torch.testing.assert_close(output.loss, learner(images, labels, draw=draw).loss)


def test_difficulty_at_the_last_layer_is_that_of_the_erased_images() -> None:
    torch.manual_seed(0)
    mixer = vitmix.create("htm(block=1, tau=1.0, score_at=last, score_weight=1.0)", CLASSES)
    learner = vitmix.Learner(tiny_vit(depth=3).train(), mixer)
    nn.init.normal_(learner.added["htm_last_1"].head.weight)
    images, labels = tiny_batch()
    whole = torch.tensor([[0, images.shape[2], 0, images.shape[3]]]).repeat(len(images), 1)
    erased = learner(images, labels, erase=(whole, torch.zeros_like(images)))
    black = learner(torch.zeros_like(images), labels)
    for name in ("main", "score"):
        torch.testing.assert_close(erased.parts[name], black.parts[name])


def test_a_learner_returns_the_logits_of_hugging_face_models() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    config.num_labels = CLASSES
    model = transformers.ViTForImageClassification(config)
    learner = vitmix.Learner(model, vitmix.create("cutmix", CLASSES))
    assert learner(torch.randn(2, 3, 16, 16)).shape == (2, CLASSES)
