"""The kernels against float64: by Triton's interpreter on a CPU (conftest switches it on), and by the same on a GPU."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import vitmix
from support import never_waiting, tiny_batch, tiny_vit
from vitmix import functional as F
from vitmix.attention import _kernels as kernels
from vitmix.attention import summaries
from vitmix.parts import assignment

pytest.importorskip("triton")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TOLERANCE = {torch.bfloat16: 1e-3, torch.float16: 1e-3, torch.float32: 1e-5}  # what the project promises

# batch, heads, queries, keys, depth, dtype, groups and heads of the bias
SHAPES = {
    "a ViT's": (2, 2, 197, 197, 64, torch.bfloat16, None),
    "odd, in float32": (3, 2, 37, 37, 24, torch.float32, None),
    "windows": (4, 2, 49, 49, 32, torch.float16, (2, 2)),
    "one bias for all heads": (2, 3, 20, 20, 16, torch.bfloat16, (1, 1)),
    "reduced keys": (2, 1, 130, 49, 64, torch.bfloat16, None),
    "a bank of keys": (2, 2, 65, 75, 64, torch.bfloat16, None),
    "more keys than stay": (1, 2, 33, 300, 32, torch.bfloat16, None),
    "more keys than stay, biased, in float32": (2, 1, 17, 265, 16, torch.float32, (2, 1)),
    "deep heads": (1, 2, 40, 40, 128, torch.float16, None),
    "one query, one key": (2, 2, 1, 1, 80, torch.float32, None),
}


def strided(batch: int, heads: int, tokens: int, depth: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Queries and keys as a fused projection leaves them: `(B, N, 3, H, d)` in memory."""
    qkv = 2 * torch.randn(batch, tokens, 3, heads, depth, device=device)
    query, key, _ = qkv.to(dtype).permute(2, 0, 3, 1, 4).unbind(0)
    return query, key


def relative_error(actual: Tensor, expected: Tensor) -> float:
    assert actual.dtype == torch.float32 and actual.isfinite().all()
    return float((actual.double() - expected).norm() / expected.norm())


def check(name: str, device: str) -> None:
    batch, heads, queries, keys, depth, dtype, groups = SHAPES[name]
    query, _ = strided(batch, heads, queries, depth, dtype, device)
    _, key = strided(batch, heads, keys, depth, dtype, device)
    bias = None if groups is None else torch.randn(*groups, queries, keys, device=device)
    if bias is not None:
        bias[..., keys // 2 :][bias[..., keys // 2 :] > 0.5] = -float("inf")  # a mask, and a whole tile of it
        bias[:, :, 0, : min(64, keys - 1)] = -float("inf")
        bias[..., -1] = 0.0  # a row without any key has no attention
    share, weight = torch.rand(batch, keys, device=device), torch.rand(batch, queries, device=device)
    scale = 0.3
    exact = dict(bias=None if bias is None else bias.double(), scale=scale)
    doubled = query.double(), key.double()

    carried = kernels.carried_shares(query, key, share, bias, scale).mean(1)
    assert relative_error(carried, summaries.carried_share(*doubled, share.double(), **exact)) < TOLERANCE[dtype]
    for given_weight in (weight, weight[:1]):
        pulled = kernels.pulled_weight(query, key, given_weight, bias, scale)
        expected = summaries.pulled_weight(*doubled, given_weight.double(), **exact)
        assert relative_error(pulled, expected) < TOLERANCE[dtype]
    row = None if bias is None else bias[:, :, :1]
    pulled = kernels.pulled_weight(query[:, :, :1], key, weight[:, :1], row, scale)
    exact["bias"] = None if row is None else row.double()
    expected = summaries.pulled_weight(doubled[0][:, :, :1], doubled[1], weight[:, :1].double(), **exact)
    assert relative_error(pulled, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SHAPES)
def test_kernels_equal_float64(name: str, device: str) -> None:
    check(name, device)


@settings(max_examples=15)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    queries=st.integers(1, 70),
    keys=st.integers(1, 70),
    depth=st.sampled_from([16, 24, 33]),
)
def test_any_shape(batch: int, heads: int, queries: int, keys: int, depth: int) -> None:
    query, _ = strided(batch, heads, queries, depth, torch.float32, "cpu")
    _, key = strided(batch, heads, keys, depth, torch.float32, "cpu")
    share, weight = torch.rand(batch, keys), torch.rand(1, queries)
    carried = kernels.carried_shares(query, key, share, None, 0.2).mean(1)
    expected = summaries.carried_share(query.double(), key.double(), share.double(), scale=0.2)
    assert relative_error(carried, expected) < 1e-5
    pulled = kernels.pulled_weight(query, key, weight, None, 0.2)
    expected = summaries.pulled_weight(query.double(), key.double(), weight.double(), scale=0.2)
    assert relative_error(pulled, expected) < 1e-5


@pytest.mark.parametrize("most", [64, 128])
def test_tiles_hold_all_columns(most: int) -> None:
    from vitmix.attention._kernels.attention import _widths

    for columns in range(1, 257):
        widths = _widths(columns, most)
        assert len(widths) == 4 and columns <= sum(widths) < columns + 64
        assert all(width == 0 or 16 <= width <= most and width.bit_count() == 1 for width in widths)


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_are_written_whole(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a kernel leaves as it was would show the poison."""
    real = Tensor.new_empty

    def poisoned(self: Tensor, *size: int, **settings: object) -> Tensor:
        made = real(self, *size, **settings)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(Tensor, "new_empty", poisoned)
    for name in ("odd, in float32", "a bank of keys", "more keys than stay"):
        check(name, device)


@pytest.mark.parametrize("device", DEVICES)
def test_results_repeat(device: str) -> None:
    query, key = strided(3, 2, 65, 32, torch.bfloat16, device)
    share = torch.rand(3, 65, device=device)
    for call in (kernels.carried_shares, kernels.pulled_weight):
        assert torch.equal(call(query, key, share, None, 0.2), call(query, key, share, None, 0.2))


@pytest.mark.parametrize("device", DEVICES)
def test_operators_keep_their_promises(device: str) -> None:
    query, key = strided(2, 2, 17, 16, torch.float32, device)
    share, bias = torch.rand(2, 17, device=device), torch.randn(2, 1, 17, 17, device=device)
    for operator in (kernels.carried_shares, kernels.pulled_weight):
        torch.library.opcheck(operator, (query, key, share, bias, 0.25))
    saliency, easy = torch.rand(4, 6, device=device), torch.tensor([True, False, True, True], device=device)
    torch.library.opcheck(assignment.assign_partners, (saliency, easy, 0.1))


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph(device: str) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(query: Tensor, key: Tensor, share: Tensor) -> Tensor:
        return kernels.carried_shares(query, key, share, None, 0.25).mean(1) + share

    query, key = strided(2, 2, 17, 16, torch.float32, device)
    share = torch.rand(2, 17, device=device)
    expected = summaries.carried_share(query.double(), key.double(), share.double()) + share
    torch.testing.assert_close(compiled(query, key, share), expected.float())


def test_what_the_kernels_do_not_take() -> None:
    query, key = strided(1, 1, 4, 16, torch.float32, "cpu")
    assert not kernels.fit(query, key, None)  # on a CPU
    assert summaries.carried_share(query.double(), key.double(), torch.rand(1, 4)).dtype == torch.float64


def test_importing_the_library_imports_no_kernel() -> None:
    code = (
        "import sys, vitmix, vitmix.attention._kernels; assert 'vitmix.attention._kernels.attention' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The assignment


def assignment_case(number: int, largest: int) -> tuple[Tensor, Tensor, float]:
    """Saliencies, who is easy, and rho: random ones, tied ones, equal ones, few and all easy."""
    generator = torch.Generator().manual_seed(number)
    batch = int(torch.randint(1, largest + 1, (), generator=generator))
    tokens = int(torch.randint(1, 40, (), generator=generator))
    saliency = torch.rand(batch, tokens, generator=generator) / tokens
    if number % 3 == 0:
        saliency = (saliency * tokens * 3).round() / tokens / 3
    if number % 25 == 0:
        saliency = saliency[:1].expand(batch, tokens)
    easy = torch.rand(batch, generator=generator) < (0.1, 0.6, 1.1)[number % 3]
    return saliency, easy, 0.01 * (number % 2)


def check_assignment(saliency: Tensor, easy: Tensor, rho: float, partner: Tensor) -> None:
    rows = easy.nonzero().squeeze(1)
    assert torch.equal(partner[~easy], torch.arange(len(easy))[~easy])
    assert len(set(partner[rows].tolist())) == len(rows)
    if len(rows):
        gain = F.saliency_gain(saliency[rows], saliency, rho).double()
        best = gain[torch.arange(len(rows)), assignment.assign_on_host(saliency, easy, rho)[rows]].sum()
        found = gain[torch.arange(len(rows)), partner[rows]].sum()
        torch.testing.assert_close(found, best, atol=1e-6, rtol=1e-6)  # gains are added up in another order


@pytest.mark.parametrize("number", range(24))
def test_assignment_equals_scipy(number: int) -> None:
    from vitmix.attention._kernels.assignment import assign_partners

    case = assignment_case(number, largest=10)
    partner = assign_partners(*case)
    check_assignment(*case, partner)
    assert torch.equal(partner, assign_partners(*case))


@pytest.mark.gpu
def test_assignment_equals_scipy_on_a_gpu() -> None:
    for number in range(3000):
        saliency, easy, rho = assignment_case(number, largest=64)
        check_assignment(saliency, easy, rho, F.assign_partners(saliency.cuda(), easy.cuda(), rho).cpu())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is not a number
def test_assignment_ends_whatever_comes() -> None:
    from vitmix.attention._kernels.assignment import assign_partners

    saliency = torch.tensor([[float("nan"), 1.0], [float("inf"), 0.0], [0.5, 0.5]])
    partner = assign_partners(saliency, torch.ones(3, dtype=torch.bool), 0.0)
    assert sorted(partner.tolist()) == [0, 1, 2]


# In training


@pytest.mark.gpu
@pytest.mark.parametrize("text", ["transmix", "tl_align", "smmix", "cutmix + htm(tau=9)", "cutmix + vtm"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_step_equals_an_eager_one(text: str, mode: str) -> None:
    images, labels = (each.cuda() for each in tiny_batch(8))
    learner = vitmix.Learner(tiny_vit().cuda(), vitmix.create(text, 10))
    draws = [learner.mixing.draw(learner.mixing.frame(images)) for _ in range(4)]
    eager = [learner(images, labels, draw=draw).loss.detach().clone() for draw in draws]
    learner.compile(fullgraph=True, mode=mode)
    for draw, expected in zip(draws, eager, strict=True):
        torch.compiler.cudagraph_mark_step_begin()
        loss = learner(images, labels, draw=draw).loss
        torch.testing.assert_close(loss.detach(), expected, atol=2e-3, rtol=2e-3)
        loss.backward()
        learner.zero_grad()  # recorded graphs write gradients over those of the step before


@pytest.mark.gpu
def test_assignment_never_waits() -> None:
    saliency, easy = torch.rand(64, 49, device="cuda"), torch.rand(64, device="cuda") < 0.3
    F.assign_partners(saliency, easy, 0.01)
    with never_waiting():
        F.assign_partners(saliency, easy, 0.01)
