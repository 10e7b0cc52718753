"""The studies of `vitmix analyze` on cases that can be computed by hand."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import vitmix
from support import close, tiny_cct, tiny_vit
from training import one_thread, train
from vitmix import analyze, cli
from vitmix import functional as F
from vitmix.adapters import read_model
from vitmix.analyze import fluctuation, labels, objects
from vitmix.analyze.results import correlation, spread
from vitmix.analyze.studies import Batches
from vitmix.data import Shapes
from vitmix.data.augment import Augmentation
from vitmix.data.sources import open_images
from vitmix.shares import AlignedShare

__all__ = ["one_thread"]
AUGMENTATION = Augmentation(size=16, crop_pct=1.0)


def test_spread_by_hand() -> None:
    found = spread(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert found.mean == 3 and found.n == 4 and found.std == pytest.approx(math.sqrt(14 / 3))
    assert found.margin == pytest.approx(1.96 * math.sqrt(14 / 3) / 2, rel=1e-4)
    assert spread(torch.tensor([2.0])).margin is None
    with pytest.raises(ValueError, match="nothing to average"):
        spread(torch.empty(0))
    rising = torch.tensor([1.0, 2.0, 3.0])
    assert correlation(rising, 5 - 2 * rising).mean == pytest.approx(-1)
    assert correlation(rising, torch.ones(3)).mean == 0


def test_mixed_top_by_hand() -> None:
    logits = torch.tensor([[3.0, 2, 1, 0], [3, 2, 1, 0], [0, 1, 2, 3], [0, 3, 0, 2]])
    own, partner = torch.tensor([0, 1, 0, 3]), torch.tensor([1, 2, 1, 1])
    top1, top2 = analyze.mixed_top(logits, own, partner)
    assert top1.tolist() == [True, False, False, True]
    assert top2.tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="two classes"):
        analyze.mixed_top(torch.zeros(2, 1), own[:2], partner[:2])


class Corners(nn.Module):
    """Knows its answer: the class of each image is written in its pixels, and it names the two it sees most of."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([(images[:, 0] == label).float().mean((1, 2)) for label in range(6)], 1)


def plain_batch(classes: int = 6) -> analyze.Pictures:
    """Images of one color each, which is their label."""
    labels = torch.arange(6) % classes
    return analyze.Pictures(labels.float().view(-1, 1, 1, 1).expand(6, 3, 16, 16).clone(), labels)


def test_mixed_accuracy_of_a_model_that_knows() -> None:
    half = vitmix.create("mix(mask=scattered(grid=[4, 4], share=0.5))", 6)
    table = analyze.mixed_accuracy(Corners(), {"half": half}, [plain_batch()])
    assert table.column("top-1") == [1.0] and table.column("top-2") == [1.0] and table.rows[0][1]["top-1"].n == 6
    with pytest.raises(ValueError, match="two classes or more, got one class"):
        analyze.mixed_accuracy(Corners(), {"half": half}, [plain_batch(1)])
    with pytest.raises(ValueError, match="'none' mixes none"):
        analyze.mixed_accuracy(Corners(), {"none": vitmix.create("none", 6)}, [plain_batch()])


def test_pairs_of_one_class_and_lone_samples_are_left_out() -> None:
    pictures = plain_batch()
    odd = analyze.Pictures(pictures.images[:5], torch.tensor([0, 1, 2, 3, 0]))  # 0 meets 0, the middle itself
    found = analyze.mixed_accuracy(Corners(), {"cutmix": vitmix.create("cutmix", 6)}, [odd])
    assert found.rows[0][1]["top-1"].n == 2


def test_region_attention_by_hand() -> None:
    attention = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8]]).view(1, 1, 3, 3)
    mask = torch.tensor([[True, False, False]])
    # the partner has patch 0, the image itself patches 1 and 2
    expected = [0.7, (0.2 + 0.1) / 2, (0.3 + 0.1) / 2, (0.5 + 0.2 + 0.1 + 0.8) / 4]
    close(analyze.region_attention(attention, mask), torch.tensor([expected]), 1e-6)
    assert analyze.region_attention(attention, torch.zeros(1, 3, dtype=torch.bool)).isnan().any()


def test_presence_by_hand() -> None:
    heads = torch.tensor([[[1.0, 0], [1, 0]], [[0.5, 0.5], [0, 1]]]).unsqueeze(0)
    # the mean of the heads is [[.75, .25], [.5, .5]]: the first token is taken 1.25 times
    close(analyze.presence(heads), torch.tensor([[1.25, 0.75]]), 1e-6)
    close(analyze.presence(torch.eye(5).view(1, 1, 5, 5)), torch.ones(1, 5), 1e-6)
    close(analyze.presence(3 * heads), torch.tensor([[1.25, 0.75]]), 1e-6)  # contributions are relative


def test_regions_and_presence_of_uniform_attention() -> None:
    model = tiny_vit().eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.zero_()
            block.attn.qkv.bias.zero_()
    batches = [analyze.Pictures(torch.randn(6, 3, 16, 16), torch.arange(6))] * 2
    methods = {"smmix": vitmix.create("smmix", 10)}
    for name in ("partner to partner", "partner to own", "own to partner", "own to own"):
        found = analyze.region_study(model, methods, batches).column(name)
        assert found == pytest.approx([1 / 17] * 3, abs=1e-6)  # 16 patches and the class token
    table = analyze.presence_study(model, methods, batches)
    assert table.column("own") == pytest.approx([1.0] * 3, abs=1e-5) == table.column("partner")
    assert table.column("deviation") == pytest.approx([0.0] * 3, abs=1e-5)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_sharpness_by_hand() -> None:
    step = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    # two edges of one at the same place: L1 adds them, L2 takes the diagonal; mean 1/4
    expected = [2.0, math.sqrt(2), (0.75**2 + 3 * 0.25**2) / 4]
    close(analyze.sharpness(step), torch.tensor([expected]), 1e-6)
    close(analyze.sharpness(7 * step), torch.tensor([expected]), 1e-6)
    close(analyze.sharpness(torch.full((1, 3, 5), 2.0)), torch.zeros(1, 3), 1e-6)


def test_gradient_saliency_of_a_linear_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    images, labels = torch.randn(3, 3, 2, 2), torch.tensor([0, 1, 1])
    wrong = model(images).softmax(1) - torch.eye(2)[labels]  # the loss's gradient at the logits
    expected = (wrong @ model[1].weight).view(3, 3, 2, 2).norm(dim=1)
    close(analyze.gradient_saliency(model, images, labels), expected, 1e-6)


def test_sharpness_of_a_pyramid_and_a_pooled_model() -> None:
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=24, depths=(1, 1), num_heads=(2, 2),
        num_classes=4,
    ).eval()  # fmt: skip
    batch = analyze.Pictures(torch.randn(4, 3, 32, 32), torch.arange(4))
    table = analyze.sharpness_study(swin, [batch])
    assert [names for names, _ in table.rows] == [
        ("0", "attention"),
        ("1", "attention"),
        ("grid 8x8", "gradient"),
        ("grid 4x4", "gradient"),
    ]
    assert all(values["TV, L1"].n == 4 for _, values in table.rows)
    assert analyze.region_study(swin, {"cutmix": vitmix.create("cutmix", 4)}, [batch]).rows


def test_similarity_share_by_hand() -> None:
    own, partner = torch.tensor([[[1.0, 0], [0, 1]]]), torch.tensor([[[-1.0, 0], [0, -2]]])
    mixed = torch.tensor([[[3.0, 0], [0, -1], [1, -1]]])
    # best cosines with own: 1, 0, .707; with the partner: 0, 1, .707
    expected = [1 / (1 + math.e), math.e / (1 + math.e), 0.5]
    close(analyze.similarity_share(mixed, own, partner), torch.tensor([expected]), 1e-6)


def test_rmse_by_hand() -> None:
    found = fluctuation.root_mean_square(torch.tensor([0.3, -0.4]))
    assert found.mean == pytest.approx(math.sqrt(0.125), rel=1e-6) and found.n == 2
    assert fluctuation.root_mean_square(torch.zeros(3)).mean == 0


@pytest.mark.parametrize("make", [tiny_vit, tiny_cct, lambda: tiny_vit(class_token=False, global_pool="avg")])
def test_fluctuation_agrees_with_the_method_itself(make) -> None:
    model = make().eval()
    cutmix, aligned = vitmix.create("cutmix", 10), vitmix.create("tl_align", 10)
    pictures = analyze.Pictures(torch.randn(6, 3, 16, 16), torch.arange(6))
    shares, rmse = analyze.fluctuation_study(model, cutmix, [pictures], num_classes=10, seed=3)
    with torch.no_grad(), aligned.attach(model, seed=3, rank=0) as mixing:
        batch = mixing.mix(pictures.images, pictures.labels)
        model(batch.images)
        evidence = mixing.evidence(batch)
        given, area = AlignedShare().weights(evidence).partner, evidence.area
    assert shares.column("share", rule="area") == pytest.approx([float(area.mean())] * 3, abs=1e-6)
    if read_model(model).readout != "sequence":  # whose last step weights the patches, after the last block
        assert shares.column("share", rule="aligned")[-1] == pytest.approx(float(given.mean()), abs=1e-6)
        expected = float((given - area).double().square().mean().sqrt())
        assert rmse.column("of shares") == pytest.approx([expected], abs=1e-6)
        assert rmse.column("of targets") == pytest.approx([expected * math.sqrt(2 / 10)], abs=1e-6)
    assert all(0.119 < each < 0.881 for each in shares.column("share", rule="similarity"))
    assert not any(module._forward_hooks for module in model.modules())


def test_an_image_mixed_with_its_own_copy_is_half_of_each() -> None:
    model = tiny_vit().eval()
    twins = torch.randn(1, 3, 16, 16).expand(4, -1, -1, -1)
    table, _ = analyze.fluctuation_study(
        model, vitmix.create("cutmix", 10), [analyze.Pictures(twins, torch.arange(4))], num_classes=10
    )
    assert table.column("share", rule="similarity") == pytest.approx([0.5] * 3, abs=1e-6)


def test_coverage_by_hand() -> None:
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, :2, :2] = True
    objects[1, :2, 1:3] = True
    left = torch.zeros(1, 4, 4, dtype=torch.bool)
    left[:, :, :2] = True
    pasted, hidden = analyze.object_coverage(objects, vitmix.Mix(F.reversed_pairs(2), left))
    close(pasted, torch.tensor([0.5, 1.0]), 1e-6)  # half of object 1 lies left, all of object 0
    close(hidden, torch.tensor([1.0, 0.5]), 1e-6)


def test_cut_share_and_its_classes_by_hand() -> None:
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, :2, :2] = True  # 4 pixels
    objects[1, :, 2:] = True  # 8 pixels
    left = torch.zeros(1, 4, 4, dtype=torch.bool)
    left[:, :, :2] = True
    # image 0 hides its 4 and shows none of the partner's 8; image 1 keeps its 8 and gets 4
    close(analyze.cut_share(objects, vitmix.Mix(F.reversed_pairs(2), left)), torch.tensor([1.0, 0.0]), 1e-6)
    found = labels.by_cut(torch.tensor([0.1, -0.3, 0.5]), torch.tensor([0.0, 0.2, 1.0]))
    assert found["0% to 25%"].mean == pytest.approx(0.2) and found["0% to 25%"].n == 2
    assert found["75% to 100%"].mean == pytest.approx(0.5) and len(found) == 2


@pytest.mark.parametrize("full", [False, True])
def test_label_error_is_zero_where_the_mask_is_empty_or_full(full: bool) -> None:
    """Whatever the rule: nothing of the partner is there, or nothing else."""
    model, share = tiny_vit().eval(), 1.0 if full else 0.0
    images, labels, objects = torch.randn(6, 3, 16, 16), torch.arange(6), torch.rand(6, 16, 16) < 0.3
    texts = [f"mix(mask=scattered(share={share}), share={rule})" for rule in ("area", "attention", "aligned")]
    rules = {text: vitmix.create(text, 10) for text in texts}
    for found in analyze.label_error(model, rules, [(images, labels, objects)]).values():
        assert found.error < 1e-6 and found.pairs == 6


def test_hidden_mixing_by_hand() -> None:
    rows = [{"epoch": 1, "htm_samples": 0.0, "htm_tokens": 0.0}, {"epoch": 2, "htm_samples": 0.25, "htm_tokens": 0.05}]
    table = analyze.hidden_mixing(rows, batch=128, tokens=256)
    assert table.column("samples per batch") == [0, 32]
    assert table.column("tokens per sample") == pytest.approx([0, 51.2])
    with pytest.raises(ValueError, match="no such counts"):
        analyze.hidden_mixing([{"epoch": 1}], batch=8, tokens=4)


def test_counts_are_what_htm_decided() -> None:
    learner = vitmix.Learner(tiny_vit(), vitmix.create("htm(block=1, tau=9, rho=0)", 10))
    output = learner(torch.randn(6, 3, 16, 16), torch.arange(6))
    assert output.counts["htm_samples"] == 1 and 0 < output.counts["htm_tokens"] < 1
    assert not vitmix.Learner(tiny_vit(), vitmix.create("cutmix", 10))(
        torch.randn(6, 3, 16, 16), torch.arange(6)
    ).counts


# Objects


def test_batches_are_shuffled_and_keep_their_objects() -> None:
    images = open_images("shapes(size=16, length=24, test_length=24)", "test")
    finder = objects.object_finder(images, AUGMENTATION)
    batches = Batches(images, AUGMENTATION, count=12, batch=4, seed=1, finder=finder)
    assert [len(each.labels) for each in batches] == [4, 4, 4]
    first, again = (torch.cat([each.labels for each in batches]).tolist() for _ in range(2))
    assert first == again == images.labels[batches.rows].tolist() and sorted(batches.rows) != batches.rows.tolist()
    masks = torch.cat([each.objects for each in batches if each.objects is not None])
    close(masks.float(), images.objects(batches.rows.tolist()).float(), 0)


def test_a_folder_of_masks(tmp_path: Path) -> None:
    for number, name in enumerate(("cat/a.jpg", "cat/b.jpg", "dog/c.jpg")):
        for folder, ending in (("images", ".jpg"), ("masks", ".png")):
            path = (tmp_path / folder / name).with_suffix(ending)
            path.parent.mkdir(parents=True, exist_ok=True)
            levels = np.zeros((32, 32), dtype=np.uint8)
            levels[:, : 8 * (number + 1)] = 1
            levels[:, 24:] = 2
            Image.fromarray(levels).save(path)
    images = open_images(f"imagefolder:{tmp_path / 'images'}?holdout=0.5", "train")
    finder = objects.object_finder(images, AUGMENTATION, masks=tmp_path / "masks", value=1)
    assert finder is not None
    found = finder(range(len(images)))
    places = [int("abc".index(Path(images.name(index)).stem)) for index in range(len(images))]
    assert found.sum((1, 2)).tolist() == [16 * 4 * (place + 1) for place in places]
    with pytest.raises(ValueError, match="there is no mask .*for the image"):
        objects.read_mask(tmp_path / "masks", "cat/z.jpg", None)
    with pytest.raises(ValueError, match="no folder of masks"):
        objects.object_finder(images, AUGMENTATION, masks=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="goes with image files"):
        shapes = open_images("shapes(size=16, length=24)", "train")
        objects.object_finder(shapes, AUGMENTATION, masks=tmp_path / "masks")
    assert objects.object_finder(images, AUGMENTATION) is None


# The command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("analyze") / "run"
    train(folder, method="cutmix + htm(block=1, tau=9)", epochs=1)
    yield folder


def test_analyze_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "found"
    assert cli.main(["analyze", str(run), "--images", "16", "--output", str(output), "--figure", "svg"]) == 0
    said = capsys.readouterr().out
    for title in ("Accuracy on mixed images", "Label error", "Token fluctuation: cutmix", "RMSE", "What HTM mixed"):
        assert title in said
    assert "Left out" not in said
    names = {path.name for path in output.iterdir()}
    studies = ("accuracy", "labels", "fluctuation", "regions", "presence", "sharpness", "coverage", "htm")
    assert names == {*(f"{name}.json" for name in studies), "fluctuation.svg", "htm.svg"}
    stored = json.loads((output / "htm.json").read_text())
    assert stored["tables"][0]["rows"][0]["samples"]["mean"] == 1  # tau 9: everybody is easy
    assert json.loads((output / "labels.json").read_text())["tables"][0]["rows"][0]["error"]["n"] <= 16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "what to analyze is missing"),
        (["--study", "magic"], "unknown study 'magic'"),
        (["RUN", "--study", "regions", "--method", "mixup"], "blends them"),
        (["RUN", "--study", "accuracy", "--method", "nomix"], "nomix"),
        (["RUN", "--images", "1"], "images must be an integer of at least 2"),
        (
            ["resnet18", "--data", "shapes(size=16, length=24, test_length=24)", "--study", "presence"],
            "needs attention",
        ),
        (["resnet18", "--data", "shapes(size=16, length=24, test_length=24)", "--study", "htm"], "read from a run"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    run: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(run) if each == "RUN" else each for each in arguments]
    assert cli.main(["analyze", *given]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_no_masks_is_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        path = tmp_path / "images" / "train" / Shapes.classes[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 20 * number, dtype=np.uint8)).save(path)
    data = f"imagefolder:{tmp_path / 'images'}"
    assert cli.main(["analyze", str(run), "--data", data, "--split", "train", "--study", "labels"]) == 2
    assert "have no masks" in capsys.readouterr().err
