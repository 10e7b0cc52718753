"""`vitmix show`: what methods do to two images."""

import argparse
from typing import TYPE_CHECKING

from vitmix._checks import check_output_file
from vitmix._registry import METHODS
from vitmix.lab.cli._command import Command

if TYPE_CHECKING:
    from torch import nn

MODEL = "vit_tiny_patch16_224"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Example: vitmix show cat.jpg dog.jpg --method cutmix 'tokenmix(share=0.3)' --run runs/NAME --output mix.png. "
        "Of a switch, such as 'mixup | cutmix', every choice is shown."
    )
    add = parser.add_argument
    add("images", nargs="*", metavar="IMAGE", help="two image files; shapes:N is built-in image N, also by default")
    add("--method", nargs="+", metavar="METHOD", help="methods side by side (default: all that the model allows)")
    add("--run", dest="run_folder", metavar="FOLDER", help="read the attention of the model of this run")
    add("--model", metavar="NAME", help=f"or of this timm model (default: {MODEL}, untrained)")
    add("--checkpoint", metavar="FILE", help="weights of the model, which files of vitmix train name")
    add("--pretrained", action="store_true", help="timm's published weights of the model")
    add("--num-classes", type=int, metavar="N", help="outputs of the model in that file, where not timm's own")
    add("--names", nargs=2, metavar="NAME", help="names of the images; a class of the run is its label")
    add(
        "--seed", type=int, default=0, metavar="N", help="of the random choices; the same for every method (default: 0)"
    )
    add("--output", metavar="FILE", default="show.png", help="figure as .png, .svg or .pdf (default: show.png)")


def _run(namespace: argparse.Namespace) -> int:
    from dataclasses import replace
    from pathlib import Path

    import torch

    from vitmix._text import create
    from vitmix.lab.evaluation.subject import open_subject
    from vitmix.lab.figures.images import BUILT_IN, check_image, read_image
    from vitmix.lab.figures.models import named_model
    from vitmix.lab.plotting.canvas import check_suffix
    from vitmix.lab.plotting.text import font_remarks
    from vitmix.lab.show import render_methods, run_methods
    from vitmix.lab.training.checkpoints import write_file

    output = check_suffix(namespace.output)
    check_output_file(output)
    for method in namespace.method or ():
        create(method, 2)  # a typo should show before a model is built
    images = namespace.images or list(BUILT_IN)
    if len(images) != 2:
        raise ValueError(f"methods mix two images, got {len(images)}; give two files")
    for each in images:
        check_image(each)
    if namespace.run_folder is not None:
        if namespace.model or namespace.checkpoint or namespace.pretrained:
            raise ValueError("--run names the model already; leave --model, --checkpoint and --pretrained out")
        if not Path(namespace.run_folder).is_dir():
            raise ValueError(f"{namespace.run_folder!r} is no run folder; give a folder of 'vitmix train'")
        loaded = open_subject(namespace.run_folder)
    else:
        torch.manual_seed(namespace.seed)  # of weights that are nobody's
        settings = {} if namespace.num_classes is None else {"num_classes": namespace.num_classes}
        named = (namespace.model or MODEL, None)
        what, model = named if namespace.checkpoint is None else (namespace.checkpoint, namespace.model)
        loaded = open_subject(what, model=model, model_args=settings, pretrained=namespace.pretrained)
    shown = [read_image(text, max(loaded.augmentation.sides)) for text in images]
    if namespace.names:
        shown = [replace(each, name=name) for each, name in zip(shown, namespace.names, strict=True)]
    methods, left_out = (namespace.method, []) if namespace.method else allowed_methods(loaded.model)
    pair = run_methods(named_model(loaded, loaded.config.model), shown, methods, seed=namespace.seed)
    said = "trained" if loaded.trained else "UNTRAINED, so its attention means nothing"
    # Of a model without attention there is nothing to say: masks and targets are the method's alone.
    footer = f"Attention: {loaded.config.model}, {said}." if any(result.statistics for result in pair.results) else ""
    write_file(output, render_methods(pair, footer=footer, suffix=output.suffix.lower()))
    print(f"{output}: {', '.join(result.title for result in pair.results)}")
    for reason in left_out:
        print(f"Left out: {reason}.")
    for remark in font_remarks([image.name for image in shown]):
        print(remark)
    if not loaded.trained and footer:
        print("The model is untrained, so its attention means nothing yet; --run FOLDER shows a trained one's.")
    return 0


def allowed_methods(model: "nn.Module") -> tuple[list[str], list[str]]:
    """The methods that work on a model, and for each of the others why not."""
    from vitmix._text import create

    allowed, left_out = [], []
    for method in METHODS:
        if method == "none":
            continue
        try:
            create(method, 2).attach(model).close()
            allowed.append(method)
        except ValueError as error:
            left_out.append(f"{method}, since {error}")
    return allowed, left_out


COMMAND = Command("Show what methods do to two images.", _add_arguments, _run)
