"""Golden files and tiny models."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitmix
from vitmix.models import CompactTransformer, ConvTokenizer, checkpoint_filter_fn
from vitmix.parts.base import Guidance

ROOT = Path(__file__).resolve().parents[1]
# The end of a script of several processes: a thread of Gloo that frees a tensor may abort an interpreter that ends.
_LEAVE = """
import os, sys
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""
SHARED = ROOT.parent / "shared" / "data"  # larger files, which a checkout may lack
OWN_PARTS = ROOT / "examples" / "own_parts.py"
GOLDEN = Path(os.environ.get("VITMIX_GOLDEN", Path(__file__).parent / "golden"))
DTYPES = [torch.float64, torch.float32]
Arrays = dict[str, np.ndarray]


def run_in_two(script: str, folder: Path) -> None:
    """Runs a script in two processes, with a folder as its argument; both must say that what they found is alike."""
    file = folder / "script.py"
    file.write_text(script + _LEAVE)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, str(file), str(folder)], capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("alike") == 2


def golden_cases(pattern: str, key: str | None = None) -> list[str]:
    """The golden files of a pattern, if given only those that hold a key."""
    paths = sorted(GOLDEN.glob(pattern + ".npz"))
    return [path.stem for path in paths if key is None or key in np.load(path)]


def load(case: str) -> Arrays:
    return dict(np.load(GOLDEN / f"{case}.npz"))


def cases_of(data: Arrays) -> list[Arrays]:
    """The cases `c0_`, `c1_`, ... of a golden file."""
    count = int(data["n_cases"])
    return [{k.removeprefix(f"c{n}_"): v for k, v in data.items() if k.startswith(f"c{n}_")} for n in range(count)]


def tensor(array: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
    value = torch.from_numpy(np.asarray(array))
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


def close(actual: Tensor, expected: np.ndarray | Tensor, atol: float, rtol: float = 0.0) -> None:
    torch.testing.assert_close(actual.detach(), torch.as_tensor(expected).to(actual.dtype), atol=atol, rtol=rtol)


def same(actual: Tensor, expected: np.ndarray | Tensor) -> None:
    assert torch.equal(actual.detach(), torch.as_tensor(expected).to(actual.dtype))


def golden_vit(data: Arrays, dtype: torch.dtype, *, prefix: str = "sd.", eps: float = 1e-6) -> VisionTransformer:
    """The timm ViT that a golden file describes, with its weights, in evaluation mode."""
    size = tuple(data["images"].shape[-2:])
    model = VisionTransformer(
        img_size=size,
        patch_size=int(data["patch_size"]),
        in_chans=data["images"].shape[1],
        embed_dim=int(data["embed_dim"]),
        depth=int(data["depth"]),
        num_heads=int(data["num_heads"]),
        mlp_ratio=float(data.get("mlp_ratio", 4)),
        num_classes=int(data["num_classes"]),
        norm_layer=partial(nn.LayerNorm, eps=eps),
    )
    weights = {k.removeprefix(prefix): tensor(v) for k, v in data.items() if k.startswith(prefix)}
    model.load_state_dict({k: v for k, v in weights.items() if not k.startswith("token_head")})
    return model.to(dtype).eval()


def golden_compact(data: Arrays, dtype: torch.dtype = torch.float64) -> CompactTransformer:
    """The CCT, CVT or ViT-Lite that a golden file describes, with its weights, in evaluation mode, without dropout."""
    kind = str(data.get("kind", "cct"))
    if kind == "cct":
        names = dict(n_conv="n_conv", kernel_size="conv_kernel", stride="conv_stride", padding="conv_padding")
        names |= dict(pool_size="pool_kernel", pool_stride="pool_stride", pool_padding="pool_padding")
        settings = {ours: int(data[theirs]) for ours, theirs in names.items() if theirs in data}
        embed_layer = partial(ConvTokenizer, **settings)
    else:
        embed_layer = partial(PatchEmbed, patch_size=int(data["patch_size"]))
    model = CompactTransformer(
        img_size=tuple(data["image"].shape[-2:]),
        in_chans=data["image"].shape[1],
        num_classes=int(data["num_classes"]),
        embed_dim=int(data["embed_dim"]),
        depth=int(data["depth"]),
        num_heads=int(data["heads"]),
        mlp_ratio=float(data["mlp_ratio"]),
        embed_layer=embed_layer,
        class_token=kind == "vit",
        positional_embedding=str(data.get("pos_emb", "learnable")),
        norm_layer=partial(nn.LayerNorm, eps=float(data.get("ln_eps", 1e-5))),
        attn_drop_rate=0.0,
        drop_path_rate=0.0,
    )
    weights = {key.removeprefix("sd."): torch.from_numpy(value) for key, value in data.items() if key.startswith("sd.")}
    model = model.double().eval()
    model.load_state_dict(checkpoint_filter_fn(weights, model))
    return model.to(dtype)


# A ViT of timm on 32 px images with 4 x 4 tokens.
SMALL_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 10}


# A Swin of timm on 32 px images with two stages.
SMALL_SWIN = {
    "img_size": 32,
    "embed_dim": 12,
    "depths": (2, 2),
    "num_heads": (2, 2),
    "window_size": 4,
    "num_classes": 10,
}


def tiny_vit(name: str = "vit_tiny_patch16_224", **settings: object) -> nn.Module:
    """A ViT of about 0.1 M parameters on 16 px images with 4 x 4 tokens."""
    defaults = dict(img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=10)
    model = timm.create_model(name, **(defaults | settings))
    with torch.no_grad():  # wide weights: attention far from uniform, as in a trained model
        for block in model.blocks:
            block.attn.qkv.weight.normal_(0, 0.3)
    return model


def tiny_cct(**settings: object) -> nn.Module:
    """A CCT on 16 px images with 8 x 8 tokens and sequence pooling."""
    defaults = dict(img_size=16, embed_dim=24, depth=3, num_heads=3, num_classes=10)
    return timm.create_model("cct_7_3x1_32", **(defaults | settings))


def tiny_batch(batch: int = 6, *, size: tuple[int, int] = (16, 16), classes: int = 10) -> tuple[Tensor, Tensor]:
    """Images and labels that all differ (as far as there are classes), so that a swapped label cannot hide."""
    return torch.randn(batch, 3, *size), torch.arange(batch) % classes


@contextmanager
def never_waiting() -> Iterator[None]:
    """Makes it an error that the host waits for the GPU."""
    with warnings.catch_warnings(action="ignore"):  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def unmixed(frame: vitmix.Frame, partner: Tensor, scores: Tensor | None) -> vitmix.Unmixed:
    """A batch before mixing, for masks that look at a guide's scores alone."""
    images, rows = torch.zeros(frame.batch, 3, *frame.size), torch.zeros(frame.batch, 1)
    return vitmix.Unmixed(images, rows, partner, frame, Guidance(scores))
