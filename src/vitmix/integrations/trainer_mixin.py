"""What turns a trainer derived from `transformers.Trainer` into one that mixes.

The method is attached to the trainer's model, which stays as it is: its class, its configuration, its state-dict keys
and its files. Parameters that a method adds, and the number of draws, are stored beside it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vitmix._learner import mixer_for
from vitmix._mixer import AnyMixer
from vitmix._mixing import Mixing
from vitmix.attention.readers import logits_of, unwrap
from vitmix.parts.base import Normalization

__all__ = ["FILE", "MixTrainerMixin"]

FILE = "vitmix.safetensors"  # beside the model: added parameters, seed and number of draws
DRAWS, ADDED = "draws", "added."


class MixTrainerMixin:
    """Mixes the training batches of a `transformers.Trainer`: `class MyTrainer(MixTrainerMixin, Trainer)`.

    Evaluation and prediction are those of the trainer, unmixed.

    Args:
        mixer: a method, as a mixer or as a text such as "mixup | smmix". A text takes the number of classes from the
            model's configuration.
        guide: another model for the guide pass, see `vitmix.Learner`.
        mix_seed: seed of the draws (default: drawn from torch's generator, which the trainer seeds with `args.seed`).
    """

    # A mean over the batch, which the trainer divides by the number of accumulated batches.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        *args: Any,
        mixer: AnyMixer | str,
        guide: nn.Module | None = None,
        mix_seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._mixer, self._guide, self._mix_seed = mixer, guide, mix_seed
        self._mixing: Mixing | None = None
        self._updated = True
        self.model_accepts_loss_kwargs = False  # the same for versions without `loss_is_scaled_for_ga`
        self._check_settings()
        _ = self.mixing

    def _check_settings(self) -> None:
        trainer: Any = self
        if trainer.args.label_smoothing_factor:
            raise ValueError("label_smoothing_factor has no effect on mixed labels; give the mixer smoothing= instead")
        if trainer.compute_loss_func is not None:
            raise ValueError("compute_loss_func does not know mixed labels; leave it out, the mixer has a loss")
        if trainer.args.n_gpu > 1:
            raise ValueError(
                "a method cannot be attached to nn.DataParallel, which splits mixed batches; start one process for "
                "each GPU with torchrun"
            )
        for name, enabled in (("DeepSpeed", trainer.is_deepspeed_enabled), ("FSDP", trainer.is_fsdp_enabled)):
            if enabled:
                raise ValueError(f"mixing in this trainer is tested with DDP, not with {name}; use torchrun without it")

    @property
    def mixing(self) -> Mixing:
        """The method attached to the trainer's model; again if the trainer made a new model."""
        model: nn.Module = self.model  # pyright: ignore[reportAttributeAccessIssue]
        if self._mixing is None or unwrap(self._mixing.model) is not unwrap(model):
            if self._mixing is not None:
                self._mixing.close()
            device: torch.device = self.args.device  # pyright: ignore[reportAttributeAccessIssue]
            if self._guide is not None:
                self._guide.to(device)
            # `step` is given, because a trainer that is made again on purpose repeats its seed.
            self._mixing = mixer_for(model, self._mixer).attach(model, guide=self._guide, seed=self._mix_seed, step=0)
            processor: Any = getattr(self, "processing_class", None)
            mean, std = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
            if mean and std:
                self._mixing.normalization = Normalization(tuple(mean), tuple(std))
            self._mixing.modules.to(device)  # the trainer may move its model later
            for parameter in self._mixing.parameters():
                _from_first_process(parameter)
        return self._mixing

    # The loss

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        trainer: Any = super()
        if not model.training:
            return trainer.compute_loss(model, _without(inputs, "maps"), return_outputs, *args, **kwargs)
        images, labels = _images(inputs), inputs.get("labels")
        if labels is None:
            raise ValueError("a training batch needs labels; name their column 'label' or 'labels'")
        with self.accelerator.autocast():  # pyright: ignore[reportAttributeAccessIssue]
            batch = self.mixing.mix(inputs[images], labels, maps=inputs.get("maps"))
            try:
                outputs = model(**_without(inputs, "maps", "labels") | {images: batch.images})
                loss = self.mixing.loss(logits_of(outputs), batch)
            except BaseException:
                self.mixing.forget()  # otherwise the hooks would record the next plain pass as this batch
                raise
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        trainer: Any = super()
        if self._updated:  # a trainer resets the gradients of its model only
            self.mixing.modules.zero_grad()
        loss = trainer.training_step(*args, **kwargs)
        self._updated = self.accelerator.sync_gradients  # pyright: ignore[reportAttributeAccessIssue]
        if self._updated:
            _average_gradients(self.mixing.parameters())
        return loss

    # Parameters that the method adds

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        trainer: Any = super()
        optimizer = trainer.create_optimizer(*args, **kwargs)
        known = {id(each) for group in optimizer.param_groups for each in group["params"]}
        added = [each for each in self.mixing.parameters() if id(each) not in known]
        if added and self.lr_scheduler is not None:  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.param_groups[0]["params"] += added  # a given scheduler knows the groups that there were
        elif added:
            optimizer.add_param_group({"params": added, "weight_decay": self.args.weight_decay})  # pyright: ignore
        return optimizer

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        trainer: Any = self
        if not (added := list(self.mixing.parameters())):
            return super()._clip_grad_norm(model)  # pyright: ignore[reportAttributeAccessIssue]
        return trainer.accelerator.clip_grad_norm_([*model.parameters(), *added], trainer.args.max_grad_norm)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        trainer: Any = self
        super()._save(output_dir, state_dict)  # pyright: ignore[reportAttributeAccessIssue]
        if trainer.args.should_save:
            save_mixing(self.mixing, Path(output_dir or trainer.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)  # pyright: ignore
        _load_by_new_names(self.model, Path(resume_from_checkpoint))  # pyright: ignore[reportAttributeAccessIssue]
        load_mixing(self.mixing, Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        trainer: Any = self
        super()._load_best_model()  # pyright: ignore[reportAttributeAccessIssue]
        _load_by_new_names(trainer.model, Path(trainer.state.best_model_checkpoint))
        load_mixing(self.mixing, Path(trainer.state.best_model_checkpoint), draws=False)


def save_mixing(mixing: Mixing, folder: Path) -> None:
    """Writes what a resumed training needs besides the model."""
    state = mixing.state_dict()
    added = {f"{ADDED}{name}": value.contiguous().cpu() for name, value in state["added"].items()}
    save_file({DRAWS: state["draws"], **added}, folder / FILE, metadata={"method": str(mixing.mixer)})


def load_mixing(mixing: Mixing, folder: Path, *, draws: bool = True) -> None:
    """Reads it again. A folder of a trainer without mixing has no such file."""
    if not (folder / FILE).is_file():
        return
    with safe_open(folder / FILE, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}
        method = (file.metadata() or {}).get("method")
    added = {name.removeprefix(ADDED): value for name, value in stored.items() if name.startswith(ADDED)}
    if added.keys() != mixing.modules.state_dict().keys():
        raise ValueError(f"{folder / FILE} belongs to the method {method!r}; resume with that method")
    here = mixing.stream.state()
    mixing.load_state_dict({"draws": stored[DRAWS] if draws else here, "added": added})


def _load_by_new_names(model: Any, folder: Path) -> None:
    """Loads a model whose file has other names than the model.

    transformers writes some models, such as ViT, under the names of earlier versions. Only `from_pretrained` translates
    them back; a trainer that resumes leaves those weights as they are.
    """
    path = folder / "model.safetensors"
    if not path.is_file() or not hasattr(model, "from_pretrained"):
        return
    with safe_open(path, framework="pt") as file:
        written = set(file.keys())
    if not written <= model.state_dict().keys():
        model.load_state_dict(type(model).from_pretrained(folder).state_dict())


def _images(inputs: dict[str, Any]) -> str:
    names = [name for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim == 4]
    if len(names) != 1:
        raise ValueError(f"a batch needs one tensor of images (B, C, H, W), got {len(names)} in {list(inputs)}")
    return names[0]


def _without(inputs: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in names}


def _processes() -> int:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if ready else 1


def _from_first_process(parameter: nn.Parameter) -> None:
    if _processes() > 1:
        torch.distributed.broadcast(parameter.data, src=0)


def _average_gradients(parameters: Iterator[nn.Parameter]) -> None:
    """As data parallelism does for the model; the added parameters are outside of it."""
    if _processes() == 1:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= _processes()
