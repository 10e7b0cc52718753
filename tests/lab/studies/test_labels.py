"""Label error on cases that can be counted by hand."""

import pytest
import torch

import vitmix
from support import close, tiny_vit
from vitmix import create
from vitmix import functional as F
from vitmix._mixer import Switch
from vitmix.lab.studies.labels import _area_rules, label_error, visible_share


def test_visible_share_by_hand() -> None:
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, :2, :2] = True  # 4 pixels, top left
    objects[1, 2:, 1:] = True  # 6 pixels, bottom
    partner, size = F.reversed_pairs(2), (4, 4)
    bottom = F.box_mask(torch.tensor([[2, 4, 0, 4]]), size)
    share, counted = visible_share(objects, vitmix.Mix(partner, bottom))
    # image 0 keeps its 4 pixels and gets all 6 of image 1; image 1 loses its 6 and gets none of image 0's
    close(share[:1], torch.tensor([0.6]), 1e-7)
    assert counted.tolist() == [True, False]
    half = torch.zeros(1, 4, 4, dtype=torch.bool)
    half[0, :, 2:] = True
    share, counted = visible_share(objects, vitmix.Mix(partner, half))
    close(share, torch.tensor([4 / 8, 0.0]), 1e-7)
    assert counted.all()


def test_visible_share_follows_the_source() -> None:
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, 0, 0] = True
    objects[1, :2, :2] = True
    # cells of 2 x 2 pixels; image 0 gets the partner's top-left cell at its bottom-right
    mask = torch.tensor([[[False, False], [False, True]]])
    source = torch.tensor([[0, 1, 2, 0], [0, 1, 2, 3]])
    share, counted = visible_share(objects, vitmix.Mix(F.reversed_pairs(2), mask, source))
    close(share, torch.tensor([4 / 5, 0.0]), 1e-7)
    assert counted.all()
    blended = vitmix.Mix(F.reversed_pairs(2), torch.full((1, 1, 1), 0.25))
    share, _ = visible_share(objects, blended)
    close(share[0], torch.tensor(0.25 * 4 / (0.75 * 1 + 0.25 * 4)), 1e-7)


def test_empty_and_full_masks_have_no_error() -> None:
    objects = torch.rand(4, 16, 16) < 0.3
    for mask in (torch.zeros(1, 4, 4, dtype=torch.bool), torch.ones(1, 4, 4, dtype=torch.bool)):
        mix = vitmix.Mix(F.reversed_pairs(4), mask)
        true, counted = visible_share(objects, mix)
        assert counted.all()
        close(true, F.area_share(mask).expand(4), 1e-7)


def test_label_error_of_known_rules() -> None:
    """Objects that fill the image make area shares exact; halves hidden from view make them wrong by a known amount."""
    model = tiny_vit().train()
    images, labels = torch.randn(6, 3, 16, 16), torch.arange(6)
    everything = torch.ones(6, 16, 16, dtype=torch.bool)
    rules = {text: vitmix.create(text, 10) for text in ("cutmix", "mixup", "tl_align", "smmix", "transmix")}
    rules["activation"] = vitmix.create("mix(mask=box, share=activation)", 10)
    errors = label_error(model, rules, [(images, labels, everything)] * 3)
    for name in ("cutmix", "mixup", "smmix"):
        assert errors[name].error < 1e-6 and errors[name].pairs == 18
    assert errors["tl_align"].error > 0 and errors["activation"].error > 0
    # Beside the area, which is exact here, on the same images: all of the error.
    assert errors["cutmix"].to_area is None and errors["smmix"].to_area is None
    for name in ("tl_align", "transmix", "activation"):
        less = errors[name].to_area
        assert less is not None and float(less.mean()) == pytest.approx(errors[name].error, abs=1e-6)
    assert model.training and not model._forward_pre_hooks
    # Of two objects of one size, MixUp shows share and 1 - share: no error. Only the partner's: truth is 1.
    first = everything.clone()
    first[:3] = False
    lone = label_error(model, {"mixup": vitmix.mixup(10)}, [(images, labels, first)])["mixup"]
    assert lone.pairs == 6 and 0 < lone.error <= 1
    with pytest.raises(ValueError, match="shows any object"):
        label_error(model, rules, [(images, labels, ~everything)])


def test_rules_with_one_mask_see_the_same_pairs() -> None:
    model = tiny_vit().eval()
    images, boxes = torch.randn(4, 3, 16, 16), []
    for text in ("cutmix", "transmix", "tl_align", "mix(mask=box, share=activation)"):
        with vitmix.create(text, 10).attach(model, seed=5, rank=0) as mixing:
            boxes.append(mixing.draw(mixing.frame(images)).values["mask.box"].tolist())
    assert all(box == boxes[0] for box in boxes)


def test_label_error_leaves_the_model_as_it_was() -> None:
    model = tiny_vit().train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    rules = {"good": vitmix.tl_align(10), "bad": vitmix.transmix(10, block=9)}
    with pytest.raises(ValueError, match="out of range"):
        label_error(model, rules, [])
    assert modes == [module.training for module in model.modules()]
    assert not any(module._forward_hooks for module in model.modules())


def test_switches_of_other_weights_see_other_images() -> None:
    area, aligned = (
        create(text, 12).mixers for text in ("cutmix | tokenmix(loss=ce)", "tl_align | mix(mask=block, share=aligned)")
    )
    rules = {
        "area": Switch(area, (0.5, 0.5)),
        "same": Switch(aligned, (0.5, 0.5)),
        "other": Switch(aligned, (0.9, 0.1)),
    }
    assert _area_rules(rules) == {"same": "area"}
