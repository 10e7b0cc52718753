"""What `vitmix eval --suite` writes: robustness.json, to which each part of the suite is added."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from vitmix.lab.reading import JsonObject
from vitmix.lab.settings import fitted, kinds_of
from vitmix.lab.suite import Robustness

from .estimates import Estimate
from .records import Record, absent

NORMS = ("linf", "l2")
"""The norm that bounds an attack: `linf`, the largest change of a value, or `l2`, the Euclidean length."""


@dataclass(frozen=True, kw_only=True)
class Facts(Record):
    """What was measured: the part of the suite, and the strength and kind of the change.

    Attributes:
        sigma: the standard deviation of noise on pixels in 0..1.
        share: the fraction of dropped patches, in this `order` on this `grid`.
        corruption, severity: of ImageNet-C.
        attack: `none` for the same images without attack; its bound is `epsilon` in `norm`.
        alpha, steps: of PGD.
        kind, strength: for a change without fields above.
        metric: the name of the number, if it is not an accuracy.
    """

    part: str
    sigma: float | None = absent()
    order: str | None = absent()
    grid: tuple[int, ...] | None = absent()
    share: float | None = absent()
    corruption: str | None = absent()
    severity: float | None = absent()
    attack: str | None = absent()
    norm: str | None = absent()
    epsilon: float | None = absent()
    alpha: float | None = absent()
    steps: float | None = absent()
    kind: str | None = absent()
    strength: float | None = absent()
    metric: str | None = absent()

    def __post_init__(self) -> None:
        needed = {"share": "order", "severity": "corruption", "attack": "norm", "alpha": "steps"}
        if self.attack not in (None, "none"):
            needed["norm"] = "epsilon"
        for one, other in needed.items():
            if getattr(self, one) is not None and getattr(self, other) is None:
                raise ValueError(f"{one} without {other}")
        if self.norm not in (None, *NORMS):
            raise ValueError(f"norm must be one of {', '.join(NORMS)}")

    @property
    def protocol(self) -> str:
        """The key of its protocol in `RobustnessResults.parts`: the part and, for attacks, the norm."""
        return self.part if self.norm in (None, "linf") else f"{self.part} {self.norm}"


@dataclass(frozen=True)
class Measurement(Record):
    """A measured number of a model: an accuracy unless `of.metric` says otherwise."""

    name: str
    estimate: Estimate
    of: Facts

    @classmethod
    def from_json(cls, value: Any) -> Self:
        if not isinstance(value, dict):
            raise ValueError("it is not a mapping")
        estimate = {"mean": value.get("value"), "std": None, **{key: value.get(key) for key in ("n", "low", "high")}}
        return super().from_json({**value, "estimate": estimate})

    def to_json(self) -> JsonObject:
        found = self.estimate
        numbers = {"value": found.mean, "n": found.n, "low": found.low, "high": found.high}
        return {"name": self.name, **numbers, "of": self.of.to_json()}


@dataclass(frozen=True, kw_only=True)
class Protocol(Record):
    """How a part of the suite was measured; `settings` are those of the suite as they are stored."""

    data: str
    settings: JsonObject
    precision: str = ""
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()
    broken_images: tuple[str, ...] = ()
    vitmix: str = ""

    @cached_property
    def suite(self) -> Robustness:
        """The settings of the suite, without the parts that were asked for; missing ones are at their defaults."""
        known = (kinds_of(Robustness).keys() - {"parts"}) & self.settings.keys()
        return Robustness(**{name: fitted(Robustness, name, self.settings[name], "its settings") for name in known})

    @property
    def is_usual(self) -> bool:
        return self.settings.keys() == kinds_of(Robustness).keys() and self.suite == Robustness()


@dataclass(frozen=True, kw_only=True)
class RobustnessResults(Record):
    """The measurements of one file of weights, and the protocol of each part; see `Facts.protocol`.

    `corruption_errors` has an error for each severity of a corruption.
    """

    weights: str = ""
    weights_sha256: str | None = None
    model: str = ""
    measurements: tuple[Measurement, ...]
    corruption_errors: dict[str, tuple[float, ...]]
    parts: dict[str, Protocol]

    def __post_init__(self) -> None:
        for each in self.measurements:
            protocol = self.parts.get(each.of.protocol)
            if protocol is None:
                raise ValueError(f"{each.name!r} does not say how it was measured")
            needed = {"attack_limit", "epsilons"} if each.of.attack else {"reference"} if each.name == "mCE" else set()
            if not protocol.settings.keys() >= needed:
                raise ValueError(f"the settings of {each.name!r} lack {', '.join(sorted(needed))}")
        for protocol in self.parts.values():
            _ = protocol.suite  # which refuses wrong values

    @cached_property
    def by_name(self) -> Mapping[str, Measurement]:
        return {each.name: each for each in self.measurements}

    def added_to(self, before: "RobustnessResults | None") -> "RobustnessResults":
        """These results, with earlier parts of the same weights that were not measured again."""
        if before is None or before.weights_sha256 != self.weights_sha256:
            return self
        rest = (each for each in before.measurements if each.of.protocol not in self.parts)
        return replace(
            self,
            measurements=(*rest, *self.measurements),
            corruption_errors=self.corruption_errors or before.corruption_errors,
            parts={**before.parts, **self.parts},
        )
