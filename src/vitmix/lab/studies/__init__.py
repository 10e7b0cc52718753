"""Studies of mixing: what labels, attention and tokens do on mixed images, with n and intervals.

Each module answers one question: pure functions of tensors, and a runner over batches of (images, labels, objects).
`vitmix.lab.studies.studies` puts them behind `vitmix analyze`.
"""

from .accuracy import mixed_accuracy as mixed_accuracy
from .accuracy import mixed_top as mixed_top
from .coverage import coverage_study as coverage_study
from .coverage import object_coverage as object_coverage
from .fluctuation import fluctuation_study as fluctuation_study
from .fluctuation import similarity_share as similarity_share
from .hidden import hidden_mixing as hidden_mixing
from .labels import LabelError as LabelError
from .labels import assigned_share as assigned_share
from .labels import cut_share as cut_share
from .labels import label_error as label_error
from .labels import visible_share as visible_share
from .pairs import ImageBatch as ImageBatch
from .pairs import activation_maps as activation_maps
from .regions import presence as presence
from .regions import presence_study as presence_study
from .regions import region_attention as region_attention
from .regions import region_study as region_study
from .saliency import sharpness as sharpness
from .saliency import sharpness_study as sharpness_study
