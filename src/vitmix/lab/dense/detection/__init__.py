"""Object detection: boxes and instance masks in COCO's format, torchvision's detectors on timm backbones."""

from .task import TASK as TASK
