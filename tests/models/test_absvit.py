"""AbsViT: what it sees when it is told what to look for, how it is loaded, and how it guides a method."""

import copy
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import vitmix
from support import close, same, tiny_batch, tiny_cct, tiny_vit
from vitmix.models import AbsViT

CLASSES = 10


def small(**settings: int) -> AbsViT:
    torch.manual_seed(3)
    sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=CLASSES) | settings
    return AbsViT(**sizes).eval()


def slow_gaze(model: AbsViT, images: Tensor, labels: Tensor) -> list[list[float]]:
    """One image and one token at a time, attention as matrices."""

    def run(image: Tensor, above: list[Tensor | None]) -> Tensor:
        tokens = model._pos_embed(model.patch_embed(image[None]))[0]
        for block, added in zip(model.blocks, above, strict=True):
            inside = block.norm1(tokens)
            query, key, value = block.attn.qkv(inside).chunk(3, dim=1)
            if added is not None:
                value = value + block.attn.qkv(added).chunk(3, dim=1)[2]
            heads, out = block.attn.num_heads, []
            for q, k, v in zip(query.chunk(heads, 1), key.chunk(heads, 1), value.chunk(heads, 1), strict=True):
                out.append((q @ k.T * q.shape[1] ** -0.5).softmax(1) @ v)
            tokens = tokens + block.attn.proj(torch.cat(out, 1))
            tokens = tokens + block.mlp(block.norm2(tokens))
        return model.norm(tokens)

    def like(tokens: Tensor, wanted: Tensor) -> list[float]:
        return [max(float(t @ wanted / t.norm() / wanted.norm()), 0.0) for t in tokens]

    maps = []
    for image, label in zip(images, labels, strict=True):
        wanted = model.head.weight[label]
        tokens = run(image, [None] * len(model.blocks))
        down = torch.stack([t * weight for t, weight in zip(tokens, like(tokens, wanted), strict=True)])
        above: list[Tensor | None] = []
        for decoder in list(model.decoders)[::-1]:
            down = down @ decoder.linear.weight.T
            above = [down @ decoder.linear2.weight.T, *above]
        found = like(run(image, above), wanted)[1:]
        maps.append([max(each - 0.7 * max(found) - 0.3 * min(found), 0.0) for each in found])
    return maps


def test_gaze_equals_its_slow_twin() -> None:
    model, labels = small().double(), torch.tensor([3, 0, 9])
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    rows = nn.functional.one_hot(labels, CLASSES).double()
    with torch.no_grad():
        found = model.gaze(images, rows)
        assert found.shape == (3, 4, 4) and (found == 0).any()
        close(found.flatten(1), torch.tensor(slow_gaze(model, images, labels), dtype=torch.float64), 1e-12)
        assert model(images).shape == (3, CLASSES)


def test_gaze_in_half_precision() -> None:
    model, rows = small(), nn.functional.one_hot(torch.tensor([3, 0, 9]), CLASSES).float()
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        exact = model.gaze(images, rows)
        half = model.bfloat16().gaze(images.bfloat16(), rows)
    assert half.dtype == torch.float32
    close(half, exact, 0.02)


def test_the_names_of_the_weights_are_the_authors() -> None:
    names = set(small().state_dict())
    assert {"prompt", "decoders.1.linear.weight", "decoders.0.linear2.weight", "blocks.0.attn.qkv.bias"} <= names
    assert names >= set(timm.models.vision_transformer.VisionTransformer(**{**SIZES, "depth": 2}).state_dict())


SIZES = dict(img_size=16, patch_size=4, embed_dim=16, num_heads=2, num_classes=CLASSES)


def test_a_checkpoint_of_the_authors_form_is_loaded(tmp_path: Path) -> None:
    tiny = dict(SIZES, depth=2)
    weights = AbsViT(**tiny).state_dict()
    torch.save({"model": weights}, tmp_path / "absvit_base_patch16_224.pth")
    path = str(tmp_path / "absvit_base_patch16_224.pth")
    model = timm.create_model("absvit_base_patch16_224", checkpoint_path=path, **tiny)
    assert isinstance(model, AbsViT)
    same(model.decoders[1].linear.weight, weights["decoders.1.linear.weight"])


def test_missing_weights_are_named() -> None:
    with pytest.raises(ValueError, match=r"download the authors' absvit_base_patch16_224.pth.*checkpoint_path=FILE"):
        timm.create_model("absvit_base_patch16_224", pretrained=True)


# As a guide


@pytest.mark.parametrize("text", ["tdattenmix", "smmix", "mix(mask=salient_box, share=guided)", "mixup | tdattenmix"])
@pytest.mark.parametrize("make", [tiny_vit, tiny_cct])
def test_the_gaze_replaces_attention_and_the_model_keeps_its_logits(text: str, make: type[nn.Module]) -> None:
    images, labels = tiny_batch(4)
    gaze, model = small(), make()
    before = copy.deepcopy(gaze.state_dict())
    learner = vitmix.Learner(model, vitmix.create(text, CLASSES), guide=gaze, seed=0)
    choice = len(learner.mixer.mixers) - 1
    guidance = learner.mixing.ask_guide(images, labels, choice)
    rows = nn.functional.one_hot(labels, CLASSES).float()
    with torch.no_grad():
        expected = gaze.gaze(images, rows)
        logits = model.eval()(images)
        model.train()
    assert guidance.scores is not None
    grid = learner.mixing.frame(images).final_grid
    assert grid is not None
    close(guidance.scores, nn.functional.interpolate(expected[:, None], grid, mode="area")[:, 0], 1e-6)
    if guidance.logits is not None:
        close(guidance.logits, logits, 1e-5)
    for _ in range(2):
        learner(images, labels).loss.backward()
    same_weights = all(torch.equal(value, before[name]) for name, value in gaze.state_dict().items())
    assert same_weights and all(parameter.grad is None for parameter in gaze.parameters()) and not gaze.training


def test_the_gaze_compiles_with_the_step() -> None:
    images, labels = tiny_batch(4)
    model, gaze = tiny_vit(), small()
    eager = vitmix.Learner(model, vitmix.tdattenmix(CLASSES), guide=gaze, seed=0, step=0)
    expected = eager(images, labels)
    eager.mixing.close()
    compiled = vitmix.Learner(model, vitmix.tdattenmix(CLASSES), guide=gaze, seed=0, step=0)
    compiled.added.load_state_dict(eager.added.state_dict())
    compiled.compile(backend="eager", fullgraph=True)
    close(compiled(images, labels).targets, expected.targets, 1e-6)


def test_the_gaze_needs_the_classes_of_the_data() -> None:
    learner = vitmix.Learner(tiny_vit(), vitmix.tdattenmix(CLASSES), guide=small(num_classes=7))
    with pytest.raises(ValueError, match="knows 7 classes and the labels have 10"):
        learner(*tiny_batch(4))


def test_the_gaze_moves_with_the_learner() -> None:
    learner = vitmix.Learner(tiny_vit(), vitmix.tdattenmix(CLASSES), guide=small()).double()
    images, labels = tiny_batch(4)
    assert learner(images.double(), labels).loss.dtype == torch.float64
