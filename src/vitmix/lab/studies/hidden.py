"""How many samples and tokens HTM mixed over a training, as the training counted them."""

from pathlib import Path

from vitmix.lab.training.runs import RunFolder

from .results import Spread, Table

STUDY = "HTM over training"
SAMPLES, TOKENS = "htm_samples", "htm_tokens"  # columns of metrics.jsonl


def hidden_mixing(rows: list[dict[str, float]], *, batch: int, tokens: int) -> Table:
    """From an epoch's fractions, what HTM's table 1 reports: samples mixed per batch, tokens taken per mixed sample.

    Args:
        rows: of metrics.jsonl.
        tokens: patches of one image in HTM's block.
    """
    if not rows or any(SAMPLES not in row for row in rows):
        raise ValueError(f"{STUDY} is counted while a method with htm trains, and this run has no such counts")
    found = []
    for row in rows:
        samples, taken = row[SAMPLES], row[TOKENS]
        each = taken / samples * tokens if samples else 0.0
        values = {"samples": samples, "samples per batch": samples * batch, "tokens": taken, "tokens per sample": each}
        found.append(((str(int(row["epoch"])),), {name: Spread(value, None, 1) for name, value in values.items()}))
    notes = (
        "samples: the part that was easy enough to be mixed, over all batches of the epoch, those of other methods of "
        "a switch included; tokens: the part of all tokens that was replaced; tokens per sample: of a mixed one.",
        "n = 1: one training.",
    )
    return Table("What HTM mixed", ("epoch",), found, notes, percent=("samples", "tokens"))


def read_rows(run: Path) -> list[dict[str, float]]:
    rows = RunFolder(run).read_metrics()
    if not rows:
        raise ValueError(f"{run} has no metrics.jsonl yet; it is written with the first epoch")
    return rows
