"""Evaluation of classifiers: accuracy, calibration, robustness and cost.

`evaluate` measures a `Subject` on a set of images and returns a `vitmix.lab.runs.Evaluation`. A suite is a function of
(subject, images, running) that yields `vitmix.lab.runs.Measurement`s, as `robustness` does; `describe.table` prints
them, each with its n.
"""

from vitmix.lab.suite import Robustness as Robustness

from .classification import evaluate as evaluate
from .classification import evaluate_run as evaluate_run
from .predictions import Outcomes as Outcomes
from .predictions import calibration_bins as calibration_bins
from .predictions import calibration_error as calibration_error
from .predictions import predict as predict
from .robustness import robustness as robustness
from .subject import Running as Running
from .subject import Subject as Subject
from .subject import open_onnx as open_onnx
from .subject import open_subject as open_subject
