"""What kind of loss runs were trained with, since different kinds lie on one axis without being comparable."""

from collections.abc import Sequence

from vitmix._mixer import Mixer
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.prepare import build_mixer

from .runs import Group

MAIN = {"ce": "cross-entropy", "bce": "binary cross-entropy"}


def different_losses(groups: Sequence[Group]) -> str:
    """A sentence where the groups' training losses are of different kinds; otherwise none."""
    methods: dict[str, list[str]] = {}
    for config in (group.runs[0].config for group in groups):
        try:
            methods.setdefault(training_loss(config), []).append(config.method)
        except ValueError:  # a method of another version, of which nothing can be said
            continue
    if len(methods) < 2:
        return ""
    listed = "; ".join(f"{kind} ({', '.join(dict.fromkeys(names))})" for kind, names in methods.items())
    return f"These losses are of different kinds, so their heights do not compare: {listed}."


def training_loss(config: TrainConfig) -> str:
    """The losses that are added up, such as `cross-entropy + region + consistency`; of a switch, each sum of them."""
    return " or ".join(dict.fromkeys(map(_sum, build_mixer(config, 2).mixers)))


def _sum(mixer: Mixer) -> str:
    extra = [part.name for part in mixer.extra if part.weight]
    added = dict.fromkeys(name for part in mixer.inner for name, weight in part.loss_weights.items() if weight)
    return " + ".join([MAIN[mixer.loss or "ce"], *extra, *added])
