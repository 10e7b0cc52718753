"""Shares in models without attention: every operation by hand, every family against a linear twin."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import dense
import vitmix
from support import close
from vitmix.attention.flow import Matrix
from vitmix.attention.readers import spatial
from vitmix.lab.families import CLASSES, FAMILIES


def test_token_mixing_weights_by_hand() -> None:
    """|W2||W1| with rows divided by their sums."""
    first = torch.tensor([[1.0, -1.0, 0.0], [0.0, 2.0, 2.0]])
    second = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.0, 3.0]])
    weights = spatial.token_mixing_weights(first, second)
    expected = torch.tensor([[1 / 2, 1 / 2, 0], [1 / 6, 3 / 6, 2 / 6], [0, 1 / 2, 1 / 2]])
    close(weights, expected, 1e-7)
    share = torch.tensor([[0.0, 1.0, 0.5]])
    close(Matrix(weights).update(share), (share + share @ expected.T) / 2, 1e-7)


def test_depthwise_kernel_by_hand() -> None:
    """A 3 x 3 depth-wise kernel whose channel mean of absolute values is a cross; renormalized at the edges."""
    conv = nn.Conv2d(2, 2, 3, padding=1, groups=2, bias=False)
    cross = torch.tensor([[0.0, 1.0, 0.0], [1.0, 4.0, 1.0], [0.0, 1.0, 0.0]])
    conv.weight.data = torch.stack([cross, -3 * cross]).unsqueeze(1)  # the mean of absolute values is 2 x the cross
    grid = torch.zeros(1, 1, 3, 3)
    grid[0, 0, 0, 0], grid[0, 0, 1, 1] = 1.0, 0.5
    # Corner: (4 + 0) / 6. Edge: (1 + 0.5) / 7. Center: 4 * 0.5 / 8. The rest has the center or nothing in reach.
    expected = torch.tensor([[4 / 6, 1.5 / 7, 0.0], [1.5 / 7, 2 / 8, 0.5 / 7], [0.0, 0.5 / 7, 0.0]])
    close(spatial.convolve_share(grid, conv)[0, 0], expected, 1e-7)


def test_strides_aggregate_by_hand() -> None:
    grid = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.5]]).view(1, 1, 3, 3)
    expected = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    close(spatial.aggregate_share(grid, (2, 2))[0, 0], expected, 1e-7)
    conv = nn.Conv2d(1, 1, 3, stride=2, padding=1, bias=False)
    conv.weight.data.fill_(-1.0)
    expected = torch.tensor([[2 / 4, 3 / 4], [2 / 4, 1.5 / 4]])
    close(spatial.convolve_share(grid, conv)[0, 0], expected, 1e-7)


TWINS = {
    "MLP-Mixer": "mixer_twin",
    "ResMLP": "mixer_twin",
    "ConvNeXt": "convnext_twin",
    "Hugging Face ConvNeXt": "convnext_twin",
    "Hugging Face ConvNeXt V2": "convnext_twin",
    "ResNet": "resnet_twin",
}


@pytest.mark.parametrize("text", ["tl_align", "tl_align(blocks=[-2])", "tl_align(blocks=[0, 2])"])
@pytest.mark.parametrize("name", TWINS)
def test_shares_of_spatial_models_equal_a_linear_twin(name: str, text: str) -> None:
    """Shares are what the model makes of one channel with absolute weights, nothing pointwise, means for sums."""
    if not FAMILIES[name].available:
        pytest.skip(f"{FAMILIES[name].package} is not installed")
    torch.manual_seed(0)
    model: Any = FAMILIES[name].build().double().eval()
    size = FAMILIES[name].size
    images, labels = torch.randn(4, 3, size, size, dtype=torch.float64), torch.arange(4)
    with vitmix.create(text, CLASSES).attach(model) as mixing:
        batch = mixing.mix(images, labels)
        model(batch.images)
        targets = mixing.targets(batch)
    pixels = batch.mix.mask.double().expand(4, -1, -1).unsqueeze(1)
    depth = mixing.reader.depth
    chosen = range(depth) if text == "tl_align" else [block % depth for block in mixing.mixer.share.blocks]
    share = globals()[TWINS[name]](model, pixels, set(chosen))
    close(targets[range(4), batch.mix.partner], share.flatten(1).mean(1), 1e-9)
    assert (targets.sum(1) - 1).abs().max() < 1e-9


def test_gated_mixing_of_tokens_is_refused() -> None:
    """Gates make the weights between tokens depend on the tokens."""
    with pytest.raises(ValueError, match="an MlpMixer with GluMlp cannot be read"):
        vitmix.create("tl_align", 1000).attach(timm.create_model("gmixer_12_224"))


def normalized(weight: Tensor, grid: Tensor, **settings: Any) -> Tensor:
    """A convolution with absolute weights, one output channel at a time, averaged over channels, over its mass."""
    total, mass = torch.zeros(()), torch.zeros(())
    for out in weight.detach().abs().flatten(0, 1):
        kernel = out[None, None]
        total = total + nn.functional.conv2d(grid, kernel, **settings)
        mass = mass + nn.functional.conv2d(torch.ones_like(grid), kernel, **settings)
    return total / mass


def mixer_twin(model: Any, pixels: Tensor, chosen: set[int]) -> Tensor:
    share = dense.under_kernel(pixels[:, 0], 8, 8, 0).flatten(1)
    for number, block in enumerate(model.blocks):
        if number not in chosen:
            continue
        if hasattr(block, "mlp_tokens"):
            weights = block.mlp_tokens.fc2.weight.detach().abs() @ block.mlp_tokens.fc1.weight.detach().abs()
        else:
            weights = block.linear_tokens.weight.detach().abs()
        carried = torch.stack([(weights[row] / weights[row].sum() * share).sum(1) for row in range(16)], dim=1)
        share = (carried + share) / 2
    return share


def convnext_twin(model: Any, pixels: Tensor, chosen: set[int]) -> Tensor:
    share, count = dense.under_kernel(pixels[:, 0], 4, 4, 0).unsqueeze(1), -1
    body = getattr(model, "convnext", None) or getattr(model, "convnextv2", None)  # Hugging Face's
    for number, stage in enumerate(model.stages if body is None else body.encoder.stages):
        if number:
            share = dense.under_kernel(share[:, 0], 2, 2, 0).unsqueeze(1)
        for block in stage.blocks if body is None else stage.layers:
            count += 1
            if count not in chosen:
                continue
            conv = block.conv_dw if body is None else block.dwconv
            share = (normalized(conv.weight, share, padding=3) + share) / 2
    return share


def resnet_twin(model: Any, pixels: Tensor, chosen: set[int]) -> Tensor:
    share, count = normalized(model.conv1.weight, pixels, stride=2, padding=3), -1
    share = dense.under_kernel(share[:, 0], 3, 2, 1).unsqueeze(1)
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in stage:
            main = normalized(block.conv2.weight, share, stride=block.stride, padding=1)
            beside = share if block.stride == 1 else dense.merge_cells(share[:, 0]).unsqueeze(1)
            count += 1
            share = (main + beside) / 2 if count in chosen else beside
    return share


@pytest.mark.parametrize("mask", ["box", "scattered(grid=[4, 4])", "block(grid=[4, 4])"])
@pytest.mark.parametrize("share", ["area", "activation"])
def test_masks_and_labels_of_tokenmix_on_a_resnet(mask: str, share: str) -> None:
    """The cells of TokenMix's tables 7 and 8: both labels' weights, counted by hand from the mask and the maps."""
    family = FAMILIES["ResNet"]
    learner = vitmix.Learner(family.build(), vitmix.create(f"mix(mask={mask}, share={share})", CLASSES), seed=0)
    images, maps = torch.randn(4, 3, family.size, family.size), torch.rand(4, 16, 16)
    mixing = learner.mixing
    batch = mixing.mix(images, torch.arange(4), maps=maps if share == "activation" else None)
    targets = mixing.targets(batch)
    inside = torch.zeros(4, 16, 16)
    pixels = batch.mix.mask.expand(4, -1, -1)
    scale = pixels.shape[-1] / 16
    for i in range(16):
        for j in range(16):
            if scale >= 1:
                cell = pixels[:, int(i * scale) : int((i + 1) * scale), int(j * scale) : int((j + 1) * scale)]
                inside[:, i, j] = cell.float().mean((1, 2))
            else:
                inside[:, i, j] = pixels[:, int(i * scale), int(j * scale)].float()
    mass = maps / maps.sum((1, 2), keepdim=True) if share == "activation" else torch.full((4, 16, 16), 1 / 256)
    own, theirs = (mass * (1 - inside)).sum((1, 2)), (mass[batch.mix.partner] * inside).sum((1, 2))
    close(targets[range(4), range(4)], own, 1e-5)
    close(targets[range(4), batch.mix.partner], theirs, 1e-5)
    assert torch.isfinite(mixing.loss(learner.model(batch.images), batch))
