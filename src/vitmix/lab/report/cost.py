"""What the runs cost, a line for each of them, and their settings."""

from collections.abc import Sequence

from .groups import Group, deciding, defaults, differing, every_run, numbered, plain
from .html import Html, html
from .quantities import BEST_EPOCH, COUNT, EPOCHS, GIGA, best, evaluated, last, median, summarized

FIXED = {"parameters": evaluated("parameters", COUNT), "FLOPs an image": evaluated("flops", GIGA)}
MEASURED = {
    "training, images/s": median("images/s", COUNT),
    "inference, images/s": evaluated("images_per_second", COUNT),
    "time of an epoch, s": median("seconds", lambda value: f"{value:.1f}"),
    "whole training": summarized("seconds"),
    "memory, GiB": summarized("peak_memory", lambda value: f"{value / 2**30:.2f}"),
}
PER_RUN = {"best epoch": BEST_EPOCH, "top-1, best": best("accuracy"), "top-1, last": last("accuracy")}


def cost(groups: Sequence[Group]) -> list[Html]:
    rows = []
    for group in groups:
        # One model, whatever the seed.
        one = next((number for number, run in group.runs.items() if run.evaluation), next(iter(group.runs)))
        fixed = [quantity.number(one, group.runs[one]) for quantity in FIXED.values()]
        rows.append([group.key, *fixed, *(quantity.spread(group) for quantity in MEASURED.values())])
    places = {
        f"{found.device}, {found.precision}, batch {found.batch}"
        for run in every_run(groups)
        if (found := run.evaluation) is not None
    }
    said = "Training speed and epoch time: median over the epochs. FLOPs: two for each multiply-add. "
    said += "Memory: the peak of tensors on the GPU."
    said += f" Inference: model alone on {'; '.join(sorted(places))}." if places else ""
    return [html.table(["", *FIXED, *MEASURED], rows, said)]


def runs(groups: Sequence[Group]) -> list[Html]:
    rows = []
    for number, (_, run) in numbered(groups).items():
        finished = run.summary is not None
        left = "" if finished else html.span("soft", f" of {run.config.total_epochs}, not finished")
        rows.append(
            [
                html.code(str(run.path)),
                str(run.config.seed),
                html.text(EPOCHS.number(number, run), left),
                *(quantity.number(number, run) for quantity in PER_RUN.values()),
                summarized("seconds").number(number, run),
                str(len(run.summary.broken_images)) if run.summary is not None else "",
            ]
        )
    return [html.table(["folder", "seed", "epochs", *PER_RUN, "time", "unread images"], rows)]


def settings(groups: Sequence[Group]) -> list[Html]:
    usual = defaults()
    every = [deciding(group.first.config) for group in groups]
    different = differing(every)
    changed = [name for name in every[0] if name not in different and every[0][name] != usual[name]]
    rest = [name for name in every[0] if name not in different and name not in changed]
    head = ["setting", *(group.key for group in groups)]

    def table(names: Sequence[str]) -> Html:
        values = [[each[name] for each in every] if name in different else [every[0][name]] for name in names]
        rows = [[name, *(html.code(plain(value)) for value in row)] for name, row in zip(names, values, strict=True)]
        return html.table(head, rows, kind="words", marked=[name in different for name in names])

    said = "Marked rows distinguish the configurations. " if different else ""
    said += "Shown are the settings that differ from the defaults; the seeds are listed above."
    folded = html.details("Settings left at their defaults", table(rest))
    return [html.paragraph(said), table([*different, *changed]), folded]
