"""Serves the page of a small model, for tests: a process of its own, since servers leave event loops behind.

`python explore_page.py [RUNS]` prints the address.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import timm
import torch

from vitmix.lab.data.augment import Augmentation
from vitmix.lab.explore.explorer import Explorer
from vitmix.lab.explore.models import Models, OpenedModel
from vitmix.lab.explore.state import State
from vitmix.lab.figures import NamedModel
from vitmix.lab.report.groups import find_runs

PLAIN = Augmentation(32, mean=(0.5,) * 3, std=(0.5,) * 3, crop_pct=1.0)


def small_model(**settings) -> NamedModel:
    torch.manual_seed(1)
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 12}
    model = timm.create_model("vit_tiny_patch16_224", **shape, **settings)
    for block in model.blocks:  # else attention is nearly uniform
        block.attn.qkv.weight.data.mul_(12)
    return NamedModel("small", model, PLAIN, 12)


def explorer(runs: Path | None = None) -> Explorer:
    """An explorer of a small model, without weights."""
    found = find_runs([runs])[0] if runs else []
    models = Models({}, ["small"])
    opened = OpenedModel(small_model(), "random weights", "model = timm.create_model('small', num_classes=12)")
    models._open["small"] = opened
    state = State(first="shapes 1", second="shapes 46", model="small")
    return Explorer(models, {each.path.name: each for each in found}, state=state)


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address of the page while the context lasts."""
    command = [sys.executable, "-W", "ignore", __file__, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        watch = threading.Timer(120, process.kill)
        watch.start()
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            watch.cancel()
            assert address.startswith("http"), "the page did not start"
            yield address
        finally:
            watch.cancel()
            process.kill()


if __name__ == "__main__":
    from vitmix.lab.explore.server import serve

    page, address = serve(explorer(Path(sys.argv[1]) if len(sys.argv) > 1 else None), block=False)
    print(address, flush=True)
    page.block_thread()
