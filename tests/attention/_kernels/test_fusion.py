"""Attention and its carried share in one kernel: the kernel against float64, the pass that puts it into graphs."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitmix
from support import tiny_batch, tiny_vit
from vitmix.attention import _kernels as kernels

pytest.importorskip("triton")
fusion = pytest.importorskip("vitmix.attention._kernels.fusion")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ON_CPU = ("_scaled_dot_product_flash_attention_for_cpu",)
aten = torch.ops.aten

# batch, heads, tokens, depth, dtype, rows of the share
SHAPES = {
    "a ViT's": (2, 2, 197, 64, torch.bfloat16, 2),
    "one share for all": (2, 3, 37, 48, torch.float16, 1),
    "whole tiles": (1, 2, 128, 32, torch.bfloat16, 1),
    "shallow heads": (3, 1, 65, 16, torch.float16, 3),
    "very shallow heads": (2, 2, 70, 8, torch.bfloat16, 2),
    "one token": (2, 1, 1, 24, torch.bfloat16, 2),
    "many tokens": (1, 1, 1030, 16, torch.bfloat16, 1),
}


def projected(batch: int, heads: int, tokens: int, depth: int, **kind: Any) -> tuple[Tensor, ...]:
    """Queries, keys and values as a fused projection leaves them: `(B, N, 3, H, d)` in memory."""
    return torch.randn(batch, tokens, 3, heads, depth, **kind).permute(2, 0, 3, 1, 4).unbind(0)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    assert actual.isfinite().all()
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def check_kernel(name: str, device: str) -> None:
    *shape, dtype, rows = SHAPES[name]
    batch, heads, tokens, depth = shape
    query, key, value = (1.5 * each for each in projected(*shape, device=device, dtype=dtype))
    share, scale = torch.rand(rows, tokens, device=device), 0.3
    out, sums, carried = kernels.attend(query, key, value, share, scale)

    scores = scale * query.double() @ key.double().transpose(2, 3)
    exact = scores.softmax(-1)
    assert out.dtype == dtype and out.stride() == (tokens * heads * depth, depth, heads * depth, 1)
    assert relative_error(out, exact @ value.double()) < {torch.bfloat16: 6e-3, torch.float16: 8e-4}[dtype]
    assert sums.dtype == torch.float32 and relative_error(sums, scores.logsumexp(-1)) < 1e-6
    expected = (exact @ share.double()[:, None, :, None]).squeeze(-1)
    assert carried.dtype == torch.float32 and relative_error(carried, expected) < 1e-6
    assert torch.equal(out, kernels.attend(query, key, value, share, scale)[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SHAPES)
def test_kernel_equals_float64(name: str, device: str) -> None:
    check_kernel(name, device)


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_are_written_whole(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *given, **kind: real(*given, **kind).fill_(float("nan")))
    check_kernel("one share for all", device)
    check_kernel("shallow heads", device)


@pytest.mark.parametrize("device", DEVICES)
def test_any_layout(device: str) -> None:
    query, key, value = projected(2, 2, 20, 16, device=device, dtype=torch.float16)
    share = torch.rand(2, 20, device=device)
    dense = kernels.attend(query, key, value, share, 0.25)
    upright = query.transpose(2, 3).contiguous().transpose(2, 3)
    other = kernels.attend(upright, key.contiguous(), value.expand(2, 2, 20, 16), share.double(), 0.25)
    for one, two in zip(dense, other, strict=True):
        assert torch.equal(one, two) and one.stride() == two.stride()


@pytest.mark.parametrize("device", DEVICES)
def test_operator_keeps_its_promises(device: str) -> None:
    query, key, value = projected(2, 2, 17, 16, device=device, dtype=torch.float16)
    torch.library.opcheck(kernels.attend, (query, key, value, torch.rand(2, 17, device=device), 0.25))


# The pass, on graphs as a GPU's step has them: fake tensors need none


def cudnn(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, **settings: Any) -> tuple[Any, ...]:
    results = aten._scaled_dot_product_cudnn_attention(query, key, value, bias, True, **settings)
    return tuple(results[number] for number in (0, 1, 6, 7))


def flash(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> tuple[Any, ...]:
    results = aten._scaled_dot_product_flash_attention(query, key, value, **settings)
    return tuple(results[number] for number in (0, 1, 6, 7))


def carry(query: Tensor, key: Tensor, share: Tensor, *, bias: Tensor | None = None, scale: float = 0.125) -> Tensor:
    return torch.ops.vitmix.carried_shares(query, key, share, bias, scale).mean(1)


def trace(step: Callable[..., Any], dtype: torch.dtype = torch.bfloat16, depth: int = 64) -> fx.GraphModule:
    """The graph of `step(query, key, value, share)`."""
    with FakeTensorMode():
        inputs = torch.empty(2, 17, 3, 3, depth, device="cuda", dtype=dtype).permute(2, 0, 3, 1, 4)
        return make_fx(step)(*inputs.unbind(0), torch.empty(2, 17, device="cuda"))


def operators(graph: fx.Graph) -> list[str]:
    """The attention and the kernels in a graph."""
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    return [name for name in names if "attention" in name or "vitmix" in name]


def outputs(graph: fx.Graph) -> list[tuple[Any, ...]]:
    (results,) = graph.output_node().args
    return [(*fusion._layout(each.meta["val"]),) for each in results]


OLD = torch.__version__ < "2.8"  # whose fake of cuDNN's attention is laid out otherwise than its result


@pytest.mark.parametrize("attention", [pytest.param(cudnn, marks=pytest.mark.skipif(OLD, reason="torch < 2.8")), flash])
@pytest.mark.parametrize("share_first", [True, False])
def test_two_operators_become_one(attention: Callable[..., Any], share_first: bool) -> None:
    def step(query: Tensor, key: Tensor, value: Tensor, share: Tensor) -> tuple[Any, ...]:
        if share_first:
            carried = carry(query.detach(), key.detach().view(key.shape), share)
            return *attention(query, key, value), carried
        return *attention(query, key, value, scale=0.125), carry(query.detach(), key, share)

    module = trace(step)
    before = outputs(module.graph)
    fusion.FuseCarriedShares()(module.graph)
    module.graph.lint()
    assert operators(module.graph) == ["vitmix.attend.default"]
    assert outputs(module.graph) == before


def test_a_scale_may_be_rounded_otherwise() -> None:
    scale = 1 / math.sqrt(32)  # as torch has it where flash attention was chosen
    assert scale != 32**-0.5
    module = trace(lambda q, k, v, s: (flash(q, k, v, scale=scale), carry(q, k, s, scale=32**-0.5)), depth=32)
    fusion.FuseCarriedShares()(module.graph)
    assert operators(module.graph) == ["vitmix.attend.default"]


def test_each_block_gets_its_own() -> None:
    def step(query: Tensor, key: Tensor, value: Tensor, share: Tensor) -> tuple[Any, ...]:
        share = carry(query, key, share)
        out = flash(query, key, value)[0]
        return cudnn(out, key, value)[:2], carry(out, key, share), carry(query[:, :, :1], key, share)

    module = trace(step)
    fusion.FuseCarriedShares()(module.graph)
    module.graph.lint()
    assert operators(module.graph) == ["vitmix.attend.default"] * 2 + ["vitmix.carried_shares.default"]


UNLIKE: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "dropout": lambda q, k, v, s: (flash(q, k, v, dropout_p=0.1), carry(q, k, s)),
    "causal": lambda q, k, v, s: (flash(q, k, v, is_causal=True), carry(q, k, s)),
    "biased": lambda q, k, v, s: (cudnn(q, k, v, q.new_ones(2, 3, 17, 17)), carry(q, k, s)),
    "a biased share": lambda q, k, v, s: (cudnn(q, k, v), carry(q, k, s, bias=q.new_ones(1, 1, 17, 17))),
    "another scale": lambda q, k, v, s: (cudnn(q, k, v, scale=0.2), carry(q, k, s)),
    "other queries": lambda q, k, v, s: (cudnn(q, k, v), carry(q + 1, k, s)),
    "other keys": lambda q, k, v, s: (cudnn(q, k, v), carry(q, v, s)),
    "some queries": lambda q, k, v, s: (cudnn(q, k, v), carry(q[:, :, :1], k, s)),
    "more keys": lambda q, k, v, s: (cudnn(q[:, :, :9], k, v), carry(q[:, :, :9], k, s)),
    "values that come later": lambda q, k, v, s: (carry(q, k, s), flash(q, k, v + 1)),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_is_not_alike_stays(name: str) -> None:
    check_unchanged(trace(UNLIKE[name]))


def check_unchanged(module: fx.GraphModule) -> None:
    before = str(module.graph)
    fusion.FuseCarriedShares()(module.graph)
    assert str(module.graph) == before and len(operators(module.graph)) == 2


def test_what_the_kernel_does_not_take_stays() -> None:
    def step(query: Tensor, key: Tensor, value: Tensor, share: Tensor) -> tuple[Any, ...]:
        return cudnn(query, key, value), carry(query, key, share, scale=query.shape[-1] ** -0.5)

    def contiguous(query: Tensor, key: Tensor, value: Tensor, share: Tensor) -> tuple[Any, ...]:
        return step(query.contiguous(), key, value, share)  # the output of attention is laid out like its queries

    check_unchanged(trace(step, torch.float32))
    check_unchanged(trace(step, depth=72))
    check_unchanged(trace(contiguous))


def test_arguments_that_are_not_known_leave_two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "_UNDERSTOOD", fusion._UNDERSTOOD - {"scale"})  # as if a later torch had added it
    check_unchanged(trace(lambda q, k, v, s: (flash(q, k, v, scale=0.125), carry(q, k, s))))


def test_a_failing_pass_leaves_two_kernels(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(fusion, "_values", lambda args: 1 / 0)
    check_unchanged(trace(lambda q, k, v, s: (cudnn(q, k, v), carry(q, k, s))))
    assert "remain two kernels" in caplog.text


# In training


def settings_of(monkeypatch: pytest.MonkeyPatch, text: str = "tl_align", **given: Any) -> dict[str, Any]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    learner = vitmix.Learner(tiny_vit(), vitmix.create(text, 10))
    learner.compile(**given)
    assert learner._compile_settings is not None
    return learner._compile_settings


def test_steps_that_carry_shares_compile_with_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"post_grad_custom_pre_pass": fusion.FuseCarriedShares()}
    assert settings_of(monkeypatch, fullgraph=True) == {"fullgraph": True, "mode": None, "options": ours}
    assert settings_of(monkeypatch, "mixup | tl_align", mode="default")["options"] == ours
    options = settings_of(monkeypatch, mode="max-autotune", dynamic=False)["options"]
    assert options == ours | torch._inductor.list_mode_options("max-autotune", False)
    assert settings_of(monkeypatch, options={"max_autotune": True})["options"] == ours | {"max_autotune": True}


@pytest.mark.parametrize(
    "given",
    [
        {"backend": "eager"},
        {"mode": "default", "options": {}},  # which torch refuses
        {"mode": "fastest"},  # likewise
        {"mode": None, "options": {"post_grad_custom_pre_pass": print}},
    ],
)
def test_other_settings_are_kept(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(monkeypatch, **given) == given


def test_cudnn_is_left_alone_where_its_sums_are_ragged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDNN_SDPA_AVOID_RECOMPILE", "1")
    (fuse,) = settings_of(monkeypatch)["options"].values()
    assert fuse == fusion.FuseCarriedShares((fusion.FLASH,))


def test_another_interface_of_torch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "config", object())
    assert settings_of(monkeypatch, mode="default") == {"mode": "default"}


def test_other_passes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch._inductor.config.patch(post_grad_custom_pre_pass=fusion.FuseCarriedShares(ON_CPU)):
        assert settings_of(monkeypatch, mode="default") == {"mode": "default"}


def test_steps_that_carry_nothing_compile_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(monkeypatch, "cutmix | transmix", mode="default") == {"mode": "default"}


def test_the_pass_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    assert settings_of(monkeypatch) == {}


class Recorded(fusion.FuseCarriedShares):
    """The pass, which remembers what was in each graph afterwards."""

    seen: list[list[str]] = []

    def __call__(self, graph: fx.Graph) -> None:
        super().__call__(graph)
        graph.lint()
        self.seen.append(operators(graph))

    def uuid(self) -> None:
        """Nothing is to come from a cache."""


def check_step(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    attention: tuple[str, ...],
    depth: int,
    backend: SDPBackend | None = None,
    **settings: Any,
) -> None:
    """A fused step is as near to float32 as an unfused one."""
    images, labels = (each.to(device) for each in tiny_batch(4))
    model = tiny_vit(patch_size=2, embed_dim=64, num_heads=2, depth=depth).to(device)
    learner = vitmix.Learner(model, vitmix.create("tl_align", 10))
    draw = learner.mixing.draw(learner.mixing.frame(images))

    def step(half: bool) -> list[Tensor]:
        learner.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            output = learner(images, labels, draw=draw)
        output.loss.backward()
        gradients = torch.cat([each.grad.flatten() for each in learner.parameters() if each.grad is not None])
        return [output.loss.detach().clone(), output.targets.clone(), gradients]

    exact, eager = step(half=False), step(half=True)
    monkeypatch.setattr(kernels, "fit", lambda *given: True)
    monkeypatch.setattr(fusion, "FuseCarriedShares", lambda *given: Recorded(attention))
    monkeypatch.setattr(Recorded, "seen", [])
    torch._dynamo.reset()
    learner.compile(fullgraph=True, **(settings if device == "cuda" else fusion.with_fusion(settings)))
    for _ in range(3 if device == "cuda" else 1):  # CUDA graphs are recorded in the second
        with contextlib.nullcontext() if backend is None else sdpa_kernel(backend):
            fused = step(half=True)
        for one, two, three in zip(exact, eager, fused, strict=True):
            assert relative_error(three, one) < max(1.5 * relative_error(two, one), 2e-3)

    forward, backward = Recorded.seen
    *fully, last_share, last_attention = forward  # of the last block's shares only the classifier's token counts
    assert fully == ["vitmix.attend.default"] * (depth - 1)
    assert last_share == "vitmix.carried_shares.default" and "attention" in last_attention
    assert len(backward) == depth and all("backward" in name for name in backward)


def test_a_fused_step_equals_an_unfused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    check_step(monkeypatch, "cpu", ON_CPU, depth=2)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("backend", [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION])
def test_a_fused_step_equals_an_unfused_one_on_a_gpu(
    backend: SDPBackend, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_step(monkeypatch, "cuda", (fusion.CUDNN, fusion.FLASH), depth=3, backend=backend, mode=mode)
