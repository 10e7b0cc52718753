"""Whole training steps: forward, backward and optimizer, of several methods side by side."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import timm
import torch
from torch import Tensor, nn

from vitmix import create
from vitmix._learner import Learner
from vitmix._mixer import AnyMixer, Switch
from vitmix._registry import METHODS as REGISTERED
from vitmix._sampling import Draw, generator_for
from vitmix.lab.bench.clock import milliseconds, peak_memory
from vitmix.lab.bench.materialized import materialize, statistics_from_matrix
from vitmix.lab.fitting import refusals
from vitmix.lab.stand_ins import stand_in_maps
from vitmix.parts.base import HiddenMixing

BARE = "bare model"  # no library at all: cross-entropy of the model's logits


def methods() -> tuple[str, ...]:
    """The default: CutMix, to which the others are compared, the bare model, and every method."""
    texts = REGISTERED.bench()
    return texts.pop("cutmix"), BARE, *texts.values(), "mixup(alpha=0.8) | smmix"


@dataclass(frozen=True)
class Workload:
    """What a step trains, and how.

    Attributes:
        easy: the fraction of samples that HTM's threshold makes easy.
        graphs: compiles with CUDA graphs, which small models need.
    """

    model: str
    batch: int
    size: int | None
    device: torch.device
    precision: torch.dtype
    easy: float
    graphs: bool
    model_args: Mapping[str, Any] = field(default_factory=dict)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


@dataclass
class StepRow:
    """Milliseconds per step of one method in one mode, for each repeat of `steps` steps.

    `memory` is in GiB and includes the model, `easy` is the mean part of samples that HTM found easy.
    """

    method: str
    mode: str
    times: list[float] = field(default_factory=list)
    memory: float | None = None
    easy: float | None = None
    steps: int = 1

    @property
    def median(self) -> float:
        return statistics.median(self.times)


class Step:
    """One method's model, optimizer and step. Weights and choices stay: without dropout, easy samples stay easy.

    `easy` has the part of the samples that HTM found easy in each step, `taken` the steps of each mixer of a switch.
    """

    def __init__(self, text: str, mode: str, work: Workload, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels, self.work = images, labels, work
        self.module = _Bare(build_model(work, mode)) if text == BARE else _learner(text, mode, work, images, labels)
        if mode == "compiled":
            self.module.compile(fullgraph=True, dynamic=False, mode="reduce-overhead" if work.graphs else None)
        self.maps = stand_in_maps(self.module.mixing, images) if isinstance(self.module, Learner) else None
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.0, fused=True)
        mixer = self.module.mixer if isinstance(self.module, Learner) else None
        weights = mixer.weights if isinstance(mixer, Switch) else (1.0,)
        self.parts = [weight / sum(weights) for weight in weights]
        self.taken = [0] * len(weights)
        self.easy: list[Tensor] = []

    def __call__(self, arm: int | None = None) -> None:
        """A step of one mixer of a switch: the given one, or the one whose turn it is."""
        choice = self._turn() if arm is None else arm
        with self.work.autocast():
            if isinstance(self.module, Learner):
                draw = _draw(self.module, self.images, choice)
                output = self.module(self.images, self.labels, maps=self.maps, draw=draw)
                loss = output.loss
                if "htm_samples" in output.counts:
                    self.easy.append(output.counts["htm_samples"].clone())  # CUDA graphs overwrite it
            else:
                loss = self.module(self.images, self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def whole_rounds(self, count: int) -> int:
        """`count` steps, or up to four times as many, so that a switch uses its mixers in proportion to their odds."""

        def off(number: int) -> float:
            return max(abs(round(number * part) / number - part) for part in self.parts)

        counts = range(count, 4 * count + 1)
        return next((number for number in counts if off(number) < 0.01), min(counts, key=off))

    def every_arm(self, count: int) -> None:
        """At least `count` steps, equally many of each mixer of a switch: to compile, and for peak memory."""
        arms = len(self.parts)
        for number in range(math.ceil(count / arms) * arms):
            self(number % arms)

    def _turn(self) -> int:
        """The mixers of a switch in turn, in proportion to their odds: a few random draws would be too noisy."""
        due = [(sum(self.taken) + 1) * part - n for part, n in zip(self.parts, self.taken, strict=True)]
        choice = due.index(max(due))
        self.taken[choice] += 1
        return choice


def _draw(learner: Learner, images: Tensor, choice: int) -> Draw:
    mixer = learner.mixer.mixers[choice]
    return Draw(choice, mixer.draw(learner.mixing.frame(images), generator_for(0)).values)


class _Bare(nn.Module):
    """The model with a plain cross-entropy, which no method can beat."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(images).float(), labels)


def _learner(text: str, mode: str, work: Workload, images: Tensor, labels: Tensor) -> Learner:
    mixer = create(text, build_model(work).num_classes)
    if any(each.inner for each in mixer.mixers):
        mixer = _with_easy(mixer, build_model(work, mode), images, labels, work)
    return Learner(build_model(work, mode), mixer, seed=0)


def build_model(work: Workload, mode: str = "eager") -> Any:
    torch.manual_seed(0)
    try:
        cfg = timm.models.get_pretrained_cfg(work.model, allow_unregistered=True)
        fixed = work.size is not None and cfg is not None and cfg.fixed_input_size
        sized: dict[str, Any] = {"img_size": work.size} if fixed else {}
        model = timm.create_model(work.model, **{**sized, **work.model_args}).to(work.device).train()
    except RuntimeError as error:  # timm's message on unknown names
        raise ValueError(f"{error}; timm.list_models() lists what there is") from None
    if mode == "materialized":
        materialize(model)
    return model


def batch_for(model: Any, work: Workload) -> tuple[Tensor, Tensor]:
    """Images and labels for a model."""
    torch.manual_seed(0)
    channels, *side = model.pretrained_cfg["input_size"]
    side = [work.size] * 2 if work.size is not None else side
    try:
        images = torch.randn(work.batch, channels, *side, device=work.device)
    except RuntimeError as error:  # out of memory, or more elements than a tensor can have
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"a batch of {work.batch} images of {side} pixels is too large: {reason}") from None
    return images, torch.arange(work.batch, device=work.device) % model.num_classes


def _with_easy(mixer: AnyMixer, model: nn.Module, images: Tensor, labels: Tensor, work: Workload) -> AnyMixer:
    """The mixer, with hidden mixing that acts on a given fraction of the samples."""
    learner = Learner(model, mixer, seed=0, step=0)
    eased: list[tuple[HiddenMixing, ...]] = []
    for choice in range(len(mixer.mixers)):
        with torch.no_grad(), work.autocast():
            maps = stand_in_maps(learner.mixing, images)
            learner(images, labels, maps=maps, draw=_draw(learner, images, choice))
            recorder = learner.mixing._recorder
            assert recorder is not None and recorder.tape is not None
            eased.append(tuple(actor.at_rate(work.easy) for actor in recorder.tape.actors))
    learner.mixing.close()
    inner = iter(eased)
    return mixer.each(lambda each: replace(each, inner=next(inner)))


def refused(methods: Sequence[str], work: Workload) -> dict[str, str]:
    """Why a model does not work with some of the methods, found out before the others are measured."""
    model = build_model(work)
    images, _ = batch_for(model, replace(work, batch=1))
    return refusals(model, tuple(images.shape[2:]), [text for text in methods if text != BARE])


def measure_steps(
    methods: Sequence[str],
    modes: Sequence[str],
    work: Workload,
    *,
    repeats: int,
    steps: int,
    warmup: int,
    tell: Callable[[str], None],
) -> list[StepRow]:
    """A row for each method and mode; within a mode the repeats of all methods take turns."""
    images, labels = batch_for(build_model(work), work)
    rows = []
    for mode in modes:
        torch._dynamo.reset()
        torch._dynamo.config.cache_size_limit = 64  # one program for each method and mixer of a switch
        with statistics_from_matrix() if mode == "materialized" else nullcontext():
            running: list[tuple[Step, StepRow]] = []
            for text in methods:
                began = time.perf_counter()
                before = torch.cuda.memory_allocated() if work.device.type == "cuda" else None
                step = Step(text, mode, work, images, labels)
                row = StepRow(text, mode, steps=step.whole_rounds(steps))
                step.every_arm(warmup)
                if not work.graphs:  # their memory cannot be counted
                    row.memory = peak_memory(lambda step=step: step.every_arm(4), work.device, above=before)
                running.append((step, row))
                tell(f"{mode}: {text}, ready after {time.perf_counter() - began:.0f} s")
            for number in range(repeats):
                for step, row in running:
                    step()  # not counted: it warms caches up for this method
                    row.times.append(milliseconds(step, row.steps, work.device))
                times = ", ".join(f"{row.times[-1]:.2f}" for _, row in running)
                tell(f"{mode}: repeat {number + 1} of {repeats}: {times} ms")
        for step, row in running:
            row.easy = float(torch.stack(step.easy).mean()) if step.easy else None
            rows.append(row)
    return rows
