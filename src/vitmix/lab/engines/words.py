"""What a job waits for, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

UNITS = {"GPU": ("GPU", "GPUs"), "CPU": ("CPU core", "CPU cores")}


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    Attributes:
        total, free: amounts by resource; `free` is None where the cluster does not say.
        trouble: why it takes no jobs, if it does not.
    """

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float] | None = field(default=None)
    trouble: str = ""


def waiting_for(request: Mapping[str, float], nodes: Sequence[Node], free: Mapping[str, float] | None = None) -> str:
    """Such as "1 GPU: none of the 3 nodes has one free".

    Args:
        free: amounts in the whole cluster, which tell what is short where nodes do not.
    """
    usable = [node for node in nodes if not node.trouble]
    request = {name: amount for name, amount in request.items() if amount > 0}
    if short := too_much(request, nodes):
        less = "; add such a node, or ask for less (--gpus, --cpus)"
        return f"{_amounts(short)}: {_lacking(nodes, short)}{_troubles(nodes)}{less}"
    known = [node.free for node in usable if node.free is not None]
    short = _short(request, known or ([free] if free is not None else [])) or request
    return f"{_amounts(short)}: {_lacking(nodes, short)}{' free' if usable else ''}{_troubles(nodes)}"


def too_much(request: Mapping[str, float], nodes: Sequence[Node]) -> dict[str, float]:
    """What no node could give, even if it had nothing else to do."""
    return _short(request, [node.total for node in nodes if not node.trouble])


def _short(request: Mapping[str, float], places: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What no single place has enough of."""
    enough = {name: any(place.get(name, 0) >= amount for place in places) for name, amount in request.items() if places}
    missing = {name: request[name] for name, found in enough.items() if not found}
    together = any(all(place.get(name, 0) >= amount for name, amount in request.items()) for place in places)
    return missing or ({} if together or not places else dict(request))


def _amounts(amounts: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {UNITS[name][amount != 1]}" for name, amount in sorted(amounts.items())[::-1])


def _lacking(nodes: Sequence[Node], amounts: Mapping[str, float]) -> str:
    usable = [node.name for node in nodes if not node.trouble]
    if not usable:
        return "no node takes jobs now"
    many = "both" if len(amounts) > 1 else "one" if set(amounts.values()) == {1} else "as many"
    if len(usable) > 1:
        return f"none of the {len(usable)} nodes has {many}"
    return f"{usable[0]}, the only node{' that takes jobs' * (len(nodes) > 1)}, does not have {many}"


def _troubles(nodes: Sequence[Node]) -> str:
    found = [f"{node.name} is {node.trouble}" for node in nodes if node.trouble]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f" ({'; '.join(found[:3])}{more})" if found else ""
