"""`vitmix transfer`: its flags are the fields of `TransferConfig`."""

from dataclasses import dataclass
from typing import Any

from vitmix.lab.cli._parser import Command
from vitmix.lab.cli.recipes import list_all
from vitmix.lab.cli.train import train_in_processes
from vitmix.lab.dense.config import TransferConfig, resolve_transfer
from vitmix.lab.settings import File, SettingValues, option
from vitmix.lab.training.output import unfailing_output


@dataclass(frozen=True, kw_only=True)
class Transfer(TransferConfig):
    """Train a segmenter or detector on a trained backbone, or resume such a run."""

    epilog = "Later sources override earlier ones: defaults, --recipe, --config, flags."

    config: File | None = option(None, "YAML file of settings, such as a run's config.yaml")


def read(given: SettingValues) -> TransferConfig | None:
    """The configuration of a transfer from flags and files; None asks for the list of recipes."""
    flags = {name: value for name, value in given.items() if name != "config"}
    return None if flags.get("recipe") == "help" else resolve_transfer(flags, given.get("config"))


def run(settings: TransferConfig | None) -> int:
    if settings is None:
        return list_all()

    def make() -> Any:
        from vitmix.lab.dense.training import TransferTrainer

        return TransferTrainer(settings)

    with unfailing_output():
        return train_in_processes(make)


COMMAND = Command(Transfer, run, read=read, layered=True, without=("fsdp",))
