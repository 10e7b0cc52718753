"""A model that can be read inside a larger module, such as `nn.Sequential(backbone, head)` or your own classifier.

The blocks are those of the inner model, the *backbone*. What the larger module does with its output is found by running
it once on an empty image, with the backbone's output replaced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitmix.attention.readers.base import FrozenStatistics, Reader
from vitmix.attention.readers.wrappers import WholePass

__all__ = ["Head", "Replaced", "as_if_pooled", "backbones", "logits_of", "read_inside"]

CALLS = ("forward", "forward_features")  # the functions of a backbone that a larger module may call


def logits_of(output: Any) -> Any:
    """The logits of a model output: the output itself, or its `logits` (Hugging Face)."""
    if isinstance(output, Tensor):
        return output
    return output["logits"] if type(output) is dict and "logits" in output else getattr(output, "logits", output)


def backbones(model: nn.Module, known: Callable[[nn.Module], bool]) -> dict[str, nn.Module]:
    """The outermost submodules that are known, by name."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=True):
        if name and known(module) and not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = module
    return found


@contextmanager
def as_if_pooled(backbone: Any) -> Iterator[None]:
    """Inside this context, a timm backbone that returns its tokens (`global_pool=""`) has the usual pooling.

    A reader asks for it. What the larger module reads is found afterwards, by `read_inside`.
    """
    usual = "token" if getattr(backbone, "cls_token", None) is not None else "avg"
    layers = (getattr(each, "global_pool", None) for each in (backbone, getattr(backbone, "head", None)))
    places = [(backbone, "global_pool"), *((layer, "pool_type") for layer in layers)]
    unpooled = [(place, name) for place, name in places if getattr(place, name, None) == ""]
    for place, name in unpooled:
        setattr(place, name, usual)
    try:
        yield
    finally:
        for place, name in unpooled:
            setattr(place, name, "")


class Replaced:
    """Replaces a function of a module for the duration of a `with` block."""

    def __init__(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        self.module, self.name, self.function = module, name, function

    def __enter__(self) -> None:
        self.before = self.module.__dict__.get(self.name)
        self.module.__dict__[self.name] = self.function

    def __exit__(self, *error: object) -> None:
        if self.before is None:
            del self.module.__dict__[self.name]
        else:
            self.module.__dict__[self.name] = self.before


class Seen:
    """Records how a larger module calls its backbone: the function, its images and its output."""

    def __init__(self, backbone: Any) -> None:
        self.originals = {name: getattr(backbone, name) for name in CALLS if hasattr(backbone, name)}
        self.calls: list[tuple[str, Tensor, Any]] = []
        self.inner = 0

    def by(self, name: str) -> Callable[..., Any]:
        def call(images: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.inner += 1  # forward calls forward_features itself
            output = self.originals[name](images, *args, **kwargs)
            self.inner -= 1
            if not self.inner:
                self.calls.append((name, images, output))
            return output

        return call


class Head:
    """What a larger module computes from its backbone's output.

    Attributes:
        called: the backbone's function that it calls.
        shape: the shape of that function's output for one image.
    """

    def __init__(self, whole: nn.Module, reader: Reader) -> None:
        self.whole, self.reader = whole, reader
        self.inner_classify = reader.classify
        self.called, self.shape = "forward", torch.Size()

    def look(self) -> None:
        """Runs the larger module once and finds out how it calls the backbone."""
        backbone: Any = self.reader.model
        seen, images = Seen(backbone), self.image()
        replaced = [Replaced(backbone, name, seen.by(name)) for name in seen.originals]
        for each in replaced:
            each.__enter__()
        try:
            logits = logits_of(self.whole(images))
        except Exception as problem:
            raise self.refusal(f"it does not run on an image of {tuple(images.shape)}: {problem}") from None
        finally:
            for each in reversed(replaced):
                each.__exit__()
        if len(seen.calls) != 1:
            raise self.refusal(
                f"it calls {self.reader.name}'s forward or forward_features {len(seen.calls)} times, not once"
            )
        ((self.called, given, output),) = seen.calls
        if given.shape != images.shape or not isinstance(output, Tensor):
            raise self.refusal(f"its {self.reader.name} gets other images than the module, or returns no tensor")
        self.shape = output.shape[1:]
        if not isinstance(logits, Tensor):
            raise self.refusal(f"it returns a {type(logits).__name__} instead of logits", "return the logits alone")
        # NaN passes weights of zero, which a new layer may have; noise passes comparisons. Drawn on the host, whose
        # generator is restored.
        others = (torch.full_like(images, torch.nan), torch.randn(images.shape).to(images))
        if not all(torch.allclose(self.after(output, each), logits, equal_nan=True) for each in others):
            raise self.refusal(f"its logits depend on more of the images than what its {self.reader.name} returns")

    def image(self, batch: int = 1) -> Tensor:
        """Empty images of the size that the backbone was made for."""
        like = next(self.reader.model.parameters())
        shape = (batch, *_input_size(self.reader.model))
        return torch.zeros((), device=like.device, dtype=like.dtype).expand(shape)

    def after(self, output: Tensor, images: Tensor | None = None) -> Tensor:
        """The logits if the backbone returned this output. They do not depend on the images, as `look` checks."""
        images = self.image(len(output)) if images is None else images
        with FrozenStatistics(self.whole), Replaced(self.reader.model, self.called, lambda *args, **kwargs: output):
            return logits_of(self.whole(images))

    @property
    def gets_tokens(self) -> bool:
        """Whether the module pools the tokens itself."""
        return len(self.shape) > 1

    @property
    def positions(self) -> tuple[int, ...]:
        """The dimensions of the backbone's output that are positions in the image."""
        first = len(self.shape) == 3 and self.shape[0] == self.reader.width  # channels first
        return (2, 3) if first else tuple(range(1, len(self.shape)))

    def classify(self, pooled: Tensor) -> Tensor:
        """Logits of vectors `(B, C)`, as if every token of the backbone were this vector."""
        if not self.gets_tokens:
            return self.after(self.inner_classify(pooled))
        for dim in self.positions:
            pooled = pooled.unsqueeze(dim)
        return self.after(pooled.expand(-1, *self.shape))

    def reads(self) -> str:
        """Which tokens the module reads: "class" or "mean"."""
        like, prefix = self.image(), self.reader.prefix
        tokens = torch.randn(1, *self.shape, device=like.device, dtype=like.dtype)
        parts = (slice(prefix > 0), slice(1, prefix), slice(prefix, None))
        classes, others, patches = (self.spreads(tokens, part) for part in parts)
        if classes and not others and not patches:
            return "class"
        mean = tokens.clone()
        mean[:, prefix:] = tokens[:, prefix:].mean(self.positions, keepdim=True)
        if not classes and not others and torch.allclose(self.after(tokens), self.after(mean), atol=1e-4):
            return "mean"
        raise self.refusal("its head reads neither the class token alone nor the mean of the patches")

    def spreads(self, tokens: Tensor, part: slice) -> bool:
        """Whether NaN in some tokens reaches the logits, through weights of zero too."""
        if tokens[:, part].numel() == 0:
            return False
        changed = tokens.clone()
        changed[:, part] = torch.nan
        return bool(self.after(changed).isnan().any())

    def refusal(self, reason: str, instead: str = "call the backbone once on the whole images") -> ValueError:
        return ValueError(
            f"{type(self.whole).__name__} cannot be read: {reason}; {instead}, or register a reader for it "
            "(docs/adapters.md)"
        )


def read_inside(whole: nn.Module, reader: Reader) -> Reader:
    """Changes the reader of a backbone into that of the larger module around it."""
    head, modes = Head(whole, reader), [(module, module.training) for module in whole.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            head.look()
            if head.gets_tokens:
                _read_tokens(reader, head.reads())
    finally:
        for module, training in modes:
            module.training = training
    reader.classify, reader.whole = head.classify, whole
    reader.stop_after = WholePass(whole).stop_after
    return reader


def _read_tokens(reader: Reader, readout: Any) -> None:
    reader.readout, reader.read_tokens, reader.pooling = readout, 1, None
    for block in reader.blocks:
        block.class_token = readout == "class" and block.prefix > 0


def _input_size(model: Any) -> tuple[int, ...]:
    config = getattr(model, "pretrained_cfg", None) or {}
    channels, *sides = config.get("input_size", (3, 224, 224))
    embed = getattr(model, "patch_embed", None)
    size = getattr(embed, "img_size", None) or getattr(model, "image_size", None) or tuple(sides)
    embedded = next((each for each in model.modules() if isinstance(each, nn.Conv2d)), None)
    return (embedded.in_channels if embedded is not None else channels, *_pair(size))


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
