"""Co-Mixup: a batch is mixed jointly, so that its images show much saliency and differ from each other."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitmix._checks import check_count, check_fraction, check_not_negative, check_positive
from vitmix._mix import Frame, expand_mask
from vitmix._registry import register
from vitmix.parts.base import Composed, Evidence, Mask, Needs, Shown, Unmixed, Values
from vitmix.parts.labelings import Floats, labeling
from vitmix.parts.masks import best_window
from vitmix.parts.puzzle import block_saliency

__all__ = [
    "Cut",
    "JointMask",
    "Weighing",
    "given_up",
    "inner_cut",
    "joint_cost",
    "joint_parts",
    "likeness",
    "mix_blocks",
    "peak_distance",
]

HALF = 5e-4  # what a block of two images costs less than the mean of both
STILL = 1e-6  # relative change of the objective at which the rounds end
PAIRS = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])


class Weighing(NamedTuple):
    """The terms of Co-Mixup's objective.

    Attributes:
        beta: weight of neighboring blocks of different images.
        gamma: weight of images that several outputs use.
        threshold: part of the blocks up to which the use by other outputs costs nothing.
        rounds: maximum number of times that every output is relabeled.
        by_column: applies the threshold to the use of each image before images are compared, as the released code.
    """

    beta: float = 0.32
    gamma: float = 1.0
    threshold: float = 0.83
    rounds: int = 4
    by_column: bool = False


class Cut(NamedTuple):
    """The labeling problem of one output: `unary` `(n, n, L)`, `distance` `(L, L)`, `parts` `(L, inputs)`, `edge`.

    The first labels are whole images, further ones are halves of two; `parts` says of which.
    """

    unary: Floats
    distance: Floats
    parts: Floats
    edge: float


def joint_cost(saliency: Tensor, weight: Tensor, *, blocks: int, eta: float = 0.05) -> Tensor:
    """The cost `(B, n, n)` of showing a block of each image: minus its part of the saliency, minus a random prior.

    Args:
        saliency: `(B, H, W)`.
        weight: `(B,)` the drawn weights of the images; those of a group sum to one.
    """
    prior = eta / blocks**2 * torch.log(weight.double() + 1e-8)
    return -block_saliency(saliency.double(), (blocks, blocks)) - prior[:, None, None]


def peak_distance(saliency: Tensor) -> Tensor:
    """The distance `(B, B)` of the most salient places, in rows plus columns; a place is a quarter as high and wide."""
    window = (torch.tensor([max(1, side // 4)], device=saliency.device) for side in saliency.shape[1:])
    row, column = best_window(saliency, *window, largest=True).unbind(1)
    return sum((each.unsqueeze(1) - each).abs().double() for each in (row, column))  # pyright: ignore


def likeness(distance: Tensor, omega: float) -> Tensor:
    """How much the use of one image counts as use of another, `(m, m)`, from the `distance` of their peaks."""
    own = torch.eye(len(distance), dtype=torch.float64, device=distance.device)
    total = distance.sum()
    return own if not total else (1 - omega) * own + omega * distance.double() * (len(distance) / total)


def joint_parts(cost: Floats, like: Floats, start: NDArray[np.int64], weighing: Weighing) -> Floats:
    """The part `(outputs, n, n, inputs)` of each block that comes from each input: 0, a half or 1.

    Outputs are labeled one after the other, given the others, for several rounds. Before the last one, outputs that use
    the same inputs are told to give one up.

    Args:
        cost: `(inputs, n, n)` from `joint_cost`.
        like: `(inputs, inputs)` from `likeness`.
        start: `(outputs, n, n)` random inputs.
    """
    parts = np.eye(len(cost))[start]
    extra, before = np.zeros((len(start), len(cost))), _objective(parts, cost, weighing)
    for number in range(weighing.rounds):
        for output in range(len(parts)):
            cut = inner_cut(cost, like, parts, output, extra[output], weighing, halves=number > 0)
            parts[output] = cut.parts[labeling(cut.unary, cut.distance, cut.edge)]
        if number == weighing.rounds - 2:
            extra = given_up(parts.sum((1, 2)) > 0)
        now = _objective(parts, cost, weighing)
        if abs(before - now) < STILL * abs(now):
            break
        before = now
    return parts


def inner_cut(
    cost: Floats, like: Floats, parts: Floats, output: int, extra: Floats, weighing: Weighing, *, halves: bool
) -> Cut:
    """The labeling problem of one output, given the `parts` of the others.

    Args:
        extra: `(inputs,)` a cost of each input for this output.
        halves: whether two of the images that the output has now may share a block.
    """
    blocks, count = cost.shape[1] ** 2, parts.shape[3]
    use = parts.sum((0, 1, 2)) - parts[output].sum((0, 1))
    above = (like @ use > weighing.threshold * blocks).astype(np.float64)
    often = (above * like) @ use if weighing.by_column else above * (like @ use)
    unary = (cost + (weighing.gamma / blocks * (2 * often + extra))[:, None, None]).transpose(1, 2, 0)
    now = parts[output].sum((0, 1))
    shared = np.flatnonzero(now) if halves else np.zeros(0, dtype=np.int64)
    if len(shared) > 2:
        shared = np.sort(np.argsort(-now, kind="stable")[:3])
    mixes = {0: PAIRS[:0], 1: PAIRS[:0], 2: PAIRS[:1, :2], 3: PAIRS}[len(shared)]
    labels = np.concatenate([np.eye(count), np.zeros((len(mixes), count))])
    labels[count:][:, shared] = mixes[:, : len(shared)]
    distance = 1 - np.eye(len(labels))
    distance[count:, :count][:, shared] = np.where(mixes[:, : len(shared)] > 0, 0.25, 1)
    distance[:count, count:] = distance[count:, :count].T
    half = unary[..., shared] @ mixes[:, : len(shared)].T - HALF
    return Cut(np.concatenate([unary, half], 2), distance, labels, weighing.beta / blocks)


def _objective(parts: Floats, cost: Floats, weighing: Weighing) -> float:
    """The program's objective, which has neither threshold nor likeness; it decides when the rounds end."""
    blocks, use = cost.shape[1] ** 2, parts.sum((1, 2))
    borders = (np.diff(parts, axis=1) ** 2).sum() + (np.diff(parts, axis=2) ** 2).sum()
    crowd = (use.sum(0) ** 2).sum() - (use**2).sum()
    return float(
        (parts * cost.transpose(1, 2, 0)).sum() + (weighing.beta / 2 * borders + weighing.gamma * crowd) / blocks
    )


def given_up(used: NDArray[np.bool_]) -> Floats:
    """For outputs that use the same inputs `(outputs, inputs)`: the first of them for one, the second for the other."""
    extra = np.zeros(used.shape)
    for one in range(len(used)):
        for other in range(one + 1, len(used)):
            inputs = np.flatnonzero(used[one])
            if len(inputs) > 1 and (used[one] == used[other]).all():
                extra[one, inputs[0]] = extra[other, inputs[1]] = 1
    return extra


@torch.library.custom_op("vitmix::joint_mix", mutates_args=())
def joint_mix(
    images: Tensor, saliency: Tensor, weight: Tensor, start: Tensor, group: int, settings: list[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Co-Mixup's images, the part `(B, n, n)` of each block that is not the image's own, and the weights `(B, B)`.

    The weights are each image's part of each mixed image. This is a custom operator, so that `torch.compile` does not
    trace it: labels are found on the host.

    Args:
        weight, start: as drawn.
        group: number of images that are mixed with each other.
        settings: beta, gamma, threshold, rounds, eta and omega.
    """
    blocks, weighing = start.shape[1], Weighing(settings[0], settings[1], settings[2], int(settings[3]))
    cost = joint_cost(saliency, weight, blocks=blocks, eta=settings[4]).cpu()
    mixed, mask, weights = (
        torch.empty_like(images),
        [],
        images.new_zeros(len(images), len(images), dtype=saliency.dtype),
    )
    firsts, peaks = start.cpu().numpy(), peak_distance(saliency).cpu()
    for first in range(0, len(images), group):
        rows = slice(first, min(first + group, len(images)))
        like = likeness(peaks[rows, rows], settings[5]).numpy()
        found = joint_parts(cost[rows].numpy(), like, firsts[rows], weighing)
        parts = torch.from_numpy(found).to(saliency)  # (outputs, n, n, inputs)
        mixed[rows] = mix_blocks(images[rows], parts)
        mask.append(1 - parts.diagonal(dim1=0, dim2=3).permute(2, 0, 1))
        weights[rows, rows] = parts.mean((1, 2))
    return mixed, torch.cat(mask), weights


@joint_mix.register_fake
def _(
    images: Tensor, saliency: Tensor, weight: Tensor, start: Tensor, group: int, settings: list[float]
) -> tuple[Tensor, Tensor, Tensor]:
    count = len(images)
    return torch.empty_like(images), saliency.new_empty(start.shape), saliency.new_empty(count, count)


def mix_blocks(images: Tensor, parts: Tensor) -> Tensor:
    """Images `(m, C, H, W)` with the `parts` `(m, n, n, m)` of each block from each of them."""
    side = parts.shape[1]
    blocks = images.unflatten(3, (side, -1)).unflatten(2, (side, -1))
    mixed = torch.einsum("oijm,mcihjw->ocihjw", parts.to(images.dtype), blocks)
    return mixed.reshape(images.shape)


@register
@dataclass(frozen=True)
class JointMask(Mask):
    """Every mixed image is a labeling of blocks by the images of its group: Co-Mixup.

    Args:
        alpha: the weights that the prior gives to the images of a group are drawn from Dirichlet(alpha).
        blocks: number of blocks per side.
        group: number of images that are mixed with each other.
        beta: weight of neighboring blocks of different images.
        gamma: weight of images that several mixed images show.
        threshold: part of an image up to which its use by others costs nothing.
        eta: weight of the prior.
        omega: how much images with salient parts in different places count as alike.
        rounds: maximum number of times that each mixed image is relabeled.
    """

    name: ClassVar[str] = "joint"
    pastes_partner: ClassVar[bool] = False
    alpha: float = 2.0
    blocks: int = 4
    group: int = 20
    beta: float = 0.32
    gamma: float = 1.0
    threshold: float = 0.83
    eta: float = 0.05
    omega: float = 0.001
    rounds: int = 4

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_count("blocks", self.blocks, least=2)
        check_count("group", self.group, least=2)
        check_not_negative("beta", self.beta)
        check_not_negative("gamma", self.gamma)
        check_not_negative("threshold", self.threshold)
        check_not_negative("eta", self.eta)
        check_fraction("omega", self.omega)
        check_count("rounds", self.rounds)

    @property
    def needs(self) -> Needs:
        return Needs(guide_gradient=True)

    def draw(self, frame: Frame, generator: torch.Generator | None) -> dict[str, Tensor]:
        height, width = frame.size
        if height % self.blocks or width % self.blocks:
            raise ValueError(
                f"images of {height}x{width} do not divide into {self.blocks} blocks per side; resize them, or set "
                "blocks"
            )
        number = torch.arange(frame.batch) // self.group
        alpha = torch.full((frame.batch,), self.alpha, dtype=torch.float64)
        gamma = torch._standard_gamma(alpha, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
        total = torch.zeros(int(number[-1]) + 1, dtype=torch.float64).index_add(0, number, gamma)
        size = torch.bincount(number)[number].view(-1, 1, 1)
        uniform = torch.rand(frame.batch, self.blocks, self.blocks, generator=generator, dtype=torch.float64)
        weight = gamma / total[number].clamp_min(torch.finfo(torch.float64).tiny)
        return {"weight": weight, "start": (uniform * size).floor().long()}

    def where(self, values: Values, batch: Unmixed) -> Composed:
        saliency = batch.guidance.gradient
        assert saliency is not None
        settings = [self.beta, self.gamma, self.threshold, float(self.rounds), self.eta, self.omega]
        drawn = values["weight"], values["start"]
        with torch.autocast(batch.images.device.type, enabled=False):  # it would round pixels and labels
            mixed, mask, weights = joint_mix(batch.images, saliency.to(batch.frame.dtype), *drawn, self.group, settings)
            others = weights - torch.diag(weights.diagonal())
            total = others.sum(1, keepdim=True)
            pasted = others.to(batch.rows) @ batch.rows / total.clamp_min(torch.finfo(total.dtype).tiny).to(batch.rows)
        mask = expand_mask(mask, batch.frame.size)  # blocks need not be whole tokens
        return Composed(mask, mixed, rows=torch.where(total > 0, pasted, batch.rows))

    def shown(self, evidence: Evidence) -> tuple[Shown, ...]:
        saliency = evidence.guidance.gradient
        assert saliency is not None
        return (Shown("own gradient", saliency[0].float()),)
