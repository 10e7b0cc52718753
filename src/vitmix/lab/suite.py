"""Settings of the robustness suite: what it measures, and how strongly. `vitmix eval` takes its flags from here."""

# Help texts come from this module, so nothing here imports torch.
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from vitmix._checks import check_choice
from vitmix.lab.settings import Count, Fraction, NotNegative, Positive, Settings, option

PARTS = ("clean", "noise", "occlusion", "corruptions", "shifts", "attacks", "autoattack")
WHOLE = "robustness"  # every part that can be measured; shifts only with folders

# ImageNet-C's: those of the benchmark, and those for tuning, which do not count in the mean error.
COMMON = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
SEVERITIES = (1, 2, 3, 4, 5)
SHIFTS = {"a": "ImageNet-A", "r": "ImageNet-R", "sketch": "ImageNet-Sketch", "stylized": "ImageNet-Stylized"}
SHIFTS |= {"v2": "ImageNet-V2"}
ORDERS = ("random", "salient-first", "salient-last")
EPSILONS = {"linf": (1 / 255, 4 / 255, 8 / 255), "l2": (0.25, 0.5, 1.0)}
ALPHAS = {"linf": (0.001, 0.003, 0.01, 0.03), "l2": (0.05, 0.1, 0.2)}


def check_corruption(_: str, name: str) -> None:
    check_choice("corruption", name, COMMON + EXTRA)


def check_order(_: str, name: str) -> None:
    check_choice("order of dropped patches", name, ORDERS)


def check_severity(_: str, severity: int) -> None:
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be one of 1, 2, 3, 4, 5, got {severity!r}")


@dataclass(frozen=True, kw_only=True)
class SuiteOptions(Settings):
    """The flags for how the parts of the suite are measured."""

    section = "Robustness: accuracy on changed images, with 95 % intervals"

    limit: Count | None = option(None, "number of images, chosen at random (default: all)")
    attack_limit: Count = option(1000, "number of images for attacks, which need many passes")
    corruptions: tuple[Annotated[str, "NAME", check_corruption], ...] = option(
        COMMON, "corruptions of ImageNet-C (default: the 15 of the benchmark)"
    )
    reference: Annotated[str, "alexnet|FILE"] | None = option(
        None, "normalize corruption errors by those of AlexNet or of a JSON file"
    )
    orders: tuple[Annotated[str, "NAME", check_order], ...] | None = option(
        None, f"order of dropped patches: {', '.join(ORDERS)} (default: those that the model supports)"
    )
    norm: Literal["linf", "l2"] = option("linf", "norm that bounds attacks")
    epsilons: tuple[NotNegative, ...] = option(
        (), "bounds ε of attacks, for pixels in 0..1 (default: 1/255 4/255 8/255; l2: .25 .5 1)"
    )
    alphas: tuple[Positive, ...] = option(
        (), "step sizes of PGD, for pixels in 0..1 (default: .001 .003 .01 .03, as in TokenMixup; l2: .05 .1 .2)"
    )
    steps: Count = option(10, "steps of PGD")


@dataclass(frozen=True, kw_only=True)
class Robustness(SuiteOptions):
    """What to measure, and at which strengths.

    Attributes:
        parts: some of `PARTS`, which must be possible, or `WHOLE` for all that are;
            `"shifts"` needs `folders`.
        sigmas, severities, dropped: the strengths of noise, corruptions and occlusion.
        folders: `c` of ImageNet or CIFAR, and those of `SHIFTS`.
        epsilons, alphas: PGD runs on each pair of them. (Default: the usual values for the norm.)
    """

    parts: tuple[str, ...] = option((WHOLE,), "parts of the suite")
    sigmas: tuple[NotNegative, ...] = option((0.0, 0.1, 0.2, 0.3, 0.4, 0.5), "standard deviations of noise")
    severities: tuple[Annotated[int, check_severity], ...] = option(SEVERITIES, "severities of corruptions")
    dropped: tuple[Fraction, ...] = option(tuple(tenth / 10 for tenth in range(10)), "fractions of dropped patches")
    folders: dict[str, Path] = option({}, "test sets by name")
    seed: int = option(0, "random seed of the choice of images and of their changes")

    @property
    def measured(self) -> tuple[str, ...]:
        """The parts that are asked for, in their order."""
        asked = set(self.parts)
        if WHOLE in asked:
            asked |= set(PARTS) - (set() if set(self.folders) & set(SHIFTS) else {"shifts"})
        return tuple(part for part in PARTS if part in asked)

    @property
    def needs_images(self) -> bool:
        """Whether anything is measured besides the images in `folders`."""
        return bool(set(self.measured) - {"shifts"} - ({"corruptions"} if "c" in self.folders else set()))

    def __post_init__(self) -> None:
        for part in self.parts:
            check_choice("suite", part, (WHOLE, *PARTS))
        for key in self.folders:
            check_choice("folder", key, ("c", *SHIFTS))
            part = "corruptions" if key == "c" else "shifts"
            if part not in self.measured:
                raise ValueError(f"the folder {key!r} belongs to the suite {part!r}, which is not measured; add it")
        if "shifts" in self.parts and not set(self.folders) & set(SHIFTS):
            raise ValueError(f"the suite 'shifts' needs folders, as --folders a=DIR with one of {', '.join(SHIFTS)}")
        super().__post_init__()
        for name, usual in (("epsilons", EPSILONS), ("alphas", ALPHAS)):
            object.__setattr__(self, name, tuple(getattr(self, name)) or usual[self.norm])
            for value in getattr(self, name):
                if self.norm == "linf" and value > 1:  # no pixel can change by more
                    raise ValueError(f"{name} are in pixels of 0..1, got {value:g}; write {value:g}/255")
