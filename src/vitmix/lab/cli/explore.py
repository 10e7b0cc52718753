"""`vitmix explore`."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from vitmix.lab.cli._common import Place
from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import Count, ModelArgs, Name, Settings, Whole, option


@dataclass(frozen=True, kw_only=True)
class Explore(Settings):
    """Open a local page to play with methods: two images, a model, every setting."""

    epilog = (
        "Example: vitmix explore runs --model deit_tiny_patch16_224 --pretrained. The page is served to this machine "
        "alone, loads nothing from outside, and opens only the folders and models named here. Needs vitmix[app]."
    )

    runs: tuple[Annotated[str, "RUN"], ...] = option(
        (), "run folders, or folders of them, to open as models and to compare", positional=True
    )
    model: tuple[Place, ...] = option((), "run folders, weights files, names of timm or Hugging Face models")
    arch: Name | None = option(None, "timm model of a weights file, if the file does not say")
    model_args: ModelArgs = option({}, "settings of the timm models; 'vitmix models NAME' lists them")
    size: Count | None = option(None, "image side in pixels (default: the model's)")
    weights: Literal["best", "last"] = option("best", "weights of a run")
    pretrained: bool = option(False, "allow downloads of published weights")
    port: Whole | None = option(None, "port of the page (default: the first free one from 7860)")
    open: bool = option(False, "open the page in a browser")
    share: bool = option(False, "ask Gradio for a public link, through its servers")


def run(settings: Explore) -> int:
    gradio = find_spec("gradio")  # not imported here, because the page sets what Gradio reads then
    if gradio is None or gradio.origin is None:  # pip uninstall leaves a folder
        raise ValueError("explore needs gradio: pip install 'vitmix[app]'")
    from vitmix.lab.explore.explorer import Explorer
    from vitmix.lab.explore.models import Models, places_of
    from vitmix.lab.explore.server import check_port, serve
    from vitmix.lab.explore.state import usual_state
    from vitmix.lab.figures.models import short_names
    from vitmix.lab.report.groups import find_runs

    if settings.port is not None:
        check_port(settings.port)
    for each in settings.runs:
        _check_runs(each)
    found, left_out = find_runs([Path(each).resolve() for each in settings.runs]) if settings.runs else ([], [])
    for message in left_out:
        print(message)
    places, names = places_of(settings.model, settings.arch, [each.path for each in found])
    models = Models(
        places,
        names,
        pretrained=settings.pretrained,
        model_args=settings.model_args,
        size=settings.size,
        weights=settings.weights,
    )
    runs = dict(zip(short_names([str(each.path) for each in found]), found, strict=True))
    first = models.first(print)
    explorer = Explorer(models, runs, state=usual_state(first))
    print(f"Model: {models[first].said}.", flush=True)
    serve(explorer, port=settings.port, share=settings.share, browser=settings.open)
    return 0


def _check_runs(place: str) -> None:
    """Refuses a model, which has its own flag."""
    from vitmix.lab.runs.published import FILE

    if not Path(place).is_dir() and not place.endswith(FILE):
        problem = f"{place} is a file, not a run folder" if Path(place).exists() else f"there is no run folder {place}"
        raise ValueError(f"{problem}; did you mean --model {place}?")


COMMAND = Command(Explore, run)
