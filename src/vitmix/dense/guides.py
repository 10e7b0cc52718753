"""What a mask reads of a model with dense outputs: its token grid, its attention, the gradient of its loss."""

from typing import Any

import torch
from torch import Tensor, nn

from vitmix._mix import Frame
from vitmix._mixer import AnyMixer
from vitmix._mixing import Evaluating, Mixing
from vitmix.attention.readers import backbone_of, logits_of, unwrap
from vitmix.dense.masks import mask_cross_entropy
from vitmix.parts.base import Guidance

__all__ = ["DenseGuide"]


class DenseGuide:
    """A mixer attached to the backbone of a model with dense outputs. It only looks at unmixed images."""

    def __init__(self, mixer: AnyMixer, model: nn.Module, ignore_index: int) -> None:
        self.model, self.ignore_index = model, ignore_index
        self.mixing = Mixing(mixer, backbone_of(model), guide=None, seed=0)

    def frame(self, images: Tensor) -> Frame:
        return self.mixing.frame(images)

    def look(self, images: Tensor, targets: Any, choice: int) -> Guidance:
        """What the mask of one mixer of a switch needs to know about the unmixed images."""
        needs = self.mixing.mixer.mixers[choice].needs
        if not needs.guide:
            return Guidance()
        if needs.guide_gradient:
            return Guidance(gradient=self.gradient(images, targets))
        labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
        guidance = self.mixing.ask_guide(images, labels, choice)
        self.mixing.forget()  # the model's next pass, on the mixed images, is not recorded
        return guidance

    def close(self) -> None:
        self.mixing.close()

    def gradient(self, images: Tensor, masks: Any) -> Tensor:
        """The gradient of the loss at each pixel `(B, H, W)`, as the root mean square over channels."""
        if not isinstance(masks, Tensor):
            raise ValueError("this mask needs the gradient of a loss of label maps; for boxes, use another one")
        with torch.enable_grad(), Evaluating(unwrap(self.model)):
            images = images.detach().requires_grad_()
            logits = logits_of(self.model(images))
            if not isinstance(logits, Tensor) or logits.ndim != 4 or logits.shape[-2:] != images.shape[-2:]:
                got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
                raise ValueError(f"the model must return logits (B, K, H, W) of the images' size, got {got}")
            (gradient,) = torch.autograd.grad(mask_cross_entropy(logits, masks, ignore_index=self.ignore_index), images)
        return gradient.square().mean(1).sqrt()
