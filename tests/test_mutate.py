"""A small sample of mutants of the parts: `mutate.py` tries as many as asked for."""

import subprocess
import sys

import mutate


def test_most_of_a_sample_of_mutants_is_killed() -> None:
    modules = "masks,pairing,shares,prior,losses,_mix"
    command = [
        sys.executable,
        mutate.__file__,
        "--modules",
        modules,
        "--sample",
        "12",
        "--seed",
        "2",
        "--minutes",
        "0.7",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    *_, last = done.stdout.splitlines()
    tried, killed, timed_out, survived = (int(word) for word in last.split() if word.isdecimal())
    assert tried == killed + timed_out + survived > 0, done.stdout + done.stderr
    assert survived <= tried / 4, done.stdout
