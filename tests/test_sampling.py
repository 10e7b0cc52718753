"""Draws follow torch's seed and never restart; with a seed of their own they are a function of (seed, step, rank)."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

import vitmix
from support import run_in_two, tiny_batch, tiny_vit
from vitmix._mixing import Mixing
from vitmix._sampling import Stream, generator_for

CLASSES = 10
Make = Callable[..., Mixing]


def attached(model: nn.Module, **settings: object) -> Mixing:
    return vitmix.create("cutmix | mixup", CLASSES).attach(model, **settings)  # pyright: ignore


def learning(model: nn.Module, **settings: object) -> Mixing:
    return vitmix.Learner(model, vitmix.create("cutmix | mixup", CLASSES), **settings).mixing  # pyright: ignore


both = pytest.mark.parametrize("make", [attached, learning])


def drawn(mixing: Mixing, steps: int = 6) -> list[tuple[int, dict[str, Tensor]]]:
    frame = mixing.frame(torch.zeros(6, 3, 16, 16))
    draws = [mixing.draw(frame) for _ in range(steps)]
    return [(draw.choice, draw.values) for draw in draws]


def equal(one: list[tuple[int, dict[str, Tensor]]], other: list[tuple[int, dict[str, Tensor]]]) -> bool:
    return all(
        a == b and all(torch.equal(value, with_[name]) for name, value in values.items())
        for (a, values), (b, with_) in zip(one, other, strict=True)
    )


@both
def test_without_a_seed_torch_decides(make: Make) -> None:
    model, found = tiny_vit(), []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        found.append(drawn(make(model)))
    assert equal(found[0], found[2]) and not equal(found[0], found[1])


def test_numbers_count_modulo_2_to_64() -> None:
    """As a seed and a step that a state dict has as int64 do."""
    first, *others = (generator_for(number, 3).initial_seed() for number in (-5, 2**64 - 5, 2**65 - 5))
    assert others == [first, first]
    numbers = (0, 1, 2**6, 2**7, 2**32, 2**63, -5)
    assert len({generator_for(number).initial_seed() for number in numbers}) == len(numbers)


def test_a_drawn_seed_is_any_number_of_63_bits() -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        expected = int(torch.randint(2**63 - 1, ()))
        torch.manual_seed(seed)
        assert Stream(None, None, None).seed == expected


@both
def test_a_second_one_without_a_seed_draws_others(make: Make) -> None:
    torch.manual_seed(0)
    model = tiny_vit()
    with warnings.catch_warnings(action="error"):
        assert not equal(drawn(make(model)), drawn(make(model)))


@both
def test_with_a_seed_draws_are_a_function_of_seed_step_and_rank(make: Make) -> None:
    mixer, frame = vitmix.create("cutmix | mixup", CLASSES), vitmix.Frame(6, (16, 16), (4, 4), grids=((4, 4),) * 3)
    for seed, rank in ((0, 0), (3, 0), (3, 2), (-1, 0), (2**64 - 1, 1)):
        torch.manual_seed(rank)  # plays no role
        expected = []
        for step in range(6):
            own, shared = vitmix.generator_for(seed, step, 1 + rank), vitmix.generator_for(seed, step, 0)
            draw = mixer.draw(frame, own, shared=shared)
            expected.append((draw.choice, draw.values))
        assert equal(drawn(make(tiny_vit(), seed=seed, rank=rank)), expected)
        assert equal(drawn(make(tiny_vit(), seed=seed, rank=rank, step=2), 4), expected[2:])


@both
def test_a_given_seed_leaves_torchs_generator_alone(make: Make) -> None:
    model = tiny_vit()
    before = torch.get_rng_state()
    drawn(make(model, seed=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_needs_no_default_device() -> None:
    with torch.device("meta"):
        assert isinstance(vitmix.cutmix(CLASSES).attach(nn.Linear(2, 2)).seed, int)


# Repeats


@both
def test_a_second_one_of_the_same_seed_warns_once(make: Make) -> None:
    model = tiny_vit()
    first = drawn(make(model, seed=5))
    with pytest.warns(UserWarning, match="seed=5 repeats the draws .*; attach once .*, give step= .*, or leave out"):
        assert equal(drawn(make(model, seed=5)), first)
    with warnings.catch_warnings(action="error"):
        drawn(make(model, seed=5))


@both
@pytest.mark.parametrize("settings", [{"seed": 5, "step": 6}, {"seed": 5, "step": 0}, {"seed": 6}, {}, {"rank": 1}])
def test_what_repeats_nothing_by_mistake_does_not_warn(make: Make, settings: dict[str, int]) -> None:
    model = tiny_vit()
    drawn(make(model, seed=5))
    with warnings.catch_warnings(action="error"):
        drawn(make(model, **settings))
        drawn(make(tiny_vit(), seed=5))  # another model may be trained in the same way
        make(model, seed=5).close()  # draws nothing
        resumed = make(model, seed=5)
        resumed.step = 6
        drawn(resumed)
        vitmix.create("tl_align", CLASSES).attach(model, seed=5).mix(*tiny_batch())  # another method


def test_wrappers_of_a_model_are_the_same_model() -> None:
    model = tiny_vit()
    drawn(attached(model, seed=5))
    with pytest.warns(UserWarning, match="repeats"):
        drawn(attached(nn.DataParallel(model), seed=5))


def test_a_loop_that_attaches_in_every_epoch_sees_other_boxes() -> None:
    torch.manual_seed(0)
    model, mixer, found = tiny_vit().train(), vitmix.cutmix(CLASSES), []
    for _ in range(3):
        with mixer.attach(model) as mixing:
            found.append(mixing.mix(*tiny_batch()).mix.mask)
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


# Resuming


@pytest.mark.parametrize("seed", [None, 4, -3, 2**64 - 1])
def test_a_state_dict_continues(seed: int | None) -> None:
    mixer = vitmix.create("cutmix | mixup", CLASSES)
    learner = vitmix.Learner(tiny_vit(), mixer, seed=seed)
    drawn(learner.mixing, 3)
    state = copy.deepcopy(learner.state_dict())
    rest = drawn(learner.mixing)
    resumed = vitmix.Learner(tiny_vit(), mixer)
    assert resumed.load_state_dict(state).missing_keys == []
    assert resumed.step == 3 and equal(drawn(resumed.mixing), rest)


def test_a_state_dict_survives_a_file(tmp_path: Path) -> None:
    learner = vitmix.Learner(tiny_vit(), vitmix.htm(CLASSES, block=1))
    drawn(learner.mixing, 2)
    torch.save(learner.state_dict(), tmp_path / "learner.pt")
    resumed = vitmix.Learner(tiny_vit(), vitmix.htm(CLASSES, block=1))
    resumed.load_state_dict(torch.load(tmp_path / "learner.pt", weights_only=True))
    assert (resumed.mixing.seed, resumed.step) == (learner.mixing.seed, 2)


def test_a_state_dict_without_draws_still_loads() -> None:
    """As written by earlier versions; what else is missing is still told."""
    learner = vitmix.Learner(tiny_vit(), vitmix.cutmix(CLASSES))
    old = {name: value for name, value in learner.state_dict().items() if name != "_extra_state"}
    learner.load_state_dict(old)
    nn.Sequential(learner).load_state_dict({f"0.{name}": value for name, value in old.items()})
    del old["model.head.weight"]
    with pytest.raises(RuntimeError, match="model.head.weight"):
        learner.load_state_dict(old)


def test_attached_methods_resume() -> None:
    mixer = vitmix.create("cutmix + htm(block=1)", CLASSES)
    mixing = mixer.attach(tiny_vit())
    drawn(mixing, 3)
    state = copy.deepcopy(mixing.state_dict())
    rest = drawn(mixing)
    resumed = mixer.attach(tiny_vit())
    resumed.load_state_dict(state)
    assert equal(drawn(resumed), rest)
    assert all(torch.equal(a, b) for a, b in zip(mixing.parameters(), resumed.parameters(), strict=True))


def test_averaged_learners_work() -> None:
    """timm averages the values of state dicts."""
    learner = vitmix.Learner(tiny_vit(), vitmix.cutmix(CLASSES))
    average = ModelEmaV3(learner)
    learner(*tiny_batch()).loss.backward()
    average.update(learner)
    assert learner.step == 1


# Several processes

RANKS = """
import sys, torch, torch.distributed as dist, vitmix
from support import tiny_batch, tiny_vit
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(100 + rank)  # as users do
learner = vitmix.Learner(tiny_vit(), vitmix.create("cutmix | mixup", 10))
draws = [learner.mixing.draw(learner.mixing.frame(tiny_batch()[0])) for _ in range(12)]
found = [None, None]
dist.all_gather_object(found, draws)
choices = [[draw.choice for draw in each] for each in found]
assert choices[0] == choices[1] and len(set(choices[0])) == 2, choices
for one, other in zip(*found):
    assert any(not torch.equal(value, other.values[name]) for name, value in one.values.items())
seeds = [None, None]
dist.all_gather_object(seeds, learner.mixing.seed)
assert seeds[0] == seeds[1]
print("alike")
"""


def test_ranks_with_other_seeds_take_the_same_branch_with_other_masks(tmp_path: Path) -> None:
    run_in_two(RANKS, tmp_path)


def test_the_first_process_is_asked_once_and_only_without_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that asked when the others do not would wait for ever."""
    asked = []

    def broadcast(said: list[tuple[int, int]], src: int) -> None:
        asked.append(src)
        said[0] = 7, 3

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    expected = drawn(attached(tiny_vit(), seed=7, step=3), 2)
    assert asked == []
    assert equal(drawn(attached(tiny_vit()), 2), expected) and asked == [0]
