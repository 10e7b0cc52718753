"""One of two processes of the distributed tests. Run by test_ddp.py; what each part finds goes to a file of its own."""

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

from support import OWN_PARTS, tiny_batch, tiny_vit
from training import TINY, poison, tiny, train, train_until
from vitmix import Learner, create
from vitmix.lab.cli import main as cli
from vitmix.lab.training import prepare, processes
from vitmix.lab.training.config import TrainConfig
from vitmix.lab.training.engine import Trainer

# Methods, and those whose added parameters are idle in some batches.
METHODS = [
    "none",
    "mixup(alpha=0.8)",
    "cutmix(pairing=derangement)",
    "cutmix(per=sample)",
    "tokenmix",
    "transmix",
    "tl_align",
    "smmix",
    "smmix(destination=random)",
    "vtm(block=1, tokens=2)",
    "vtm(block=1, tokens=2, choose=random)",
    "htm(block=1, choose=random_tokens)",
    "mixup | tl_align",
    "cutmix + region(head=separate) | mixup",
]
# Here partners are assigned among all samples that a process sees at once.
ASSIGNING = ["htm(block=1)", "mixup | cutmix + htm(block=1)"]
OWN = ["stripes(width=1)", "cutmix + confidence + blend(block=1)"]  # of the example that registers parts
EVERY = METHODS + ASSIGNING + OWN
EXACT = {"drop": 0.0, "drop_path": 0.0, "optimizer": "momentum", "lr": 0.1}
WHOLE = {**EXACT, "method": "mixup | smmix", "ema": 0.9, "erasing": 0.5, "erase_after_mixing": True}


def gradient_settings(method: str) -> dict[str, Any]:
    return {**EXACT, "method": method, "seed": 3}


def first_gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The gradients of the first update, by the trainer's own step."""
    found: dict[str, torch.Tensor] = {}

    def note() -> None:
        for name, parameter in trainer.core.named_parameters():
            if parameter.grad is not None:
                found[name] = parameter.grad.clone()

    trainer.stepper.apply = note
    trainer.learner.train()
    trainer._learn(trainer.loader.epoch(0), epoch=0)
    return found


def gradients(folder: Path, rank: int) -> None:
    runpy.run_path(str(OWN_PARTS), run_name="own_parts")
    for number, method in enumerate(EVERY):
        trainer = Trainer(tiny(folder / f"gradient{number}", **gradient_settings(method)))
        assert trainer.world == 2
        save_file(first_gradients(trainer), folder / f"gradients{number}-{rank}.safetensors")


def accumulation(folder: Path, rank: int) -> list[bool]:
    """Whether gradients were exchanged after each part of the batch."""
    trainer = Trainer(tiny(folder / "accumulated", accumulate=2, **gradient_settings("none")))
    exchanged: list[bool] = []
    backward = trainer.accelerator.backward

    def noted(loss: torch.Tensor) -> None:
        exchanged.append(bool(trainer.learner.require_backward_grad_sync))
        backward(loss)

    trainer.accelerator.backward = noted
    save_file(first_gradients(trainer), folder / f"accumulated-{rank}.safetensors")
    return exchanged


def static_graph(folder: Path, rank: int) -> list[bool]:
    """Whether the gradients of several steps are alike everywhere when data parallelism expects the same graph."""
    alike: list[bool] = []
    for method in ("cutmix", "cutmix + htm(block=1)", "mixup | smmix"):
        torch.manual_seed(0)
        learner = Learner(tiny_vit(), create(method, num_classes=10))
        parallel = DistributedDataParallel(learner, static_graph=True)
        for step in range(3):
            torch.manual_seed(10 * step + rank)
            learner.zero_grad()
            parallel(*tiny_batch()).loss.backward()
            own = learner.model.get_parameter("head.weight").grad
            assert own is not None
            both = [torch.zeros_like(own) for _ in range(2)]
            torch.distributed.all_gather(both, own)
            alike.append(torch.equal(*both))
    return alike


def whole(folder: Path, rank: int) -> None:
    train(folder / "two", checkpoint_every="4 steps", **WHOLE)
    train(folder / "plain", ema=0.9, **gradient_settings("none"))


def resumed(folder: Path, rank: int) -> None:
    train_until(folder / "resumed", 9, checkpoint_every="4 steps", **WHOLE)
    train(folder / "resumed", **WHOLE)


def history(folder: Path, rank: int) -> None:
    """Each process resumes with its own last batch."""
    settings = {**EXACT, "method": "recursivemix", "checkpoint_every": "4 steps"}
    train(folder / "history", **settings)
    train_until(folder / "history_parts", 9, **settings)
    train(folder / "history_parts", **settings)


def stopped(folder: Path, rank: int) -> list[Any]:
    """One of the processes is told to stop, long before the next report."""
    trainer = Trainer(tiny(folder / "stopped", **WHOLE, log_every=100))
    learn = trainer._learn

    def learn_and_stop(*arguments: Any) -> None:
        learn(*arguments)
        if trainer.update == 3 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer._learn = learn_and_stop
    found = [trainer.run(), trainer.update]
    train(folder / "stopped", **WHOLE)
    return found


def lost_worker(folder: Path, rank: int) -> list[Any]:
    """The loader workers of one process are killed."""
    trainer = Trainer(tiny(folder / "lost", workers=2, **WHOLE))
    said: list[str] = []
    trainer.reporter.say = said.append
    learn = trainer._learn

    def learn_and_lose(*arguments: Any) -> None:
        learn(*arguments)
        if trainer.update == 2 and rank == 1:
            for worker in multiprocessing.active_children():
                worker.kill()
                worker.join()

    trainer._learn = learn_and_lose
    found = [trainer.run(), trainer.update, said[-1]]
    train(folder / "lost", **WHOLE)
    return found


def own_disks(folder: Path, rank: int) -> list[str]:
    """Each process has a run folder of its own, and the second one holds something old."""
    output = folder / f"disk{rank}" / "run"
    train_until(output, 5, checkpoint_every="4 steps", **WHOLE)
    if rank == 1:
        shutil.copytree(folder / "two" / "checkpoints", output / "checkpoints")
    train_until(output, 9, checkpoint_every="4 steps", **WHOLE)
    train(output, **WHOLE)
    assert Trainer(tiny(output, **WHOLE)).run() == 0  # finished, as the first process knows
    return sorted(path.name for path in output.iterdir())


def nonfinite(folder: Path, rank: int) -> list[Any]:
    """The loss of one process is lost."""
    trainer = Trainer(tiny(folder / "infinite", checkpoint_every="2 steps", **WHOLE))
    said: list[str] = []
    trainer.reporter.say = said.append
    if rank == 1:
        poison(trainer, 5)
    return [trainer.run(), said[-1]]


def skipped(folder: Path, rank: int) -> list[int]:
    trainer = Trainer(tiny(folder / "skipped", skip_nonfinite=True, **WHOLE))
    if rank == 1:
        poison(trainer, 5)
    return [trainer.run(), trainer.position.skipped]


def refusals(folder: Path, rank: int) -> dict[str, str]:
    """What is said where one process has other input than the other."""

    def refusal(action: Callable[[], object]) -> str:
        try:
            action()
        except processes.Refused as error:
            return str(error)
        return "nothing"

    here, place = Path.cwd(), folder / f"place{rank}"
    for split, count in (("train", 8 + rank), ("val", 4)):
        for name in ("cat", "dog"):
            (place / "other" / split / name).mkdir(parents=True)
            for index in range(count):
                Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(place / f"other/{split}/{name}/{index}.png")
    if rank == 0:
        shutil.copytree(place / "other", place / "mine")
    os.chdir(place)
    run = folder / "refused"
    said = {
        "settings": refusal(lambda: Trainer(tiny(run, lr=0.1 * (1 + rank), workers=rank))),
        "folder": refusal(lambda: Trainer(tiny(run, data="imagefolder:mine"))),
        "data": refusal(lambda: Trainer(tiny(run, data="imagefolder:other"))),
        "all": refusal(lambda: Trainer(tiny(run, data="imagefolder:nowhere"))),
        "late": refusal(lambda: Trainer(tiny(run, optimizer="adamm"))),
        "disk": refusal(lambda: Trainer(tiny(here / "ddp_worker.py" / "run"))),
    }
    os.chdir(here)
    assert not run.exists()
    return said


def turns(folder: Path, rank: int) -> list[bool]:
    """Whether data and weights were there already when this process asked for them."""
    found: list[bool] = []

    def downloading(action: Callable[..., Any], name: str, **changes: Any) -> Callable[..., Any]:
        def download(config: TrainConfig, *arguments: Any, **settings: Any) -> Any:
            found.append((folder / name).exists())
            time.sleep(0.3)
            (folder / name).touch()
            return action(dataclasses.replace(config, **changes), *arguments, **settings)

        return download

    prepare.open_data = downloading(prepare.open_data, "data.downloaded", data=TINY["data"])
    prepare.build_model = downloading(prepare.build_model, "weights.downloaded", pretrained=False)
    Trainer(tiny(folder / "turns", data="torchvision:CIFAR10:nowhere", pretrained=True))
    return found


def failing(folder: Path, rank: int) -> list[Any]:
    """The command where one process has an error of its own."""
    if rank == 1:
        learn = Trainer._learn

        def learn_and_fail(self: Trainer, *arguments: Any) -> None:
            learn(self, *arguments)
            if self.update == 2:
                raise OSError(5, "Input/output error", "image.png")

        Trainer._learn = learn_and_fail
    (folder / f"failing{rank}.yaml").write_text(yaml.safe_dump({**TINY, **WHOLE}))
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        arguments = ["--config", str(folder / f"failing{rank}.yaml"), "--output", str(folder / "failing")]
        code = cli.main(["train", *arguments])
    return [code, said.getvalue()]


PARTS = (
    gradients,
    accumulation,
    static_graph,
    whole,
    resumed,
    history,
    stopped,
    lost_worker,
    own_disks,
    nonfinite,
    skipped,
    refusals,
    turns,
    failing,  # the last one: the processes are not connected after it
)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    for part in PARTS:
        found = part(folder, rank)
        (folder / f"{part.__name__}-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
