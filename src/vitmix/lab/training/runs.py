"""An old name of `vitmix.lab.runs.Run`."""

from typing import Any

from vitmix.lab.runs import Run


class RunFolder(Run):
    def read_summary(self) -> dict[str, Any] | None:
        return None if self.summary is None else self.summary.to_json()
