"""Shared by all tests: a seed per test, a tiny model, a batch whose labels all differ."""

import importlib
import os
import sys
from collections.abc import Iterator

# bfloat16 matrix products raise an illegal instruction on some CPUs unless oneDNN is held to AVX2.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
# Tensors are tiny here, and the threads of parallel test processes would fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# Kernels run in Triton's interpreter where there is no GPU; timm imports Triton, which must know of it by then.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

from hypothesis import settings

from support import OWN_PARTS
from vitmix._registry import KINDS, METHODS
from vitmix._registry import parts as registered

settings.register_profile("tests", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def registry_kept() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    methods, parts = dict(METHODS.entries), {kind: dict(registered(kind)) for kind in KINDS}
    try:
        yield
    finally:
        METHODS.entries.clear()
        METHODS.entries.update(methods)
        for kind in KINDS:
            registered(kind).clear()
            registered(kind).update(parts[kind])


@pytest.fixture
def own_parts(registry_kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts and the method that `examples/own_parts.py` registers, for one test."""
    monkeypatch.syspath_prepend(OWN_PARTS.parent)
    monkeypatch.delitem(sys.modules, OWN_PARTS.stem, raising=False)
    importlib.import_module(OWN_PARTS.stem)
