"""Settings that every method takes."""

from typing import Literal, TypedDict

from vitmix.parts.base import Pairing

__all__ = ["Common", "CommonWithLoss"]


class Common(TypedDict, total=False):
    """Label smoothing (0 unless given; the papers use 0.1) and who is mixed with whom (the reversed batch)."""

    smoothing: float
    pairing: Pairing


class CommonWithLoss(Common, total=False):
    """The same for methods without a main loss of their own: cross-entropy, or that of the switch they stand in."""

    loss: Literal["ce", "bce"] | None
