"""The engine that a command's settings name."""

from collections.abc import Sequence
from pathlib import Path

from .base import Engine
from .local import LocalProcesses
from .on_ray import OBJECTS, RayCluster
from .on_slurm import SlurmCluster


def choose_engine(
    on: str | None,
    runs: Path,
    *,
    jobs: int | None,
    address: str | None,
    cpus: int | None,
    gpus: float | None,
    slurm: Sequence[str],
    store: str | None,
) -> Engine:
    """The engine, or a ValueError that says which flag does not fit it."""
    given = {"--address": address, "--cpus": cpus, "--gpus": gpus, "--slurm": slurm or None, "--store": store}
    fitting = {None: (), "ray": ("--address",), "slurm": ("--slurm",)}[on]
    for name, value in given.items():
        if value is not None and name not in fitting and (on is None or name in ("--address", "--slurm")):
            needed = {"--address": "--on ray", "--slurm": "--on slurm"}.get(name, "--on ray or --on slurm")
            raise ValueError(f"{name} is for a cluster; add {needed}, or leave it out")
    if on is None:
        return LocalProcesses(jobs or 1)
    if on == "ray":
        return RayCluster(runs, jobs=jobs, address=address, cpus=cpus, gpus=gpus, store=store)
    if store == OBJECTS:
        raise ValueError("Slurm has no object store; give --store a URL, or leave it out for a shared folder")
    return SlurmCluster(runs, jobs=jobs, cpus=cpus, gpus=gpus, options=options_of(slurm), store=store)


def options_of(texts: Sequence[str]) -> dict[str, str]:
    """`["partition=gpu", "exclusive"]` as options of sbatch; values stay as they are, such as the time 4:00:00."""
    found = {}
    for text in texts:
        name, _, value = text.lstrip("-").partition("=")
        if not name:
            raise ValueError(f"--slurm takes options of sbatch such as partition=gpu time=4:00:00, got {text!r}")
        found[name.replace("_", "-")] = value
    return found
