"""Whatever is around a model, a method computes what it computes on the model alone, or says what to do."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitmix
from support import run_in_two, tiny_batch, tiny_vit
from vitmix.attention import register_reader
from vitmix.attention.readers import read_model, unwrap

CLASSES = 10
METHODS = [
    "mixup",
    "cutmix",
    "tokenmix",
    "transmix",
    "tl_align",
    "smmix",
    "cutmix + htm(block=1, tau=9)",
    "cutmix + vtm(block=1, tokens=3)",
    "mix(mask=box) + region(head=separate)",
    "mix(mask=salient_box)",
]
each_method = pytest.mark.parametrize("method", METHODS)


def numbers(model: nn.Module, method: str) -> dict[str, Tensor]:
    """Losses, targets and gradients of one batch, each a function of the seeds alone."""
    model.zero_grad()
    torch.manual_seed(1)
    mixing = vitmix.create(method, CLASSES, smoothing=0.1).attach(model, seed=3, step=0)
    with mixing:
        torch.manual_seed(2)
        for parameter in mixing.parameters():
            nn.init.normal_(parameter, std=0.1)
        images, labels = tiny_batch()
        batch = mixing.mix(images, labels)
        losses = mixing.losses(model(batch.images), batch)
        losses["loss"].backward()
        found = {**{name: value.detach() for name, value in losses.items()}, "targets": mixing.targets(batch)}
    inner: Any = unwrap(model)
    embed = next(each for each in inner.modules() if isinstance(each, nn.Conv2d))
    return found | {"gradient": embed.weight.grad.clone()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda said, name=name: f"{name}: {said}")


def vit(**settings: Any) -> Any:
    torch.manual_seed(0)
    return tiny_vit(**settings).train()


# Wrappers that compute what the model computes


class Sub(VisionTransformer):
    """A subclass that adds settings and helpers, but no computation."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.purpose = "mine"

    def describe(self) -> str:
        return self.purpose


def sub() -> nn.Module:
    model, plain = Sub(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=CLASSES), vit()
    model.load_state_dict(plain.state_dict())
    return model.train()


class Own(nn.Module):
    """A classifier of one's own around a backbone."""

    def __init__(self, backbone: nn.Module, head: nn.Module, how: str = "forward") -> None:
        super().__init__()
        self.backbone, self.norm, self.head, self.how = backbone, nn.Identity(), head, how

    def forward(self, images: Tensor) -> Any:
        if self.how == "forward":
            return self.head(self.norm(self.backbone(images)))
        tokens = self.backbone.forward_features(images)  # pyright: ignore[reportCallIssue]
        if self.how == "class":
            return {"logits": self.head(tokens[:, 0])}
        return self.head(tokens[:, self.backbone.num_prefix_tokens :].mean(1))  # pyright: ignore


def parts(**settings: Any) -> tuple[nn.Module, nn.Module]:
    """A backbone without a classifier, and the classifier."""
    model = vit(**settings)
    head, model.head = model.head, nn.Identity()
    model.num_classes = 0
    return model, head


def averaged() -> nn.Module:
    return torch.optim.swa_utils.AveragedModel(vit()).train()


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "compiled": lambda: torch.compile(vit(), backend="eager"),
    "DataParallel": lambda: nn.DataParallel(vit()),
    "averaged": averaged,
    "compiled DataParallel": lambda: torch.compile(nn.DataParallel(vit()), backend="eager"),
    "a subclass": sub,
    "Sequential": lambda: nn.Sequential(*parts()),
    "Sequential of a preprocessing and a model": lambda: nn.Sequential(nn.Identity(), vit()),
    "own head": lambda: Own(*parts()),
    "own head on the class token": lambda: Own(*parts(), how="class"),
    "DataParallel of an own head": lambda: nn.DataParallel(Own(*parts())),
    "compiled own head": lambda: torch.compile(Own(*parts()), backend="eager"),
}


@each_method
@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_model_is_read_like_the_model(name: str, method: str) -> None:
    torch._dynamo.reset()
    assert_equal(numbers(WRAPPED[name](), method), numbers(vit(), method))


@each_method
def test_an_own_head_may_pool_otherwise_than_its_backbone(method: str) -> None:
    """What counts is what the head reads: here the mean of the patches of a model with a class token."""
    backbone, head = parts(fc_norm=False)
    expected = vit(fc_norm=False)
    expected.global_pool = "avg"
    assert_equal(numbers(Own(backbone, head, how="mean"), method), numbers(expected, method))


class OverTokens(nn.Module):
    """A head of one's own over a backbone that returns its tokens."""

    def __init__(self, backbone: nn.Module, head: nn.Module, readout: str) -> None:
        super().__init__()
        self.backbone, self.head, self.readout = backbone, head, readout

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.backbone(images)
        return self.head(tokens[:, 0] if self.readout == "class" else tokens[:, 1:].mean(1))


@each_method
@pytest.mark.parametrize("readout", ["class", "mean"])
def test_a_backbone_may_return_its_tokens(readout: str, method: str) -> None:
    """timm's `global_pool=""`."""
    backbone, head = parts(global_pool="", fc_norm=False)
    expected = vit(fc_norm=False)
    expected.global_pool = "token" if readout == "class" else "avg"
    assert_equal(numbers(OverTokens(backbone, head, readout), method), numbers(expected, method))
    assert backbone.global_pool == ""


@pytest.mark.parametrize("name", ["resnet18", "swin_tiny_patch4_window7_224", "pvt_v2_b0", "cait_xxs24_224"])
def test_backbones_of_every_kind_may_return_their_tokens(name: str) -> None:
    settings: dict[str, Any] = {} if name in ("resnet18", "pvt_v2_b0") else {"img_size": 64}
    if "swin" in name:
        settings |= {"window_size": 4}
    backbone = timm.create_model(name, num_classes=0, global_pool="", **settings)

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = backbone, nn.Linear(backbone.num_features, CLASSES)

        def forward(self, images: Tensor) -> Tensor:
            tokens = self.backbone(images)
            if name.startswith("cait"):
                return self.head(tokens[:, 0])
            return self.head(tokens.mean((1, 2) if name.startswith("swin") else (2, 3)))

    with vitmix.create("tl_align", CLASSES).attach(model := Pooled()) as mixing:
        batch = mixing.mix(*tiny_batch(size=(64, 64)))
        assert mixing.loss(model(batch.images), batch).isfinite()


def test_a_head_of_zeros_hides_nothing() -> None:
    backbone, head = parts()
    nn.init.zeros_(head.weight)  # pyright: ignore
    assert read_model(Own(backbone, head, how="class")).readout == "class"
    assert read_model(Own(backbone, head, how="mean")).readout == "mean"


def test_a_convolutional_backbone_is_read() -> None:
    torch.manual_seed(0)
    whole = timm.create_model("resnet18", num_classes=CLASSES)
    backbone = timm.create_model("resnet18", num_classes=0)
    backbone.load_state_dict(whole.state_dict(), strict=False)
    images, labels = tiny_batch(size=(64, 64))
    losses = []
    for model in (whole, nn.Sequential(backbone, whole.fc)):
        with vitmix.create("tl_align + region", CLASSES).attach(model.eval(), seed=0) as mixing:
            batch = mixing.mix(images, labels)
            losses.append(mixing.loss(model(batch.images), batch))
    torch.testing.assert_close(losses[0], losses[1])


def test_looking_leaves_modes_and_randomness_alone() -> None:
    model = Own(*parts()).train()
    model.head.eval()
    state = torch.get_rng_state()
    read_model(model)
    assert model.backbone.training and not model.head.training and torch.equal(torch.get_rng_state(), state)
    assert not {"forward", "forward_features"} & set(vars(model.backbone))


def test_compiled_learners_read_an_own_head() -> None:
    torch._dynamo.reset()
    outputs = []
    for compiled in (False, True):
        learner = vitmix.Learner(Own(*parts()).train(), vitmix.smmix(CLASSES), seed=3)
        if compiled:
            learner.compile(backend="eager")
        torch.manual_seed(2)
        outputs.append(learner(*tiny_batch()).loss)
    torch.testing.assert_close(*outputs)


# Batch norm


class BetweenBatchNorms(nn.Module):
    """A convolution with batch norm before the backbone, and a head with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
        self.backbone, head = parts()
        self.head = nn.Sequential(nn.BatchNorm1d(24, affine=False), head)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(self.stem(images)))


def small_levit() -> nn.Module:
    """A known model whose own classifier has batch norm."""
    torch.manual_seed(0)
    small: dict[str, Any] = dict(embed_dim=(16, 32), key_dim=8, depth=(2, 1), num_heads=(2, 4), stem_type="s8")
    return timm.create_model("levit_128", img_size=64, num_classes=CLASSES, **small).train()


def statistics_after_a_step(model: nn.Module, method: str, size: int, *, compiled: bool = False) -> dict[str, Tensor]:
    learner = vitmix.Learner(model.train(), vitmix.create(method, CLASSES), seed=3, step=0)
    if compiled:
        learner.compile(backend="eager")
    torch.manual_seed(2)
    learner(*tiny_batch(size=(size, size))).loss.backward()
    return {name: value for name, value in model.named_buffers() if "running" in name or "batches" in name}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("make", "size"), [(BetweenBatchNorms, 16), (small_levit, 64)])
def test_batch_norm_counts_the_mixed_batch_alone(make: Callable[[], nn.Module], size: int, compiled: bool) -> None:
    """The losses of SMMix classify regions by a second pass of the head, which is no batch of images."""
    torch._dynamo.reset()
    method = "cutmix + region + consistency"
    expected = statistics_after_a_step(make(), "cutmix", size)
    assert {int(value) for name, value in expected.items() if "batches" in name} == {1}
    assert_equal(statistics_after_a_step(model := make(), method, size, compiled=compiled), expected)
    norms = [each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    assert all(each.track_running_stats for each in norms)


# What is refused


class Changed(VisionTransformer):
    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return super().forward_features(x, attn_mask)


def changed() -> nn.Module:
    return Changed(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=CLASSES)


class Twice(Own):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images) + self.backbone(images.flip(-1)))


class Smaller(Own):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(images[..., :8, :8], (0, 8, 0, 8))[..., :12])


class Largest(Own):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone.forward_features(images).amax(1))  # pyright: ignore


class Beside(Own):
    """Joins the backbone's features with those of a convolution, whose weights may be zero at first."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.side, self.head = nn.Conv2d(3, 4, 4, 4), nn.Linear(24 + 4, CLASSES)
        nn.init.zeros_(self.side.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.cat([self.backbone(images), self.side(images).relu().mean((2, 3))], 1))


class Counting(Own):
    """Looks at the images beside the backbone by a function that lets no NaN through."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + (images > 0).float().mean((1, 2, 3)).unsqueeze(1)


class Several(Own):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images), images.mean()


REFUSED = {
    "an overridden computation": (changed, "Changed overrides forward_features of VisionTransformer.*register_reader"),
    "two passes": (lambda: Twice(*parts()), "forward or forward_features 2 times, not once; call the backbone once"),
    "other images": (lambda: Smaller(*parts(dynamic_img_size=True)), "gets other images than the module"),
    "a convolution beside": (lambda: Beside(*parts()), "logits depend on more of the images than what its"),
    "another look": (lambda: Counting(*parts()), "logits depend on more of the images than what its"),
    "several outputs": (lambda: Several(*parts()), "returns a tuple instead of logits"),
    "another pooling": (lambda: Largest(*parts()), "reads neither the class token alone nor the mean of the patches"),
    "two models": (lambda: nn.ModuleList([vit(), vit()]), r"contains several models \(0, 1\); attach to one of them"),
    "no model": (lambda: nn.Linear(2, 2), "torch.Linear cannot be read: .* register a reader for it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_to_do(name: str) -> None:
    make, said = REFUSED[name]
    for method in ("tl_align", "smmix"):
        with pytest.raises(ValueError, match=said):
            vitmix.create(method, CLASSES).attach(make())
    vitmix.cutmix(CLASSES).attach(make()).close()


def test_a_class_can_be_read_like_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmix.attention import readers

    monkeypatch.setattr(readers, "_REGISTERED", {})
    register_reader(Changed, VisionTransformer)
    model = changed()
    model.load_state_dict(vit().state_dict())
    assert_equal(numbers(model.train(), "smmix"), numbers(vit(), "smmix"))
    with pytest.raises(ValueError, match="Linear cannot be read"):
        register_reader(Twice, nn.Linear)


def on_two_devices(model: nn.Module) -> nn.Module:
    """As if this machine had two GPUs; nothing runs there before the first batch."""
    wrapped = nn.DataParallel(model)
    wrapped.device_ids = [0, 1]
    return wrapped


SPLIT: dict[str, Callable[[], nn.Module]] = {
    "a model": lambda: on_two_devices(vit()),
    "compiled": lambda: torch.compile(on_two_devices(vit()), backend="eager"),
    "a backbone": lambda: nn.Sequential(on_two_devices(parts()[0]), nn.Linear(24, CLASSES)),
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_batch_that_is_split_over_devices_cannot_be_read(name: str) -> None:
    said = "nn.DataParallel splits a mixed batch over 2 devices.*; start one process for each GPU with torchrun"
    for method in ("transmix", "tl_align", "smmix", "htm(block=1)", "cutmix | tl_align"):
        with pytest.raises(ValueError, match=said):
            vitmix.create(method, CLASSES).attach(SPLIT[name]())
    with pytest.raises(ValueError, match=said):
        vitmix.smmix(CLASSES).attach(vit(), guide=SPLIT[name]())
    for method in ("mixup", "cutmix", "tokenmix"):
        vitmix.create(method, CLASSES).attach(SPLIT[name]()).close()


# Adapters and Hugging Face


def hugging(**settings: Any) -> Any:
    transformers = pytest.importorskip("transformers", minversion="5")
    torch.manual_seed(0)
    small = dict(image_size=16, patch_size=4, hidden_size=24, intermediate_size=48, num_hidden_layers=3)
    config = transformers.ViTConfig(**small, num_attention_heads=3, num_labels=CLASSES, **settings)
    return transformers.ViTForImageClassification(config).train()


def adapted(model: nn.Module, targets: list[str], head: str) -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=[head], init_lora_weights=True)
    return peft.get_peft_model(model, config).train()


def trainable(model: Any) -> dict[str, Tensor]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


LORA: dict[str, tuple[Callable[[], nn.Module], list[str], str]] = {
    "timm": (vit, ["qkv"], "head"),
    "Hugging Face": (hugging, ["q_proj", "v_proj"], "classifier"),
    "own head": (lambda: Own(*parts()), ["qkv"], "head"),
    "timm in transformers": (lambda: timm_in_transformers(), ["qkv"], "head"),
}


@each_method
@pytest.mark.parametrize("kind", LORA)
def test_adapters_that_add_nothing_change_nothing(kind: str, method: str) -> None:
    make, targets, head = LORA[kind]
    model = adapted(make(), targets, head)
    for parameter in model.parameters():
        parameter.requires_grad_(True)  # the gradient of the first convolution is compared
    assert_equal(numbers(model, method), numbers(make(), method))


@pytest.mark.parametrize("method", ["tl_align", "smmix", "cutmix + htm(block=1, tau=9)"])
@pytest.mark.parametrize("kind", LORA)
def test_adapters_are_read_as_they_compute(kind: str, method: str) -> None:
    """Against the same weights merged into the model."""
    make, targets, head = LORA[kind]
    model = adapted(make(), targets, head)
    with torch.no_grad():
        for name, parameter in trainable(model).items():
            if "lora_" in name:
                parameter.normal_(0, 0.3)
    found = []
    for merged in (False, True):
        if merged:
            model = model.merge_and_unload()
        with vitmix.create(method, CLASSES).attach(model, seed=1, step=0) as mixing:
            for parameter in mixing.parameters():
                nn.init.constant_(parameter, 0.01)
            torch.manual_seed(2)
            batch = mixing.mix(*tiny_batch())
            found.append(mixing.loss(model(batch.images), batch))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@each_method
def test_timm_models_in_transformers_are_read(method: str) -> None:
    assert_equal(numbers(timm_in_transformers(), method), numbers(vit(), method))


def timm_in_transformers() -> Any:
    transformers = pytest.importorskip("transformers", minversion="5")
    config = transformers.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224",
        model_args=dict(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3),
        num_labels=CLASSES,
    )
    model = transformers.TimmWrapperForImageClassification(config).train()
    model.timm_model.load_state_dict(vit().state_dict())
    return model


def test_a_hugging_face_model_without_its_classifier_names_the_one_that_is_read() -> None:
    inner = hugging().vit
    said = "use ViTForImageClassification, with your head as its classifier"
    for model in (inner, nn.Sequential(inner, nn.Linear(24, CLASSES))):
        with pytest.raises(ValueError, match=f"ViTModel is a model without a classifier; {said}"):
            vitmix.smmix(CLASSES).attach(model)


@each_method
def test_subclasses_of_hugging_face_models_are_read(method: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")

    class Mine(transformers.ViTForImageClassification):
        def freeze(self) -> None: ...

    plain = hugging()
    model = Mine(plain.config).train()
    model.load_state_dict(plain.state_dict())
    assert_equal(numbers(model, method), numbers(hugging(), method))


# Several processes

SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
import vitmix
from support import tiny_batch
from test_wrappers import METHODS, Own, parts, vit
dist.init_process_group("gloo")

def loss(model, method):
    torch.manual_seed(1)
    mixing = vitmix.create(method, 10, smoothing=0.1).attach(model, seed=3, step=0)
    with mixing:
        torch.manual_seed(2)
        for parameter in mixing.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        batch = mixing.mix(*tiny_batch())
        value = mixing.loss(model(batch.images), batch)
        value.backward()
    return value.detach()

def sharded(model):
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)

def of_first_version(*, blocks):
    model = vit()
    if blocks:
        model.blocks[0] = FullyShardedDataParallel(model.blocks[0], device_id=torch.device("cpu"))
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)

for blocks in (False, True):
    for method in METHODS:
        make = vitmix.create(method, 10)
        try:
            make.attach(of_first_version(blocks=blocks)).close()
            assert not make.looks_inside and not make.needs.guide, method
        except ValueError as problem:
            assert "FullyShardedDataParallel cannot be read" in str(problem), problem
            assert "use torch.distributed.fsdp.fully_shard" in str(problem), problem
model = of_first_version(blocks=False)
torch.testing.assert_close(loss(model, "cutmix"), loss(vit(), "cutmix"))

makes = {
    "DDP": lambda: DistributedDataParallel(vit(), find_unused_parameters=True),
    "DDP own": lambda: DistributedDataParallel(Own(*parts()), find_unused_parameters=True),
    "fully_shard": lambda: sharded(vit()),
}
for name, make in makes.items():
    for method in METHODS:
        torch.testing.assert_close(loss(make(), method), loss(vit(), method), msg=lambda s: f"{name} {method} {s}")
print("alike")
"""


def test_models_of_several_processes_are_read(tmp_path: Path) -> None:
    run_in_two(SHARDED, tmp_path)


def test_copies_of_a_learner_read_their_own_head() -> None:
    learner = vitmix.Learner(Own(*parts()).train(), vitmix.smmix(CLASSES), seed=3)
    torch.manual_seed(2)
    batch = tiny_batch()
    expected = learner(*batch).loss
    for copied in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter.fill_(torch.nan)  # nothing of the original is used
        copied.step = 0
        torch.testing.assert_close(copied(*batch).loss, expected)
        learner = copied
