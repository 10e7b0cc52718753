"""How many samples and tokens HTM mixed during a training run, from the run's counts."""

from collections.abc import Sequence

from vitmix.lab.runs import Epoch, Estimate, Table

STUDY = "HTM over training"
SAMPLES, TOKENS = "htm_samples", "htm_tokens"  # columns of metrics.jsonl


def hidden_mixing(epochs: Sequence[Epoch], *, batch: int, tokens: int) -> Table:
    """From an epoch's fractions, what HTM's table 1 reports: samples mixed per batch, tokens taken per mixed sample.

    Args:
        tokens: patches of one image in HTM's block.
    """
    if not epochs or any(SAMPLES not in epoch.values for epoch in epochs):
        raise ValueError(f"{STUDY} needs the counts of a training with htm, which this run does not have")
    found = []
    for epoch in epochs:
        samples, taken = epoch.values[SAMPLES], epoch.values[TOKENS]
        each = taken / samples * tokens if samples else 0.0
        values = {"samples": samples, "samples per batch": samples * batch, "tokens": taken, "tokens per sample": each}
        found.append(((str(epoch.number),), {name: Estimate(value, None, 1) for name, value in values.items()}))
    notes = (
        "samples: the fraction that was easy enough to be mixed, over all batches of the epoch, including those of "
        "other methods of a switch; tokens: the fraction of all tokens that was replaced; tokens per sample: per mixed "
        "sample.",
        "n = 1: one training.",
    )
    return Table("What HTM mixed", ("epoch",), found, notes, percent=("samples", "tokens"))
