"""The report: every number on the page is the one in the run folder; what is missing is said, not left out."""

import base64
import colorsys
import hashlib
import inspect
import json
import math
import re
import shutil
import statistics
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training import TINY, one_thread, train, train_until  # noqa: F401
from vitmix.lab.cli import main as cli
from vitmix.lab.cli.report import Report
from vitmix.lab.evaluation.classification import evaluate_run
from vitmix.lab.evaluation.describe import describe
from vitmix.lab.plotting.canvas import OWN, PARTNER
from vitmix.lab.report import svg, write_report
from vitmix.lab.report.groups import find_runs, group_runs, labels
from vitmix.lab.report.html import COLORS, look
from vitmix.lab.report.quantities import BEST_EPOCH, best, last
from vitmix.lab.runs import Epoch, Run
from vitmix.lab.training.config import TrainConfig, resolve

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = {"aligned": "mixup(alpha=0.8) | tl_align", "cut": "cutmix"}


@pytest.fixture(scope="module")
def runs(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Two configurations with two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    for name, method in METHODS.items():
        for seed in (0, 1):
            train(folder / f"{name}-{seed}", method=method, seed=seed, epochs=3, lr=0.01, smoothing=0.1)
            evaluate_run(folder / f"{name}-{seed}")
    return folder


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("page") / "report.html"
    write_report([runs], output, examples=2)
    return output.read_text()


class Page(HTMLParser):
    """The page's numbers with their attributes and text, its tags, and the text outside of numbers."""

    VOID = ("meta", "link", "img", "br", "line", "rect", "circle", "polygon")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.numbers: list[tuple[dict[str, Any], str]] = []
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.open: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag  # well-formed

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "data":
            self.numbers.append((self.tags[-1][1], data))
        elif data.strip():
            self.words.append((self.open[-1], data))


def stored(folder: Path, source: str) -> float:
    """The number at this place of a run folder, found without the library."""
    file, _, place = source.partition(":")
    first, _, name = place.partition(".")
    if file == "metrics.jsonl":
        rows = [json.loads(line) for line in (folder / file).read_text().splitlines()]
        if first == "median":
            return statistics.median(row[name] for row in rows)
        best = json.loads((folder / "summary.json").read_text())["best"]["epoch"]
        return rows[{"best": best - 1, "last": -1}[first]][name]
    content = json.loads((folder / file).read_text())
    if not name:
        return content[first]
    pairs = {(label, seen): count for label, seen, count in content["confusion"]}
    label = int(name.split(".")[0])
    images = sum(count for (each, _), count in pairs.items() if each == label)
    if first == "confusion":
        return pairs.get((label, int(name.split(".")[1])), 0)
    return {"images": images, "recall": pairs.get((label, label), 0) / images}[first]


def folders(runs: Path) -> list[Path]:
    return sorted(path for path in runs.iterdir())


def test_every_number_is_that_of_the_run_folder(runs: Path, page: str) -> None:
    found = Page(page)
    members = [folders(runs)[:2], folders(runs)[2:]]
    kinds: set[str] = set()
    for attributes, text in found.numbers:
        value, source = float(attributes["value"]), attributes["data-from"]
        kind = attributes.get("data-of", "number")
        if kind == "number":
            expected = stored(folders(runs)[int(attributes["data-run"])], source)
        else:
            values = [stored(folder, source) for folder in members[int(attributes["data-group"])]]
            expected = {"mean": statistics.fmean, "deviation": statistics.stdev, "total": sum}[kind](values)
        assert value == pytest.approx(expected, rel=1e-12), (attributes, expected)
        assert shows(text, value), (attributes, text)
        kinds.add(f"{kind} {source.split('.')[0] if 'recall' not in source else 'recall'}")
    assert len(found.numbers) > 100
    assert {"mean metrics", "deviation evaluation", "number metrics", "total evaluation", "mean recall"} <= kinds


def shows(text: str, value: float) -> bool:
    """Whether the text is the value, rounded to the places that it shows."""
    if ":" in text:
        minutes, seconds = map(int, text.split(":"))
        return 60 * minutes + seconds == round(value)
    plain = text.replace(",", "").replace("%", "").replace("G", "").strip()
    factor = 100 if "%" in text else 1e-9 if text.endswith("G") else 1
    places = len(plain.partition(".")[2])
    return abs(float(plain) - factor * value) <= 0.5000001 * 10**-places


def test_no_number_besides(page: str) -> None:
    """Results stand in the page only as numbers with a source: other digits are settings, names, axes and examples."""
    found = Page(page)
    for tag, words in found.words:
        if tag in ("td", "p", "span", "h3", "figcaption", "b") and re.search(r"\d\.\d{2,}", words):
            raise AssertionError(f"<{tag}> {words}")


def test_curves_lie_where_the_numbers_say(runs: Path, page: str) -> None:
    figures = re.findall(r'<figure data-curve="([^"]+)">.*?data-ranges="([^"]+)"(.*?)</svg>', page, flags=re.DOTALL)
    assert [name for name, _, _ in figures] == ["accuracy", "eval_loss", "loss", "lr", "images/s"]
    for name, ranges, drawing in figures:
        x0, x1, y0, y1 = map(float, ranges.split())
        lines = re.findall(r'<polyline class="seed g(\d)" points="([^"]+)"', drawing)
        assert len(lines) == 4 and len(re.findall('class="mean ', drawing)) == 2
        for (_, points), folder in zip(lines, folders(runs), strict=True):
            rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            drawn = [tuple(map(float, point.split(","))) for point in points.split()]
            for (x, y), row in zip(drawn, rows, strict=True):
                across = (x - svg.LEFT) / (svg.WIDTH - svg.LEFT - svg.RIGHT)
                up = (svg.HEIGHT - svg.BOTTOM - y) / (svg.HEIGHT - svg.TOP - svg.BOTTOM)
                assert x0 + across * (x1 - x0) == pytest.approx(row["epoch"], abs=0.01)
                assert y0 + up * (y1 - y0) == pytest.approx(row[name], abs=(y1 - y0) * 1e-4)


def test_reliability_bars_are_the_stored_bins(runs: Path, page: str) -> None:
    drawings = re.findall(r'data-reliability="(\d)">(.*?)</svg>', page, flags=re.DOTALL)
    assert len(drawings) == 4
    for number, drawing in drawings:
        bins = json.loads((folders(runs)[int(number)] / "evaluation.json").read_text())["bins"]
        bars = re.findall(r'height="([\d.]+)" fill-opacity="[\d.]+" data-bin="(\d+)"', drawing)
        assert {int(place) for _, place in bars} == {place for place, row in enumerate(bins) if row["count"]}
        for height, place in bars:
            part = float(height) / (svg.HEIGHT - svg.TOP - svg.BOTTOM)
            assert part == pytest.approx(bins[int(place)]["accuracy"], abs=1e-4)


def test_page_needs_nothing_else(page: str) -> None:
    found = Page(page)
    assert not found.open
    for tag, attributes in found.tags:
        assert tag not in ("iframe", "object")
        for name in ("src", "href"):
            if name in attributes:
                assert attributes[name].startswith(("data:", "#")), attributes
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "@import" not in style and "url(" not in style
    assert "@media print" in style and "light-dark(" in style and 'name="viewport"' in page


def without_script(page: str) -> str:
    """The page without its one script, which sorts tables; the page's policy lets no other script run."""
    head, _, rest = page.rpartition("<script>")
    script, _, tail = rest.partition("</script>")
    sha256 = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"script-src &#39;sha256-{sha256}&#39;"
    assert page.count(policy) == 1 and page.index(policy) < page.index("<style>")
    assert script == (Path(inspect.getfile(write_report)).parent / "sort.js").read_text()
    return head + tail


def test_one_script_sorts_and_no_other_may_run(page: str) -> None:
    assert "<script" not in without_script(page) and "default-src &#39;none&#39;" in page


def test_roles_have_the_colors_of_the_figures(page: str) -> None:
    assert f"--own: {OWN}; --partner: {PARTNER};" in page and "orange the partner" in page
    assert page.count("--partner:") == 1


def hue_and_saturation(color: str) -> tuple[float, float]:
    red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    hue, _, saturation = colorsys.rgb_to_hls(red, green, blue)
    return 360 * hue, saturation


def test_no_configuration_has_the_color_of_a_role(page: str) -> None:
    """Blue is the original and orange the partner of a mixture: no color of a group comes near them, light or dark."""
    palette = re.findall(r"--c\d: light-dark\((#\w{6}), (#\w{6})\);", page)
    assert len(palette) == COLORS
    for color in (each for pair in palette for each in pair):
        hue, saturation = hue_and_saturation(color)
        for role in (OWN, PARTNER):
            apart = abs(hue - hue_and_saturation(role)[0])
            assert saturation < 0.15 or min(apart, 360 - apart) > 20, (color, role)
    style = page.partition("<style>")[2].partition("</style>")[0]
    using = {rule.split("{")[0].strip() for rule in style.split("}") if re.search(r"var\(--c\d", rule)}
    assert using == {f".g{number}" for number in range(COLORS)}


def test_wide_tables_scroll(page: str) -> None:
    assert page.count("<table") == page.count('<div class="scroll" tabindex="0"><table') > 5


def test_groups_are_configurations_without_seed(runs: Path) -> None:
    groups = group_runs(find_runs([runs])[0])
    assert [group.name for group in groups] == list(METHODS.values())
    assert [[run.config.seed for run in group.runs.values()] for group in groups] == [[0, 1], [0, 1]]


def named(*configs: dict[str, Any]) -> list[str]:
    """The labels of runs with these settings, in folders runs/0, runs/1, ..."""
    return labels([made_up(TrainConfig(**each), f"runs/{number}") for number, each in enumerate(configs)])


def made_up(config: TrainConfig, path: str = "run", *epochs: dict[str, Any]) -> Run:
    """A run of which nothing is stored."""
    run = Run(path)
    run.config, run.epochs = config, [Epoch.from_json(each) for each in epochs]
    return run


def test_labels_leave_out_defaults() -> None:
    assert named({"method": "cutmix"}, {"method": "smmix", "ema": 0.99}) == ["cutmix", "smmix"]
    assert named({"method": "cutmix"}, {"method": "cutmix", "ema": 0.99}) == ["cutmix", "cutmix, ema 0.99"]
    found = named({"method": "cutmix", "checkpoint": "a.pt"}, {"method": "cutmix", "ema": 0.99}, {"method": "cutmix"})
    assert found == ["cutmix, checkpoint a.pt", "cutmix, ema 0.99", "cutmix"]
    assert named({"size": 32, "lr": 0.1}, {"size": 64, "lr": 0.1}) == ["size 32", "size 64"]


def test_labels_tell_all_runs_apart() -> None:
    """Also where the settings that do it come late, and where it takes many of them."""
    late = [
        {"method": "cutmix", "epochs": epochs, "lr": lr, "drop_path": drop_path, "precision": precision}
        for epochs in (5, 10)
        for lr in (0.001, 0.002)
        for drop_path in (0.1, 0.2)
        for precision in ("fp32", "bf16")
    ]
    found = named(*late)
    assert len(set(found)) == 16 and found[1] == "epochs 5, lr 0.001, drop_path 0.1, precision bf16"
    assert named({"method": "cutmix"}, {"method": "cutmix", "recipe": "deit"}) == ["cutmix", "cutmix, recipe deit"]
    args = [{"method": "cutmix", "recipe": name, "model_args": {"depth": depth}} for name in "ab" for depth in (1, 2)]
    assert len(set(named(*args))) == 4


def test_labels_prefer_settings_to_those_that_follow_from_them() -> None:
    """A recipe fits the learning rate to what is trained, so it must not name a run instead of `lora`."""
    recipe = {"recipe": "finetune", "data": "shapes(length=640)", "model": "test_vit", "pretrained": True}
    parts = [{"freeze": True}, {"lora": 2}, {"lora": 2, "balance": True, "lr": 0.001}, {}]
    configs = [resolve(recipe | each) for each in parts]
    found = labels([made_up(config, f"runs/{number}") for number, config in enumerate(configs)])
    assert found == ["none, freeze True", "none, lora 2", "none, lora 2, balance True", "none"]
    rates = [resolve(recipe | {"lr": lr}) for lr in (0.001, 0.002)]
    assert labels([made_up(config) for config in rates]) == ["lr 0.001", "lr 0.002"]


def test_labels_that_read_alike_name_the_folder() -> None:
    twins = [{"method": "cutmix", "lr": lr} for lr in (0.1, 0.1 + 1e-12)]
    assert named(*twins) == ["cutmix, 0", "cutmix, 1"]


def test_a_ninth_group_looks_different(runs: Path, tmp_path: Path) -> None:
    for number in range(10):
        folder = shutil.copytree(runs / "cut-0", tmp_path / "runs" / str(number))
        config = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(re.sub(r"smoothing: .*", f"smoothing: 0.{number}", config))
    page = report_on(tmp_path / "runs")
    for what in (r'<polyline class="mean ([^"]+)"', r'<li><span class="key ([^"]+)"'):
        assert len(set(re.findall(what, page))) == 10
    looks = [look(number) for number in range(32)]
    assert len(set(looks)) == 32 and looks[1] == "g1" and looks[9] == "g1 d1"
    for name in {name for each in looks for name in each.split()}:
        assert f".{name} {{" in page or f".{name}::before {{" in page  # the style sheet knows it


def test_differences_are_marked(page: str) -> None:
    marked = re.findall(r"<tr class=different><td>(\w+)</td>", page)
    assert marked == ["method"]


def test_missing_data_is_said(runs: Path, tmp_path: Path) -> None:
    output = shutil.copytree(runs / "cut-0", tmp_path / "run")
    (output / "evaluation.json").unlink()
    (output / "examples.json").unlink()
    files = sorted(path.name for path in output.iterdir())
    write_report([output], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"{output} is not evaluated: there is no {output}/evaluation.json; &#39;vitmix eval {output}&#39;" in page
    assert f"there is no {output}/examples.json; &#39;vitmix eval {output}&#39; draws examples" in page
    assert sorted(path.name for path in output.iterdir()) == files  # a report reads


def test_single_unfinished_run(tmp_path: Path) -> None:
    train_until(tmp_path / "run", 8, epochs=5)
    write_report([tmp_path / "run"], tmp_path / "page.html", examples=0)
    page = (tmp_path / "page.html").read_text()
    assert "of 5, not finished" in page and "vitmix eval" in page
    results = page.partition('<section id="results">')[2].partition("</section>")[0]
    assert f"Not finished; results so far: {tmp_path / 'run'} (1 of 5 epochs)" in results
    assert not Page(page).open


def test_losses_that_are_not_finite_are_left_out_of_curves(runs: Path, tmp_path: Path) -> None:
    output = shutil.copytree(runs / "cut-0", tmp_path / "run")
    lines = (output / "metrics.jsonl").read_text().splitlines()
    broken = json.loads(lines[1]) | {"loss": math.nan}
    (output / "metrics.jsonl").write_text("\n".join([lines[0], json.dumps(broken), lines[2]]) + "\n")
    write_report([output], tmp_path / "page.html", examples=0)
    assert "nan" not in re.findall(r"<figure data-curve.*</figure>", (tmp_path / "page.html").read_text())[0]


def test_names_are_escaped(runs: Path, tmp_path: Path) -> None:
    output = shutil.copytree(runs / "cut-0", tmp_path / "<b>run")
    evaluation = json.loads((output / "evaluation.json").read_text())
    evaluation["classes"][0] = "<script>alert(1)</script>"
    (output / "evaluation.json").write_text(json.dumps(evaluation))
    write_report([output], tmp_path / "page.html", examples=0)
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in without_script(page) and "<b>run" not in page and "&lt;script&gt;" in page


def test_one_epoch_has_one_mark() -> None:
    chart = svg.line_chart("loss", [svg.Line(0, [(1, 2.5)], "a")], shown=lambda value: "y", x_name="epoch")
    assert re.findall(r">([^<]*)</text>", chart.replace(">y<", "><")).count("1") == 1
    assert not re.search(r">[01]\.\d+</text>", chart)


@pytest.mark.parametrize("low, high", [(0.0, 1.0), (3, 3), (0, 0), (-1e-9, 1e-9), (1e-5, 5e-4), (12.3, 98765.4)])
def test_ticks_enclose(low: float, high: float) -> None:
    found = svg.ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 9
    assert np.allclose(np.diff(found), found[1] - found[0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lambda runs: ["gone"], "no run folder gone"),
        (lambda runs: [str(runs.parent / "empty")], "not a run folder"),
        (lambda runs: [str(runs), "--output", str(runs)], "cannot write the page"),
        (lambda runs: [str(runs), "--examples", "-1"], "examples must be"),
    ],
)
def test_wrong_input(
    runs: Path, arguments: Callable[[Path], list[str]], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs.parent / "empty").mkdir(exist_ok=True)
    assert cli.main(["report", *arguments(runs)]) == 2
    assert sentence in capsys.readouterr().err


def change_evaluation(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    evaluation = json.loads((folder / "evaluation.json").read_text())
    change(evaluation)
    (folder / "evaluation.json").write_text(json.dumps(evaluation))


def test_classes_that_some_evaluations_lack(runs: Path, tmp_path: Path) -> None:
    """Images that cannot be read are not evaluated, so a class can be missing in one run, or in a configuration."""
    folder = shutil.copytree(runs, tmp_path / "runs")
    classes = json.loads((folder / "cut-0" / "evaluation.json").read_text())["classes"]

    def forget(evaluation: dict[str, Any], label: int) -> None:
        evaluation["confusion"] = [each for each in evaluation["confusion"] if each[0] != label]

    change_evaluation(folder / "aligned-0", lambda evaluation: forget(evaluation, 0))  # the first is no exception
    for name in ("cut-0", "cut-1"):
        change_evaluation(folder / name, lambda evaluation: forget(evaluation, 1))
    page = report_on(folder)
    rows = {label: re.findall(rf"<tr><td>{classes[label]}</td>.*?</tr>", page)[0] for label in (0, 1)}
    assert 'data-run="1" data-from="evaluation.json:recall.0"' in rows[0] and "–" not in rows[0]
    assert rows[1].count('<td><span class="soft">–</span></td>') == 1 and "recall.1" in rows[1]


def report_on(*places: Path, **settings: Any) -> str:
    """The page of these runs, without images."""
    output = settings.pop("output", places[0].parent / "page.html")
    write_report(places, output, **{"examples": 0, **settings})
    return output.read_text()


def change_metrics(folder: Path, **values: float) -> None:
    rows = [json.loads(line) | values for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_top_five_of_five_classes_is_left_out(runs: Path, tmp_path: Path) -> None:
    """All five guesses of five classes are always right; other runs' top-5 stays."""
    folder = shutil.copytree(runs, tmp_path / "runs")

    def keep_five(evaluation: dict[str, Any]) -> None:
        evaluation["classes"] = evaluation["classes"][:5]
        evaluation["confusion"] = [each for each in evaluation["confusion"] if max(each[:2]) < 5]

    for name in ("cut-0", "cut-1"):
        change_evaluation(folder / name, keep_five)
    found = re.findall(r'data-group="(\d)" data-from="metrics.jsonl:best.accuracy5"', report_on(folder))
    assert set(found) == {"0"}
    for places in ([folder / "cut-0", folder / "cut-1"], [folder / "cut-0"]):
        assert "top-5" not in report_on(*places)
    evaluation = Run(folder / "cut-0").evaluation
    assert "top-1" in describe(evaluation) and "top-5" not in describe(evaluation)


def test_losses_of_different_kinds_are_said(runs: Path, tmp_path: Path) -> None:
    words = "use different losses"
    assert words not in report_on(runs / "cut-0", runs / "aligned-0", output=tmp_path / "page.html")
    kinds = {
        ("cutmix", "null"): "cross-entropy (cutmix)",
        ("cutmix", "bce"): "binary cross-entropy (cutmix)",
        ("smmix", "null"): "cross-entropy + region + consistency (smmix)",
        (
            "mixup | cutmix + htm(block=1)",
            "null",
        ): "cross-entropy or cross-entropy + score (mixup | cutmix + htm(block=1))",
    }
    for number, (method, loss) in enumerate(kinds):
        folder = shutil.copytree(runs / "cut-0", tmp_path / "runs" / str(number))
        config = re.sub(r"method: .*", f"method: {method}", (folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(re.sub(r"loss: .*", f"loss: {loss}", config))
    page = report_on(tmp_path / "runs")
    (said,) = re.findall(r'<figure data-curve="loss">.*?<figcaption>(.*?)</figcaption>', page)
    assert page.count(words) == 1
    assert said.endswith(f"cannot be compared: {'; '.join(kinds.values())}.")


def test_no_accuracy_above_one(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs, tmp_path / "runs")
    for name, accuracy in (("aligned-0", 1.0), ("aligned-1", 0.9), ("cut-0", 1.0), ("cut-1", 0.95)):
        change_metrics(folder / name, accuracy=accuracy)
    ranges = re.findall(r'<figure data-curve="accuracy">.*?data-ranges="([^"]+)"', report_on(folder))
    assert float(ranges[0].split()[-1]) <= 1.0 + 1e-9


def test_runs_of_different_data_are_told_apart(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs / "cut-0", folder / "a")
    shutil.copytree(runs / "aligned-0", folder / "b")
    assert "cannot be compared" not in report_on(folder)

    def elsewhere(evaluation: dict[str, Any]) -> None:
        evaluation["data"] = "flowers (val)"
        evaluation["classes"] = [f"flower {number}" for number in range(len(evaluation["classes"]))]

    evaluation = (folder / "b" / "evaluation.json").rename(tmp_path / "kept.json")
    assert "cannot be compared" not in report_on(folder)  # the same data, though one of them is not evaluated
    evaluation.rename(folder / "b" / "evaluation.json")
    change_evaluation(folder / "b", elsewhere)
    page = report_on(folder)
    assert f"flowers (val): {folder / 'b'}" in page and "cannot be compared" in page
    tables = page.partition('<section id="classes">')[2].partition("</section>")[0].split("<h3>")[1:]
    assert [table.partition("</h3>")[0] for table in tables] == ["shapes, 24 images of 16 px (test)", "flowers (val)"]
    assert 'data-run="0"' in tables[0] and 'data-run="1"' not in tables[0] and "flower 1" not in tables[0]
    assert 'data-run="1"' in tables[1] and 'data-run="0"' not in tables[1] and "flower 1" in tables[1]


def test_the_same_seed_twice_is_said(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name, of in (("first", "cut-0"), ("again", "cut-0"), ("other", "cut-1")):
        shutil.copytree(runs / of, folder / name)
    assert "cutmix has 2 runs with seed 0, so" in report_on(folder)
    assert "runs with seed" not in report_on(runs)


def test_the_images_of_the_best_epoch_are_those_of_the_evaluation(runs: Path, tmp_path: Path) -> None:
    """Data without test images is evaluated on its validation images, whatever the configuration asks for."""
    run = shutil.copytree(runs / "cut-0", tmp_path / "run")
    change_evaluation(run, lambda evaluation: evaluation.update(data="photos (val)"))
    assert "best accuracy on photos (val)." in report_on(run)
    (run / "evaluation.json").unlink()
    page = report_on(run)
    assert "best accuracy on the images of its evaluation." in page and "test images" not in page


@pytest.mark.parametrize("key", ["classes", "confusion", "bins", "data", "device"])
def test_an_evaluation_that_lacks_something_is_none(runs: Path, tmp_path: Path, key: str) -> None:
    run = shutil.copytree(runs / "cut-0", tmp_path / "run")
    change_evaluation(run, lambda evaluation: evaluation.pop(key))
    said = (
        f"{run} is not evaluated: {run}/evaluation.json cannot be read: {key} is missing; &#39;vitmix eval {run}&#39;"
    )
    assert said in report_on(run)


def test_command_and_function_draw_as_many_examples() -> None:
    usual = inspect.signature(write_report).parameters["examples"].default
    assert Report(runs=("run",)).examples == usual


def test_a_run_without_an_epoch(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused where it is named, left out with a word where it only lies beside others."""
    folder = tmp_path / "runs"
    train_until(folder / "new", 1)
    with pytest.raises(ValueError, match="no evaluated epoch"):
        find_runs([folder / "new"])
    with pytest.raises(ValueError, match="none of the 1 runs in"):
        find_runs([folder])
    shutil.copytree(runs / "cut-0", folder / "cut-0")
    with pytest.raises(ValueError, match="no evaluated epoch"):
        find_runs([folder, folder / "new"])
    output = tmp_path / "page.html"
    assert cli.main(["report", str(folder), "--output", str(output), "--examples", "0"]) == 0
    sentence = f"Left out: {folder / 'new'} has no evaluated epoch yet"
    assert sentence in capsys.readouterr().out and sentence in output.read_text()
    assert [run.path.name for run in find_runs([folder])[0]] == ["cut-0"]


def test_best_epoch_is_of_the_weights_kept() -> None:
    config = TrainConfig(best="ema_accuracy", ema=0.9)
    row = {"epoch": 1, "accuracy": 0.1, "accuracy5": 0.5, "eval_loss": 2.0}
    row |= {"ema_accuracy": 0.2, "ema_accuracy5": 0.6, "ema_eval_loss": 1.0}
    run = made_up(config, "run", row)
    assert [best(name).read(run) for name in ("accuracy", "accuracy5", "eval_loss")] == [0.2, 0.6, 1.0]
    assert last("accuracy").read(run) == 0.1 and BEST_EPOCH.read(run) == 1
