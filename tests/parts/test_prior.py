"""The label rule that knows where objects usually are, against loops over cells and against the rules it contains."""

import copy
import math

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import vitmix
from support import close, same, tiny_batch, tiny_vit
from vitmix import functional as F
from vitmix.attention.readers import read_model

seeds = st.integers(0, 2**16)


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slow_gaussian(rows: int, columns: int, width: float) -> Tensor:
    values = [
        [
            math.exp(-(((row + 0.5) / rows - 0.5) ** 2 + ((column + 0.5) / columns - 0.5) ** 2) / (2 * width**2))
            for column in range(columns)
        ]
        for row in range(rows)
    ]
    return torch.tensor(values, dtype=torch.float64)


def slow_share(mask: Tensor, prior: Tensor, source: Tensor | None = None, weight: Tensor | None = None) -> list[float]:
    """One image and one cell at a time; a pasted cell counts by the place it had in the partner."""
    shares = []
    for image in range(len(mask)):
        own = partner = 0.0
        for cell in range(prior.numel()):
            part, evidence = float(mask[image].flatten()[cell]), 1.0 if weight is None else float(weight[image, cell])
            place = cell if source is None else int(source[image, cell])
            own += (1 - part) * float(prior.flatten()[cell]) * evidence
            partner += part * float(prior.flatten()[place]) * evidence
        shares.append(partner / (own + partner) if own + partner > 0 else float(mask[image].mean()))
    return shares


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0.05, 2))
def test_the_gaussian_is_the_slow_one(rows: int, columns: int, width: float) -> None:
    found = F.gaussian_prior((rows, columns), width=width, dtype=torch.float64)
    close(found, slow_gaussian(rows, columns, width), 1e-12)
    assert F.gaussian_prior((rows, columns), width=width).dtype == torch.float32


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans(), seeds)
def test_the_share_is_the_slow_one(batch: int, rows: int, columns: int, moved: bool, weighted: bool, seed: int) -> None:
    cells = rows * columns
    mask = torch.rand(batch, rows, columns, generator=gen(seed), dtype=torch.float64).round(decimals=1)
    prior = torch.rand(rows, columns, generator=gen(seed + 1), dtype=torch.float64).round()  # often zero
    source = torch.randint(cells, (batch, cells), generator=gen(seed + 2)) if moved else None
    weight = torch.rand(batch, cells, generator=gen(seed + 3), dtype=torch.float64) if weighted else None
    partner = prior.flatten().unsqueeze(0) if source is None else prior.flatten()[source]
    found = F.prior_share(mask.flatten(1), prior.flatten(), partner, weight=weight)
    close(found, torch.tensor(slow_share(mask, prior, source, weight), dtype=torch.float64), 1e-12)


def shares(text: str, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, vitmix.MixedBatch]:
    """The partners' shares by a rule: labels are all different, so they can be read off the targets."""
    with vitmix.create(text, 10, smoothing=0.0).attach(model, seed=0) as mixing:
        batch = mixing.mix(images, labels)
        mixing.loss(model(batch.images), batch)
        targets = mixing.targets(batch)
    partner = labels[batch.mix.partner]
    return targets.gather(1, partner.unsqueeze(1)).squeeze(1), batch


def double_model(size: tuple[int, int] = (16, 16)) -> tuple[nn.Module, Tensor, Tensor]:
    images, labels = tiny_batch(4, size=size)
    return tiny_vit(img_size=size).double().train(), images.double(), labels


@pytest.mark.parametrize("mask", ["box", "block", "salient_box"])
def test_a_method_gives_the_slow_share(mask: str) -> None:
    found, batch = shares(f"mix(mask={mask}, share=prior(width=0.2))", *double_model())
    cells = batch.mix.mask.expand(4, -1, -1).double()
    prior = slow_gaussian(cells.shape[1], cells.shape[2], 0.2)
    close(found, torch.tensor(slow_share(cells, prior, batch.mix.source)).double(), 1e-6)


@pytest.mark.parametrize("size", [(16, 16), (16, 24)])
@pytest.mark.parametrize("mask", ["box", "salient_box"])
def test_multiplied_with_attention_it_is_the_slow_share(mask: str, size: tuple[int, int]) -> None:
    found, batch = shares(f"mix(mask={mask}, share=prior(times=attention))", *double_model(size))
    grid = batch.frame.grids[-1]
    last = len(batch.frame.grids) - 1
    tokens = read_model(tiny_vit(img_size=size)).patch_mask(batch.mix.mask, last, batch.frame.size)
    weight = batch.tape.saliency[last]
    expected = slow_share(
        tokens.expand(4, -1).reshape(4, *grid).double(), slow_gaussian(*grid, 0.25), batch.mix.source, weight
    )
    close(found, torch.tensor(expected).double(), 1e-6)


@pytest.mark.parametrize(
    ("flat", "other"),
    [
        ("prior(map=[[1]])", "area"),
        ("prior(width=1e6)", "area"),
        ("prior(map=[[2, 2], [2, 2]], times=attention)", "attention(blend=1.0)"),
        ("prior(map=[[1]], times=aligned)", "aligned"),
        ("prior(learned=True)", "area"),  # before the first batch it has learned nothing
    ],
)
@pytest.mark.parametrize("mask", ["box", "block", "constant"])
def test_a_flat_prior_changes_nothing(flat: str, other: str, mask: str) -> None:
    given = double_model()
    ours, theirs = (shares(f"mix(mask={mask}, share={rule})", *given)[0] for rule in (flat, other))
    close(ours, theirs, 1e-6)


def test_the_center_counts_more_than_a_corner() -> None:
    mask = torch.zeros(2, 8, 8)
    mask[0, 3:5, 3:5] = mask[1, :2, :2] = 1
    own = F.gaussian_prior((8, 8), width=0.25).flatten()
    center, corner = F.prior_share(mask.flatten(1), own, own.unsqueeze(0)).tolist()
    assert corner < 4 / 64 < center
    whole = F.prior_share(torch.tensor([[1.0] * 64, [0.0] * 64]), own, own.unsqueeze(0))
    same(whole, torch.tensor([1.0, 0.0]))


def test_aligned_odds_multiply_those_of_the_prior() -> None:
    model = double_model()
    prior, area, aligned, both = (
        shares(f"mix(mask=box, share={rule})", *model)[0]
        for rule in ("prior", "area", "aligned", "prior(times=aligned)")
    )

    def odds(share: Tensor) -> Tensor:
        return share / (1 - share)

    close(odds(both), odds(prior) * odds(aligned) / odds(area), 1e-5)


def test_a_learned_prior_is_the_average_saliency_of_earlier_batches() -> None:
    model, images, labels = double_model()
    with vitmix.create("mix(mask=box, share=prior(learned=True, momentum=0.5))", 10).attach(model) as mixing:
        (learned,) = mixing.modules.values()
        expected = torch.ones(16, 16)
        for _ in range(3):
            batch = mixing.mix(images, labels)
            mixing.loss(model(batch.images), batch)
            mixing.targets(batch)  # asked twice, learned once
            grid = batch.frame.grids[-1]
            mean = batch.tape.saliency[len(batch.frame.grids) - 1].float().mean(0).view(grid)
            stretched = (mean / mean.mean()).repeat_interleave(16 // grid[0], 0).repeat_interleave(16 // grid[1], 1)
            expected = 0.5 * expected + 0.5 * stretched
            close(learned.prior, expected, 1e-6)
    assert float(learned.prior.std()) > 0


def test_a_compiled_learner_learns_the_same_prior() -> None:
    model, images, labels = double_model()
    eager = vitmix.Learner(model, vitmix.create("mix(mask=box, share=prior(learned=True, momentum=0.5))", 10), seed=1)
    compiled = copy.deepcopy(eager)
    compiled.compile(backend="aot_eager")
    for _ in range(3):
        close(compiled(images, labels).targets, eager(images, labels).targets, 1e-9)
    (ours,), (theirs,) = ([*each.added.values()] for each in (compiled, eager))
    close(ours.prior, theirs.prior, 1e-9)
    assert float(ours.prior.std()) > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(width=0), "width must be"),
        (dict(map=()), "map must be rows"),
        (dict(map=((1, 2), (3,))), "map must be rows"),
        (dict(map=((1, -2),)), "map must be rows"),
        (dict(map=((1, -0.5),)), "map must be rows"),
        (dict(map=((0, 0),)), "map must be rows"),
        (dict(map=((float("nan"),),)), "map must be rows"),
        (dict(map="center"), "map must be rows"),
        (dict(learned=1), "learned must be"),
        (dict(momentum=2), "momentum must lie"),
        (dict(times="none"), "unknown times"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vitmix.PriorShare(**settings)


def test_a_map_may_have_zeros() -> None:
    assert vitmix.PriorShare(map=((0, 1), (2, 0))).map == ((0.0, 1.0), (2.0, 0.0))


def test_a_prior_of_places_alone_needs_no_attention() -> None:
    model = timm.create_model("resnet18", num_classes=10)
    images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    with vitmix.create("mix(mask=box, share=prior)", 10).attach(model, seed=0) as mixing:
        assert mixing.targets(mixing.mix(images, labels)).isfinite().all()
    with pytest.raises(ValueError, match="a prior share that is learned or multiplied with attention needs attention"):
        vitmix.create("mix(mask=box, share=prior(times=attention))", 10).attach(model)
