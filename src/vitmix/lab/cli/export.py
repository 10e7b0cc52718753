"""`vitmix export`."""

import argparse
from pathlib import Path

from vitmix.lab.cli._command import Command
from vitmix.lab.cli.train import key_and_value


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RUN|FILE", help="run folder, or file of weights")
    parser.add_argument("output", metavar="OUT", help="folder to write; must not exist, or be empty")
    parser.add_argument("--to", choices=("timm", "hf"), required=True, help="timm, or Hugging Face transformers")
    parser.add_argument("--weights", choices=("best", "last"), default="best", help="of a run (default: best)")
    parser.add_argument("--model", metavar="NAME", help="timm model that a file of weights belongs to")
    parser.add_argument("--model-args", nargs="+", metavar="KEY=VALUE", default=[], help="settings of that model")


def _run(namespace: argparse.Namespace) -> int:
    from vitmix.lab.evaluation.subject import open_subject
    from vitmix.lab.export import export

    if not Path(namespace.what).exists():
        raise ValueError(f"there is no run folder and no file {namespace.what}")
    subject = open_subject(
        namespace.what,
        model=namespace.model,
        model_args=dict(map(key_and_value, namespace.model_args)),
        weights=namespace.weights,
    )
    files = export(subject, Path(namespace.output), to=namespace.to)
    print(f"{namespace.output}: {', '.join(files)}")
    if namespace.to == "hf":
        print(f"Load  AutoModelForImageClassification.from_pretrained({str(Path(namespace.output).absolute())!r})")
    print(f"Load  timm.create_model('local-dir:{namespace.output}', pretrained=True)")
    return 0


COMMAND = Command("Write a model for timm or Hugging Face transformers.", _add_arguments, _run)
