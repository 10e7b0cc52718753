"""Old names of `vitmix.lab.runs`, for callers that still use them."""

from pathlib import Path
from typing import Any

from vitmix.lab.runs import LOG, METRICS, FolderLock, Run, check_folder, run_for
from vitmix.lab.training.config import CONFIG, TrainConfig

__all__ = ["LOG", "METRICS", "RunFolder", "folder_for"]


class RunFolder(Run):
    """A run folder whose `config`, `summary` and `metrics` are paths."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config, self.summary = self.path / CONFIG, self.path / "summary.json"  # pyright: ignore
        self.metrics, self.lock = self.path / METRICS[1], self.path / ".lock"

    def read_summary(self) -> dict[str, Any] | None:
        found = Run(self.path).summary
        return None if found is None else found.to_json()

    def read_metrics(self) -> list[dict[str, float]]:
        return [epoch.to_json() for epoch in Run(self.path).epochs]

    def check(self, config: TrainConfig) -> None:
        check_folder(Run(self.path), config)

    @property
    def is_open_here(self) -> bool:
        return FolderLock(self.path).held_here


def folder_for(config: TrainConfig) -> RunFolder:
    return RunFolder(run_for(config).path)
