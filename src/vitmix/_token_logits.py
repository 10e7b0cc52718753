"""Token labeling's evaluation: class logits plus those of the tokens."""

from torch import Tensor, nn

from vitmix._checks import check_not_negative
from vitmix.attention.readers import logits_of, read_model
from vitmix.attention.tap import Plan, Recorder, Tape

__all__ = ["TokenLabelClassifier"]


class TokenLabelClassifier(nn.Module):
    """Adds `weight` times the largest token logit of each class to a model's logits, as token labeling evaluates.

    Args:
        model: the trained model.
        head: the classifier of its tokens, `learner.added["token_label_head"]`.
        weight: of the token logits.
    """

    def __init__(self, model: nn.Module, head: nn.Module, *, weight: float = 0.5) -> None:
        super().__init__()
        check_not_negative("weight", weight)
        self.model, self.head, self.weight = model, head, weight

    def forward(self, images: Tensor) -> Tensor:
        reader, tape = read_model(self.model), Tape(Plan(final=True))
        recorder = Recorder(reader, tape.plan)
        recorder.tape = tape
        try:
            logits = logits_of(self.model(images))
        finally:
            recorder.remove()
        if tape.final is None:
            raise RuntimeError("the model did not return its final tokens; use the model without torch.compile here")
        return logits + self.weight * self.head(tape.final[:, reader.prefix :]).amax(1)
