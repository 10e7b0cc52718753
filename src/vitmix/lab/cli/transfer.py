"""`vitmix transfer`: its flags are the fields of `TransferConfig`."""

from dataclasses import dataclass
from typing import Any

from vitmix.lab.cli.train import make_command
from vitmix.lab.dense.config import TransferConfig, resolve_transfer
from vitmix.lab.settings import File, option


@dataclass(frozen=True, kw_only=True)
class Transfer(TransferConfig):
    """Train a segmenter or detector on a trained backbone, or resume such a run."""

    epilog = "Later sources override earlier ones: defaults, --recipe, --config, flags."

    config: File | None = option(None, "YAML file of settings, such as a run's config.yaml")


def _trainer(settings: TransferConfig) -> Any:
    from vitmix.lab.dense.training import TransferTrainer

    return TransferTrainer(settings)


COMMAND = make_command(Transfer, resolve_transfer, _trainer, without=("fsdp",))
