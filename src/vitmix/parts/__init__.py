"""The parts that methods are made of: masks, shares, extra losses, hidden mixing, pairings."""

from vitmix.parts import hidden, losses, masks, pairing, shares

__all__ = ["hidden", "losses", "masks", "pairing", "shares"]
