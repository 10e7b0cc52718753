"""Evaluation of classifiers: what they get right, how sure they are of it, and what they cost.

`evaluate` measures a `Subject` on a set of images. A suite is a function of (subject, images, running) that yields
`Measurement`s, as `robustness` is; `vitmix.lab.evaluation.text.table` prints them, each with its n.
"""

from .measure import Measurement as Measurement
from .measure import Predictions as Predictions
from .measure import calibration_bins as calibration_bins
from .measure import calibration_error as calibration_error
from .measure import predict as predict
from .robustness import robustness as robustness
from .settings import Robustness as Robustness
from .stored import evaluate as evaluate
from .stored import evaluate_run as evaluate_run
from .stored import read_evaluation as read_evaluation
from .subject import Running as Running
from .subject import Subject as Subject
from .subject import open_subject as open_subject
