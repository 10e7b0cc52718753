"""`vitmix train`: its flags are the fields of `TrainConfig`."""

import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vitmix.lab.cli._parser import Command
from vitmix.lab.cli.recipes import list_all
from vitmix.lab.settings import File, Settings, SettingValues, option
from vitmix.lab.training import config
from vitmix.lab.training.output import unfailing_output


@dataclass(frozen=True, kw_only=True)
class Train(config.TrainConfig):
    """Train a model, or resume a run."""

    epilog = (
        "Later sources override earlier ones: defaults, --recipe, --config, flags. Without arguments, the example is "
        "trained."
    )

    config: File | None = option(None, "YAML file of settings, such as a run's config.yaml")


def make_command(
    settings: type[Settings],
    resolve: Callable[[SettingValues, str | None], Any],
    make: Callable[[Any], Any],
    without: Sequence[str] = (),
) -> Command:
    """A command that trains: `resolve` gives the configuration from flags and a file, `make` the trainer for it."""

    def read(given: SettingValues) -> Any:
        """The configuration; None asks for the list of recipes."""
        flags = {name: value for name, value in given.items() if name != "config"}
        return None if flags.get("recipe") == "help" else resolve(flags, given.get("config"))

    def run(config: Any) -> int:
        if config is None:
            return list_all()
        with unfailing_output():
            return _train_in_processes(lambda: make(config))

    return Command(settings, run, read=read, layered=True, without=without)


def _train_in_processes(make: Callable[[], Any]) -> int:
    """Runs the trainer that `make` returns; errors are printed once, by one of the processes."""
    import torch

    from vitmix.lab.data.images import DataLost, NothingReadable
    from vitmix.lab.training import processes
    from vitmix.lab.training.checkpoints import Foreign

    checked = False
    try:
        trainer = make()
        checked = True
        code = trainer.run()
        if code == 0:
            trainer.evaluate_best()
        if torch.distributed.is_initialized():
            # Threads of Gloo end with the group, once no model refers to it. One that frees a tensor while the
            # interpreter ends would abort the process. After a failure they may wait for a process that is gone.
            del trainer
            gc.collect()
        return code
    except processes.Refused:
        if torch.distributed.get_rank() == 0:  # one process prints for all
            raise
        return 2
    except Exception as error:
        # Input was checked before; what comes later needs its whole traceback.
        expected = isinstance(error, (NothingReadable, DataLost, Foreign))
        wrong_input = isinstance(error, (ValueError, OSError)) and (not checked or expected)
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            _tell_failure(error, with_traceback=not wrong_input)
            return 2 if wrong_input else 1
        if wrong_input or not isinstance(error, (ValueError, OSError)):
            raise
        if isinstance(error, OSError) and error.filename:  # the file that cannot be read is the whole story
            then = "rerun the command to resume from the newest complete checkpoint, if there is one"
            print(f"vitmix: error: {error.strerror}: {error.filename}; {then}", file=sys.stderr)
        else:
            traceback.print_exc()
        return 1
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _tell_failure(error: Exception, *, with_traceback: bool) -> None:
    """Says in one of several processes why the run failed, and where."""
    import torch

    from vitmix.lab.training import processes

    if not processes.fails_first():
        return
    said = " ".join(str(error).split()) or type(error).__name__
    if processes.is_lost_connection(error):
        said = f"another process ended without an error message, for example because memory ran out ({said})"
    elif with_traceback:
        traceback.print_exception(error)
        said = f"{type(error).__name__}: {said}"
    print(f"vitmix: error: process {torch.distributed.get_rank()}: {said}", file=sys.stderr)


def _trainer(settings: config.TrainConfig) -> Any:
    from vitmix.lab.training.engine import Trainer

    return Trainer(settings)


COMMAND = make_command(Train, config.resolve, _trainer)
