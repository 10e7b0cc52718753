"""Settings that every method takes."""

from typing import Literal, TypedDict

from vitmix.parts.base import Pairing

__all__ = ["Common", "CommonWithLoss"]


class Common(TypedDict, total=False):
    """Label smoothing (default 0; the papers use 0.1) and pairing (default: the reversed batch)."""

    smoothing: float
    pairing: Pairing


class CommonWithLoss(Common, total=False):
    """The same for methods without a fixed main loss: cross-entropy, or the loss of their switch."""

    loss: Literal["ce", "bce"] | None
