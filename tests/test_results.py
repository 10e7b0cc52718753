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
from vitmix.lab.comparison.rows import Comparison, Row, verdict
from vitmix.lab.runs import Estimate
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


def compared(name: str) -> Comparison:
    matrix = read_matrix(str(RESULTS / name))
    return compare(matrix, matrix.trainings(RESULTS / name))


def differences(name: str) -> dict[str, Estimate]:
    """What rows gain on the baseline, where a test can say so."""
    found = compared(name)
    gains = {row.row: found.difference(row) for row in found.rows}
    return {row: gain for row, gain in gains.items() if gain is not None and gain.low is not None}


def mean_of(row: Row) -> float:
    values = [run.dense.scores.values["miou"].mean for run in row.runs.values()]
    return sum(values) / len(values)


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
    assert f"against {top1('CutMix', 25):.1f} % for `cutmix` and {top1('SMMix', 25):.1f} % for `smmix`" in words
    smmix, plain = (differences("tinyimagenet200")[row] for row in ("SMMix", "no mixing"))
    over = (
        f"{100 * smmix.mean:.1f} points over `cutmix` (95 % interval {100 * smmix.low:.1f} to {100 * smmix.high:.1f})"
    )
    assert f"`smmix` gains {over}, and `cutmix` {-100 * plain.mean:.1f} over no mixing" in words
    assert f"({-100 * plain.high:.1f} to {-100 * plain.low:.1f})" in words
    found = {row.row: row for row in compared("transfer_backbones").rows}
    none, *others = (100 * mean_of(found[row]) for row in ("no mixing", "CutMix", "TL-Align", "SMMix"))
    names = ("`cutmix`, ", "`tl_align` and ", "`smmix`;")
    with_mixing = "".join(f"{value:.1f} with {name}" for value, name in zip(others, names, strict=True))
    assert f"reach {none:.1f} % mIoU without mixing, {with_mixing}" in words
    assert all(each.low > 0 for each in differences("transfer_backbones").values())


def test_readme_has_the_measured_step_times() -> None:
    text = (RESULTS.parent / "README.md").read_text()
    baselines = json.loads((RESULTS / "speed" / "baselines.json").read_text())["steps"]
    ratios = {row["method"]: row["ratio"] for row in baselines}
    ratios |= {method: ratio for method, (_, ratio) in step_ratios("deit_small").items()}
    names = {"tokenmix": "tokenmix(loss=ce)", "htm": "cutmix + htm", "vtm": "cutmix + vtm(block=3)"}
    names |= {"puzzlemix": "puzzlemix(blocks=[4])"}
    assert '"-" has not been timed on a GPU yet' in " ".join(text.split())
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


@pytest.mark.parametrize("name", ["tinyimagenet200", "finetune_pets", "transfer_backbones"])
def test_results_page_has_the_differences(name: str) -> None:
    page, found = (RESULTS / "README.md").read_text(), compared(name)
    for row in found.rows:
        mean, judged = found.quantity.spread(row), found.difference(row)
        if judged is None:
            assert f"| {row.row} | {row.seeds} | {mean} | | | |" in page
            continue
        interval = "" if judged.low is None else f"{100 * judged.low:+.2f} to {100 * judged.high:+.2f} "
        shown = f"| {row.row} | {row.seeds} | {mean} | {100 * judged.mean:+.2f} | {interval}| {verdict(judged)} |"
        assert shown in page


def test_pages_have_the_length_of_the_recipe() -> None:
    page, found = (RESULTS / "README.md").read_text(), compared("finetune_recipe")
    for row in found.rows:
        if not row.runs:
            continue
        mean, judged = found.quantity.spread(row), found.difference(row)
        if row.column[1] == "test images":
            assert row.row == "20 epochs" and len(row.runs) == 5
            assert f"**{mean} %** on the 3,669 test images (five seeds)" in " ".join(page.split())
            assert f"DeiT-Tiny reaches {mean} % top-1" in " ".join((DOCS / "training.md").read_text().split())
            assert f"{mean} (five seeds) of" in read_recipe("finetune").expected
        elif judged is None:
            assert f"| {row.row} | {len(row.runs)} | {mean} | | |" in page
        else:
            interval = f"{100 * judged.low:+.2f} to {100 * judged.high:+.2f}"
            assert f"| {row.row} | {len(row.runs)} | {mean} | {100 * judged.mean:+.2f} | {interval} |" in page


def test_speeds_of_the_baselines_are_what_was_measured() -> None:
    stored, text = json.loads((RESULTS / "speed" / "baselines.json").read_text()), (DOCS / "speed.md").read_text()
    for row in stored["steps"][1:]:
        speed = 1000 * stored["settings"]["batch"] / row["median"]
        spread = f"{row['lowest']:.3f}, {row['highest']:.3f}"
        assert f"| {row['method']} | {speed:,.0f} | {row['ratio']:.3f} | {spread} |" in text


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
    found = compared("finetune_pets")
    unmixed = found.rows[0]
    mean = found.quantity.spread(unmixed)
    assert (unmixed.row, len(unmixed.runs)) == ("no mixing", 3)
    words = " ".join((DOCS / "training.md").read_text().split())
    assert f"With 11 epochs, it is {mean} % (three seeds), {one_seed} % on a CPU (one seed)" in words


def test_readme_has_the_methods_of_fine_tuning() -> None:
    words = " ".join((RESULTS.parent / "README.md").read_text().split())
    none, cutmix, smmix = (top1(row, 11, "finetune_pets") for row in ("no_mixing", "CutMix", "SMMix"))
    assert f"reaches {none:.1f} % without mixing, {cutmix:.1f} % with `cutmix`" in words
    assert f"{smmix:.1f} % with `smmix` (significantly worse)" in words
    assert differences("finetune_pets")["SMMix"].high < 0 < differences("finetune_pets")["CutMix"].high
    long = next(row for row in compared("finetune_recipe").rows if row.column[1] == "test images" and row.runs)
    assert (
        f"now trains for {long.row}, reaches {compared('finetune_recipe').quantity.spread(long)[:4]} % without" in words
    )


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
    gains = differences("transfer_pets")
    start = gains["random start"]
    interval = f"({-100 * start.high:.1f} to {-100 * start.low:.1f}, two seeds)"
    assert f"gain {-100 * start.mean:.1f} points over a random start {interval}" in words
    below = [f"{-100 * gains[row].mean:.1f}" for row in ("CutMix", "TokenMix", "SMMix")]
    assert f"are {below[0]}, {below[1]} and {below[2]} points below no mixing" in words
    assert all(gains[row].low < 0 < gains[row].high for row in ("CutMix", "TokenMix", "SMMix"))
    assert all(each.high < miou["no_mixing", seed].low for (row, seed), each in miou.items() if row != "no_mixing")
    assert f"A run took {min(seconds):.0f} to {max(seconds):.0f} s on an NVIDIA H200" in words
    assert f"a peak of {max(memory) / 2**30:.2f} GiB" in words


def test_pages_have_the_stored_backbones() -> None:
    page, found = (DOCS / "transfer.md").read_text(), compared("transfer_backbones")
    for row in found.rows:
        backbone = next(iter(row.runs.values())).config.backbone
        before = read_published(RESULTS / "tinyimagenet200" / FILE).runs[Path(backbone).name]
        top = f"{100 * before.epochs[-1].values['accuracy']:.2f}"
        judged = found.difference(row)
        gain = (
            "| |"
            if judged is None
            else f"{100 * judged.mean:+.2f} | {100 * judged.low:+.2f} to {100 * judged.high:+.2f} |"
        )
        assert f"| {row.row} | {top} | {found.quantity.spread(row)} | {gain}" in page
