"""Feature pyramids and the detectors on them."""

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

import vitmix.models  # noqa: F401  registers PVT v1
from vitmix.lab.dense.detection.models import HeadArguments, anchor_sizes, build_detector, read_arguments
from vitmix.lab.dense.detection.pyramid import PyramidBackbone, SimplePyramid, stages

TINY_VIT = dict(embed_dim=32, depth=2, num_heads=2, num_classes=5)


def plain_vit(**settings: object) -> nn.Module:
    return timm.create_model("deit_tiny_patch16_224", dynamic_img_size=True, **{**TINY_VIT, **settings}).eval()


def tiny_swin() -> nn.Module:
    settings = dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), window_size=4, strict_img_size=False)
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **settings).eval()


def tiny_pvt() -> nn.Module:
    return timm.create_model(
        "pvt_v1_tiny", num_classes=5, embed_dims=(16, 16, 32, 32), depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)
    ).eval()


def layer_norm(features: Tensor, norm: nn.Module) -> Tensor:
    """Over the channels of each pixel, spelled out."""
    mean = features.mean(1, keepdim=True)
    variance = ((features - mean) ** 2).mean(1, keepdim=True)
    weight, bias = (each.view(1, -1, 1, 1) for each in (norm.weight, norm.bias))
    return (features - mean) / (variance + norm.eps).sqrt() * weight + bias


def test_simple_pyramid_equals_the_same_steps_spelled_out() -> None:
    torch.manual_seed(0)
    pyramid = SimplePyramid(16, 16, width=8).double()
    features = torch.randn(2, 16, 3, 5, dtype=torch.float64)
    found = pyramid(features)
    assert [tuple(each.shape) for each in found] == [(2, 8, 12, 20), (2, 8, 6, 10), (2, 8, 3, 5), (2, 8, 1, 2)]
    first = list(pyramid.levels[0])
    up = F.conv_transpose2d(features, first[0].weight, first[0].bias, stride=2)
    up = F.gelu(layer_norm(up, first[1]))
    up = F.conv_transpose2d(up, first[3].weight, first[3].bias, stride=2)
    narrow = layer_norm(torch.einsum("oihw,bixy->boxy", first[4].weight, up), first[5])
    expected = layer_norm(F.conv2d(narrow, first[6].weight, padding=1), first[7])
    torch.testing.assert_close(found[0], expected)
    pooled = torch.stack([features[:, :, 0:2, x : x + 2].amax((2, 3)) for x in (0, 2)], dim=2).unsqueeze(2)
    last = list(pyramid.levels[3])
    narrow = layer_norm(torch.einsum("oihw,bixy->boxy", last[1].weight, pooled), last[2])
    torch.testing.assert_close(found[3], layer_norm(F.conv2d(narrow, last[3].weight, padding=1), last[4]))


@pytest.mark.parametrize("patch", [2, 4, 8, 16, 32])
def test_maps_of_every_patch_size_have_the_strides_asked_for(patch: int) -> None:
    maps = SimplePyramid(32, patch, width=8)(torch.zeros(1, 32, 64 // patch, 128 // patch))
    assert [tuple(each.shape[-2:]) for each in maps] == [(64 // s, 128 // s) for s in (4, 8, 16, 32)]


@pytest.mark.parametrize("build", [plain_vit, tiny_swin, tiny_pvt])
@pytest.mark.parametrize("size", [(64, 96), (128, 128), (32, 160)])
def test_backbones_give_maps_of_the_expected_strides(build: object, size: tuple[int, int]) -> None:
    backbone = PyramidBackbone(build(), LastLevelMaxPool())  # pyright: ignore[reportCallIssue]
    maps = backbone(torch.zeros(1, 3, *size))
    assert list(maps) == ["0", "1", "2", "3", "pool"]
    shapes = [tuple(each.shape[-2:]) for each in maps.values()]
    assert shapes[:4] == [(size[0] // s, size[1] // s) for s in (4, 8, 16, 32)]
    assert shapes[4] == (-(-size[0] // 64), -(-size[1] // 64))


def pooled_vit() -> nn.Module:
    return plain_vit(global_pool="avg", class_token=False)


@pytest.mark.parametrize("build", [plain_vit, pooled_vit, tiny_swin, tiny_pvt])
def test_every_weight_has_a_gradient(build: object) -> None:
    backbone = PyramidBackbone(build(), LastLevelMaxPool())  # pyright: ignore[reportCallIssue]
    sum(each.square().mean() for each in backbone(torch.randn(1, 3, 64, 64)).values()).backward()  # pyright: ignore
    trained = [(name, weight) for name, weight in backbone.named_parameters() if weight.requires_grad]
    assert len(trained) > 20 and [name for name, weight in trained if weight.grad is None] == []


def test_a_plain_vit_gives_its_normed_patch_tokens() -> None:
    vit = plain_vit()
    images = torch.randn(2, 3, 224, 224)
    tokens = vit.forward_features(images)[:, 1:]  # pyright: ignore[reportCallIssue]
    seen = []
    backbone = PyramidBackbone(vit, LastLevelMaxPool())
    backbone.pyramid.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    backbone(images)
    torch.testing.assert_close(seen[0], tokens.transpose(1, 2).reshape(2, 32, 14, 14))


def test_other_sizes_resample_the_position_embeddings() -> None:
    """The tokens at 96 x 160 pixels are those of a model built for that size from the resampled embeddings."""
    images = torch.randn(1, 3, 96, 160)
    one, other = plain_vit(), plain_vit()
    other.load_state_dict(one.state_dict())
    other.set_input_size((96, 160))  # pyright: ignore[reportCallIssue]
    expected = other.forward_features(images)  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(one.forward_features(images), expected, rtol=1e-4, atol=1e-5)  # pyright: ignore


def test_models_that_do_not_fit_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="patches of 2, 4, 8, 16, 32 pixels, got 14"):
        SimplePyramid(32, 14)
    with pytest.raises(ValueError, match="gives no feature maps"):
        stages(nn.Linear(1, 1))


@pytest.mark.parametrize("head", ["fasterrcnn", "maskrcnn", "retinanet"])
def test_detectors_normalize_once_and_train_on_images_without_objects(head: str) -> None:
    torch.manual_seed(0)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    small = HeadArguments(width=16, hidden=32, proposals=50, regions=16)
    settings = dict(classes=2, size=64, long_side=96, mean=mean, std=std, arguments=small)
    detector = build_detector(plain_vit(), head, **settings)  # pyright: ignore[reportArgumentType]
    seen: list[Tensor] = []
    detector.backbone.register_forward_pre_hook(lambda _, given: seen.append(given[0]))  # pyright: ignore
    image = torch.rand(3, 64, 64)
    mask = torch.zeros(1, 64, 64, dtype=torch.uint8)
    mask[:, 8:40, 8:48] = 1
    full = dict(boxes=torch.tensor([[8.0, 8, 48, 40]]), labels=torch.tensor([2]), masks=mask)
    empty = dict(boxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long), masks=mask[:0])
    losses = detector([image, torch.rand(3, 48, 64)], [full, empty])
    assert all(torch.isfinite(loss) for loss in losses.values())
    sum(losses.values()).backward()
    expected = (image - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(seen[0][0], expected)
    assert seen[0].shape[-2:] == (64, 64) and (seen[0][1, :, 48:] == 0).all()  # padded after normalization
    found = detector.eval()([torch.rand(3, 32, 32)])[0]
    assert seen[-1].shape[-2:] == (64, 64)  # resized in evaluation
    assert (found["boxes"] <= 32).all()


def test_anchors_are_the_papers_at_800_pixels_and_denser_in_small_images() -> None:
    assert anchor_sizes(800) == ((32,), (64,), (128,), (256,), (512,))
    assert [sizes[0] for sizes in anchor_sizes(128)] == [16, 32, 64, 128, 256]
    assert all(len(sizes) == 2 for sizes in anchor_sizes(128))


def test_wrong_settings_of_the_head_are_refused() -> None:
    with pytest.raises(ValueError, match="long_side must be an integer of at least 64"):
        build_detector(plain_vit(), "fasterrcnn", classes=2, size=64, long_side=3, mean=[0] * 3, std=[1] * 3)
    with pytest.raises(ValueError, match="did you mean 'detections'|detections"):
        read_arguments({"detection": 3})
    with pytest.raises(ValueError, match="width must be an integer of at least 1, got 0"):
        read_arguments({"width": 0})
