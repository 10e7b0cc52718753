"""Whole training steps: forward, backward and optimizer, of several methods side by side."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import timm
import torch
from torch import Tensor, nn

from vitmix import create
from vitmix._learner import Learner
from vitmix._mixer import AnyMixer, Switch
from vitmix._mixing import per_process
from vitmix._registry import METHODS as REGISTERED
from vitmix._sampling import Draw, generator_for
from vitmix.attention.readers.inside import logits_of
from vitmix.lab.bench.clock import milliseconds, peak_memory
from vitmix.lab.bench.materialized import materialize, statistics_from_matrix
from vitmix.lab.fitting import refusals, stand_in_maps
from vitmix.lab.settings import ModelArgs
from vitmix.parts.base import HiddenMixing

BARE = "bare model"  # no library at all: cross-entropy of the model's logits
SHARED = "shared"  # one compiled model for the methods that do not look inside; the others are compiled whole


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
        build: makes the model, if it is not timm's.
    """

    model: str
    batch: int
    size: int | None
    device: torch.device
    precision: torch.dtype
    easy: float
    graphs: bool
    model_args: ModelArgs = field(default_factory=dict)
    build: Callable[[], nn.Module] | None = None

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


@dataclass
class StepRow:
    """Milliseconds per step of one method in one mode, for each repeat of `steps` steps.

    `memory` is in GiB and includes the model, `easy` is the mean part of samples that HTM found easy, `ahead` the
    milliseconds of one CPU core per image for what is computed before the step, as by the workers of a loader.
    """

    method: str
    mode: str
    times: list[float] = field(default_factory=list)
    memory: float | None = None
    easy: float | None = None
    ahead: float | None = None
    steps: int = 1

    @property
    def median(self) -> float:
        return statistics.median(self.times)


class Step:
    """One method's model, optimizer and step. Weights and choices stay: without dropout, easy samples stay easy.

    `easy` has the part of the samples that HTM found easy in each step, `taken` the steps of each mixer of a switch.

    Args:
        model: a compiled model, in the mode "shared" (default: a new model, compiled whole in the mode "compiled").
    """

    def __init__(self, text: str, mode: str, work: Workload, images: Tensor, labels: Tensor, model: Any = None) -> None:
        self.images, self.labels, self.work = images, labels, work
        if text == BARE:
            self.module: _Bare | Learner = _Bare(workload_model(work, mode) if model is None else model)
        else:
            self.module = _learner(text, model, mode, work, images, labels)
        self.maps = stand_in_maps(self.module.mixing, images) if isinstance(self.module, Learner) else None
        self.ahead, self.ahead_time = _ahead(self.module, images) if isinstance(self.module, Learner) else ({}, None)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.0, fused=True)
        mixer = self.module.mixer if isinstance(self.module, Learner) else None
        weights = mixer.weights if isinstance(mixer, Switch) else (1.0,)
        self.parts = [weight / sum(weights) for weight in weights]
        self.taken = [0] * len(weights)
        self.easy: list[Tensor] = []
        if mode == "compiled":
            if isinstance(self.module, Learner) and per_process(self.module.added):
                self(0)  # the first step, which has no batch before it, would be another graph
            self.module.compile(fullgraph=True, dynamic=False, mode="reduce-overhead" if work.graphs else None)

    def __call__(self, arm: int | None = None) -> None:
        """A step of one mixer of a switch: the given one, or the one whose turn it is."""
        choice = self._turn() if arm is None else arm
        with self.work.autocast():
            if isinstance(self.module, Learner):
                draw = _draw(self.module, self.images, choice).with_ahead(self.ahead)
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
        return nn.functional.cross_entropy(logits_of(self.model(images)).float(), labels)


def _ahead(learner: Learner, images: Tensor) -> tuple[dict[str, Tensor], float | None]:
    """What the method computes from the images alone, and the milliseconds of one CPU core per image that it takes."""
    normalization = learner.mixing.normalization
    few, threads = images[:8].cpu(), torch.get_num_threads()
    if not learner.mixer.ahead(few, normalization):
        return {}, None
    torch.set_num_threads(1)  # as in a loader's worker
    began = time.process_time()
    learner.mixer.ahead(few, normalization)
    spent = (time.process_time() - began) * 1e3 / len(few)
    torch.set_num_threads(threads)
    return learner.mixer.ahead(images, normalization), spent


def looks_inside(text: str, model: Any) -> bool:
    """Whether a method hooks into the model, or runs its blocks one by one."""
    if text == BARE:
        return False
    with create(text, class_count(model)).attach(model, seed=0, step=0) as mixing:
        return mixing.hooked or any(each.needs.guide_observer for each in mixing.mixer.mixers)


def _learner(text: str, model: Any, mode: str, work: Workload, images: Tensor, labels: Tensor) -> Learner:
    mixer = create(text, class_count(workload_model(work)))
    if any(each.inner for each in mixer.mixers):
        mixer = _with_easy(mixer, workload_model(work, mode), images, labels, work)
    # Building seeds torch, so that the score net is the one for which the samples were counted.
    return Learner(workload_model(work, mode) if model is None else model, mixer, seed=0)


def workload_model(work: Workload, mode: str = "eager") -> Any:
    torch.manual_seed(0)
    if work.build is not None:
        return work.build().to(work.device).train()
    try:
        cfg = timm.models.get_pretrained_cfg(work.model, allow_unregistered=True)
        fixed = work.size is not None and cfg is not None and cfg.fixed_input_size
        sized = {"img_size": work.size} if fixed else {}
        model = timm.create_model(work.model, **{**sized, **work.model_args}).to(work.device).train()
    except RuntimeError as error:  # timm's message on unknown names
        raise ValueError(f"{error}; timm.list_models() lists what there is") from None
    if mode == "materialized":
        materialize(model)
    return model


def batch_for(model: Any, work: Workload) -> tuple[Tensor, Tensor]:
    """Images and labels for a model."""
    torch.manual_seed(0)
    channels, *side = getattr(model, "pretrained_cfg", {}).get("input_size", (3,))
    own = work.size or work.model_args.get("img_size") or side
    side = [own] * 2 if isinstance(own, int) else [*own]
    try:
        images = torch.randn(work.batch, channels, *side, device=work.device)
    except RuntimeError as error:  # out of memory, or more elements than a tensor can have
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"a batch of {work.batch} images of {side} pixels is too large: {reason}") from None
    return images, torch.arange(work.batch, device=work.device) % class_count(model)


def class_count(model: Any) -> int:
    """The number of classes of a model, which transformers calls labels."""
    return model.num_labels if hasattr(model, "num_labels") else model.num_classes


def check_image(model: nn.Module, image: Tensor) -> None:
    """Refuses an image that the model cannot compute."""
    try:
        with torch.no_grad():
            model.eval()(image)
    except (RuntimeError, AssertionError) as error:
        height, width = image.shape[-2:]
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"the model does not take images of {height} × {width} pixels ({reason})") from None


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
    model = workload_model(work)
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
    store: Callable[[Sequence[StepRow]], object] = lambda rows: None,
) -> list[StepRow]:
    """A row for each method and mode; within a mode the repeats of all methods take turns.

    Those that share a model are measured before the others are compiled. `store` is called after each round with the
    rows so far, so that a run that is stopped keeps them.
    """
    images, labels = batch_for(workload_model(work), work)
    rows = []
    for mode in modes:
        torch._dynamo.reset()
        torch._dynamo.config.cache_size_limit = 64  # one program for each method and mixer of a switch
        with statistics_from_matrix() if mode == "materialized" else nullcontext():
            for way, texts, model in _ways(methods, mode, work):
                running: list[tuple[Step, StepRow]] = []
                for text in texts:
                    began = time.perf_counter()
                    step, row = _prepared(text, way, work, images, labels, model, steps=steps, warmup=warmup)
                    running.append((step, row))
                    tell(f"{way}: {text}, ready after {time.perf_counter() - began:.0f} s")
                for number in range(repeats):
                    for step, row in running:
                        step()  # not counted: it warms caches up for this method
                        row.times.append(milliseconds(step, row.steps, work.device))
                    times = ", ".join(f"{row.times[-1]:.2f}" for _, row in running)
                    tell(f"{way}: repeat {number + 1} of {repeats}: {times} ms")
                    store([*rows, *(row for _, row in running)])
                for step, row in running:
                    row.easy = float(torch.stack(step.easy).mean()) if step.easy else None
                    rows.append(row)
    return rows


def _prepared(
    text: str, way: str, work: Workload, images: Tensor, labels: Tensor, model: Any, *, steps: int, warmup: int
) -> tuple[Step, StepRow]:
    """A compiled and warm step, and its row without times."""
    before = torch.cuda.memory_allocated() if work.device.type == "cuda" else None
    if before is not None and model is not None:
        before -= sum(each.nbytes for each in model.parameters())
    step = Step(text, way, work, images, labels, model)
    row = StepRow(text, way, steps=step.whole_rounds(steps), ahead=step.ahead_time)
    step.every_arm(warmup)
    if not work.graphs:  # their memory cannot be counted
        row.memory = peak_memory(lambda: step.every_arm(4), work.device, above=before)
    return step, row


def _ways(methods: Sequence[str], mode: str, work: Workload) -> list[tuple[str, list[str], Any]]:
    """Modes with the methods that run in them and, if these do not build their own, the model.

    If methods share a compiled model, the others are compiled whole, each beside the first method in the same form.
    """
    if mode != SHARED:
        return [(mode, [*methods], None)]
    plain = workload_model(work)
    inside = [text for text in methods if looks_inside(text, plain)]
    shared = [text for text in methods if text not in inside]
    model = torch.compile(plain, fullgraph=True, dynamic=False, mode="reduce-overhead" if work.graphs else None)
    whole = [*(methods[:1] if methods[0] not in inside else []), *inside] if inside else []
    groups: list[tuple[str, list[str], Any]] = [(SHARED, shared, model), ("compiled", whole, None)]
    return [group for group in groups if group[1]]
