"""Time and memory of a whole training step of each method beside the first one (CutMix) in the same run, on a GPU.

    python benchmarks/step_time.py [--model deit_small_patch16_224] [--batch 1024] [--repeats 5] [--no-compile]

bf16 autocast, fused AdamW, forward, backward and update; medians of interleaved repeats.
"""

import argparse
import json
import statistics

import timm
import torch

import vitmix

METHODS = [
    "cutmix",
    "none",
    "mixup",
    "tokenmix",
    "transmix",
    "tl_align",
    "smmix",
    "mixup | smmix",
    "cutmix + htm(tau=0.55)",
    "cutmix + vtm(block=3)",
]


class Step:
    """One method's model, optimizer and step."""

    def __init__(self, text: str, options: argparse.Namespace, images: torch.Tensor, labels: torch.Tensor) -> None:
        torch.manual_seed(0)
        classes = 1000
        model = timm.create_model(options.model, num_classes=classes).cuda()
        self.learner = vitmix.Learner(model, vitmix.create(text, classes))
        self.optimizer = torch.optim.AdamW(self.learner.parameters(), lr=1e-4, fused=True)
        self.images, self.labels = images, labels
        if options.compile:
            self.learner.compile(fullgraph=True)

    def __call__(self) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.learner(self.images, self.labels).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def timed(step: Step, count: int) -> float:
    """Milliseconds a step over `count` steps."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--json", help="also write the figures here")
    options = parser.parse_args()

    torch.set_float32_matmul_precision("high")
    images = torch.randn(options.batch, 3, options.size, options.size, device="cuda")
    labels = torch.arange(options.batch, device="cuda") % 1000
    times: dict[str, list[float]] = {text: [] for text in options.methods}
    memory: dict[str, float] = {}
    steps: dict[str, Step] = {}
    for text in options.methods:
        torch._dynamo.reset()
        steps[text] = Step(text, options, images, labels)
        timed(steps[text], 8)  # warm-up and compilation, both arms of a switch
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        timed(steps[text], 4)
        memory[text] = (torch.cuda.max_memory_allocated() - before) / 2**30
    for _ in range(options.repeats):
        for text, step in steps.items():
            times[text].append(timed(step, options.steps))
    base = statistics.median(times[options.methods[0]])
    mode = "compiled" if options.compile else "eager"
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.model}, batch {options.batch}, bf16, "
        f"{mode}, median of {options.repeats} x {options.steps} steps"
    )
    print(f"{'':28s}{'ms':>8s}{'img/s':>8s}{'x first':>10s}{'GiB':>7s}")
    for text, values in times.items():
        median = statistics.median(values)
        print(f"{text:28s}{median:8.1f}{options.batch / median * 1e3:8.0f}{median / base:10.3f}{memory[text]:7.1f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"mode": mode, "times": times, "memory": memory}, file)


if __name__ == "__main__":
    main()
