"""Parts and methods of one's own: registered with one call, they are everywhere."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import test_mixers
import vitmix
from support import OWN_PARTS, close, tiny_batch, tiny_vit
from vitmix import _registry as registry
from vitmix.attention.readers import read_model
from vitmix.lab.bench.steps import methods as benched
from vitmix.lab.cli.main import main
from vitmix.lab.families import FAMILIES, columns
from vitmix.lab.fitting import fitting_methods
from vitmix.parts.joint import JointMask

TEXTS = ["stripes", "mix(mask=stripe, share=squared)", "cutmix + confidence(weight=0.5)", "cutmix + blend(block=2)"]


@pytest.mark.usefixtures("own_parts")
def test_a_method_of_ones_own_is_in_every_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "stripes" in vitmix.list_methods() and "stripes" in benched() and "stripes" in columns()
    assert "stripes" in fitting_methods(tiny_vit(), (16, 16))[0]
    assert main(["methods"]) == 0
    said = capsys.readouterr().out
    assert "stripes" in said and all(name in said for name in ("stripe(width=2)", "squared", "confidence", "blend("))


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize(
    "holds",
    [
        test_mixers.test_contract_text_copy_pickle,
        partial(test_mixers.test_contract_step, kind="vit", batch=5),
        test_mixers.test_contract_pixels,
        test_mixers.test_contract_soft_labels_and_dtypes,
    ],
)
def test_a_method_of_ones_own_keeps_the_contract(holds: Callable[[str], None]) -> None:
    holds("stripes(width=1)")


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_ones_own_parts_go_there_and_back(text: str) -> None:
    mixer = vitmix.create(text, 10)
    assert vitmix.create(str(mixer), 10) == mixer


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize("text", TEXTS)
def test_a_compiled_learner_of_ones_own_parts_equals_an_eager_one(text: str) -> None:
    model = tiny_vit()
    images, labels = tiny_batch(6)
    eager, compiled = (vitmix.Learner(model, vitmix.create(text, 10), seed=0, step=0) for _ in range(2))
    compiled.compile(backend="eager", fullgraph=True)
    one = eager(images, labels)
    one.loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    eager.mixing.close()
    two = compiled(images, labels)
    two.loss.backward()
    close(two.loss.detach(), one.loss.detach(), 1e-6)
    close(two.targets, one.targets, 1e-6)
    for ours, theirs in zip(gradients, (p.grad for p in model.parameters() if p.grad is not None), strict=True):
        close(ours, theirs, 1e-6)


@pytest.mark.usefixtures("own_parts")
def test_ones_own_parts_compute_what_they_say() -> None:
    model = tiny_vit()
    images, labels = tiny_batch(4)
    with vitmix.create("mix(mask=stripe(width=1), share=squared)", 10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        model(batch.images)
        targets = mixing.targets(batch)
    assert batch.mix.mask.sum((1, 2)).tolist() == [4] * 4  # one row of 4 x 4 tokens
    close(targets.sum(1), torch.ones(4), 1e-6)
    close(targets[0, labels[3]], torch.tensor(1 / 16), 1e-6)  # a quarter, squared
    with vitmix.create("none + confidence(weight=0.5)", 10).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        logits = model(batch.images)
        parts = mixing.losses(logits, batch)
    entropy = torch.distributions.Categorical(logits=logits.detach()).entropy().mean()
    close(parts["confidence"].detach(), -0.5 * entropy, 1e-6)


@pytest.mark.usefixtures("own_parts")
def test_hidden_mixing_of_ones_own_survives_activation_checkpointing() -> None:
    images, labels = tiny_batch(4)
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = tiny_vit()
        model.set_grad_checkpointing(checkpointing)
        output = vitmix.Learner(model, vitmix.create("cutmix + blend", 10))(images, labels)
        output.loss.backward()
        found.append((output.targets, model.patch_embed.proj.weight.grad))
    close(found[0][0], found[1][0], 0)
    close(found[0][1], found[1][1], 1e-6)


def test_a_plugin_trains_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry_kept: None) -> None:
    monkeypatch.setenv(registry.PLUGINS, "")
    command = ["--plugin", str(OWN_PARTS), "train", "--method", "stripes(width=1) | cutmix", "--epochs", "1"]
    small = [
        "--model",
        "vit_tiny_patch16_224",
        "--model-args",
        "patch_size=4",
        "embed_dim=16",
        "depth=3",
        "num_heads=2",
    ]
    data = ["--data", "shapes(size=16, length=48, test_length=24)", "--size", "16", "--batch", "8"]
    data += ["--warmup-epochs", "0", "--cpu", "--workers", "0", "--track", "none", "--output", str(tmp_path / "run")]
    assert main([*command, *small, *data]) == 0


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (type("Odd", (), {"kind": "mask", "name": "two words"}), "an identifier as its name"),
        (type("Plain", (), {"kind": None, "name": None}), "derive it from vitmix.Mask"),
        (type("Loose", (vitmix.Mask,), {"name": "loose"}), "must be a frozen dataclass"),
        (lambda classes: None, "an identifier as its name"),
    ],
)
def test_what_cannot_be_registered_says_why(thing: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vitmix.register(thing)  # pyright: ignore
    with pytest.raises(ValueError, match="num_classes as its first"):
        vitmix.register(test_what_cannot_be_registered_says_why)


def test_a_plugin_that_is_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plugin", "no_such_module", "methods"]) == 2
    assert "the plugin 'no_such_module' cannot be imported" in capsys.readouterr().err


def test_input_gradients_reach_a_mask() -> None:
    """A mask may ask for the gradient of the guide's loss, which must be that of a plain pass."""

    @dataclasses.dataclass(frozen=True)
    class GradientMask(vitmix.Mask):
        name = "gradient"

        @property
        def needs(self) -> vitmix.Needs:
            return vitmix.Needs(guide_gradient=True)

        def where(self, values, batch):
            seen.append(batch.guidance.gradient)
            return vitmix.Paste(batch.guidance.gradient > batch.guidance.gradient.flatten(1).mean(1).view(-1, 1, 1))

    seen: list[torch.Tensor] = []
    model = tiny_vit().eval()
    images, labels = tiny_batch(3)
    output = vitmix.Learner(model, vitmix.Mixer(10, mask=GradientMask())).train()(images, labels)
    output.loss.backward()
    asked = images.clone().requires_grad_()
    model.eval()
    torch.nn.functional.cross_entropy(model(asked), labels, reduction="sum").backward()
    assert asked.grad is not None
    close(seen[0], asked.grad.square().mean(1).sqrt(), 1e-5)


# What a part of one's own can get wrong


@dataclasses.dataclass(frozen=True)
class Odd(vitmix.ExtraLoss):
    name = "odd"

    def value(self, logits, targets, evidence):
        return logits.mean(1)


@dataclasses.dataclass(frozen=True)
class OfLogits(vitmix.ExtraLoss):
    """Does not ask what was pasted."""

    name = "of_logits"

    def value(self, logits, targets, evidence):
        return logits.square().mean()


@dataclasses.dataclass(frozen=True)
class Tokens(vitmix.ExtraLoss):
    """Reads the tokens that enter a block, and nothing else."""

    name = "tokens"

    @property
    def needs(self) -> vitmix.Needs:
        return vitmix.Needs(model=True)

    def plan(self, reader):
        return vitmix.Plan(tokens=frozenset([1]))

    def value(self, logits, targets, evidence):
        return evidence.tape.tokens[1].square().mean()


@dataclasses.dataclass(frozen=True)
class LooseMask(vitmix.Mask):
    name = "loose"

    def where(self, values, batch):
        return torch.zeros(1, 1, 1)


@dataclasses.dataclass(frozen=True)
class LooseShare(vitmix.Share):
    name = "loose"

    def weights(self, evidence):
        return evidence.area


@dataclasses.dataclass(frozen=True)
class Mover(vitmix.HiddenMixing):
    name, moves_tokens, block = "mover", True, 1


@dataclasses.dataclass(frozen=True)
class Asking(vitmix.ExtraLoss):
    name = "asking"

    @property
    def needs(self) -> vitmix.Needs:
        return vitmix.Needs(model=True, guide_blocks=(0,))


def frozen(base: type, name: str) -> type:
    return dataclasses.make_dataclass("Other", [], bases=(base,), frozen=True, namespace={"name": name})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(extra=(Odd(),)), "the loss odd must be a scalar, got shape"),
        (dict(mask=LooseMask()), "must return a vitmix.Paste, got Tensor"),
        (dict(share=LooseShare()), "must return vitmix.Weights, got Tensor"),
        (dict(share=vitmix.AlignedShare(), inner=(Mover(),)), "aligned shares follow the tokens.*mover moves tokens"),
        (dict(mask=vitmix.SalientMask(), extra=(Asking(),)), "different blocks"),
        (dict(extra=(frozen(Odd, "main")(),)), "'main' is the name of a loss"),
        (dict(extra=(frozen(Odd, "loss")(),)), "'loss' is the name of a loss"),
    ],
)
def test_a_part_that_is_wrong_says_how(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vitmix.Learner(tiny_vit(), vitmix.Mixer(10, **settings))(*tiny_batch())


@dataclasses.dataclass(frozen=True)
class Adder(vitmix.HiddenMixing):
    name, adds_tokens, block = "adder", True, 1

    @property
    def needs(self) -> vitmix.Needs:
        return vitmix.Needs()


def test_tokens_of_ones_own_are_added_where_a_block_can_take_them() -> None:
    plain, windows = (read_model(FAMILIES[name].build()) for name in ("ViT, DeiT", "Swin"))
    assert not vitmix.Mixer(10, inner=(Adder(),)).input_only
    assert Adder().plan(plain) == vitmix.Plan(mixed=frozenset([1]), bank=frozenset([1]))
    with pytest.raises(ValueError, match="adder cannot act at block 1 .* a window cannot contain other tokens"):
        Adder().plan(windows)


def test_a_loss_that_asks_for_no_partner_goes_with_every_mask() -> None:
    """Co-Mixup pastes several images, which a loss that knows one partner refuses."""
    output = vitmix.Learner(tiny_vit(), vitmix.Mixer(10, mask=JointMask(), extra=(OfLogits(),)))(*tiny_batch())
    assert output.parts["of_logits"] > 0
    with pytest.raises(ValueError, match="joint"):
        vitmix.Mixer(10, mask=JointMask(), extra=(vitmix.ConsistencyLoss(),))


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (frozen(vitmix.Mask, "box"), "another part or method has the name"),
        (frozen(vitmix.ExtraLoss, "htm"), "another part or method has the name"),
        (frozen(vitmix.ExtraLoss, "main"), "is reserved"),
        (vitmix.BoxMask(), "register the class or the function itself"),
    ],
)
def test_names_that_are_taken_are_refused(thing: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vitmix.register(thing)  # pyright: ignore


def test_a_pass_between_model_and_loss_leaves_recorded_tokens_alone() -> None:
    model, (images, labels) = tiny_vit(), tiny_batch()
    with vitmix.Mixer(10, extra=(Tokens(),)).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        logits = model(batch.images)
        expected = batch.tape.tokens[1].square().mean()
        model.eval()(100 * images)
        close(mixing.losses(logits, batch)["tokens"].detach(), expected.detach(), 0)


def test_a_share_that_draws_works_without_a_model() -> None:
    @dataclasses.dataclass(frozen=True)
    class Drawn(vitmix.Share):
        name = "drawn"

        def draw(self, frame, generator):
            return {"share": torch.rand(frame.batch, generator=generator)}

        def weights(self, evidence):
            return vitmix.Weights(1 - evidence.values["share"], evidence.values["share"])

    images, labels = tiny_batch(4)
    _, targets = vitmix.Mixer(10, mask=vitmix.BoxMask(), share=Drawn())(images, labels)
    close(targets.sum(1), torch.ones(4), 1e-6)


def test_a_decorator_with_settings(own_parts: None) -> None:
    @vitmix.register(small="tiny_stripes(width=1)")
    def tiny_stripes(num_classes: int, *, width: int = 3, **common) -> vitmix.Mixer:
        return vitmix.create("stripes", num_classes, width=width, **common)

    assert registry.METHODS.small()["tiny_stripes"] == "tiny_stripes(width=1)"


PLUGIN = """import vitmix

@vitmix.register
def plugged_{name}(num_classes, **common):
    return vitmix.none(num_classes, **common)
"""


def test_files_of_one_name_are_different_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry_kept: None
) -> None:
    files = [tmp_path / name / "json.py" for name in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.write_text(PLUGIN.format(name=file.parent.name))
    monkeypatch.setenv(registry.PLUGINS, ",".join(map(str, files)))
    registry.load_plugins()
    assert {"plugged_one", "plugged_two"} <= set(vitmix.list_methods())
