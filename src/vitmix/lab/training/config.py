"""The configuration of a run: one typed value from defaults, a recipe, a YAML file and flags, in this order."""

# Help texts come from this module, so what imports torch is imported where it is used.
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import yaml

from vitmix._grammar import spelled
from vitmix.lab.reading import MOST_YAML, parse_yaml, read_bytes
from vitmix.lab.settings import ModelArgs, Settings, SettingValues, check_rate, fitted, kinds_of, section_of, unknown
from vitmix.lab.training.options import EvaluationOptions, Hardware, Preprocessing, Regularization, Schedule, What
from vitmix.lab.training.recipes import laid_over, recipe_for

if TYPE_CHECKING:
    from vitmix.lab.dense.config import TransferConfig

CONFIG = "config.yaml"  # of a run folder
MODEL = ("model", "model_args", "size")  # in the header of a weights file
DEFAULT_RECIPE = "shapes"  # the default run, if neither data nor model is named


# Fields come in the order of the bases, the last base first.
@dataclass(frozen=True, kw_only=True)
class TrainConfig(Hardware, EvaluationOptions, Preprocessing, Regularization, Schedule, What):
    """Everything that determines a training run. Field names are the flags' names and the keys of YAML files."""

    command: ClassVar[str] = "train"

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", spelled(self.method))  # so that equal texts name equal runs
        super().__post_init__()
        if self.best.startswith("ema_") and self.ema is None:
            raise ValueError(f"best is {self.best!r} but there is no EMA; set ema, for example to 0.9999")
        if self.pretrained and self.checkpoint is not None:
            raise ValueError("pretrained and checkpoint both name initial weights; give one of them")
        check_loop(self)

    @property
    def headline(self) -> str:
        """The score that every evaluated epoch has."""
        return "accuracy"

    @property
    def trains_part(self) -> bool:
        """Whether some of the weights stay as they are."""
        return self.freeze or self.lora is not None


FIELDS = {each.name: each for each in dataclasses.fields(TrainConfig)}
KINDS = kinds_of(TrainConfig)
AnyConfig: TypeAlias = "TrainConfig | TransferConfig"


def check_loop(config: AnyConfig) -> None:
    """Refuses settings of the loop that contradict each other, such as CUDA graphs that would give wrong gradients."""
    if config.compile and config.accumulate > 1 and config.compile_mode in ("reduce-overhead", "max-autotune"):
        raise ValueError(
            f"compile_mode {config.compile_mode!r} uses CUDA graphs, which overwrite the gradients that accumulate="
            f"{config.accumulate} adds up; use compile_mode 'default' or 'max-autotune-no-cudagraphs'"
        )
    checkpoint_interval(config.checkpoint_every)
    check_rate("the learning rate, lr * batch / lr_per,", config.peak_lr)


def checkpoint_interval(text: str) -> tuple[float, str]:
    """`"500 steps"` as `(500.0, "steps")`; units are epochs, steps and seconds."""
    count, _, unit = text.strip().partition(" ")
    unit = unit.strip().rstrip("s") + "s"
    try:
        number = float(count)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf") or unit not in ("epochs", "steps", "seconds"):
        raise ValueError(f"checkpoint_every must read like '1 epoch', '500 steps' or '600 seconds', got {text!r}")
    return number, unit


def resolve(flags: SettingValues | None = None, file: str | Path | None = None) -> TrainConfig:
    """The configuration from defaults, then a recipe, then a YAML file, then flags; later layers win.

    Without recipe, data and model, it is the built-in example. With initial weights and no model named, here or in the
    recipe, the model is the one in the header of the weights. Settings that a recipe fits to the data are fitted if the
    data is named, unless they are given.
    """
    given = dict(flags or {})
    stored = read_yaml(file) if file is not None else {}
    explicit = given.keys() | stored.keys()
    layers: list[tuple[str, SettingValues]] = [("the flags", given), (str(file), stored)]

    def named(name: str) -> Any:
        return next((checked_setting(name, layer[name], source) for source, layer in layers if name in layer), None)

    recipe, checkpoint = named("recipe"), named("checkpoint")
    own: SettingValues = {}
    names_model = recipe is not None and "model" in recipe_for("train", recipe).settings
    if not names_model and checkpoint is not None and named("model") is None:
        own = _model_of(checkpoint, named("output"), named("model_args") or {})
        layers.append((checkpoint, own))
    if recipe is None and not {"data", "model", "recipe"} & explicit:
        recipe = DEFAULT_RECIPE
    if recipe is not None:
        taken = MODEL if own else ()
        settings = {key: value for key, value in recipe_for("train", recipe).settings.items() if key not in taken}
        layers.append((f"recipe {recipe}", settings))
    values: SettingValues = {}
    for source, layer in reversed(layers):
        values = laid_over(values, {name: checked_setting(name, value, source) for name, value in layer.items()})
    # Otherwise the recipe's model_args would be merged with those of the weights when it is read again.
    values["recipe"] = None if own and recipe == DEFAULT_RECIPE else recipe
    if recipe is None or "data" not in explicit or not recipe_for("train", recipe).fitted:
        return TrainConfig(**values)
    _check_weights(values, recipe, names_model=bool(own) or "model" in explicit)
    from vitmix.lab.training.fitted import fit

    return fit(TrainConfig(**values), [name for name in recipe_for("train", recipe).fitted if name not in explicit])


def resolve_any(flags: SettingValues | None = None, file: str | Path | None = None) -> AnyConfig:
    """The configuration of a transfer if one of the layers names its task, otherwise of a training."""
    stored = read_yaml(file) if file is not None else {}
    if "task" not in {*(flags or {}), *stored}:
        return resolve(flags, file)
    from vitmix.lab.dense.config import resolve_transfer

    return resolve_transfer(flags, file)


def _check_weights(values: SettingValues, recipe: str, *, names_model: bool) -> None:
    """Refuses a recipe for fine-tuning without weights, or with weights of an unknown model."""
    checkpoint = values.get("checkpoint")
    if checkpoint is None and not values.get("pretrained"):
        raise ValueError(f"recipe {recipe} starts from trained weights; add --pretrained, or --checkpoint FILE")
    if checkpoint is not None and not names_model:
        raise ValueError(f"{checkpoint} does not name its model; give --model NAME, a timm model")


def _model_of(checkpoint: str, output: str | None, model_args: ModelArgs) -> SettingValues:
    """Model and image size of the initial weights; for an existing run, its own, because the weights may be gone."""
    begun = Path(output) / CONFIG if output is not None else None
    stored = read_yaml(begun) if begun is not None and begun.is_file() else {}
    if stored.get("checkpoint") == checkpoint:
        return {name: stored[name] for name in MODEL if name in stored}
    from vitmix.lab.training.header import read_header
    from vitmix.lab.training.weights import weights_file

    if not weights_file(checkpoint).is_file():
        raise ValueError(f"there is no weights file {weights_file(checkpoint)}")
    found = read_header(weights_file(checkpoint)).as_settings()
    return {name: value for name, value in found.items() if name != "size" or "img_size" not in model_args}


def read_yaml(path: str | Path) -> SettingValues:
    """The mapping in a YAML file."""
    try:
        content = parse_yaml(read_bytes(path, MOST_YAML).decode())
    except FileNotFoundError:
        raise ValueError(f"there is no configuration file {path}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; name the file in it, as {Path(path) / 'config.yaml'}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start})") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML{_yaml_problem(error)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read as settings: {reason}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold settings as 'name: value' lines, got {type(content).__name__}")
    return content


def _yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong and where, in one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ": " + " ".join(str(error).split())
    begun = error.context_mark.line + 1 if error.context_mark is not None else 0
    where = f" in line {error.problem_mark.line + 1}"
    if error.context is None:
        return f"{where}: {error.problem}"
    since = f" that begins in line {begun}" if begun and begun != error.problem_mark.line + 1 else ""
    return f"{where}: {error.problem} {error.context}{since}"


def to_yaml(config: AnyConfig) -> str:
    """Every setting, by section, so that this text alone can repeat the run."""
    repeat = f"vitmix {config.command} --config THIS_FILE --output OTHER"
    lines = [f"# The resolved configuration; `{repeat}` repeats the run."]
    section = None
    for name in kinds_of(type(config)):
        if section_of(type(config), name) != section:
            section = section_of(type(config), name)
            lines += ["", f"# {section}"]
        lines.append(setting_yaml(config, name))
    return "\n".join(lines) + "\n"


def setting_yaml(config: AnyConfig, name: str) -> str:
    """One setting as YAML."""
    value = getattr(config, name)
    return yaml.safe_dump({name: list(value) if isinstance(value, tuple) else value}, width=1000).rstrip()


def deciding(config: AnyConfig) -> list[str]:
    """The settings that decide the numbers of a run."""
    return [each.name for each in dataclasses.fields(config) if not each.metadata["may_change"]]


def differences(old: AnyConfig, new: AnyConfig) -> list[str]:
    """The differences that prevent a run of `old` from continuing as `new`, as `name: old -> new`."""
    from vitmix._text import same_method

    if old.command != new.command:
        return [f"command: {old.command!r} -> {new.command!r}"]
    smoothing = new.smoothing if isinstance(new, TrainConfig) else 0.0

    return [
        f"{name}: {getattr(old, name)!r} -> {getattr(new, name)!r}"
        for name in deciding(new)
        if getattr(old, name) != getattr(new, name)
        if name != "method" or not same_method(old.method, new.method, smoothing=smoothing)
    ]


def checked_setting(name: Any, value: Any, source: str, settings: type[Settings] = TrainConfig) -> Any:
    """The value of a setting, converted to its type; `source` is its origin, for error messages."""
    if name not in kinds_of(settings):
        like, command = str(name).replace("-", "_"), f"vitmix {getattr(settings, 'command', '')} --help"
        raise unknown(f"setting {str(name)!r} in {source}", like, kinds_of(settings), command)
    return fitted(settings, name, value, source)
