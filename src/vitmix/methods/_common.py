"""Settings that every method takes."""

from typing import TypedDict

from vitmix.pairing import Pairing


class Common(TypedDict, total=False):
    """Label smoothing (0 unless given; the papers use 0.1) and who is mixed with whom (the reversed batch)."""

    smoothing: float
    pairing: Pairing
