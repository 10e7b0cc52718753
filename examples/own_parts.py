"""Your own parts: a mask, a label rule, extra losses and a hidden mixing, and a method that combines them.

python examples/own_parts.py
vitmix --plugin examples/own_parts.py train --method "stripes | cutmix"
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import vitmix
from vitmix.functional import mix_targets


@vitmix.register
@dataclass(frozen=True)
class StripeMask(vitmix.Mask):
    """Whole rows of tokens from the partner."""

    name: ClassVar[str] = "stripe"
    width: int = 2

    def draw(self, frame, generator):
        if frame.grid is None or frame.grid[0] < self.width:
            raise ValueError(f"a stripe of {self.width} rows needs a token grid of as many rows; attach it to a model")
        return {"first": torch.randint(frame.grid[0] - self.width + 1, (frame.batch,), generator=generator)}

    def where(self, values, batch):
        rows, columns = batch.frame.grid
        row, first = torch.arange(rows, device=batch.images.device), values["first"].unsqueeze(1)
        return vitmix.Paste(((row >= first) & (row < first + self.width)).unsqueeze(2).expand(-1, -1, columns))


@vitmix.register
@dataclass(frozen=True)
class SquaredShare(vitmix.Share):
    """The square of the partner's area, so small regions count less."""

    name: ClassVar[str] = "squared"

    def weights(self, evidence):
        return vitmix.Weights(1 - evidence.area**2, evidence.area**2)


@vitmix.register
@dataclass(frozen=True)
class ConfidencePenalty(vitmix.ExtraLoss):
    """The negative entropy of the prediction, which penalizes overconfidence."""

    name: ClassVar[str] = "confidence"
    weight: float = 0.1

    def value(self, logits, targets, evidence):
        log = logits.float().log_softmax(1)
        return (log.exp() * log).sum(1).mean()


@vitmix.register
@dataclass(frozen=True)
class CompactTokens(vitmix.ExtraLoss):
    """The variance of an image's final patch tokens. It reads the model, so it declares what it needs."""

    name: ClassVar[str] = "compact"
    weight: float = 0.01

    @property
    def needs(self):
        return vitmix.Needs(model=True)

    def plan(self, reader):
        return vitmix.Plan(final=True)

    def value(self, logits, targets, evidence):
        return evidence.final_tokens[:, evidence.model.prefix :].float().var(dim=1).mean()


@vitmix.register
@dataclass(frozen=True)
class Blend(vitmix.HiddenMixing):
    """Blends the tokens of each sample with those of the next sample, at the input of a block."""

    name: ClassVar[str] = "blend"
    moves_tokens: ClassVar[bool] = True
    sets_targets: ClassVar[bool] = True
    block: int = 1
    most: float = 0.5

    def draw(self, frame, generator):
        return {"share": self.most * torch.rand(frame.batch, generator=generator)}

    def actor(self, reader, values, module):
        return BlendOnce(self, reader, values)


class BlendOnce(vitmix.Actor):
    """Blends one batch. A block can run again in the backward pass, so the targets are mixed only the first time."""

    incoming: Tensor | None = None

    def change(self, tokens, tape):
        share, partner = self.values["share"], torch.arange(len(tokens), device=tokens.device).roll(-1)
        if self.incoming is None:
            self.incoming = tape.targets
            tape.targets = mix_targets(self.incoming, partner, share)
        return torch.lerp(tokens, tokens[partner], share.to(tokens.dtype).view(-1, 1, 1))


@vitmix.register
def stripes(num_classes: int, *, width: int = 2, **common) -> vitmix.Mixer:
    """Stripes of the partner with squared area labels, a confidence penalty and blended tokens."""
    parts = dict(mask=StripeMask(width), share=SquaredShare(), extra=(ConfidencePenalty(),), inner=(Blend(),))
    return vitmix.Mixer(num_classes, **parts, **common)


if __name__ == "__main__":
    import timm

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=48, depth=4, num_classes=10)
    images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    for text in (
        "stripes(width=3)",
        "mix(mask=stripe, share=aligned) + confidence",
        "cutmix + blend(block=2) + compact",
    ):
        output = vitmix.Learner(model, vitmix.create(text, num_classes=10))(images, labels)
        output.loss.backward()
        print(f"{output.loss:.3f}", text)
