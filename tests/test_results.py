"""The stored results are what their runs say: publishing them again changes nothing. Pages say what is stored."""

import gzip
import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from vitmix.lab.cli import main as cli
from vitmix.lab.comparison import compare, read_matrix
from vitmix.lab.comparison.rows import verdict
from vitmix.lab.runs.published import FILE, read_published
from vitmix.lab.training.recipes import read_recipe
from vitmix.methods import METHODS

RESULTS = Path(__file__).parents[1] / "results"
DOCS = Path(__file__).parents[1] / "docs"
COMPARISONS = sorted(path.parent.name for path in RESULTS.glob(f"*/{FILE}"))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_table_comes_from_the_runs_beside_it(name: str, tmp_path: Path) -> None:
    stored, again = RESULTS / name, tmp_path / "again"
    (tmp_path / "out").mkdir()
    shutil.copy(stored / FILE, tmp_path / "out")
    assert cli.main(["compare", str(tmp_path / "out"), "--no-train", "--publish", str(again)]) == 0
    assert {path.name for path in stored.iterdir()} == {path.name for path in again.iterdir()} == {"README.md", FILE}
    assert (stored / "README.md").read_text() == (again / "README.md").read_text()
    assert lines(stored / FILE) == lines(again / FILE)


def test_results_are_small() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(files) <= 40 and sum(path.stat().st_size for path in files) <= 2_000_000


def step_ratios(name: str) -> dict[str, tuple[float, float]]:
    """Images per second and time relative to the first method, of a stored bench."""
    stored = json.loads((RESULTS / "speed" / f"{name}.json").read_text())
    rows, batch = stored["steps"], stored["settings"]["batch"]
    return {row["method"]: (1000 * batch / row["median"], row["median"] / rows[0]["median"]) for row in rows}


@pytest.mark.parametrize(
    ("card", "name", "method"),
    [
        ("tl_align", "deit_small", "tl_align"),
        ("transmix", "deit_small", "transmix"),
        ("tokenmix", "deit_small", "tokenmix(loss=ce)"),
        ("smmix", "deit_small", "smmix"),
        ("smmix", "deit_small_rounds", "mixup(alpha=0.8) | smmix"),
        ("htm", "deit_small", "cutmix + htm"),
        ("htm", "cct", "cutmix + htm"),
        ("vtm", "deit_small", "cutmix + vtm(block=3)"),
    ],
)
def test_cards_say_what_was_measured(card: str, name: str, method: str) -> None:
    text = " ".join((DOCS / "methods" / f"{card}.md").read_text().split())
    assert re.search(rf"\b{step_ratios(name)[method][1]:.3f} (times|when)", text)


@pytest.mark.parametrize(("name", "digits"), [("deit_small", 3), ("cct", 3), ("vit_lite", 2)])
def test_speeds_are_what_was_measured(name: str, digits: int) -> None:
    text = (DOCS / "speed.md").read_text()
    for method, (speed, ratio) in step_ratios(name).items():
        if (name, method) == ("deit_small", "mixup(alpha=0.8) | smmix"):  # which is taken from the other run
            speed, ratio = step_ratios("deit_small_rounds")[method]
        shown = "1" if ratio == 1 else f"{ratio:.{digits}f}"
        assert re.search(rf"\| {speed:,.0f} \| {shown} \|", text), method


def test_answers_of_explore_are_what_was_measured() -> None:
    stored = (RESULTS / "speed" / "explore_latency.txt").read_text()
    page = " ".join((DOCS / "explore.md").read_text().split())
    rows = re.findall(r"gradients: n = (\d+), median (\d+) ms, 95th percentile (\d+) ms", stored)
    for (count, median, late), said in zip(rows, ("25 methods and compositions", "need a gradient"), strict=True):
        assert re.search(rf"{median} ms[^.]*{said}[^.]*\(?n = {count}; 95th percentile {late} ms", page), said


def test_loops_are_what_was_measured() -> None:
    stored = (RESULTS / "speed" / "loop_rows.txt").read_text()
    tables = [table.split("\n\n")[0] for table in stored.split("\nrow | images/s | time | middle half | GiB\n")[1:]]
    graphs, plain = ([line.split(" | ") for line in table.splitlines()] for table in tables)
    page = (DOCS / "speed.md").read_text()
    shown = page.split("\n| | with graphs, images/s |")[1].split("\n\n")[0].splitlines()[2:]
    shown[-1] = shown[-1].replace("CutMix again", "CutMix")
    assert shown == [
        f"| {' | '.join([*first[:-1], *second[1:-1]])} | {first[-1]}, {second[-1]} |"
        for first, second in zip(graphs, plain, strict=True)
    ]
    times = {row: time for row, _, time, *_ in graphs[:-1]}
    results = " ".join((RESULTS / "README.md").read_text().split())
    for said in ("SMMix takes", "*MixUp or SMMix*", "VTM", "HTM"):
        assert f"{said} {times[said.removesuffix(' takes').strip('*')]}" in results


@pytest.mark.parametrize(
    ("name", "page"), [("tinyimagenet100", "README.md"), ("built_in", "built_in.md"), ("cifar10_short", "README.md")]
)
def test_claims_are_judged_by_what_was_measured(name: str, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(RESULTS / "claims.py"))["main"](name)
    shown = (RESULTS / page).read_text()
    *tables, count = capsys.readouterr().out.strip().split("\n\n")
    for table in tables:
        assert f"\n\n{table}\n\n" in shown, table
    assert re.search(rf"\b{count}", shown)


def top1(row: str, epoch: int, name: str = "tinyimagenet200") -> float:
    """Top-1 in % of a row, mean over the seeds."""
    runs = read_published(RESULTS / name / FILE).runs
    epochs = [each for name, run in runs.items() if name.startswith(f"{row}-") for each in run.epochs]
    values = [100 * each.values["accuracy"] for each in epochs if each.number == epoch]
    return sum(values) / len(values)


ROWS = {"none": "no_mixing", "cutmix": "CutMix", "transmix": "TransMix", "tl_align": "TL_Align", "smmix": "SMMix"}


def test_readme_says_what_was_measured() -> None:
    text = (RESULTS.parent / "README.md").read_text()
    shown = text.split("\n| no mixing | cutmix | transmix | tl_align | smmix |\n|---|---|---|---|---|\n")[1].split(
        "\n"
    )[0]
    assert shown == "| " + " | ".join(f"{top1(row, 125):.2f}" for row in ROWS.values()) + " |"
    words = " ".join(text.split())
    assert f"the baseline without mixing is still ahead ({top1('no_mixing', 25):.1f} %," in words
    assert f"against {top1('CutMix', 25):.1f} % for cutmix and {top1('SMMix', 25):.1f} % for smmix" in words


def test_readme_has_the_measured_step_times() -> None:
    text = (RESULTS.parent / "README.md").read_text()
    ratios = {method: ratio for method, (_, ratio) in step_ratios("deit_small").items()}
    names = {"tokenmix": "tokenmix(loss=ce)", "htm": "cutmix + htm", "vtm": "cutmix + vtm(block=3)"}
    assert '"-" has not been measured on a GPU yet' in text
    for method in sorted(set(METHODS) - {"none"}):
        ratio = ratios.get(names.get(method, method))
        row = re.search(rf"^\| \[`{method}`\]\(docs/methods/{method}.md\) .* \| (.*) \|$", text, flags=re.MULTILINE)
        assert row and row[1] == ("-" if ratio is None else f"{ratio:.2f}"), method
    longer = 100 * (ratios["tl_align"] - 1)
    assert f"a DeiT-S step takes only {longer:.1f} % longer than with CutMix" in " ".join(text.split())


def test_results_page_says_what_was_measured() -> None:
    page = (RESULTS / "README.md").read_text()
    for epoch, words in ((25, "top-1 after epoch 25, %"), (75, "after epoch 75"), (125, "after epoch 125, the last")):
        assert f"| {words} | " + " | ".join(f"{top1(row, epoch):.2f}" for row in ROWS.values()) + " |" in page


def test_results_have_comparisons() -> None:
    assert COMPARISONS


def test_the_page_of_label_errors_has_the_stored_numbers() -> None:
    stored = json.loads((RESULTS / "pets" / "measured.json").read_text())
    rows = {row["rule"].partition(" (")[0]: row for row in stored["labels"]["fine-tuned"][0]["rows"]}
    page = (DOCS / "label_error.md").read_text().partition("## On photographs")[2]
    lines = re.findall(r"^\| (area|attention|aligned|activation|saliency|prior)\b.*?\|(.*)\|$", page, re.MULTILINE)
    assert len(lines) == 6
    for rule, cells in lines:
        for mask, cell in zip(("CutMix box", "blocks", "salient window"), cells.split("|"), strict=True):
            row = rows[f"{mask}, {rule}"]
            text = f"{row['error']['mean']:.3f}"
            if rule != "area":
                less = row["to area"]
                text += f" ({less['mean']:+.3f} ± {(less['high'] - less['low']) / 2:.3f})"
            assert cell.strip() == text, f"{mask}, {rule}"


def test_pages_have_the_stored_accuracy_of_fine_tuning() -> None:
    last = json.loads((RESULTS / "pets" / "measured.json").read_text())["finetune"]["last"]
    one_seed = f"{100 * last['accuracy']:.2f}"
    for page in (DOCS / "training.md", RESULTS / "pets" / "README.md"):
        assert f"{one_seed} %" in page.read_text()
    name = RESULTS / "finetune_pets"
    matrix = read_matrix(str(name))
    found = compare(matrix, matrix.trainings(name))
    unmixed = found.rows[0]
    mean = found.quantity.spread(unmixed)
    assert (unmixed.row, len(unmixed.runs)) == ("no mixing", 3)
    words = " ".join((DOCS / "training.md").read_text().split())
    assert f"is {mean} % with three seeds on a GPU in bf16, and {one_seed} % with one seed on a CPU" in words
    paragraph = words.split("Measured so far: DeiT-Tiny")[1].split("Without the recipe")[0]
    assert re.findall(r"\b[89]\d\.\d+", paragraph) == [mean.split()[0], one_seed]  # and no other accuracy
    assert f"{mean} (three seeds, GPU) and {one_seed} (one seed, CPU) of" in read_recipe("finetune").expected


def test_pages_have_the_methods_of_fine_tuning() -> None:
    name = RESULTS / "finetune_pets"
    matrix = read_matrix(str(name))
    found = compare(matrix, matrix.trainings(name))
    page, words = (RESULTS / "README.md").read_text(), " ".join((RESULTS.parent / "README.md").read_text().split())
    for row in found.rows:
        mean, judged = found.quantity.spread(row), found.difference(row)
        if judged is None:
            assert f"| {row.row} | {len(row.runs)} | {mean} | | | |" in page
            assert f"reaches {mean.split()[0][:4]} % without mixing" in words
        else:
            difference = f"{100 * judged.mean:+.2f} | {100 * judged.low:+.2f} to {100 * judged.high:+.2f}"
            assert f"| {row.row} | {len(row.runs)} | {mean} | {difference} | {verdict(judged)} |" in page
    for shown in (
        f"{top1('CutMix', 11, 'finetune_pets'):.1f} % with cutmix",
        f"{top1('SMMix', 11, 'finetune_pets'):.1f} % with smmix",
    ):
        assert shown in words


def test_pages_have_the_stored_scores_of_transfers() -> None:
    page = (DOCS / "transfer.md").read_text()
    words, miou, seconds, memory = " ".join(page.split()), {}, [], []
    for name, run in read_published(RESULTS / "transfer_pets" / FILE).runs.items():
        assert run.dense is not None and run.summary is not None
        row, seed, found = name.partition("-")[0], run.config.seed, run.dense.scores.values["miou"]
        miou[row, seed] = found
        seconds, memory = [*seconds, run.summary.seconds], [*memory, run.summary.peak_memory]
        iou = " | ".join(f"{100 * each.values['iou']:.1f}" for each in run.dense.scores.by_class)
        shown = f"{100 * found.mean:.2f} [{100 * found.low:.2f}, {100 * found.high:.2f}]"
        assert f"| {row.replace('_', ' ')} | {seed} | {shown} | {iou} |" in page
    none = miou["no_mixing", 0]
    assert f"gain {100 * (none.mean - miou['random_start', 0].mean):.1f} points over a random start (seed 0)" in words
    below = [f"{100 * (none.mean - miou[row, 0].mean):.1f}" for row in ("CutMix", "TokenMix", "SMMix")]
    assert f"are {below[0]}, {below[1]} and {below[2]} points below no mixing" in words
    assert all(each.high < none.low for (row, _), each in miou.items() if row != "no_mixing")
    assert f"A run took {min(seconds):.0f} to {max(seconds):.0f} s on an NVIDIA H200" in words
    assert f"a peak of {max(memory) / 2**30:.2f} GiB" in words
