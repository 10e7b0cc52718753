"""Figures of what models look at: attention, rollout, heads, Grad-CAM, occlusion, aligned labels, galleries."""

from .attention import attention_rollout as attention_rollout
from .attention import block_attention as block_attention
from .attention import head_attention as head_attention
from .attention import label_maps as label_maps
from .cam import grad_cam as grad_cam
from .images import NamedImage as NamedImage
from .images import read_image as read_image
from .kinds import KINDS as KINDS
from .layout import FigureInputs as FigureInputs
from .models import NamedModel as NamedModel
