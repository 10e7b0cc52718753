"""Which pixels a token is made of, for every kind of patch embedding and sizes that leave a rest."""

from functools import partial
from typing import Any

import pytest
import timm
import torch

from support import close
from vitmix.attention.readers import read_model
from vitmix.lab.families import CLASSES
from vitmix.models.cct import CompactTransformer, ConvTokenizer


@pytest.mark.parametrize(
    ("name", "size", "stride", "settings"),
    [
        ("vit_tiny_r_s16_p8_224", 224, 32, {"depth": 2}),
        ("vit_base_mci_224", 224, 16, {"depth": 2}),
        ("vitamin_small_224", 224, 16, {"depth": 2}),
        ("cct_7_3x1_32", 33, 2, {}),
        ("cct_7_3x1_32", 31, 2, {}),
        ("cct_7_7x2_224", 200, 16, {}),
        ("vit_tiny_r_s16_p8_224", 256, 32, {"depth": 2, "dynamic_img_size": True}),
        ("vit_base_r50_s16_224", 200, 16, {"depth": 1}),
        ("vit_small_resnet26d_224", 200, 32, {"depth": 1}),
        ("vitamin_small_224", 72, 16, {"depth": 1, "dynamic_img_size": True}),
        ("mixer_s16_224", 72, 16, {}),
    ],
)
def test_a_token_has_its_own_pixels(name: str, size: int, stride: int, settings: dict[str, Any]) -> None:
    reader = read_model(timm.create_model(name, num_classes=CLASSES, img_size=size, **settings))
    assert reader.embed_stride((size, size)) == (stride, stride)
    upper = torch.zeros(1, size, size, dtype=torch.bool)
    upper[:, : size // 2] = True
    left = upper.transpose(1, 2)
    for mask, axis in ((upper, 1), (left, 2)):
        share = reader.embed_share(mask, (size, size), torch.float64)
        means = share.mean(3 - axis)[0]
        assert abs(float(share.mean()) - 0.5) < 1 / share.shape[axis]
        assert means.tolist() == sorted(means.tolist(), reverse=True) and (means[0], means[-1]) == (1, 0)
        looked = reader.patch_mask(mask, 0, (size, size)).view(share.shape)
        assert abs(float(looked.double().mean()) - 0.5) <= 1 / share.shape[axis]


@pytest.mark.parametrize("cells", [4, 8, 64])
def test_token_masks_may_lie_across_the_patches(cells: int) -> None:
    """Four patches of 14 pixels leave a rest of 64, cells of 16 do not."""
    model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=64, patch_size=14, depth=1)
    mask = torch.rand(2, cells, cells) < 0.5
    share = read_model(model).embed_share(mask, (64, 64), torch.float64)
    pixels = mask.repeat_interleave(64 // cells, 1).repeat_interleave(64 // cells, 2).double()
    for row in range(4):
        for column in range(4):
            patch = pixels[:, 14 * row : 14 * row + 14, 14 * column : 14 * column + 14]
            close(share[:, row, column], patch.mean((1, 2)), 1e-12)


@pytest.mark.parametrize(("name", "patch"), [("vit_tiny_r_s16_p8_224", 32), ("vit_tiny_patch16_224", 16)])
def test_sizes_that_are_padded_are_refused(name: str, patch: int) -> None:
    settings = dict(img_size=128, depth=1, dynamic_img_size=True, dynamic_img_pad=True)
    reader = read_model(timm.create_model(name, num_classes=CLASSES, **settings))
    assert reader.embed_grid((160, 128)) == (160 // patch, 128 // patch)
    with pytest.raises(ValueError, match="images of 130x130 do not divide into patches of"):
        reader.embed_grid((130, 130))


def test_tokens_outside_of_the_image_have_no_share() -> None:
    tokenizer = partial(ConvTokenizer, kernel_size=4, stride=1, padding=2, pool_size=2, pool_stride=2, pool_padding=1)
    model = CompactTransformer(img_size=32, depth=1, embed_dim=32, num_heads=2, embed_layer=tokenizer)
    reader = read_model(model)
    share = reader.embed_share(torch.ones(1, 32, 32, dtype=torch.bool), (32, 32), torch.float64)
    assert share.shape == (1, 17, 17) and share[0, :16, :16].eq(1).all() and share[0, 16].eq(0).all()
    assert reader.patch_mask(torch.ones(1, 32, 32, dtype=torch.bool), 0, (32, 32)).all()


def test_tokens_at_the_border_may_be_smaller() -> None:
    reader = read_model(timm.create_model("cct_7_3x1_32", num_classes=CLASSES, img_size=33))
    mask = torch.zeros(1, 33, 33, dtype=torch.bool)
    mask[:, 32:] = True
    share = reader.embed_share(mask, (33, 33), torch.float64)
    assert share.shape == (1, 17, 17) and share[0, -1].eq(1).all() and share[0, :-1].eq(0).all()


def test_mask_grid_of_pyramids_is_the_papers() -> None:
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=10)
    reader = read_model(model)
    assert reader.mask_grid((224, 224)) == (14, 14) and reader.grids((224, 224))[-1] == (7, 7)
    assert read_model(timm.create_model("resnet50")).mask_grid((224, 224)) == (14, 14)
    grid = read_model(timm.create_model("deit_tiny_patch16_224")).mask_grid((224, 224))
    assert grid == (14, 14)
