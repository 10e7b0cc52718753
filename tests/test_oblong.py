"""Images that are not square: every method, and each formula that knows rows from columns."""

import math

import pytest
import torch
from torch.nn.functional import interpolate

import vitmix
from support import close, same, tiny_batch, tiny_cct, tiny_vit
from test_mixers import EVERY
from vitmix import functional as F
from vitmix._sampling import generator_for
from vitmix.parts.base import on_grid
from vitmix.parts.peak import saliency_peak
from vitmix.parts.resized import ResizedMask

SIZE, GRID = (16, 24), (4, 6)
MODELS = {"vit": tiny_vit, "cct": tiny_cct}


def maps_for(mixer: vitmix.Mixer | vitmix.Switch, grid: tuple[int, int]) -> torch.Tensor | None:
    needs = [each.needs for each in mixer.mixers]
    if any(each.label_maps for each in needs):
        return torch.rand(4, 10, *grid).softmax(1)
    return torch.rand(4, *SIZE) if any(each.maps for each in needs) else None


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("text", EVERY)
def test_a_step(text: str, kind: str) -> None:
    mixer, model = vitmix.create(text, 10), MODELS[kind](img_size=SIZE)
    images, labels = tiny_batch(4, size=SIZE)
    merges = any(each.needs.guide_observer for each in mixer.mixers)
    guide = tiny_vit(img_size=SIZE) if merges and kind != "vit" else None
    learner = vitmix.Learner(model, mixer, guide=guide, seed=3)
    maps = maps_for(mixer, GRID if kind == "vit" else (8, 12))
    for _ in range(2):  # some methods act from the second batch on
        output = learner(images, labels, maps=maps)
        output.loss.backward()
        assert torch.isfinite(output.loss) and torch.isfinite(output.targets).all()


@pytest.mark.parametrize("text", EVERY)
def test_every_pixel_is_where_the_mask_says(text: str) -> None:
    mixer, model = vitmix.create(text, 10), tiny_vit(img_size=SIZE).eval()
    images, labels = tiny_batch(4, size=SIZE)
    images = images.abs() + labels.view(-1, 1, 1, 1) * 100
    with mixer.attach(model, seed=1) as mixing:
        for _ in range(3):
            batch = mixing.mix(images, labels, maps=maps_for(mixer, GRID))
            model(batch.images)
            mixing.targets(batch)
            if batch.mix.mask.dtype == torch.bool and batch.mix.rows is None:
                mask = F.expand_mask(batch.mix.mask, SIZE).expand(4, *SIZE)
                origin = (batch.images[:, 0] / 100).floor().long()
                own, partner = (each.view(-1, 1, 1) for each in (labels, labels[batch.mix.partner]))
                same(origin, torch.where(mask, partner, own))


@pytest.mark.parametrize("size", [(12, 9), (9, 12), (10, 40)])
def test_resizemix_reduces_each_side_by_the_scale(size: tuple[int, int]) -> None:
    mask, frame = ResizedMask(), vitmix.Frame(3, size)
    for scale in (0.1, 0.37, 0.8):
        values = mask.values(frame, scale, torch.tensor([[0, 0], [4, 5], [size[0] - 1, size[1] - 1]]))
        top, bottom, left, right = values["box"].unbind(1)
        assert set((bottom - top).tolist()) == {max(math.floor(scale * size[0]), 1)}
        assert set((right - left).tolist()) == {max(math.floor(scale * size[1]), 1)}
        assert values["rows"].shape == (size[0], size[0]) and values["columns"].shape == (size[1], size[1])
    assert ResizedMask(low=0.5, high=0.5).draw(frame, generator_for(0))["box"].shape == (3, 4)


@pytest.mark.parametrize("size", [(3, 5), (5, 3)])
def test_a_peak_has_its_row_and_its_column(size: tuple[int, int]) -> None:
    for row in range(size[0]):
        for column in range(size[1]):
            saliency = torch.zeros(1, *size)
            saliency[0, row, column] = 1
            assert saliency_peak(saliency).tolist() == [[row, column]]


def test_the_smallest_scale_leaves_a_pixel_of_the_shorter_side() -> None:
    boxes = ResizedMask().values(vitmix.Frame(1, (2, 8)), 0.01, torch.tensor([[1, 4]]))["box"]
    top, bottom, left, right = boxes[0].tolist()
    assert (bottom - top, right - left) == (1, 4)


def test_recursivemix_reduces_the_whole_image_before() -> None:
    images, labels = tiny_batch(4, size=SIZE)
    learner = vitmix.Learner(tiny_vit(img_size=SIZE), vitmix.recursivemix(10, most=1.0), seed=2)
    seen: list[torch.Tensor] = []
    learner.model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    learner(images, labels)
    draw = learner.mixing.draw(learner.mixing.frame(images))
    learner(images.flip(3), labels, draw=draw)
    top, bottom, left, right = draw.values["mask.box"][0].tolist()
    assert 0 < bottom - top < 16 and 0 < right - left < 24
    expected = images.flip(3)
    expected[:, :, top:bottom, left:right] = interpolate(images, (bottom - top, right - left), mode="nearest")
    close(seen[1], expected, 1e-6)


def test_mergemix_without_merging_reads_the_models_own_attention() -> None:
    images, labels = tiny_batch(4, size=SIZE)
    model = tiny_vit(img_size=SIZE).eval()
    with vitmix.create("mergemix(merged=0.0, block=-1)", 10).attach(model) as mixing:
        observed = mixing.mix(images, labels).guidance.observed
    with vitmix.AttentionTap(model, class_row=[-1]) as tap, torch.no_grad():
        model(images)
        expected = tap.class_row(-1)
    assert observed is not None
    close(observed, expected.unflatten(1, GRID), 1e-6)


def test_one_number_per_patch_as_a_grid() -> None:
    values = torch.arange(8)  # two tokens before the patches
    same(on_grid(values, (2, 3)), torch.tensor([[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]))
    same(on_grid(values, (3, 2)), torch.tensor([[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]))
