"""Three training steps of each method on each family of models, held against stored fingerprints.

Moving code leaves all of them alone. For a change that is meant to train differently, `python tests/test_behaviour.py
--write` stores new ones. Numbers agree to 1e-7 on any CPU. With VITMIX_EXACT=1, for before and after on one machine,
the weights agree bit for bit.
"""

import hashlib
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn

import pinned
import vitmix
import vitmix.models  # whose names timm then knows
from training import one_thread  # noqa: F401

FILE = "fingerprints.json"
STEPS, BATCH, CLASSES, RATE = 3, 4, 4, 0.1
TOLERANCE = 1e-7
PROJECTIONS = 3
pytestmark = pytest.mark.usefixtures("one_thread")


class Family(NamedTuple):
    """A tiny model, and the side of its images."""

    build: Callable[[], nn.Module]
    size: int = 32
    package: str = "timm"


def _timm(name: str, size: int = 32, **settings: Any) -> Family:
    return Family(lambda: timm.create_model(name, num_classes=CLASSES, **settings), size)


def _plain(name: str, **settings: Any) -> Family:
    sizes = dict(img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2)
    return _timm(name, **{**sizes, **settings})


def _mlp_mixer() -> nn.Module:
    return MlpMixer(num_classes=CLASSES, img_size=32, patch_size=8, num_blocks=3, embed_dim=32)


def _torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=CLASSES)


def _torchvision_swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    sizes: dict[str, Any] = dict(patch_size=[4, 4], window_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4])
    return SwinTransformer(num_classes=CLASSES, stochastic_depth_prob=0.0, **sizes)


def _hugging_face(kind: str, **settings: Any) -> Family:
    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{kind}Config")(image_size=32, num_labels=CLASSES, **settings)
        return getattr(transformers, f"{kind}ForImageClassification")(config)

    return Family(build, package="transformers")


WINDOWS = dict(img_size=32, patch_size=4, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4))
PYRAMID = dict(embed_dims=(16, 16, 32, 32), num_heads=(1, 2, 2, 4), depths=(2, 1, 1, 2))
COMPACT = dict(embed_dim=32, depth=3, num_heads=2, attn_drop_rate=0.0, drop_path_rate=0.0)
HIDDEN = dict(patch_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2)
FAMILIES: dict[str, Family] = {
    "vit": _plain("deit_small_patch16_224"),
    "distilled": _plain("deit_small_distilled_patch16_224"),
    "registers": _plain("vit_medium_patch16_reg4_gap_256"),
    "siglip": _plain("vit_base_patch16_siglip_224"),
    "eva": _plain("eva02_tiny_patch14_224"),
    "beit": _plain("beit_base_patch16_224"),
    "cait": _plain("cait_xxs24_224"),
    "swin": _timm("swin_tiny_patch4_window7_224", **WINDOWS, drop_path_rate=0.0),
    "pvt_v2": _timm("pvt_v2_b1", 64, **PYRAMID),
    "pvt_v2_linear": _timm("pvt_v2_b2_li", 64, **PYRAMID),
    "pvt_v1": _timm("pvt_v1_small", 64, img_size=64, **PYRAMID),
    "cct": _timm("cct_7_3x1_32", **COMPACT),
    "vit_lite": _timm("vit_lite_7_4_32", **COMPACT),
    "torchvision_vit": Family(_torchvision_vit, package="torchvision"),
    "torchvision_swin": Family(_torchvision_swin, package="torchvision"),
    "hf_vit": _hugging_face("ViT", **HIDDEN),
    "hf_swin": _hugging_face(
        "Swin", patch_size=4, window_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], drop_path_rate=0.0
    ),
    "mlp_mixer": Family(_mlp_mixer),
    "convnext": _timm("convnext_tiny", 64, depths=(1, 1, 2, 1), dims=(8, 8, 16, 16)),
    "resnet": _timm("resnet50", 64, layers=(1, 1, 2, 1), channels=(8, 8, 16, 16)),
}
# On every family. With tau=9 every sample is easy, so that HTM mixes; the default mixes those it finds easy.
EVERYWHERE = [
    "cutmix",
    "tokenmix",
    "transmix",
    "tl_align",
    "smmix",
    "htm(block=1, tau=9)",
    "vtm(block=1, tokens=2)",
    "(mixup | cutmix) + htm(block=1, tau=9) + vtm(block=2, tokens=2)",
    "mix(mask=salient_box, share=attention, loss=bce) + region(head=separate)",
]
ON_THE_PLAIN_VIT = [
    *("none", "mixup", "htm", "vtm", "htm(tau=0.14)"),
    "mixup(alpha=0.8) | smmix",
    "0.3*mixup(per=sample) | 0.7*tl_align",
    "mix(mask=block(share=0.3), share=aligned) + consistency",
    "mix(mask=scattered(alpha=1.0, per=sample), share=activation)",
    "mix(mask=salient_box, share=activation(clamp=False, empty=area), smoothing=0.1)",
    "mix(mask=constant(per=sample), share=aligned(blocks=[0, -1]), pairing=rolled(by=2))",
    "mix(mask=box(alpha=0.3), extra=[region(weight=0.5), consistency(weight=2.0, average=probabilities)])",
    "cutmix(per=sample, aligned=True, pairing=derangement)",
    "cutmix(smoothing=0.1, loss=bce)",
    "tokenmix(label=activation)",
    "tokenmix(preset=paper, alpha=1.0, per=sample)",
    "tokenmix(preset=released, share=0.3, loss=ce)",
    "transmix(per=sample, blend=1.0, block=0)",
    "tl_align(normalize=False)",
    "tl_align(blocks=[-1], aligned=True, per=sample)",
    "smmix(per=sample, sizes=discrete)",
    "smmix(source=random, destination=same, blocks=all)",
    "smmix(source=min, destination=max, blocks=[])",
    "htm(block=1, tau=9, rho=0.02, choose=random_samples, stop_gradient=True)",
    "htm(block=1, tau=9, choose=random_tokens, score_weight=0.5)",
    "htm(block=2, tau=9, score_at=last)",
    "htm(block=2, tau=9, rollout=2)",
    "vtm(block=2, tokens=3, choose=random)",
    "vtm(block=2, tokens=3, rollout=2)",
    "fmix",
    "fmix(per=sample, max_soft=0.2)",
    "resizemix",
    "resizemix(interpolation=bilinear)",
    "gridmix",
    "saliencymix",
    "attentive_cutmix",
    "manifold_mixup",
    "cutmix + manifold(blocks=[1], pixels=False)",
    "mixpro(tokens=2)",
    "decouplemix(scaled=True)",
    "oa_cutmix(relative=0.3, blend=0.9)",
    "token_labeling",
    "puzzlemix",
    "puzzlemix(labels=2, blocks=[8])",
    "comixup",
    "recursivemix",
    "tdattenmix",
    "mergemix",
]
CASES = [(family, text) for family in FAMILIES for text in EVERYWHERE] + [("vit", text) for text in ON_THE_PLAIN_VIT]


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return pinned.read(FILE)


@pytest.mark.parametrize(("family", "text"), CASES)
def test_training_is_what_it_was(family: str, text: str, stored: dict[str, Any]) -> None:
    if find_spec(FAMILIES[family].package) is None:
        pytest.skip(f"needs {FAMILIES[family].package}")
    check(fingerprint(family, text), stored[f"{family}: {text}"])


def test_a_guide_and_erased_boxes(stored: dict[str, Any]) -> None:
    for name, settings in GIVEN.items():
        check(fingerprint("vit", "smmix", **settings), stored[f"vit: smmix, {name}"])


def test_every_method_is_there(stored: dict[str, Any]) -> None:
    """So that a new method cannot be left out."""
    texts = [text for family, text in CASES if family == "vit"]
    missing = [name for name in vitmix.list_methods() if not any(text.startswith(name) for text in texts)]
    assert not missing and len(stored) == len(CASES) + len(GIVEN)


def test_a_changed_number_is_found(stored: dict[str, Any]) -> None:
    """Or the tolerance would let a changed formula pass."""
    found = stored["vit: tl_align"]
    check(fingerprint("vit", "tl_align"), found)
    for key in ("losses", "change"):
        with pytest.raises(AssertionError):
            check(found, found | {key: [found[key][0] * (1 + 1e-6), *found[key][1:]]})
    with pytest.raises(AssertionError):
        check(fingerprint("vit", "tl_align(smoothing=1e-5)"), found)


# A fingerprint


GIVEN: dict[str, dict[str, bool]] = {"another guide": {"guided": True}, "erased": {"erased": True}}


def fingerprint(family: str, text: str, *, guided: bool = False, erased: bool = False) -> dict[str, Any]:
    """What three training steps drew, lost and changed; or the sentence with which they are refused."""
    torch.manual_seed(0)
    model = _filled(FAMILIES[family].build().train().double(), "model")
    guide = _filled(FAMILIES[family].build().eval().double(), "guide") if guided else None
    try:
        learner = vitmix.Learner(model, vitmix.create(text, CLASSES), guide=guide, seed=1)
        added = [_digits(each.norm()) for each in learner.added.parameters()]
        _fill(learner.added.parameters(), "added")
        return _train(learner, FAMILIES[family].size, erased) | ({"added": added} if added else {})
    except ValueError as refusal:
        return {"refused": str(refusal)}


def _train(learner: vitmix.Learner, size: int, erased: bool) -> dict[str, Any]:
    values = np.random.default_rng(0)
    optimizer = torch.optim.SGD(learner.parameters(), lr=RATE)
    before, origins, outputs = _weights(learner), [], []
    generator = torch.get_rng_state()
    for _ in range(STEPS):
        images = torch.from_numpy(values.standard_normal((BATCH, 3, size, size)))
        labels = torch.from_numpy(values.permutation(BATCH) % CLASSES)
        maps = torch.from_numpy(values.uniform(size=(BATCH, 4, 4)))
        if any(mixer.needs.label_maps for mixer in learner.mixer.mixers):
            maps = (maps.unsqueeze(1) * torch.arange(CLASSES).view(1, -1, 1, 1)).softmax(1)
        boxes = torch.from_numpy(values.integers(0, size // 2, (BATCH, 4))) + torch.tensor([0, size // 2, 0, size // 2])
        seen: list[Tensor] = []
        hook = learner.model.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        output = learner(images, labels, maps=maps, erase=(boxes, images.new_zeros(())) if erased else None)
        hook.remove()
        origins.append(_origins(seen[-1], images))  # the last pass is the mixed batch's, after a guide's
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        outputs.append(output)
    assert torch.equal(torch.get_rng_state(), generator), "a step drew from torch's global generator"
    after = _weights(learner)
    return {
        "draws": hashlib.sha256(torch.stack(origins).numpy().tobytes()).hexdigest()[:16],
        "losses": [_digits(output.loss) for output in outputs],
        "parts": [{name: _digits(part) for name, part in sorted(output.parts.items())} for output in outputs],
        "counts": [{name: _digits(count) for name, count in sorted(output.counts.items())} for output in outputs],
        "change": _projections({name: after[name] - before[name] for name in after}),
        "exact": hashlib.sha256(b"".join(each.numpy().tobytes() for each in after.values())).hexdigest(),
    }


def _origins(mixed: Tensor, images: Tensor) -> Tensor:
    """Which pixel of the batch each pixel of the mixed images is: the integers that were drawn; -1 where blended."""
    known, order = images[:, 0].flatten().sort()
    place = torch.searchsorted(known, mixed[:, 0].flatten().contiguous()).clamp_max(len(known) - 1)
    return torch.where(known[place] == mixed[:, 0].flatten(), order[place], -1).int()


def _weights(learner: vitmix.Learner) -> dict[str, Tensor]:
    """The model's by name; those that the method adds by number, since where they are kept is not its behaviour."""
    named = {name: value for name, value in learner.model.state_dict().items() if value.is_floating_point()}
    named |= {f"added {number}": value for number, value in enumerate(learner.added.parameters())}
    return {name: value.detach().clone() for name, value in sorted(named.items())}


def _projections(change: dict[str, Tensor]) -> list[float]:
    """The norm of all values, and their products with fixed random vectors of about that length."""
    vectors = {name: _numbers(name, (PROJECTIONS, value.numel())) for name, value in change.items()}
    products = torch.stack([vectors[name] @ value.flatten() for name, value in change.items()]).sum(0)
    norm = torch.stack([value.norm() for value in change.values()]).norm()
    return [_digits(value) for value in (norm, *products)]


def _filled(model: nn.Module, role: str) -> nn.Module:
    """The model with weights that depend on their names alone, wide, and without zeros that would stop a gradient."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 0 if parameter.ndim > 1 else parameter + 0.05
            parameter.copy_(0.1 * _numbers(f"{role} {name}", tuple(parameter.shape)) + offset)
    return model


def _fill(parameters: Iterator[nn.Parameter], role: str) -> None:
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            parameter.copy_(0.1 * _numbers(f"{role} {number}", tuple(parameter.shape)))


def _numbers(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape))


def _digits(value: Tensor) -> float:
    return float(f"{float(value.detach()):.9g}")


# Comparing


def check(found: dict[str, Any], stored: dict[str, Any]) -> None:
    assert ("refused" in found) == ("refused" in stored), found.get("refused", stored.get("refused"))
    if "refused" in stored:
        return pinned.check_sentence(found["refused"], stored["refused"])
    assert found["draws"] == stored["draws"], "other numbers were drawn, or other pixels taken"
    assert found["losses"] == pytest.approx(stored["losses"], rel=TOLERANCE)
    for key in ("parts", "counts"):
        for now, then in zip(found[key], stored[key], strict=True):
            assert now == pytest.approx(then, rel=TOLERANCE, abs=1e-12), key
    # A projection may come out near zero: how much may differ is a matter of the norm.
    assert found["change"] == pytest.approx(stored["change"], rel=0, abs=TOLERANCE * stored["change"][0])
    # Initial values of added weights are float32, drawn through functions that CPUs round in their own ways.
    assert found.get("added", []) == pytest.approx(stored.get("added", []), rel=1e-5, abs=1e-7)
    if os.environ.get("VITMIX_EXACT") == "1":
        assert found["exact"] == stored["exact"], "the weights differ in their last bits"


def _write() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {f"{family}: {text}": fingerprint(family, text) for family, text in CASES}
    found |= {f"vit: smmix, {name}": fingerprint("vit", "smmix", **settings) for name, settings in GIVEN.items()}
    pinned.write(FILE, found)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit("usage: python tests/test_behaviour.py --write")
    _write()
