"""A small sample of mutants of the masks: `mutate.py` tries as many as asked for."""

import subprocess
import sys
from argparse import Namespace

import pytest

import mutate


def test_most_of_a_sample_of_mutants_is_killed() -> None:
    """No limit of time: which of them are found must not depend on how fast a machine is."""
    command = "--modules masks --tests masks,parts --sample 10 --seed 2 --least 75".split()
    done = subprocess.run([sys.executable, mutate.__file__, *command], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("10 mutants of seed 2: "), done.stdout


def test_only_mutants_tried_to_the_end_count(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = ["killed", "timed out", "killed", "survived", "unsure", None]
    assert mutate.summarize(verdicts, Namespace(seed=1)) == 75
    expected = "4 mutants of seed 1: 2 killed, 1 timed out, 1 survived; 75.0 % found; 2 others not decided\n"
    assert capsys.readouterr().out == expected
