"""One file per method: its citation, its deviations from the paper, and a factory that returns a `Mixer`."""

from collections.abc import Callable

from vitmix.methods.basic import cutmix, mixup, none
from vitmix.methods.smmix import smmix
from vitmix.methods.tl_align import tl_align
from vitmix.methods.tokenmix import tokenmix
from vitmix.methods.tokenmixup import htm, vtm
from vitmix.methods.transmix import transmix
from vitmix.mixer import Mixer

METHODS: dict[str, Callable[..., Mixer]] = {
    method.__name__: method for method in (none, mixup, cutmix, tokenmix, transmix, tl_align, smmix, htm, vtm)
}
