"""A model and a mixer as one module, for compilation, data parallelism and gradient accumulation."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from vitmix._mix import Frame, check_label_range, label_rows
from vitmix._mixer import AnyMixer
from vitmix._sampling import Draw
from vitmix._text import create
from vitmix.attention import _kernels as kernels
from vitmix.attention.readers import logits_of, unwrap
from vitmix.parts.base import Guidance
from vitmix.parts.losses import main_loss

__all__ = ["Learner", "Output", "mixer_for"]

CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes of torch.compile


@dataclass(frozen=True)
class Output:
    """The result of a training step: the loss, logits and targets of the mixed images, and the parts of the loss.

    `counts` says how much was mixed inside the network, see `Mixing.counts`.
    """

    loss: Tensor
    logits: Tensor
    targets: Tensor
    parts: dict[str, Tensor]
    counts: dict[str, Tensor] = field(default_factory=dict)


def _named_parts(output: Output) -> tuple[list[tuple[Any, Any]], None]:
    return [(_pytree.GetAttrKey(each.name), getattr(output, each.name)) for each in fields(Output)], None


# Otherwise, DDP with a static graph finds no tensors in it and does not average the gradients.
_pytree.register_pytree_node(
    Output,
    lambda output: ([value for _, value in _named_parts(output)[0]], None),
    lambda values, _: Output(*values),
    flatten_with_keys_fn=_named_parts,
    serialized_type_name="vitmix._learner.Output",
)


def mixer_for(model: Any, mixer: AnyMixer | str) -> AnyMixer:
    """The mixer, which may be a text; then the model says how many classes it has."""
    if not isinstance(mixer, str):
        return mixer
    config = getattr(model, "config", None)
    classes = getattr(config, "num_labels", None) or getattr(unwrap(model), "num_classes", None)
    if not classes:
        raise ValueError("the model does not say how many classes it has; pass vitmix.create(text, num_classes=...)")
    return create(mixer, classes)


class Learner(nn.Module):
    """`learner(images, labels)` is the forward pass of a training step; `learner(images)` is the plain model.

    In evaluation mode nothing is mixed: the loss is the method's main loss on the unmixed batch. `learner.model` is the
    given model, with its state-dict keys; `learner.added` has the parameters that the method adds.

    Args:
        mixer: the method, as a mixer or as a text, which takes the number of classes from the model.
        guide: another model for the guide pass, SMMix's forward pass on the unmixed images (default: the model itself).
        seed, step, rank: determine every draw. `step` counts training batches. By default, the seed is drawn from
            torch's CPU generator, so that `torch.manual_seed` decides, and the rank is the process's. The state dict
            has seed and step, so that a resumed training continues.
    """

    def __init__(
        self,
        model: nn.Module,
        mixer: AnyMixer | str,
        *,
        guide: nn.Module | None = None,
        seed: int | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.mixing = mixer_for(model, mixer).attach(model, guide=guide, seed=seed, rank=rank, step=step)
        self.added = self.mixing.modules
        self._compile_settings: dict[str, Any] | None = None
        self._compiled: dict[int, Callable[..., Output]] = {}

    @property
    def mixer(self) -> AnyMixer:
        return self.mixing.mixer

    @property
    def step(self) -> int:
        """Number of training batches drawn so far; set it to resume."""
        return self.mixing.step

    @step.setter
    def step(self, value: int) -> None:
        self.mixing.step = value

    def get_extra_state(self) -> Tensor:
        """Seed and step. A tensor, because tools that average or store state dicts expect tensors."""
        return self.mixing.stream.state()

    def set_extra_state(self, state: Tensor) -> None:
        self.mixing.stream.load(state)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        rest = (local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if (draws := f"{prefix}_extra_state") in missing_keys:  # a state dict of an earlier version
            missing_keys.remove(draws)

    def compile(self, **settings: Any) -> None:
        """Compiles the training step; `settings` are those of `torch.compile`. Draws stay outside the graph.

        Prefer this to `torch.compile(learner)`, which cannot carry shares inside the attention kernel.
        """
        if self.mixing.carries_shares:
            settings = kernels.compile_settings(settings)
        self._compile_settings, self._compiled = settings, {}

    def _step(self, choice: int, *inputs: Any) -> Output:
        if self._compile_settings is None:
            return self._forward_mixed(choice, *inputs)
        if choice not in self._compiled:
            # Torch counts recompilations per code object and gives up after a few, so every method of every learner
            # gets a separate code object.
            whole = type(self)._forward_mixed
            own = FunctionType(whole.__code__.replace(), whole.__globals__, whole.__name__, whole.__defaults__)
            self._compiled[choice] = torch.compile(MethodType(own, self), **self._compile_settings)
        output = self._compiled[choice](choice, *inputs)
        if self._compile_settings.get("mode") in CUDA_GRAPHS:
            self._copy_state()
        return output

    def _copy_state(self) -> None:
        """Copies state over batches out of the memory of CUDA graphs, which overwrite it in the next step."""
        for module in self.added.modules():
            for name in getattr(module, "per_process", ()):
                if (value := getattr(module, name)) is not None:
                    setattr(module, name, value.clone())

    def __getstate__(self) -> dict[str, Any]:
        # A compiled function is bound to the weights of this learner; a copy compiles again.
        return self.__dict__ | {"_compiled": {}}

    def _apply(self, fn: Any, recurse: bool = True) -> "Learner":
        # The guide moves with the learner but is not a submodule: it is neither trained nor saved.
        if self.mixing.guide is not self.model:
            self.mixing.guide._apply(fn, recurse)
        return super()._apply(fn, recurse)

    if TYPE_CHECKING:

        @overload
        def __call__(self, images: Tensor) -> Tensor: ...

        @overload
        def __call__(
            self,
            images: Tensor,
            labels: Tensor,
            *,
            maps: Tensor | None = None,
            draw: Draw | None = None,
            erase: tuple[Tensor, Tensor] | None = None,
        ) -> Output: ...

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def forward(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        maps: Tensor | None = None,
        draw: Draw | None = None,
        erase: tuple[Tensor, Tensor] | None = None,
    ) -> Output | Tensor:
        """Returns an `Output` if labels are given, otherwise the model's logits.

        Args:
            maps: `(B, h, w)` activation map of each image's label, for activation shares.
            draw: the choices for this batch (default: drawn from seed, step and rank).
            erase: random erasing after mixing: boxes `(B, 4)` as in `functional.box_mask`, and the fill pixels,
                broadcastable to `(B, C, H, W)`.
        """
        if labels is None:
            return logits_of(self.model(images))
        # Before drawing, and before a compiled step, because a graph cannot check values.
        self.mixer.check_labels(labels)
        if not self.training:
            return self._forward_plain(images, labels)
        if getattr(self, "_is_replica", False) and self.mixer.looks_inside:
            raise RuntimeError(
                "nn.DataParallel copies a learner, whose method reads the original; start one process for each GPU "
                "with torchrun"
            )
        check_label_range(labels, self.mixer.num_classes)
        compiled = self._compile_settings is not None
        frame = None if compiled and draw is not None else self.mixing.frame(images)
        if draw is None:
            assert frame is not None
            draw = self.mixing.draw(frame)
        draw = draw.to(images.device)
        try:
            # A graph cannot differentiate the guide's loss, so that pass runs before it.
            ahead = compiled and self.mixer.mixers[draw.choice].needs.guide_gradient
            guidance = self.mixing.ask_guide(images, labels, draw.choice) if ahead else None
            # A compiled step computes the frame from the images; otherwise each batch size would be another graph.
            inputs = (images, labels, maps, draw.values, erase, None if compiled else frame, guidance)
            output = self._step(draw.choice, *inputs)
        except BaseException:
            self.mixing.forget()  # otherwise the hooks would record the next plain pass as this batch
            raise
        return replace(output, parts={name: _to_read(part) for name, part in output.parts.items()})

    def _forward_mixed(
        self,
        choice: int,
        images: Tensor,
        labels: Tensor,
        maps: Tensor | None,
        values: dict[str, Tensor],
        erase: tuple[Tensor, Tensor] | None,
        frame: Frame | None,
        guidance: Guidance | None,
    ) -> Output:
        mixing, draw = self.mixing, Draw(choice, values)
        given: dict[str, Any] = dict(maps=maps, frame=frame, erase=erase, guidance=guidance)
        batch = mixing.apply(images, labels, draw, brief=True, **given)
        logits = logits_of(self.model(batch.images))
        targets, parts = mixing.finish(logits, batch)
        loss = parts.pop("loss")
        if torch.compiler.is_compiling():
            mixing.forget()  # otherwise the graph would return everything recorded and keep it in memory
        return Output(loss, logits, targets, parts, mixing.counts(batch))

    def _forward_plain(self, images: Tensor, labels: Tensor) -> Output:
        logits = logits_of(self.model(images))
        targets = label_rows(labels, self.mixer.num_classes, dtype=self.mixing.frame(images).dtype).to(images.device)
        if logits.shape != targets.shape:
            shapes = f"{tuple(logits.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"logits and labels must have the same shape, got {shapes}; check num_classes")
        loss = main_loss(self.mixer.loss)(logits, targets)
        return Output(loss, logits, targets, {"main": _to_read(loss)})


def _to_read(part: Tensor) -> Tensor:
    """Part of a loss, without gradient.

    If a loss has a single part, Inductor would treat the loss and the detached part as one tensor without gradient. The
    maximum creates another tensor of the same value.
    """
    part = part.detach()
    return torch.maximum(part, part) if torch.compiler.is_compiling() else part
