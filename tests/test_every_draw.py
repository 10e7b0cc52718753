"""All draws of every method are functions of (seed, step, rank): no other generator decides, and none is moved."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

import vitmix
from support import tiny_batch, tiny_vit
from vitmix._registry import METHODS
from vitmix._sampling import Draw
from vitmix.lab.fitting import stand_in_maps

TEXTS = [
    *METHODS.small().values(),
    "mixup | cutmix | (htm(block=1, choose=random_tokens) + vtm(block=1, choose=random))",
]
DRAWING = [text for text in TEXTS if text not in ("none", "htm(block=1)", "vtm(block=1, tokens=2)")]


def learner_of(text: str, *, seed: int = 5, step: int = 0, rank: int = 0) -> vitmix.Learner:
    torch.manual_seed(0)  # of the weights
    model = tiny_vit(drop_path_rate=0.0)
    return vitmix.Learner(model, vitmix.create(text, 10), seed=seed, step=step, rank=rank).train()


def disturb(number: int) -> tuple[Tensor, object, object]:
    """Puts every global generator into another state, and gives these states."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)
    return states()


def states() -> tuple[Tensor, object, object]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()  # pyright: ignore


def steps(learner: vitmix.Learner) -> list[Tensor]:
    """Losses, targets and logits of three steps; the second and third have a history, where one is kept."""
    images, labels = tiny_batch(6)
    torch.manual_seed(1)
    images = torch.randn_like(images)
    maps = stand_in_maps(learner.mixing, images)
    found: list[Tensor] = []
    for number in range(3):
        before = disturb(int(torch.randint(2**31, (), generator=torch.Generator().manual_seed(number))) + len(found))
        output = learner(images, labels, maps=maps)
        after = states()
        assert torch.equal(after[0], before[0]) and after[1:] == before[1:], "a global generator was used"
        found += [output.loss.detach(), output.targets, output.logits.detach()]
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_seed_step_and_rank_decide_everything(text: str) -> None:
    first = steps(learner_of(text))
    disturb(99)
    again = steps(learner_of(text))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("text", DRAWING)
def test_each_of_seed_step_and_rank_counts(text: str) -> None:
    """Ranks draw other numbers, but take the same branch of a switch."""

    def drawn(**place: int) -> list[Draw]:
        learner = learner_of(text, **place)
        frame = learner.mixing.frame(torch.zeros(6, 3, 16, 16))
        return [learner.mixing.draw(frame) for _ in range(8)]

    def same(one: list[Draw], other: list[Draw]) -> bool:
        def equal(a: Draw, b: Draw) -> bool:
            return a.values.keys() == b.values.keys() and all(
                a.values[key].shape == b.values[key].shape and torch.equal(a.values[key], b.values[key])
                for key in a.values
            )

        return all(equal(*pair) for pair in zip(one, other, strict=True))

    usual = drawn()
    assert same(usual, drawn())
    for place in ({"seed": 6}, {"step": 100}, {"rank": 1}):
        other = drawn(**place)
        assert not same(usual, other), place
        if "rank" in place:
            assert [draw.choice for draw in other] == [draw.choice for draw in usual]
    later = drawn(step=3)
    assert same(usual[3:], later[:5])  # a step's draws do not depend on those before
