"""What the robustness suite measures, and how strongly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitmix._checks import check_choice, check_count, check_fraction, check_not_negative, check_positive, unknown_name

from .attacks import NORMS
from .corruptions import COMMON, EXTRA, SEVERITIES, check_severity
from .occlusion import ORDERS
from .shifts import NAMES

EPSILONS = {"linf": (1 / 255, 4 / 255, 8 / 255), "l2": (0.25, 0.5, 1.0)}
ALPHAS = {"linf": (0.001, 0.003, 0.01, 0.03), "l2": (0.05, 0.1, 0.2)}
PARTS = ("clean", "noise", "occlusion", "corruptions", "shifts", "attacks", "autoattack")
WHOLE = "robustness"  # every part that can be measured; shifts only where there are folders for it


@dataclass(frozen=True)
class Robustness:
    """What to measure, and how strongly.

    Attributes:
        parts: some of `PARTS`, which are refused where they are not possible, or `WHOLE`, which leaves those out;
            `"shifts"` needs `folders`.
        limit: at most this many images, chosen at random and the same in every cell.
        attack_limit: the same for attacks, which take many passes.
        reference: errors that corruption errors are relative to, see `read_reference`.
        orders: in which order patches are dropped; None is what the model allows.
        folders: `c` of ImageNet or CIFAR, `a`, `r`, `sketch`, `stylized` and `v2` of ImageNet.
        norm: how attacks are bounded, one of `NORMS`.
        epsilons, alphas: bounds of all attacks and step sizes of PGD, in pixels of 0..1; PGD runs on each pair. The
            usual ones of the norm if none are given.
    """

    parts: tuple[str, ...] = (WHOLE,)
    limit: int | None = None
    attack_limit: int = 1000
    sigmas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    corruptions: tuple[str, ...] = COMMON
    severities: tuple[int, ...] = SEVERITIES
    reference: str | None = None
    dropped: tuple[float, ...] = tuple(tenth / 10 for tenth in range(10))
    orders: tuple[str, ...] | None = None
    norm: str = "linf"
    epsilons: tuple[float, ...] = ()
    alphas: tuple[float, ...] = ()
    steps: int = 10
    folders: Mapping[str, Path] = field(default_factory=dict)
    seed: int = 0

    @property
    def measured(self) -> tuple[str, ...]:
        """The parts that are asked for, in their order."""
        asked = set(self.parts)
        if WHOLE in asked:
            asked |= set(PARTS) - (set() if set(self.folders) & set(NAMES) else {"shifts"})
        return tuple(part for part in PARTS if part in asked)

    @property
    def needs_images(self) -> bool:
        """Whether anything is measured besides the images in `folders`."""
        return bool(set(self.measured) - {"shifts"} - ({"corruptions"} if "c" in self.folders else set()))

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in (WHOLE, *PARTS):
                raise unknown_name("suite", part, (WHOLE, *PARTS))
        for key in self.folders:
            if key not in ("c", *NAMES):
                raise unknown_name("folder", key, ("c", *NAMES))
            part = "corruptions" if key == "c" else "shifts"
            if part not in self.measured:
                raise ValueError(f"the folder {key!r} belongs to the suite {part!r}, which is not measured; add it")
        for order in self.orders or ():
            if order not in ORDERS:
                raise unknown_name("order of dropped patches", order, ORDERS)
        for name in self.corruptions:
            if name not in COMMON + EXTRA:
                raise unknown_name("corruption", name, COMMON + EXTRA)
        if "shifts" in self.parts and not set(self.folders) & set(NAMES):
            raise ValueError(f"the suite 'shifts' needs folders, as --folders a=DIR with one of {', '.join(NAMES)}")
        check_choice("norm", self.norm, NORMS)
        for name, usual in (("epsilons", EPSILONS), ("alphas", ALPHAS)):
            object.__setattr__(self, name, tuple(getattr(self, name)) or usual[self.norm])
        for severity in self.severities:
            check_severity(severity)
        check_count("attack_limit", self.attack_limit)
        check_count("steps", self.steps)
        if self.limit is not None:
            check_count("limit", self.limit)
        for name, check in (
            ("sigmas", check_not_negative),
            ("epsilons", check_not_negative),
            ("alphas", check_positive),
        ):
            for value in getattr(self, name):
                check(name, value)
                if self.norm == "linf" and name != "sigmas" and value > 1:  # no pixel can change by more
                    raise ValueError(f"{name} are in pixels of 0..1, got {value:g}; write {value:g}/255")
        for value in self.dropped:
            check_fraction("dropped", value)
