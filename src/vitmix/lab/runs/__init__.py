"""Run folders: everything that a training run and the commands after it write, as typed records.

    run = Run.open("runs/mine")          # ValueError where there is no run
    run.config                           # TrainConfig, or TransferConfig of a transfer
    run.epochs, run.best_epoch           # list of Epoch(number, values); run.best_epoch.get("accuracy")
    run.score(run.best_epoch, "accuracy")  # for the weights that were kept, possibly the EMA weights
    run.summary                          # Summary: seconds, peak_memory, text, ...; None while it trains
    run.evaluation                       # Evaluation: accuracy, ece, bins, mistakes(), recall(label), ...
    run.dense                            # DenseEvaluation of a transfer: scores with intervals, by class
    run.robustness                       # RobustnessResults: measurements with typed facts, as each.of.sigma
    run.analyses["labels"].tables        # Table: keys, rows of (names, {column: Estimate}), text()
    run.left_out                         # what was requested but does not apply to these weights
    run.problems                         # {"evaluation.json": why it is None}
    run.belongs(sha256)                  # whether a result is about the best weights; run.checksum() is theirs
    run.write_evaluation(record, sha256) # and the like: the formats of files are the records' to_json

`Run` opens no model and no data, and reads each file once: make a new one to see what was written since. Records are
read by `from_json`, which accepts version 0.1 and refuses the rest with an error message. Numbers with intervals are
`Estimate`s. `FolderLock`, `check_folder` and `run_for` are for those who train in a folder.
"""

from .analysis import Analysis, LeftOut, Table, TableRow
from .dense import ClassScores, DenseEvaluation, DenseScores
from .estimates import Estimate
from .evaluation import Bin, Evaluation
from .folder import ANALYSIS, EVALUATION, LOG, METRICS, ROBUSTNESS, SUMMARY, Run, checksum
from .lock import FolderLock, check_folder, run_for
from .records import Record
from .robustness import NORMS, Facts, Measurement, Protocol, RobustnessResults
from .training import EMA, SCORES, Epoch, Summary, best_epoch, is_better
