"""Images with several labels each: label rows `(B, K)` of zeros and ones, trained with binary cross-entropy."""

import pytest
import torch
from torch import Tensor, nn

import reference
import vitmix
from support import close, same, tiny_batch, tiny_vit
from vitmix import create
from vitmix import functional as F

CLASSES = 10
MASKS = ["none", "constant", "box", "box(per=sample)", "block", "scattered", "salient_box"]
SHARES = ["area", "attention", "aligned"]
METHODS = ["cutmix", "mixup", "tokenmix", "transmix", "tl_align", "vtm(tokens=2)", "mixup | tl_align", "none"]
# Parts whose formulas are those of one label per image, also beside methods that are not.
ONE_LABEL = {
    "region": "cutmix + region",
    "consistency": "mixup | cutmix + consistency",
    "htm": "cutmix + htm",
    "activation": "tokenmix(label=activation)",
    "progressive": "mixpro(tokens=2)",
    "recognize": "recursivemix",
}


def many(batch: int = 6) -> Tensor:
    """One to three labels per image, all rows different."""
    rows = torch.zeros(batch, CLASSES)
    for image in range(batch):
        for number in range(1 + image % 3):
            rows[image, (image + 3 * number) % CLASSES] = 1
    return rows


def single_rows(rows: Tensor) -> list[Tensor]:
    """Rows of at most one label that add up to these."""
    found = []
    for number in range(int(rows.sum(1).max())):
        place = (rows.cumsum(1) == number + 1) & (rows > 0)
        found.append(place.to(rows.dtype))
    return found


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("mask", MASKS)
def test_targets_are_those_of_every_label(mask: str, share: str) -> None:
    """Each label is mixed as if it were the only one, whatever decides where and how much."""
    images, rows = tiny_batch()[0], many()
    parts = single_rows(rows)
    assert len(parts) == 3
    same(sum(parts), rows)
    model, found = tiny_vit().eval(), []
    with create(f"mix(mask={mask}, share={share}, loss=bce)", CLASSES).attach(model) as mixing:
        draw = mixing.draw(mixing.frame(images))
        for each in (rows, *parts):
            batch = mixing.mix(images, each, draw=draw)
            logits = model(batch.images)
            found.append(mixing.targets(batch))
            close(mixing.loss(logits, batch), torch.tensor(reference.soft_bce(logits.detach(), found[-1])), 1e-5)
    close(found[0], sum(found[1:]), 1e-6)
    assert found[0].min() >= 0 and found[0].max() <= 1 + 1e-6
    assert mask == "none" or not torch.equal(found[0], rows)


@pytest.mark.parametrize("text", METHODS)
def test_smoothing_and_mixing(text: str) -> None:
    """A label that both images have stays whole; smoothing acts on every class alone."""
    images, rows = tiny_batch()[0], many()
    rows[:, 9] = 1
    learner = vitmix.Learner(tiny_vit(), create(text, CLASSES, defaults={"smoothing": 0.1, "loss": "bce"}))
    output = learner(images, rows)
    close(output.targets[:, 9], torch.full((6,), 0.9 + 0.1 / CLASSES), 1e-6)
    assert output.targets.min() >= 0.1 / CLASSES - 1e-7
    expected = nn.functional.binary_cross_entropy_with_logits(output.logits, output.targets)
    close(output.parts["main"], expected, 1e-6)
    output.loss.backward()


def test_a_compiled_step() -> None:
    images, rows = tiny_batch()[0], many()
    learner = vitmix.Learner(tiny_vit(), create("cutmix(loss=bce)", CLASSES))
    expected = learner(images, rows)
    learner.compile(backend="eager", fullgraph=True)
    learner.step = 0
    output = learner(images, rows)
    same(output.targets, expected.targets)
    close(output.loss, expected.loss, 1e-6)


def test_a_learner_learns_several_labels() -> None:
    images, rows = tiny_batch(8)[0], many(8)
    learner = vitmix.Learner(tiny_vit(), create("mixup(alpha=0.2, loss=bce)", CLASSES))
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    for _ in range(120):
        optimizer.zero_grad()
        learner(images, rows).loss.backward()
        optimizer.step()
    learner.eval()
    output = learner(images, rows)
    same(output.targets, rows)
    same((output.logits > 0).float(), rows)
    close(output.loss, nn.functional.binary_cross_entropy_with_logits(output.logits, rows), 1e-6)


@pytest.mark.parametrize("text", ["cutmix", "tl_align", "mixup | smmix", "tokenmix(loss=ce)"])
def test_cross_entropy_is_refused(text: str) -> None:
    images, rows = tiny_batch()[0], many()
    words = "label rows must sum to 1 for cross-entropy, got one that sums to 2; several labels per image need loss=bce"
    for compiled in (False, True):
        learner = vitmix.Learner(tiny_vit(), create(text, CLASSES))
        if compiled:
            learner.compile(backend="eager")
        with pytest.raises(ValueError, match=words):
            learner(images, rows)
        assert learner.step == 0
        with pytest.raises(ValueError, match=words):
            learner.eval()(images, rows)
    with create(text, CLASSES).attach(tiny_vit()) as mixing, pytest.raises(ValueError, match=words):
        mixing.mix(images, rows)
    with pytest.raises(ValueError, match=words):
        vitmix.cutmix(CLASSES)(images, rows)


@pytest.mark.parametrize("part", ONE_LABEL)
def test_parts_for_one_label_are_refused(part: str) -> None:
    images, rows = tiny_batch()[0], many()
    learner = vitmix.Learner(tiny_vit(), create(ONE_LABEL[part], CLASSES, defaults={"loss": "bce"}))
    for _ in range(4):  # whichever mixer of a switch would be drawn
        with pytest.raises(ValueError, match=f"must sum to 1 for {part}, got one that sums to 2; .* without {part}"):
            learner(images, rows, maps=torch.rand(6, 4, 4))
    soft = F.smooth_rows(F.label_rows(torch.arange(6), CLASSES), 0.3)
    assert torch.isfinite(learner(images, soft, maps=torch.rand(6, 4, 4)).loss)


def test_of_several_parts_for_one_label_one_is_named() -> None:
    learner = vitmix.Learner(tiny_vit(), create("tokenmix(label=activation) + htm", CLASSES))
    with pytest.raises(ValueError, match=r"must sum to 1 for (\w+), .* a method without \1$"):
        learner(tiny_batch()[0], many(), maps=torch.rand(6, 4, 4))


@pytest.mark.parametrize(("largest", "refused"), [(0.9985, True), (0.9995, False)])
def test_the_decoupled_loss_takes_one_label_up_to_rounding(largest: float, refused: bool) -> None:
    images, labels = tiny_batch()
    rows = F.label_rows(labels, CLASSES) * largest
    rows[:, -1] += 1 - largest
    learner = vitmix.Learner(tiny_vit(), create("decouplemix", CLASSES))
    if refused:
        with pytest.raises(ValueError, match="needs one class per image, got soft label rows"):
            learner(images, rows)
    else:
        assert learner(images, rows).loss.isfinite()


def test_the_decoupled_loss_refuses_several_labels() -> None:
    learner = vitmix.Learner(tiny_vit(), create("decouplemix", CLASSES, defaults={"loss": "bce"}))
    with pytest.raises(ValueError, match="must sum to 1 for decoupled, got one that sums to 2"):
        learner(tiny_batch()[0], many())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_soft_rows_of_one_label_are_taken(loss: str, dtype: torch.dtype) -> None:
    """As label smoothing and a teacher give them, in the precision in which they come."""
    images, labels = tiny_batch()
    mixer = create(f"cutmix(loss={loss})", CLASSES)
    smoothed = F.smooth_rows(F.label_rows(labels, CLASSES), 0.1)
    for rows in (smoothed, torch.randn(6, CLASSES).softmax(1), smoothed * 1.0008):
        mixer(images, rows.to(dtype))
    if dtype == torch.float32 and loss == "ce":
        with pytest.raises(ValueError, match="must sum to 1"):
            mixer(images, smoothed * 1.002)
        with pytest.raises(ValueError, match="must sum to 1"):
            mixer(images, smoothed * 0.998)
        with pytest.raises(ValueError, match="must sum to 1"):
            mixer(images, torch.zeros(6, CLASSES))


def test_rows_outside_0_and_1_are_refused() -> None:
    images, rows = tiny_batch()[0], many()
    mixer = create("cutmix(loss=bce)", CLASSES)
    mixer(images, torch.zeros(6, CLASSES))  # images without any of the labels
    for value in (-1.0, 2.0, float("nan")):
        rows[3, 4] = value
        with pytest.raises(ValueError, match=f"label rows must lie in 0..1, got {value:g}"):
            mixer(images, rows)


@pytest.mark.gpu
def test_a_gpu_is_not_asked() -> None:
    from support import never_waiting

    images, rows = tiny_batch()[0].cuda(), many().cuda()
    learner = vitmix.Learner(tiny_vit().cuda(), create("cutmix(loss=bce)", CLASSES))
    learner(images, rows)
    with never_waiting():
        learner(images, rows)
