"""Trained models as folders that timm, transformers and onnxruntime load: weights, configuration, model card.

timm and transformers use the same files: timm's configuration names the architecture and its preprocessing, and
transformers wraps the timm model (`TimmWrapperForImageClassification`), so every architecture can be exported, with the
same arithmetic.
"""

import dataclasses
import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from vitmix import __version__
from vitmix._checks import check_choice, check_output_name
from vitmix.lab import onnx_files
from vitmix.lab.data.sources import without_folders
from vitmix.lab.evaluation.describe import scores
from vitmix.lab.evaluation.subject import Subject
from vitmix.lab.reading import JsonObject
from vitmix.lab.runs import Run
from vitmix.lab.training.config import TrainConfig, deciding, setting_yaml
from vitmix.lab.training.weights import host_copies
from vitmix.lab.writing import write_file

TARGETS = ("timm", "hf", "onnx")
ALIGNMENT = 64  # bytes
WEIGHTS, CONFIG, PROCESSOR, CARD = "model.safetensors", "config.json", "preprocessor_config.json", "README.md"


def export(subject: Subject, folder: Path, *, to: str) -> list[str]:
    """Writes the folder once it loads with the same logits, complete or not at all; returns the file names."""
    check_choice("to", to, TARGETS)
    check_output_name(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists already; give a new or an empty folder")
    folder = folder.resolve()
    if folder in (Path.cwd(), Path(folder.anchor)):  # the folder is replaced, which would break programs that run in it
        raise ValueError(f"the output {folder} is the current folder; give a folder inside it")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        try:
            partial.mkdir(parents=True)
        except OSError as problem:
            raise ValueError(f"cannot make the folder {folder}: {problem.strerror}; give another") from None
        _write(subject, partial, folder, to)
        if to == "onnx":
            onnx_files.check_onnx(subject.model, partial / onnx_files.FILE, subject.augmentation.sides)
        else:
            _check_reload(subject.model, partial)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sorted(path.name for path in folder.iterdir())


def _write(subject: Subject, place: Path, folder: Path, to: str) -> None:
    config = timm_config(subject)
    if to == "hf":
        config |= {"model_type": "timm_wrapper", "architectures": ["TimmWrapperForImageClassification"]}
        processor = {
            "image_processor_type": "TimmWrapperImageProcessor",
            "architecture": config["architecture"],
            "pretrained_cfg": config["pretrained_cfg"],
        }
        (place / PROCESSOR).write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")
    (place / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if to == "onnx":
        onnx_files.write_onnx(subject.model, place / onnx_files.FILE, subject.augmentation.sides)
    else:
        write_file(place / WEIGHTS, aligned_safetensors(subject.model.state_dict()))
    (place / CARD).write_text(model_card(subject, folder, to), encoding="utf-8")


def aligned_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Safetensors whose data starts at multiples of 64 bytes, as far as the tensors' sizes allow.

    transformers computes on the memory-mapped file. At unaligned addresses, CPU matrix products take other paths, and
    the logits differ in the last bits.
    """
    whole = safetensors.torch.save(host_copies(tensors))
    (length,) = struct.unpack("<Q", whole[:8])
    entries, data = json.loads(whole[8 : 8 + length]), memoryview(whole)[8 + length :]
    spans = {name: slice(*entry["data_offsets"]) for name, entry in entries.items()}
    order = sorted(spans, key=lambda name: ((spans[name].stop - spans[name].start) % ALIGNMENT != 0, name))
    header: JsonObject = {"__metadata__": {"format": "pt"}}
    start = 0
    for name in order:
        size = spans[name].stop - spans[name].start
        header[name] = entries[name] | {"data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return b"".join([struct.pack("<Q", len(text)), text, *(data[spans[name]] for name in order)])


def timm_config(subject: Subject) -> JsonObject:
    """The model's configuration in the form that timm writes for the Hugging Face hub."""
    own: JsonObject = getattr(subject.model, "pretrained_cfg", {})
    augmentation = subject.augmentation
    cfg = {
        "architecture": own.get("architecture", subject.config.model.split(".")[0]),
        "num_classes": subject.outputs,
        "input_size": [3, *augmentation.sides],
        "fixed_input_size": own.get("fixed_input_size", False),
        "interpolation": "bicubic" if augmentation.interpolation == "random" else augmentation.interpolation,
        "crop_pct": augmentation.crop_pct,
        "crop_mode": "center",
        "mean": list(augmentation.mean),
        "std": list(augmentation.std),
        "first_conv": own.get("first_conv"),
        "classifier": own.get("classifier"),
    }
    names = {} if subject.classes is None else {"label_names": _label_names(subject)}
    return {
        "architecture": cfg["architecture"],
        "num_classes": cfg["num_classes"],
        **({} if not hasattr(subject.model, "num_features") else {"num_features": subject.model.num_features}),
        **names,
        "model_args": subject.arguments,
        "pretrained_cfg": cfg,
    }


def _label_names(subject: Subject) -> list[str]:
    """A name for every output; a run may have more outputs than its data has classes."""
    assert subject.classes is not None
    unnamed = range(len(subject.classes), subject.outputs)
    return [*subject.classes, *(f"unused {number}" for number in unnamed)]


@torch.no_grad()
def _check_reload(model: nn.Module, folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    size = config["pretrained_cfg"]["input_size"]
    images = torch.randn(2, *size, generator=torch.Generator().manual_seed(0))
    # By name and file, as timm loads the folder, but without its messages.
    again = timm.create_model(config["architecture"], num_classes=config["num_classes"], **config["model_args"])
    again.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
    if not torch.equal(again.eval()(images), model.eval().cpu()(images)):
        raise ValueError("reloading the exported weights changes the logits: the model has state outside its weights")


def model_card(subject: Subject, folder: Path, to: str) -> str:
    """README.md: the model, how to load it, results and recipe."""
    config, run = subject.config, None if subject.run is None else Run(subject.run)
    library = {"timm": "timm", "hf": "transformers", "onnx": "onnx"}[to]
    lines = ["---", "tags:", "- image-classification", "- timm", "- vitmix", f"library_name: {library}"]
    lines += ["pipeline_tag: image-classification", "---", f"# {folder.name}", ""]
    if run is None:
        lines += [f"`{config.model}`, from `{Path(subject.weights).name}`.", ""]
    else:
        data = without_folders(config.data, config.data)
        lines += [f"`{config.model}`, trained on `{data}` with the mixing method `{config.method}`.", ""]
        lines += [] if run.summary is not None else _unfinished(len(run.epochs), config.total_epochs)
    lines += ["## Use", "", *_use(subject, folder.name, to)]
    lines += ["", "## Results", "", *_results(subject, run)]
    if run is not None:
        lines += ["", "## Training", "", f"Made with vitmix {__version__}; what differs from its defaults:", ""]
        lines += ["```yaml", *_recipe(config), "```"]
    return "\n".join(lines) + "\n"


def _unfinished(done: int, total: int) -> list[str]:
    """A warning if the run is not finished, because its weights are from an early epoch."""
    count = f"{done} of {total} epoch{'s' * (total != 1)} {'was' if done == 1 else 'were'}"
    return [f"**The run was not finished:** {count} done at the export.", ""]


def _use(subject: Subject, name: str, to: str) -> list[str]:
    """Code that loads the folder."""
    if to == "onnx":
        return _use_onnx(subject, name)
    own = type(subject.model).__module__.startswith("vitmix")
    begin = ["```python", *(["import vitmix.models  # registers it", ""] if own else [])]
    arguments = "".join(f", {key}={value!r}" for key, value in subject.settings.items())
    loaded = f'model = timm.create_model("local-dir:{name}", pretrained=True).eval()'
    by_file = f"timm.create_model({subject.config.model!r}, checkpoint_path='{name}/{WEIGHTS}'{arguments})"
    lines = [*begin, "import timm", "", loaded, "# or", by_file, "```"]
    if to == "hf":
        lines += ["", *begin, "from transformers import AutoImageProcessor, AutoModelForImageClassification", ""]
        lines += [f'processor = AutoImageProcessor.from_pretrained("./{name}")']
        lines += [f'model = AutoModelForImageClassification.from_pretrained("./{name}")', "```"]
    return lines


def _use_onnx(subject: Subject, name: str) -> list[str]:
    height, width = subject.augmentation.sides
    session = f'session = onnxruntime.InferenceSession("{name}/{onnx_files.FILE}")'
    shape = f"# images: float32 (any number, 3, {height}, {width}), normalized as {CONFIG} says"
    call = '(logits,) = session.run(["logits"], {"images": images})'
    return ["```python", "import onnxruntime", "", session, shape, call, "```"]


def _results(subject: Subject, run: Run | None) -> list[str]:
    found = None if run is None else run.evaluation
    if found is None or found.weights_sha256 != subject.sha256:
        return ["Not evaluated; `vitmix eval` measures it."]
    rows = ["| measure | value |", "|---|---|"]
    rows += [f"| {name} | {value} |" for name, value in scores(found).items()]
    rows += [f"| parameters | {found.parameters:,} |", f"| FLOPs an image | {found.flops:,} |"]
    data = without_folders(found.data, subject.config.data)
    return [f"On {data}, n = {found.n:,}; brackets are 95 % intervals over the images:", "", *rows]


def _recipe(config: TrainConfig) -> list[str]:
    """The settings that differ from the defaults; paths are reduced to their last part."""
    usual = TrainConfig()
    paths = {name: Path(value).name for name in ("maps", "guide", "checkpoint") if (value := getattr(config, name))}
    config = dataclasses.replace(config, data=without_folders(config.data, config.data), **paths)
    chosen = [name for name in deciding(config) if getattr(config, name) != getattr(usual, name)]
    return "\n".join(setting_yaml(config, name) for name in chosen).splitlines()
