"""Results at the top of a page, and what a reader must know before comparing them."""

from collections import Counter
from collections.abc import Sequence

from vitmix.lab.runs import Run

from .groups import Group, every_run
from .html import Html, html
from .quantities import LOSS, Quantity, best, evaluated, informative_top5, last

COLUMNS: dict[str, Quantity] = {
    "top-1, best epoch": best("accuracy"),
    "top-1, last epoch": last("accuracy"),
    "top-5, best epoch": informative_top5(),
    "loss, best epoch": best("eval_loss", LOSS),
    "calibration error": evaluated("ece"),
}


def results(groups: Sequence[Group]) -> list[Html]:
    runs = every_run(groups)
    columns = {name: each for name, each in COLUMNS.items() if any(each.values(group) for group in groups)}
    notes: list[Html] = [html.note(each) for each in _reservations(groups)]
    if len(runs) == 1:
        cards = [(name, quantity.number(0, runs[0])) for name, quantity in columns.items()]
        return [*notes, html.cards(cards), html.paragraph(_best_epoch(runs))]
    rows = [[group.key, str(len(group.runs)), *(each.spread(group) for each in columns.values())] for group in groups]
    caption = f"Mean ± sample standard deviation over the runs. {_best_epoch(runs)}"
    return [*notes, html.table(["", "runs", *columns], rows, caption)]


def _best_epoch(runs: Sequence[Run]) -> str:
    scores = " or ".join(dict.fromkeys(run.config.best for run in runs))
    # The split that a configuration asks for does not always exist, so only an evaluation knows which one it was.
    data = {run.evaluation.data for run in runs if run.evaluation}
    where = data.pop() if len(data) == 1 else "the images of its evaluation"
    return f"The best epoch is that of the best {scores} on {where}."


def _reservations(groups: Sequence[Group]) -> list[str]:
    runs = every_run(groups)
    found = []
    early = [
        f"{run.path} ({run.epochs[-1].number} of {run.config.total_epochs} epochs)"
        for run in runs
        if run.summary is None
    ]
    if early:
        found.append(f"Not finished; results so far: {', '.join(early)}")
    described = all(run.evaluation for run in runs)
    sets: dict[str, list[str]] = {}
    for run in runs:
        asked = f"{run.config.data}, {run.config.eval_split}"  # all that is known without an evaluation
        sets.setdefault(run.evaluation.data if described and run.evaluation else asked, []).append(str(run.path))
    if len(sets) > 1:
        listed = "; ".join(f"{data}: {', '.join(folders)}" for data, folders in sets.items())
        found.append(f"Evaluated on different images, so these results do not compare. {listed}")
    for group in groups:
        seeds = Counter(run.config.seed for run in group.runs.values())
        twice = [f"seed {seed} {count} times" for seed, count in seeds.items() if count > 1]
        if twice:
            found.append(f"{group.name} has {', '.join(twice)}, so its standard deviation is too small")
    return found
