"""The command as a user runs it, without another process."""

import io
import os
import runpy
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock


class Said(NamedTuple):
    code: int
    out: str
    err: str


def vitmix(*arguments: str) -> Said:
    """`python -m vitmix`, with lines that are not wrapped."""
    out, err = io.StringIO(), io.StringIO()
    plain = {"COLUMNS": "1000", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.object(sys, "argv", ["vitmix", *arguments]), mock.patch.dict(os.environ, plain):
        with _own_warnings(), redirect_stdout(out), redirect_stderr(err):
            try:
                runpy.run_module("vitmix", run_name="__main__")
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Said(code, out.getvalue(), err.getvalue())


def done(*arguments: str) -> str:
    """What a command that succeeds prints."""
    said = vitmix(*arguments)
    assert said.code == 0, said.out + said.err
    return said.out


@contextmanager
def _own_warnings() -> Iterator[None]:
    """The command shows warnings in its own way, which must not stay."""
    with warnings.catch_warnings(), mock.patch.object(warnings, "formatwarning", warnings.formatwarning):
        yield
