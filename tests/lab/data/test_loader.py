"""Loaders: the same batches whatever the number of workers, from wherever an epoch is entered."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.distributed_sampler import RepeatAugSampler
from torch.utils.data._utils.pin_memory import pin_memory

from samples import eval_sample, seed_all, train_sample
from training import look_often, one_thread  # noqa: F401
from vitmix.lab.data import workers as workers_module
from vitmix.lab.data.augmentation import Augmentation
from vitmix.lab.data.images import ArrayImages, DataLost, FileImages, ImageSet
from vitmix.lab.data.loader import Batch, EvalLoader, TrainLoader
from vitmix.lab.data.plan import EpochPlan
from vitmix.lab.data.workers import WorkerLost, started

pytestmark = pytest.mark.usefixtures("one_thread")

FULL = Augmentation(16, erasing=0.5)
PLAIN = Augmentation(16, scale=None, hflip=0, auto_augment=None, erasing=0, crop_pct=1.0)
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def some_images(count: int = 45) -> ArrayImages:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 20, 18, 3), dtype=np.uint8)
    return ArrayImages(pixels, np.arange(count) % 5, list("abcde"), "noise")


def damaged_images(root: Path, count: int = 12, damaged: tuple[int, ...] = (3, 4, 11)) -> ImageSet:
    for number in range(count):
        file = root / f"{number}.png"
        Image.new("RGB", (20, 20), (number, 0, 0)).save(file)
        if number in damaged:
            file.write_bytes(b"damaged")
    return FileImages(root, [f"{number}.png" for number in range(count)], [0] * count, ["one"], "files")


def same(first: Batch, second: Batch) -> bool:
    erase = first.erase is second.erase is None or torch.equal(first.erase, second.erase)  # pyright: ignore
    return erase and all(
        torch.equal(getattr(first, name), getattr(second, name)) for name in ("images", "labels", "indices")
    )


# Training batches


@pytest.fixture(scope="module")
def reference() -> list[list[Batch]]:
    """Two epochs, uninterrupted and without workers."""
    loader = TrainLoader(some_images(), FULL, batch=8, seed=3)
    return [list(loader.epoch(number)) for number in (0, 1)]


def test_batches_are_what_train_sample_makes(reference):
    images = some_images()
    assert [len(epoch) for epoch in reference] == [5, 5]
    for batch in reference[1]:
        assert batch.images.shape == (8, 3, 16, 16) and batch.images.dtype == torch.float32 and batch.erase is None
        for image, label, index in zip(batch.images, batch.labels.tolist(), batch.indices.tolist(), strict=True):
            expected = train_sample(images[index][0], FULL, seed_numbers=(3, 1, index, 0))
            assert torch.equal(image, expected) and label == images.labels[index]


def test_an_epoch_shows_each_image_once_in_random_order(reference):
    orders = [torch.cat([batch.indices for batch in epoch]).tolist() for epoch in reference]
    assert all(len(set(order)) == 40 for order in orders) and orders[0] != orders[1]
    other_seed = TrainLoader(some_images(), PLAIN, batch=8, seed=4)
    assert torch.cat([batch.indices for batch in other_seed.epoch(0)]).tolist() != orders[0]


@WORKERS
def test_workers_and_resumption_change_nothing(reference, workers):
    loader = TrainLoader(some_images(), FULL, batch=8, seed=3, workers=workers)
    for number, epoch in enumerate(reference):
        assert [same(*pair) for pair in zip(loader.epoch(number), epoch, strict=True)] == [True] * 5
    fresh = TrainLoader(some_images(), FULL, batch=8, seed=3, workers=workers)
    resumed = list(fresh.epoch(1, start=3))
    assert len(resumed) == 2 and all(map(same, resumed, reference[1][3:]))
    assert list(fresh.epoch(0, start=5)) == []
    for each in (loader, fresh):
        each.close()


@WORKERS
def test_an_epoch_left_early_does_not_show_in_the_next(reference, workers):
    loader = TrainLoader(some_images(), FULL, batch=8, seed=3, workers=workers)
    next(iter(loader.epoch(0)))
    assert [*map(same, loader.epoch(1), reference[1])] == [True] * 5
    loader.close()


def test_workers_live_through_epochs_and_end_on_close():
    loader = TrainLoader(some_images(), PLAIN, batch=8, seed=3, workers=2)
    pids = []
    for number in range(3):
        list(loader.epoch(number))
        pids.append([worker.pid for worker in loader._loader._iterator._workers])  # pyright: ignore
    assert pids[0] == pids[1] == pids[2]
    loader.close()
    assert not any(_alive(pid) for pid in pids[0])
    with pytest.raises(RuntimeError, match="was closed"):
        list(loader.epoch(3))


@WORKERS
def test_global_generators_are_left_alone(workers):
    loader = TrainLoader(some_images(), FULL, batch=8, seed=3, workers=workers)
    seed_all(1)
    expected = random.random(), np.random.rand(), torch.rand(1)
    seed_all(1)
    list(loader.epoch(0))
    list(EvalLoader(some_images(), PLAIN, batch=8, workers=workers))
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected
    loader.close()


def test_boxes_to_erase_after_mixing():
    later = Augmentation(16, erasing=0.5, erase_after_mixing=True)
    now, images = Augmentation(16, erasing=0.5), some_images()
    batches = zip(
        TrainLoader(images, later, batch=20, seed=0).epoch(0),
        TrainLoader(images, now, batch=20, seed=0).epoch(0),
        strict=True,
    )
    erased = 0
    for batch, expected in batches:
        assert batch.erase is not None and batch.erase.shape == (20, 4) and batch.erase.dtype == torch.long
        for row, (top, bottom, left, right) in enumerate(batch.erase.tolist()):
            changed = (batch.images[row] != expected.images[row]).any(0)
            assert int(changed.sum()) == (bottom - top) * (right - left) == int(changed[top:bottom, left:right].sum())
            erased += int(changed.any())
    assert 10 < erased < 30


# Ranks and repeats


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_each_global_batch(world):
    plans = [EpochPlan(45, 12 // world, seed=0, rank=rank, world=world) for rank in range(world)]
    assert {plan.batches for plan in plans} == {3}
    whole = EpochPlan(45, 12, seed=0).order(5)[0]
    for number in range(3):
        part = 12 // world
        rows = [set(plan.order(5)[0][number * part : (number + 1) * part].tolist()) for plan in plans]
        assert set.union(*rows) == set(whole[number * 12 : (number + 1) * 12].tolist())


@pytest.mark.parametrize("world", [1, 4])
def test_repeats_are_those_of_timm(world):
    length = 1000
    sampler = [RepeatAugSampler(range(length), world, rank, shuffle=False) for rank in range(world)]
    plans = [EpochPlan(length, 16, seed=0, rank=rank, world=world, repeats=3) for rank in range(world)]
    shuffled = EpochPlan(length, 16, seed=0).order(7)[0]
    for theirs, plan in zip(sampler, plans, strict=True):
        indices, repeats = plan.order(7)
        assert plan.samples == len(theirs)
        assert indices.tolist() == shuffled[list(theirs)].tolist()
    # Every copy of an image has its own number, over all ranks.
    keys = [pair for plan in plans for pair in zip(*(part.tolist() for part in plan.order(7)), strict=True)]
    assert len(set(keys)) == len(keys) and {repeat for _, repeat in keys} == {0, 1, 2}


def test_repeated_images_are_augmented_differently():
    loader = TrainLoader(some_images(), Augmentation(16, erasing=0), batch=9, seed=0, repeats=3)
    batch = next(loader.epoch(0))
    assert batch.indices.tolist() == [index for index in batch.indices[::3].tolist() for _ in range(3)]
    assert not torch.equal(batch.images[0], batch.images[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 46}, "a batch of 46 is more than the 45"),
        ({"batch": 30, "world": 2}, "a batch of 30 is more than the 22"),
        ({"batch": 0}, "batch must be"),
        ({"seed": 0.5}, "seed must be"),
        ({"rank": 2, "world": 2}, "rank must be below"),
        ({"workers": -1}, "workers must be"),
        ({"workers": 2000}, "workers may be at most 1,024"),
        ({"repeats": 0}, "repeats must be"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainLoader(some_images(), PLAIN, **{"batch": 4, "seed": 0, **settings})


def test_bad_places_in_an_epoch():
    loader = TrainLoader(some_images(), PLAIN, batch=8, seed=0)
    with pytest.raises(ValueError, match="start must be at most the 5 batches"):
        loader.epoch(0, start=6)
    with pytest.raises(ValueError, match="epoch must be"):
        loader.epoch(-1)


# Unreadable images


@WORKERS
def test_unreadable_images_are_replaced_and_reported(tmp_path, workers, caplog):
    images = damaged_images(tmp_path)
    loader = TrainLoader(images, PLAIN, batch=4, seed=0, workers=workers)
    for number in range(2):
        order = loader.plan.order(number)[0].tolist()
        shown = torch.cat([batch.indices for batch in loader.epoch(number)]).tolist()
        assert shown == [{3: 5, 4: 5, 11: 0}.get(index, index) for index in order]
    loader.close()
    assert sorted(images.broken) == [3, 4, 11]
    assert all(images.broken[index].startswith(f"{index}.png: not an image") for index in images.broken)
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        f"skipped an unreadable image of files: {reason}" for reason in images.broken.values()
    )


@WORKERS
def test_evaluation_leaves_unreadable_images_out(tmp_path, workers):
    images = damaged_images(tmp_path, damaged=(0, 1, 5))
    shown = [batch.indices.tolist() for batch in EvalLoader(images, PLAIN, batch=2, workers=workers)]
    assert shown == [[2, 3], [4], [6, 7], [8, 9], [10, 11]] and sorted(images.broken) == [0, 1, 5]


@WORKERS
def test_nothing_readable_is_one_sentence(tmp_path, workers):
    loader = TrainLoader(damaged_images(tmp_path, damaged=tuple(range(12))), PLAIN, batch=4, seed=0, workers=workers)
    with pytest.raises(ValueError, match="^none of the 12 images of files could be read.*0.png.*again$"):
        list(loader.epoch(0))
    loader.close()


def test_a_copy_of_a_batch_keeps_all_but_its_tensors(monkeypatch):
    """Where there is a GPU, every batch of a loader is a pinned copy."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda values: values.clone())
    values = torch.arange(4.0)
    batch = Batch(values, values, values, values, values, values, {"mask": values}, {3: "3.png: empty"})
    for copied in (batch.pin_memory(), batch.to("cpu"), batch.part(slice(0, 4))):
        assert repr(copied) == repr(batch)
    assert repr(Batch(values, values, values).pin_memory()) == repr(Batch(values, values, values))


class LostImages(ArrayImages):
    """Their storage fails at one of them."""

    lost = 37

    def read(self, index: int) -> Image.Image:
        if index == self.lost:
            raise DataLost("the network is gone")
        return super().read(index)


def map_pinned(batches):
    """Each batch as torch's loader pins it."""
    try:
        yield from map(pin_memory, batches)
    finally:
        batches.close()


@WORKERS
def test_lost_data_is_one_sentence(workers, monkeypatch):
    """Also where there is a GPU: every batch is then a pinned copy, in which nothing may be missing."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda values: values.clone())
    watched = workers_module._watched
    monkeypatch.setattr(workers_module, "_watched", lambda loader: map_pinned(watched(loader)))
    pixels = np.zeros((40, 8, 8, 3), np.uint8)
    images = LostImages(pixels, [0] * 40, ["one"], "noise")
    training = TrainLoader(images, PLAIN, batch=8, seed=0, workers=workers)
    evaluation = EvalLoader(images, PLAIN, batch=8, workers=workers)
    for batches in (training.epoch(0), iter(evaluation)):
        with pytest.raises(DataLost, match="^the network is gone$"):
            list(batches)
    training.close()
    assert not images.broken


# Evaluation


@WORKERS
def test_evaluation_shows_everything_once(workers):
    images = some_images()
    seen = []
    for rank in range(3):
        loader = EvalLoader(images, PLAIN, batch=4, workers=workers, rank=rank, world=3)
        batches = list(loader)
        assert len(loader) == len(batches) == 4 and len(batches[-1]) == 3
        for batch in batches:
            seen += batch.indices.tolist()
            assert torch.equal(batch.images[0], eval_sample(images[int(batch.indices[0])][0], PLAIN))
            assert batch.labels.tolist() == images.labels[batch.indices].tolist()
        assert list(map(same, loader, batches)) == [True] * 4
    assert sorted(seen) == list(range(45))


def test_evaluation_of_fewer_images_than_processes():
    sizes = [sum(map(len, EvalLoader(some_images(2), PLAIN, batch=4, rank=rank, world=3))) for rank in range(3)]
    assert sizes == [1, 1, 0]


# Signals

SCRIPT = """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored

    import numpy as np
    from vitmix.lab.data.augment import Augmentation
    from vitmix.lab.data.images import ArrayImages
    from vitmix.lab.data.loader import TrainLoader

    images = ArrayImages(np.zeros((64, 16, 16, 3), np.uint8), [0, 1] * 32, ["a", "b"], "zeros")
    loader = TrainLoader(images, Augmentation(16, erasing=0.25), batch=4, seed=0, workers=2)
    next(loader.epoch(0))
    print(*(worker.pid for worker in loader._loader._iterator._workers), flush=True)
    for number in range(10**6):
        for batch in loader.epoch(number):
            pass
"""


def test_workers_leave_the_end_of_a_job_to_the_main_process():
    """Whoever stops a job may signal each of its processes; the main one still needs its last batches."""
    loader = TrainLoader(some_images(), PLAIN, batch=4, seed=0, workers=2)
    assert loader._loader is not None
    loader._keys.batches = lambda: loader.plan.keys(0, 0)
    fetching: Any = started(loader._loader)  # as the first `next` of an epoch does, to be there while they start
    for worker in fetching._workers:
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
    assert sum(map(len, fetching)) == 44
    loader.close()
    assert not any(worker.is_alive() for worker in fetching._workers)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_workers_end_with_the_program(tmp_path):
    # Each in a group of its own, so that the signal goes to it as Ctrl-C goes to everything in a terminal.
    programs = {}
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with open(tmp_path / f"{sent}.out", "wb") as output, open(tmp_path / f"{sent}.err", "wb") as errors:
            command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
            programs[sent] = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)
    try:
        workers = {}
        for sent, program in programs.items():
            _wait(lambda sent=sent: (tmp_path / f"{sent}.out").read_text().endswith("\n"))
            workers[sent] = [int(word) for word in (tmp_path / f"{sent}.out").read_text().split()]
            assert len(workers[sent]) == 2 and all(map(_alive, workers[sent]))
            os.killpg(program.pid, sent)
        for sent, program in programs.items():
            program.wait(timeout=30)
            _wait(lambda sent=sent: not any(map(_alive, workers[sent])))  # a worker looks for its parent every 5 s
        # Ctrl-C shows in the main process alone.
        assert (tmp_path / f"{signal.SIGINT}.err").read_text().count("KeyboardInterrupt") == 1
    finally:
        for program in programs.values():
            program.kill()
            program.wait()


@pytest.mark.parametrize("forgiven", [False, True])
def test_the_loss_of_a_worker(reference, monkeypatch, forgiven):
    """It is an error that says what happened; if it is forgiven, the rest is read in this process, and is the same."""
    look_often(monkeypatch)
    losses = []
    loader = TrainLoader(some_images(), FULL, batch=8, seed=3, workers=2)
    evaluation = EvalLoader(some_images(), PLAIN, batch=4, workers=2)
    if forgiven:
        loader.when_lost = evaluation.when_lost = losses.append
    cases = [(loader.epoch(0), reference[0]), (iter(evaluation), list(EvalLoader(some_images(), PLAIN, batch=4)))]
    for batches, expected in cases:
        found = [next(batches)]
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()
        if forgiven:
            found += batches
            assert [same(*pair) for pair in zip(found, expected, strict=True)] == [True] * len(expected)
        else:
            with pytest.raises(WorkerLost, match=r"loader worker \d+ was ended by SIGKILL, as when memory runs out"):
                list(batches)
    assert len(losses) == (2 if forgiven else 0)
    assert [*map(same, loader.epoch(1), reference[1])] == [True] * 5  # with new workers
    loader.close()
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL  # nothing raises an error out of place


@pytest.mark.parametrize("error", [ConnectionResetError, ConnectionRefusedError, EOFError])
def test_a_worker_is_lost_while_it_hands_over_a_batch(monkeypatch, error):
    """Torch then fails to fetch tensors from it, and does not notice why."""
    loader = EvalLoader(some_images(), PLAIN, batch=4, workers=2)
    batches = iter(loader)
    next(batches)

    def fetch(self, *args):
        self._workers[0].kill()  # it may still look alive for a moment
        raise error

    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(kind, "_next_data", fetch)
    with pytest.raises(WorkerLost, match=r"loader worker \d+ was ended by SIGKILL"):
        list(batches)


def _wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
