"""`vitmix show`: what methods do to two images."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from vitmix.lab.cli._common import UNTRAINED, EarlierChoice, Figure, Image, Method, in_new_words, open_model
from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import Folder, Name, option


@dataclass(frozen=True, kw_only=True)
class Show(EarlierChoice):
    """Show what methods do to two images."""

    epilog = (
        "Example: vitmix show cat.jpg dog.jpg --method cutmix 'tokenmix(share=0.3)' --model runs/NAME. "
        f"Without --model: {UNTRAINED}, untrained. For a choice such as 'mixup | cutmix', every method is shown."
    )

    images: tuple[Image, ...] = option(
        (), "two image files; shapes:N is built-in image N (default: two built-in images)", positional=True
    )
    method: tuple[Method, ...] = option((), "methods to show (default: all that the model supports)")
    names: tuple[Name, Name] | None = option(
        None, "names of the images; a class name of the model is used as the label"
    )
    seed: int = option(0, "random seed, the same for every method")
    output: Figure = option("show.png", "figure as .png, .svg or .pdf")
    run: Folder | None = option(None, "a run's model", now="--model")


def run(settings: Show) -> int:
    import torch

    from vitmix.lab.figures.images import BUILT_IN, check_image, read_image
    from vitmix.lab.figures.models import named_model
    from vitmix.lab.fitting import fitting_methods
    from vitmix.lab.plotting.text import font_remarks
    from vitmix.lab.show import render_methods, run_methods
    from vitmix.lab.writing import write_file

    images = settings.images or tuple(BUILT_IN)
    if methods := [each for each in images if _is_method(each)]:
        raise ValueError(f"{methods[0]!r} is a method, not an image; did you mean --method {shlex.join(methods)}?")
    if len(images) != 2:
        raise ValueError(f"methods mix two images, got {len(images)}; give two files")
    for each in images:
        check_image(each)
    torch.manual_seed(settings.seed)  # of random weights
    settings, output = in_new_words(settings, settings.run), Path(settings.output)
    loaded = open_model(settings, None if settings.model else UNTRAINED)
    shown = [read_image(text, max(loaded.augmentation.sides)) for text in images]
    if settings.names:
        shown = [replace(each, name=name) for each, name in zip(shown, settings.names, strict=True)]
    methods, left_out = [*settings.method], {}
    if not methods:
        methods, left_out = fitting_methods(loaded.model, loaded.augmentation.sides)
    pair = run_methods(named_model(loaded, loaded.config.model), shown, methods, seed=settings.seed)
    said = "trained" if loaded.trained else "UNTRAINED, so its attention means nothing"
    # Without attention, the figure shows nothing of the model: masks and targets depend on the method only.
    footer = f"Attention: {loaded.config.model}, {said}." if any(result.statistics for result in pair.results) else ""
    write_file(output, render_methods(pair, footer=footer, suffix=output.suffix.lower()))
    print(f"{output}: {', '.join(result.title for result in pair.results)}")
    for method, reason in left_out.items():
        print(f"Left out: {method}, because {reason}.")
    for remark in font_remarks([image.name for image in shown]):
        print(remark)
    if not loaded.trained and footer:
        print("The model is untrained, so its attention means nothing yet; --model RUN uses a trained model.")
    return 0


def _is_method(text: str) -> bool:
    from vitmix._text import create

    try:
        return not Path(text).exists() and create(text, 2) is not None
    except ValueError:
        return False


COMMAND = Command(Show, run)
