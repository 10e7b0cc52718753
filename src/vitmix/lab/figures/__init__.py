"""Pictures of what models look at: attention, rollout, heads, Grad-CAM, occlusion, aligned labels, galleries."""

from .cam import grad_cam as grad_cam
from .kinds import KINDS as KINDS
from .kinds import Subjects as Subjects
from .looks import attention_rollout as attention_rollout
from .looks import block_attention as block_attention
from .looks import head_attention as head_attention
from .looks import label_maps as label_maps
from .sheet import Sheet as Sheet
from .sheet import draw_sheet as draw_sheet
from .sights import Sight as Sight
