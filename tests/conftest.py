"""Shared by all tests: a seed per test, a tiny model, a batch whose labels all differ."""

import os

# bfloat16 matrix products raise an illegal instruction on some CPUs unless oneDNN is held to AVX2.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

import pytest
import torch
from hypothesis import settings

settings.register_profile("tests", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
