"""What goes wrong in a loop of one's own: nothing trains silently without its method, errors say what to do."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils import _pytree

import vitmix
from support import SMALL_SWIN, tiny_batch, tiny_vit
from vitmix._guide import GuidePass
from vitmix._mix import Frame
from vitmix._sampling import Draw
from vitmix.attention.readers import read_model
from vitmix.parts.base import Guidance, Needs

CLASSES = 10


@pytest.mark.parametrize("method", ["cutmix + htm(block=1)", "cutmix + vtm(block=1, tokens=3)"])
def test_hidden_mixing_that_did_not_happen_is_told(method: str) -> None:
    model = tiny_vit().train()
    images, labels = tiny_batch()
    with vitmix.create(method, CLASSES).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        mixing.forget()  # as a compiled graph from before the hooks would
        with pytest.raises(RuntimeError, match="tm mixed nothing; run the model on the mixed batch"):
            mixing.loss(model(batch.images), batch)


@pytest.mark.parametrize("method", ["cutmix", "tl_align", "cutmix + vtm(block=1, tokens=3)"])
def test_closed_mixing_is_refused(method: str) -> None:
    with vitmix.create(method, CLASSES).attach(tiny_vit()) as mixing:
        mixing.mix(*tiny_batch())
    with pytest.raises(RuntimeError, match="this mixing is closed"):
        mixing.mix(*tiny_batch())


@pytest.mark.parametrize("method", ["tl_align", "transmix", "smmix", "cutmix + htm", "cutmix + vtm(block=1, tokens=3)"])
def test_parts_of_a_mixed_batch_are_refused(method: str) -> None:
    model = tiny_vit().train()
    with vitmix.create(method, CLASSES).attach(model) as mixing:
        batch = mixing.mix(*tiny_batch(5))
        with pytest.raises(RuntimeError, match="the model got 2 images, but the mixed batch has 5"):
            mixing.loss(model(batch.images[:2]), batch)


@pytest.mark.parametrize("method", ["tl_align", "cutmix + region", "cutmix + vtm(block=1, tokens=3)"])
def test_other_images_in_evaluation_are_not_taken_for_the_batch(method: str) -> None:
    model = tiny_vit().train()
    images, labels = tiny_batch(5)
    with vitmix.create(method, CLASSES).attach(model) as mixing:
        draw = mixing.draw(mixing.frame(images))
        found = []
        for others in (False, True):
            batch = mixing.mix(images, labels, draw=draw)
            if others:
                model.eval()(images[:2])
            logits = model.train()(batch.images)
            if others:
                model.eval()(images[:2])
            found.append(mixing.loss(logits, batch))
        assert torch.equal(*found)


def test_parts_of_a_batch_that_nothing_is_asked_of_run() -> None:
    model = tiny_vit().train()
    with vitmix.create("cutmix | tl_align", CLASSES).attach(model) as mixing:
        draws = [mixing.draw(mixing.frame(tiny_batch()[0])) for _ in range(20)]
        batch = mixing.mix(*tiny_batch(), draw=next(draw for draw in draws if draw.choice == 0))
        logits = torch.cat([model(part) for part in batch.images.split(3)])
        mixing.loss(logits, batch)


def test_vtm_refuses_more_tokens_than_patches_before_the_model_runs() -> None:
    with vitmix.create("cutmix + vtm(block=1, tokens=17)", CLASSES).attach(tiny_vit()) as mixing:
        with pytest.raises(ValueError, match="cannot pick 17 tokens out of 16 patches"):
            mixing.mix(*tiny_batch())


# A guide


def test_guide_of_another_size_is_refused() -> None:
    with vitmix.create("smmix", CLASSES).attach(tiny_vit(), guide=tiny_vit(img_size=32)) as mixing:
        with pytest.raises(ValueError, match="the guide does not support these images: .* 32x32, got 16x16"):
            mixing.mix(*tiny_batch())


def test_guide_of_other_classes_is_refused() -> None:
    with vitmix.create("smmix", CLASSES).attach(tiny_vit(), guide=tiny_vit(num_classes=7)) as mixing:
        with pytest.raises(ValueError, match="the guide has 7 classes and the method 10"):
            mixing.mix(*tiny_batch())


def test_a_model_of_other_classes_is_told_before_its_gradient_is_computed() -> None:
    for count in (7, 1):  # of one class, whose loss would be broadcast
        for model, guide in ((tiny_vit(), tiny_vit(num_classes=count)), (tiny_vit(num_classes=count), None)):
            with vitmix.create("puzzlemix(blocks=[4])", CLASSES).attach(model, guide=guide) as mixing:
                with pytest.raises(ValueError, match=rf"logits of shape \(6, 10\), got \(6, {count}\); use a guide"):
                    mixing.mix(*tiny_batch())


def test_a_model_that_is_its_own_guide_is_not_called_one() -> None:
    """A gradient needs no tokens, so images may have a size that leaves a rest beside the patches."""
    guide = GuidePass(model := tiny_vit(), read_model(model), (), (), separate=False)
    guide.check((18, 18))
    with pytest.raises(ValueError, match="the guide does not support these images"):
        GuidePass(model, read_model(model), (), (), separate=True).check((18, 18))
    GuidePass(Wordless(), None, (), (), separate=True).check((18, 18))


def test_guide_that_is_not_asked_may_be_any() -> None:
    images, labels = tiny_batch(size=(32, 32))
    learner = vitmix.Learner(tiny_vit(dynamic_img_size=True), vitmix.smmix(CLASSES), guide=tiny_vit())
    assert learner.eval()(images, labels).targets.shape == (len(images), CLASSES)
    with vitmix.create("cutmix", CLASSES).attach(tiny_vit(img_size=32), guide=tiny_vit()) as mixing:
        assert mixing.mix(images, labels).guidance == Guidance()


def test_head_of_other_classes_is_the_models_fault_without_a_guide() -> None:
    model = tiny_vit(num_classes=7).train()
    with vitmix.create("smmix", CLASSES).attach(model) as mixing:
        batch = mixing.mix(*tiny_batch())
        with pytest.raises(ValueError, match="the model must return logits of shape"):
            mixing.loss(model(batch.images), batch)


class Wordless(nn.Module):
    """A classifier that cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 16 * 16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


@dataclass(frozen=True)
class Unasked(vitmix.HiddenMixing):
    """A hidden mixing of one's own that does not say that it needs the model."""

    name: ClassVar[str] = "unasked"
    block: int = 0

    @property
    def needs(self) -> Needs:
        return Needs()


def test_hidden_mixing_needs_a_model_that_can_be_read() -> None:
    with pytest.raises(ValueError, match="Wordless"):
        vitmix.Mixer(CLASSES, mask=vitmix.BoxMask(), inner=(Unasked(),)).attach(Wordless())


@pytest.mark.parametrize("guided", ["by itself", "by one that can be read", "one that can be read"])
def test_consistency_needs_logits_only(guided: str) -> None:
    torch.manual_seed(0)
    model = tiny_vit() if guided == "one that can be read" else Wordless()
    guide = {"by itself": None, "by one that can be read": tiny_vit(), "one that can be read": Wordless()}[guided]
    images, labels = tiny_batch()
    with vitmix.create("cutmix + consistency", CLASSES).attach(model.train(), guide=guide) as mixing:
        batch = mixing.mix(images, labels)
        logits = model(batch.images)
        parts = mixing.losses(logits, batch)
        asked = guide if guide is not None else model
        clean = asked.eval()(images)
        expected = vitmix.functional.consistency_loss(logits, clean, batch.mix.partner, mixing.evidence(batch).area)
        torch.testing.assert_close(parts["consistency"], expected)
    with pytest.raises(ValueError, match="cannot be read"):
        vitmix.create("smmix", CLASSES).attach(tiny_vit(), guide=Wordless())


def test_parts_of_a_switch_have_score_nets_of_their_own_where_they_read_other_tokens() -> None:
    text = "(cutmix + htm(block=1, tau=9)) | (mixup + htm(block=1, tau=9, score_at=last))"
    model = timm.create_model("swin_tiny_patch4_window7_224", **SMALL_SWIN).train()
    learner = vitmix.Learner(model, vitmix.create(text, CLASSES))
    assert len(learner.added) == 2
    images, labels = tiny_batch(size=(32, 32))
    for _ in range(6):
        learner(images, labels).loss.backward()


# Sizes and labels


def test_block_mask_says_that_the_image_size_is_wrong() -> None:
    with vitmix.create("tokenmix", CLASSES).attach(tiny_vit()) as mixing:
        with pytest.raises(
            ValueError, match="a block mask is drawn on the model's tokens: this model expects images of 16x16"
        ):
            mixing.mix(*tiny_batch(size=(24, 24)))


def test_labels_in_a_column_are_to_be_flattened() -> None:
    images, labels = tiny_batch()
    with pytest.raises(ValueError, match="flatten them"):
        vitmix.cutmix(CLASSES)(images, labels.unsqueeze(1))


def test_a_label_alone_is_told() -> None:
    for labels in (torch.tensor(3), torch.tensor(0.5)):
        with pytest.raises(ValueError, match="labels"):
            vitmix.Learner(tiny_vit(), vitmix.cutmix(CLASSES))(tiny_batch(1)[0], labels)


def test_an_image_that_is_not_finite_reaches_the_loss() -> None:
    images, labels = tiny_batch()
    images[1, 0, 0, 0] = torch.nan
    output = vitmix.Learner(tiny_vit(), vitmix.create("htm(block=1, tau=1, rho=0)", CLASSES))(images, labels)
    assert output.loss.isnan() and output.counts["htm_samples"] > 0


def test_what_is_no_tensor_is_told() -> None:
    images, labels = tiny_batch()
    for given in ((images.numpy(), labels), (images, labels.tolist())):
        with pytest.raises(ValueError, match="must be a tensor, got (ndarray|list); use torch.as_tensor"):
            vitmix.cutmix(CLASSES)(*given)  # pyright: ignore
        with pytest.raises(ValueError, match="must be a tensor, got (ndarray|list)"):
            vitmix.Learner(tiny_vit(), vitmix.cutmix(CLASSES))(*given)  # pyright: ignore


def test_activation_maps_that_do_not_fit_are_to_be_resized() -> None:
    with vitmix.create("tokenmix(label=activation)", CLASSES).attach(tiny_vit()) as mixing:
        with pytest.raises(ValueError, match="maps of 14x14 do not fit a mask of 4x4 cells; resize"):
            mixing.mix(*tiny_batch(5), maps=torch.rand(5, 14, 14))


def test_model_without_attention_may_have_a_guide() -> None:
    model = timm.create_model("resnet18", num_classes=CLASSES).train()
    for method, part in (("smmix", "salient_box"), ("mix(mask=box, share=guided)", "guided")):
        words = f"{part} needs attention, which this ResNet does not have; use a guide with attention"
        with pytest.raises(ValueError, match=words):
            vitmix.create(method, CLASSES).attach(model)
    with vitmix.create("smmix", CLASSES).attach(model, guide=tiny_vit(img_size=64, patch_size=16)) as mixing:
        batch = mixing.mix(*tiny_batch(size=(64, 64)))
        assert mixing.loss(model(batch.images), batch).isfinite()


@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 compiles a carried share for each size")
@pytest.mark.parametrize("method", ["tl_align", "transmix", "cutmix + vtm(block=1, tokens=3)"])
def test_compiled_model_is_not_compiled_for_each_size_of_batch(method: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    model = tiny_vit().train()
    with vitmix.create(method, CLASSES).attach(model) as mixing:
        compiled = torch.compile(model, backend=counter)
        for size in range(4, 10):
            batch = mixing.mix(*tiny_batch(size))
            mixing.loss(compiled(batch.images), batch)
    assert counter.frame_count <= 2


def test_vtm_is_drawn_without_a_model() -> None:
    assert set(vitmix.create("cutmix + vtm", CLASSES).draw(Frame(4, (16, 16))).values) >= {"partner"}


@pytest.mark.parametrize(
    "text", ["mixup | cutmix(pairing=derangement)", "tokenmix(loss=ce) | smmix", "htm(choose=random_tokens)"]
)
def test_draws_are_on_the_host_whatever_the_default_device(text: str) -> None:
    frame = Frame(4, (32, 32), grid=(4, 4), grids=((4, 4),) * 3)
    mixer = vitmix.create(text, CLASSES)
    for seed in range(4):
        expected = mixer.draw(frame, torch.Generator().manual_seed(seed))
        with torch.device("meta"):
            drawn = mixer.draw(frame, torch.Generator("cpu").manual_seed(seed))
        assert drawn.choice == expected.choice and drawn.values.keys() == expected.values.keys()
        assert all(torch.equal(value, expected.values[name]) for name, value in drawn.values.items())


def test_a_draw_that_is_on_the_device_stays_as_it_is() -> None:
    draw = vitmix.cutmix(CLASSES).draw(Frame(4, (32, 32)))
    meta = draw.to(torch.device("meta"))
    assert meta.to(torch.device("meta")) is meta and draw.to(torch.device("cpu")) is draw
    both = Draw(0, {"here": torch.zeros(2), "there": torch.zeros(2, device="meta")}).to(torch.device("meta"))
    assert [each.device.type for each in both.values.values()] == ["meta", "meta"]


@pytest.mark.gpu
def test_draws_may_be_given_on_the_device_and_with_another_default() -> None:
    images, labels = (each.cuda() for each in tiny_batch())
    learner = vitmix.Learner(tiny_vit().cuda(), vitmix.create("mixup | smmix", CLASSES))
    draw = learner.mixing.draw(learner.mixing.frame(images))
    on_device = draw.to(images.device)
    assert on_device.to(images.device) is on_device
    expected = learner(images, labels, draw=draw).targets
    assert torch.equal(learner(images, labels, draw=on_device).targets, expected)
    with torch.device("cuda"):
        assert torch.equal(learner(images, labels, draw=draw).targets, expected)
        learner(images, labels).loss.backward()


def test_outputs_are_trees() -> None:
    """Which data parallelism, exporters and checkpointing look through."""
    output = vitmix.Learner(tiny_vit(), vitmix.cutmix(CLASSES))(*tiny_batch())
    leaves, tree = _pytree.tree_flatten(output)
    assert leaves[0] is output.loss and len(leaves) == 4  # with logits, targets and the one part
    assert _pytree.tree_unflatten(leaves, tree) == output
    assert '"vitmix._learner.Output"' in _pytree.treespec_dumps(tree)  # by which exported programs know it
    assert [_pytree.keystr(path) for path, _ in _pytree.tree_flatten_with_path(output)[0]][-1] == ".parts['main']"


@pytest.mark.parametrize("blocks", [[-1], [0, 1]])
def test_blocks_may_be_a_list(blocks: list[int]) -> None:
    assert vitmix.tl_align(CLASSES, blocks=blocks) == vitmix.tl_align(CLASSES, blocks=tuple(blocks))
    assert vitmix.smmix(CLASSES, blocks=blocks) == vitmix.smmix(CLASSES, blocks=tuple(blocks))


def test_blocks_are_numbers() -> None:
    for blocks in ((True,), (False,), [0.5], "last"):
        with pytest.raises(ValueError, match="'all' or block numbers"):
            vitmix.tl_align(CLASSES, blocks=blocks)


def test_pooling_of_prefix_tokens_is_named() -> None:
    model = tiny_vit(global_pool="avg", pool_include_prefix=True)
    with pytest.raises(ValueError, match="pool_include_prefix"):
        vitmix.create("tl_align", CLASSES).attach(model)


# What is easily forgotten


@pytest.mark.parametrize("method", ["cutmix", "mixup", "smmix", "tokenmix"])
def test_bytes_are_to_be_normalized(method: str) -> None:
    images, labels = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8), torch.arange(4)
    said = "a model needs floating-point images, got torch.uint8; convert and normalize them before mixing"
    with vitmix.create(method, CLASSES).attach(tiny_vit()) as mixing, pytest.raises(ValueError, match=said):
        mixing.mix(images, labels)
    with pytest.raises(ValueError, match=said):
        vitmix.Learner(tiny_vit(), vitmix.create(method, CLASSES))(images, labels)


def test_bytes_are_pasted_without_a_model() -> None:
    """As by a collate function, before they are normalized."""
    images, labels = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8), torch.arange(4)
    assert vitmix.cutmix(CLASSES)(images, labels)[0].dtype == torch.uint8
    with pytest.raises(ValueError, match="blending images needs floating-point pixels, got torch.uint8"):
        vitmix.mixup(CLASSES)(images, labels)


@pytest.mark.parametrize("method", ["htm(block=1)", "vtm(block=1, tokens=3)"])
def test_hidden_mixing_in_evaluation_mode_warns_once(method: str) -> None:
    model = tiny_vit()
    learner = vitmix.Learner(model, vitmix.create(f"cutmix + {method}", CLASSES))
    model.eval()  # after learner.train()
    with pytest.warns(
        UserWarning, match=r"no mixing by .tm, because the model is in evaluation mode; call model.train\(\)"
    ):
        learner(*tiny_batch()).loss.backward()
    learner(*tiny_batch()).loss.backward()  # a second warning would be an error
    model.train()
    assert learner(*tiny_batch()).loss.isfinite()
    with torch.no_grad(), vitmix.create(f"cutmix + {method}", CLASSES).attach(model.eval()) as mixing:
        batch = mixing.mix(*tiny_batch())
        mixing.loss(model(batch.images), batch)  # on purpose


@pytest.mark.parametrize(
    "method", ["tokenmix", "mix(mask=scattered)", "mix(mask=box(aligned=true))", "smmix", "attentive_cutmix", "mixpro"]
)
def test_a_rest_beside_the_patches_is_told(method: str) -> None:
    """Cells of the image would be no patches: 20 pixels are two cells of 10, but two patches of 8."""
    model, batch = tiny_vit(img_size=20, patch_size=8), tiny_batch(size=(20, 20))
    said = "drawn on the model's tokens: images of 20x20 leave a rest beside patches of 8x8; use a model for .* 16x16"
    with vitmix.create(method, CLASSES).attach(model) as mixing, pytest.raises(ValueError, match=said):
        mixing.mix(*batch)
    for pixels in ("cutmix", "tl_align"):  # masks of pixels know which of them no patch has
        vitmix.Learner(model, vitmix.create(pixels, CLASSES))(*batch).loss.backward()


def test_a_seed_that_is_no_integer_is_told() -> None:
    for seed in (1.5, "one"):
        with pytest.raises(ValueError, match="seed must be an integer, got"):
            vitmix.create("cutmix", CLASSES).attach(tiny_vit(), seed=seed)  # pyright: ignore[reportArgumentType]
    with vitmix.create("cutmix", CLASSES).attach(tiny_vit(), seed=np.int64(3)) as mixing:
        assert mixing.seed == 3


@pytest.mark.parametrize("method", ["smmix", "tl_align", "transmix", "cutmix + htm(block=1)", "manifold_mixup"])
def test_a_graph_that_is_older_than_the_hooks_is_told(method: str) -> None:
    torch._dynamo.reset()
    model, (images, labels) = torch.compile(tiny_vit().train(), backend="eager"), tiny_batch()
    model(images)
    said = r"attach before a compiled model first runs, or call torch.compiler.reset\(\) after attaching"
    with vitmix.create(method, CLASSES).attach(model) as mixing:  # pyright: ignore[reportArgumentType]
        batch = mixing.mix(images, labels)
        output = model(batch.images)
        with pytest.raises(RuntimeError, match=said):
            mixing.loss(output, batch)
        torch.compiler.reset()
        batch = mixing.mix(images, labels)
        assert mixing.loss(model(batch.images), batch).isfinite()


class Patches(nn.Module):
    """A classifier that nobody knows, which sees patches."""

    def __init__(self, patch: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, patch, patch)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.embed(images).mean((2, 3)))


class Configured(nn.Module):
    def __init__(self, **config: object) -> None:
        super().__init__()
        self.config = type("Config", (), config)()


@pytest.mark.parametrize(
    "method", ["mixup", "cutmix", "tokenmix", "mix(mask=scattered)", "mix(mask=box(aligned=true))"]
)
def test_masks_work_on_any_module_with_patches(method: str) -> None:
    torch.manual_seed(0)
    learner = vitmix.Learner(Patches(), vitmix.create(method, CLASSES), seed=0)
    images, labels = tiny_batch()
    output = learner(images, labels)
    output.loss.backward()
    with vitmix.create(method, CLASSES).attach(tiny_vit(), seed=0) as known:  # the same grid of 4 x 4
        torch.testing.assert_close(known.targets(known.mix(images, labels)), output.targets)


@pytest.mark.parametrize(
    ("model", "grid"),
    [
        (Patches(), (8, 8)),
        (nn.DataParallel(nn.Sequential(Patches(8))), (4, 4)),
        (Configured(patch_size=16), (2, 2)),
        (Configured(patch_size=(8, 16)), (4, 2)),
        (Configured(patch_size=4, depths=[1, 1, 1, 1]), (2, 2)),
        (Configured(strides=[4, 2, 2, 2], patch_sizes=[7, 3, 3, 3]), (2, 2)),
        (timm.create_model("xcit_nano_12_p16_224"), (2, 2)),
        (nn.Linear(2, 2), None),
        (nn.Sequential(nn.Conv2d(3, 8, 3, padding=1)), None),
        (nn.Sequential(nn.Conv2d(3, 8, 7, 4, padding=2), Configured(patch_size=4)), (8, 8)),  # overlapping patches
        (nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3, 2), Configured(patch_size=4)), (8, 8)),  # a stem
        (nn.Sequential(nn.Conv2d(3, 8, 7, 4, padding=2), Configured(patch_size=8)), (4, 4)),
        (nn.Sequential(nn.Conv2d(3, 8, 7, 4, padding=2), Configured(patch_size=7)), None),  # CvT: the kernel
        (nn.Sequential(nn.Conv2d(3, 8, 3, 2, padding=1), Configured(patch_size=2)), None),  # MobileViT: of features
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else str(each),
)
def test_the_size_of_patches_is_found(model: nn.Module, grid: tuple[int, int] | None) -> None:
    with vitmix.create("cutmix", CLASSES).attach(model) as mixing:
        found = mixing.frame(torch.zeros(2, 3, 32, 32)).grid
    assert found == grid


def test_a_method_that_reads_nothing_of_a_model_does_not_run_it() -> None:
    ran, model = [], nn.Sequential(tiny_vit(num_classes=0), nn.Linear(tiny_vit().num_features, CLASSES))
    model[0].blocks[0].register_forward_pre_hook(lambda *_: ran.append(1))
    with vitmix.create("cutmix", CLASSES).attach(model) as mixing:
        mixing.mix(*tiny_batch())
    assert not ran
    with vitmix.create("transmix", CLASSES).attach(model):  # to find what the head reads
        assert ran


def test_a_grid_that_leaves_a_rest_is_told() -> None:
    with vitmix.create("tokenmix", CLASSES).attach(Patches()) as mixing:
        with pytest.raises(ValueError, match="images of 18x18 do not divide into patches of 4x4; resize them"):
            mixing.mix(*tiny_batch(size=(18, 18)))
    with vitmix.create("cutmix", CLASSES).attach(Patches()) as mixing:
        mixing.mix(*tiny_batch(size=(18, 18)))
