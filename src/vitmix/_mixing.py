"""A method attached to a model: it mixes a batch, the model runs, then it computes targets and losses."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitmix._apply import apply_mask, share_targets, unmixed_rows
from vitmix._guide import Evaluating, GuidePass, guide_plan
from vitmix._mix import Frame, Grid, Mix
from vitmix._mixer import AnyMixer, Mixer
from vitmix._sampling import Draw, Stream
from vitmix.attention.readers import Reader, frame_of, logits_of, mask_grid, read_model, rest_of_patches, unwrap
from vitmix.attention.summaries import forget_casts
from vitmix.attention.tap import COMPILED, Plan, Recorder, Tape
from vitmix.parts.base import Actor, Evidence, Guidance, Normalization, Part, Unmixed
from vitmix.parts.losses import main_loss
from vitmix.parts.masks import box_mask

__all__ = ["MixedBatch", "Mixing", "per_process"]


@dataclass(frozen=True)
class MixedBatch:
    """A mixed batch, and what targets and loss need after the forward pass.

    Attributes:
        images: the mixed images, the input of the model.
        mix: partner, mask and source.
        mixer: the mixer; for a switch, the one that was drawn.
        frame: batch size, image size and token grids.
        tape: what is recorded while the model runs.
        draw: the random choices.
        maps: the activation maps given with the batch.
        rows: unmixed targets `(B, K)`, without smoothing.
        guidance: results of the guide pass on the unmixed images, if a part needs them.
    """

    images: Tensor
    rows: Tensor
    mix: Mix
    mixer: Mixer
    frame: Frame
    tape: Tape
    draw: Draw
    maps: Tensor | None = None
    guidance: Guidance = field(default_factory=Guidance)

    @property
    def clean_logits(self) -> Tensor | None:
        """The guide's logits of the unmixed images, if a loss needs them."""
        return self.guidance.logits

    @property
    def scores(self) -> Tensor | None:
        """The guide's attention on the unmixed images, if the mask needs it."""
        return self.guidance.scores


class Mixing:
    """A mixer attached to a model. Call `mix`, run the model on the mixed images, then call `targets` or `loss`.

    Run each mixed batch through the model once. After `targets` or `loss`, the hooks are inactive until the next `mix`.
    With activation checkpointing, call backward before the next `mix`.

    `modules` holds the parameters that a method adds (a score net, a token head), and `parameters()` lists them for the
    optimizer. The model's state never changes.

    `normalization` says how images are normalized, for masks that need their colors (SaliencyMix, Puzzle Mix). It is
    that of the model's configuration (timm) or ImageNet's; set it if your images are normalized otherwise.

    Args:
        guide: another model for the guide pass on the unmixed images (default: the model itself). A network with a
            method `gaze(images, rows)`, such as `vitmix.models.AbsViT`, replaces the guide's attention alone.
        seed, step, rank: determine every draw. `step` counts batches. By default, the seed is drawn from torch's CPU
            generator, so that `torch.manual_seed` decides, and the rank is the process's.
    """

    def __init__(
        self,
        mixer: AnyMixer,
        model: nn.Module,
        *,
        guide: nn.Module | None,
        seed: int | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> None:
        guide = None if guide is model else guide
        self.mixer, self.model, self.guide = mixer, model, guide if guide is not None else model
        gaze = unwrap(guide) if guide is not None and hasattr(unwrap(guide), "gaze") else None
        guide = None if gaze is not None else guide  # logits are those of the model itself
        self.stream = Stream(seed, step, rank)
        self._plain_model = unwrap(model)
        self.modules = nn.ModuleDict()
        self.normalization = _normalization(self._plain_model)
        self.closed = False
        self._grids: dict[Grid, Grid | None] = {}
        self._warned = False
        asked = any(_reads_guide(each) for each in mixer.mixers)
        self.reader = _reader_for(model, needed=mixer.looks_inside or (guide is None and asked))
        guide_reader = self.reader if guide is None else _reader_for(guide, needed=asked)
        self._plans: tuple[Plan, ...] = tuple(_plan(each, self.reader) for each in mixer.mixers)
        plans = tuple(guide_plan(each, guide_reader, gazes=gaze is not None) for each in mixer.mixers)
        asked_model, separate = model if guide is None else guide, guide is not None
        self._guide_pass = GuidePass(asked_model, guide_reader, mixer.mixers, plans, separate, gaze)
        self._recorder: Recorder | None = None
        try:
            self._listen()
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        self._add_modules()
        guide, union = self._guide_pass, _union(self._plans)
        if self.reader is not None:
            self._recorder = Recorder(self.reader, union if guide.separate else union | _union(guide.plans))
            guide.recorder = None if guide.separate else self._recorder
        if guide.separate and guide.reader is not None:
            guide.recorder = Recorder(guide.reader, _union(guide.plans))

    def _add_modules(self) -> None:
        like = next(self.model.parameters(), torch.empty(0))
        for mixer in self.mixer.mixers:
            for part in (*mixer.inner, *mixer.extra, mixer.mask, mixer.share):
                if part.module_name in self.modules:
                    continue
                if (module := part.module(self.reader, mixer.num_classes)) is not None:
                    self.modules[part.module_name] = module.to(like.device, like.dtype)

    @property
    def carries_shares(self) -> bool:
        """Whether any of the mixers carries token shares through the blocks."""
        return any(len(plan.carry) > 0 for plan in self._plans)

    @property
    def hooked(self) -> bool:
        """Whether the model has hooks."""
        return self._recorder is not None and self._recorder.installed

    @property
    def seed(self) -> int:
        """The seed of the draws, given or drawn from torch's generator."""
        return self.stream.seed

    @property
    def rank(self) -> int | None:
        """The given rank; None stands for the process's."""
        return self.stream.rank

    @property
    def step(self) -> int:
        """Number of batches drawn so far; set it to resume."""
        return self.stream.step

    @step.setter
    def step(self, value: int) -> None:
        self.stream.step = value

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs besides the model: the seed, the step, and added parameters and state."""
        return {"draws": self.stream.state(), "added": self.modules.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state_dict` was called."""
        self.modules.load_state_dict(state["added"])
        self.stream.load(state["draws"])

    def __enter__(self) -> "Mixing":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def forget(self) -> None:
        """Deactivates the hooks until the next batch is mixed, for example after a step that failed."""
        for recorder in (self._recorder, self._guide_pass.recorder):
            if recorder is not None:
                recorder.tape = None

    def close(self) -> None:
        """Removes every hook."""
        self.closed = True
        for recorder in (self._recorder, self._guide_pass.recorder):
            if recorder is not None:
                recorder.remove()

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that the method adds. Pass them to the optimizer with the model's parameters."""
        return self.modules.parameters()

    def frame(self, images: Tensor) -> Frame:
        plain = frame_of(images, None)
        if not images.is_floating_point():
            raise ValueError(
                f"a model needs floating-point images, got {images.dtype}; convert and normalize them before mixing"
            )
        try:
            if self.reader is not None:
                frame, rest = frame_of(images, self.reader), rest_of_patches(self.reader, plain.size)
                return frame if rest is None else replace(frame, grid=None, no_grid=rest)
            return replace(plain, grid=self._grid_by_patches(plain.size))
        except ValueError as problem:
            if self.mixer.looks_inside:
                raise
            return replace(plain, no_grid=str(problem))  # only token masks need the grid

    def _grid_by_patches(self, size: Grid) -> Grid | None:
        if size not in self._grids:
            self._grids[size] = mask_grid(self._plain_model, size)
        return self._grids[size]

    def check_guide(self, size: Grid) -> None:
        """Raises an error if the guide does not support the image size."""
        self._guide_pass.check(size)

    def draw(self, frame: Frame) -> Draw:
        """Draws the choices of the next batch from (seed, step, rank), and those of a switch from (seed, step)."""
        own, shared = self.stream.next(self._plain_model, self.mixer)
        return self.mixer.draw(frame, own, shared=shared)

    def mix(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        maps: Tensor | None = None,
        generator: torch.Generator | None = None,
        draw: Draw | None = None,
    ) -> MixedBatch:
        """Mixes a batch. Runs the guide pass if the method has one.

        Args:
            maps: `(B, h, w)` activation map of each image's label, for activation shares.
            generator: draws the choices for this batch (default: a generator seeded with seed, step and rank).
            draw: the choices themselves.
        """
        frame = self.frame(images)
        self.mixer.check_labels(labels)
        if draw is None:
            draw = self.draw(frame) if generator is None else self.mixer.draw(frame, generator)
        return self.apply(images, labels, draw.to(images.device), maps=maps, frame=frame)

    def apply(
        self,
        images: Tensor,
        labels: Tensor,
        draw: Draw,
        *,
        maps: Tensor | None = None,
        frame: Frame | None = None,
        erase: tuple[Tensor, Tensor] | None = None,
        brief: bool = False,
        guidance: Guidance | None = None,
    ) -> MixedBatch:
        """Mixes a batch with given choices, which must be on the images' device.

        For `erase` see `Learner.forward`, for `brief` see `Tape`; `guidance` is the result of `ask_guide`, if it ran.
        """
        if self.closed:
            raise RuntimeError("this mixing is closed and its hooks are removed; attach the mixer to the model again")
        frame = frame or self.frame(images)
        mixer, plan = self.mixer.mixers[draw.choice], self._plans[draw.choice]
        rows = unmixed_rows(labels, mixer, images, frame)
        if guidance is None:
            guidance = self._guide_pass.run(images, rows, frame, draw.choice)
        module, colors = self._module(mixer.mask), self.normalization
        unmixed = Unmixed(images, rows, draw.values["partner"], frame, guidance, module, colors)
        mixed, mix = apply_mask(mixer, unmixed, draw)
        if erase is not None:
            boxes, fill = erase
            mixed = torch.where(box_mask(boxes, frame.size).unsqueeze(1), fill.to(mixed.dtype), mixed)
        actors = tuple(
            part.actor(self.reader, draw.part(f"inner{number}"), self._module(part))
            for number, part in enumerate(mixer.inner)
            if self.reader is not None
        )
        for actor in actors:
            actor.mix = mix
            mixed = actor.at_images(mixed)
        tape = Tape(plan, actors, size=frame.size, brief=brief, one_pass=True, batch=frame.batch)
        batch = MixedBatch(mixed, rows, mix, mixer, frame, tape, draw, maps, guidance)
        evidence = self.evidence(batch)
        mixer.share.start(evidence)
        if mixer.share.before_forward:
            tape.targets = share_targets(mixer, evidence)
        if mixer.needs.preview:
            preview = self._preview(mixed)
            for actor in actors:
                actor.preview = preview if actor.settings.needs.preview else None
        if self._recorder is not None:
            self._recorder.tape = tape
        return batch

    def ask_guide(self, images: Tensor, labels: Tensor, choice: int = 0) -> Guidance:
        """The results of the guide pass on unmixed images for one mixer of a switch, before `apply`."""
        frame = self.frame(images)
        return self._guide_pass.run(
            images, unmixed_rows(labels, self.mixer.mixers[choice], images, frame), frame, choice
        )

    def targets(self, batch: MixedBatch) -> Tensor:
        """Soft targets `(B, K)` of a mixed batch, after the model ran on it."""
        tape = batch.tape
        self._check_acted([actor for actor in tape.actors if actor.settings.sets_targets])
        if tape.targets is None:
            tape.targets = share_targets(batch.mixer, self.evidence(batch))
        if tape.ran:  # area targets are available before the model runs
            tape.close()
        return tape.targets

    def loss(self, logits: Tensor, batch: MixedBatch) -> Tensor:
        """The total loss of the method."""
        return self.losses(logits, batch)["loss"]

    def losses(self, logits: Tensor, batch: MixedBatch) -> dict[str, Tensor]:
        """The total loss under "loss", and its weighted parts: "main", "region", "consistency", "score"..."""
        return self.finish(logits, batch)[1]

    def finish(self, logits: Tensor, batch: MixedBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The targets of a mixed batch and its `losses`, after the model ran on it."""
        logits = logits_of(logits)
        if not isinstance(logits, Tensor) or logits.shape != batch.rows.shape:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            several = not isinstance(logits, Tensor) or logits.ndim != 2
            hint = "if it has several outputs, pass the logits for this loss" if several else "check num_classes"
            raise ValueError(f"the model must return logits of shape {tuple(batch.rows.shape)}, got {got}; {hint}")
        targets = self.targets(batch)
        self._check_acted(batch.tape.actors)
        self._warn_of_evaluation([actor.settings.name for actor in batch.tape.actors if not actor.acted])
        parts = {"main": main_loss(batch.mixer.loss)(logits, targets)}
        for number, part in enumerate(batch.mixer.extra):
            value = part.value(logits, targets, self.evidence(batch, f"extra{number}", part))
            if value.ndim:
                raise ValueError(
                    f"the loss {part.name} must be a scalar, got shape {tuple(value.shape)}; take its mean"
                )
            parts[part.name] = part.weight * value
        for actor in batch.tape.actors:
            for name, value in actor.losses().items():
                parts[name] = parts.get(name, 0) + value
        total = sum(parts.values())
        assert isinstance(total, Tensor)
        # DDP fails on parameters without gradient, so idle ones enter with weight zero.
        idle = [parameter.sum() for parameter in self.modules.parameters()]
        if idle:
            total = total + 0.0 * torch.stack(idle).sum()
        return targets, {"loss": total, **parts}

    def _check_acted(self, actors: Sequence[Actor]) -> None:
        for actor in actors:
            if not actor.acted and actor.training:
                raise RuntimeError(
                    f"{actor.settings.name} mixed nothing; run the model on the mixed batch before asking for its "
                    f"targets or loss, and {COMPILED}"
                )

    def _warn_of_evaluation(self, idle: list[str]) -> None:
        # Without gradients, a model is in evaluation mode on purpose; blocks of a model in training mode are frozen so.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._plain_model.training:
            return
        if not idle or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"no mixing by {' and '.join(idle)}, because the model is in evaluation mode; call model.train()",
            stacklevel=4,
        )

    def counts(self, batch: MixedBatch) -> dict[str, Tensor]:
        """How much hidden mixing changed in a batch, see `HiddenMixing.count_names`."""
        found: dict[str, Tensor] = {}
        for actor in batch.tape.actors:
            found |= actor.counts()
        return found

    def evidence(self, batch: MixedBatch, place: str = "share", part: Part | None = None) -> Evidence:
        """What the share can use of a mixed batch, or another part, whose `place` is for example `extra0`."""
        return Evidence(
            mix=batch.mix,
            frame=batch.frame,
            tape=batch.tape,
            rows=batch.rows,
            smoothing=batch.mixer.smoothing,
            reader=self.reader,
            maps=batch.maps,
            guidance=batch.guidance,
            values=batch.draw.part(place),
            module=self._module(part or batch.mixer.share),
        )

    def _module(self, part: Part) -> nn.Module | None:
        return self.modules[part.module_name] if part.module_name in self.modules else None

    def _preview(self, images: Tensor) -> Tensor:
        """The final tokens of an unmixed pass."""
        assert self._recorder is not None and self.reader is not None
        self._recorder.tape = tape = Tape(Plan(final=True))
        with torch.no_grad(), Evaluating(self._plain_model):
            self.model(images)
        forget_casts()
        tape.close()
        assert tape.final is not None
        return tape.final


def per_process(modules: nn.Module) -> list[str]:
    """The tensors of added `modules` that belong to one process, such as RecursiveMix's last batch, by name."""
    named = modules.named_modules()
    return [f"{place}.{name}" for place, module in named for name in getattr(module, "per_process", ())]


def _normalization(model: nn.Module) -> Normalization:
    """The mean and standard deviation in a model's configuration, as timm's models have one, or ImageNet's."""
    config = getattr(model, "pretrained_cfg", None)
    mean, std = (config.get(name) if isinstance(config, dict) else None for name in ("mean", "std"))
    return Normalization(tuple(mean), tuple(std)) if mean and std else Normalization()


def _reader_for(model: nn.Module, *, needed: bool) -> Reader | None:
    """The model's reader, whose grid masks can use; None if there is no reader and `needed` is False."""
    try:
        return read_model(model if needed else unwrap(model), inside=needed)
    except ValueError:
        if needed:
            raise
        return None


def _plan(mixer: Mixer, reader: Reader | None) -> Plan:
    plan = Plan()
    if reader is None:
        return plan
    for part in mixer.parts:
        plan = plan | part.plan(reader)
    return plan | Plan(final=mixer.needs.preview)


def _reads_guide(mixer: Mixer) -> bool:
    """Whether the mixer needs the guide's tokens or attention, so that the guide needs a reader."""
    needs = mixer.needs
    return needs.guide_blocks is not None or needs.guide_features or needs.guide_observer


def _union(plans: tuple[Plan | None, ...]) -> Plan:
    union = Plan()
    for plan in plans:
        union = union | plan if plan is not None else union
    return union
