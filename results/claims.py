"""Prints the tables of a page here on the runs of one comparison; a test compares them.

python results/claims.py tinyimagenet100     README.md
python results/claims.py built_in            built_in.md
python results/claims.py cifar10_short       README.md
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from vitmix.compare.statistics import Paired, paired_difference

RESULTS = Path(__file__).parent
CUTMIX, EITHER, NONE = "CutMix", "MixUp or CutMix", "no mixing"
TRANSMIX, TL_ALIGN, HTM, VTM, BOTH = "TransMix", "TL-Align", "HTM", "VTM", "HTM and VTM"
TOKENMIX, BLOCKS_ALIGNED = "TokenMix", "TokenMix masks, aligned labels"
SMMIX, MIXUP_OR_SMMIX = "SMMix", "MixUp or SMMix"
PART = {1: "agrees", -1: "disagrees", 0: "not resolved"}
REGIONS = {
    "pasted to itself": ("partner to partner", 1),
    "to the rest": ("partner to own", -1),
    "the rest to the pasted": ("own to partner", -1),
    "to itself": ("own to own", 1),
}
ORDERS = {
    "patches dropped at random": "occlusion random",
    "the most salient first": "occlusion salient-first",
    "Gaussian noise": "noise",
}


@dataclass(frozen=True)
class Run:
    """A stored training: top-1 of its last epoch in %, and what was measured of its best weights, if it was."""

    top1: float
    robustness: dict[str, float]
    studies: dict[str, list[dict[str, Any]]]

    def number(self, study: str, column: str, **where: str) -> float:
        """The mean in the last row with these names: where rows go along the blocks, the last block."""
        return self.numbers(study, column, **where)[-1]

    def numbers(self, study: str, column: str, **where: str) -> list[float]:
        rows = [row for row in self.studies[study] if all(row.get(key) == name for key, name in where.items())]
        return [row[column]["mean"] for row in rows if column in row]


Measure = Callable[[Run], float]


@dataclass(frozen=True)
class Comparison:
    """The runs of each row, by seed, and the row that the others are compared with."""

    rows: dict[str, list[Run]]
    baseline: str

    def less(self, row: str, other: str, measure: Measure, other_measure: Measure | None = None) -> Paired:
        """What is measured of a row's runs less what is of another's (or other things of the same), by seed."""
        return paired_difference(
            [measure(run) for run in self.rows[row]], [(other_measure or measure)(run) for run in self.rows[other]]
        )

    def has(self, *rows: str) -> bool:
        return self.rows.keys() >= {*rows}


def read(name: str) -> Comparison:
    folder = RESULTS / name
    stored = json.loads((folder / "compare.json").read_text())
    rows = {
        row["row"]: [
            _read_run(folder / "runs" / run, 100 * row["accuracy"][str(seed)])
            for run, seed in zip(row["runs"], row["seeds"], strict=True)
        ]
        for row in stored["rows"]
    }
    return Comparison(rows, stored["matrix"]["baseline"])


def _read_run(folder: Path, top1: float) -> Run:
    robustness = folder / "robustness.json"
    measured = json.loads(robustness.read_text())["measurements"] if robustness.is_file() else []
    tables = {path.stem: json.loads(path.read_text())["tables"] for path in (folder / "analysis").glob("*.json")}
    studies = {study: [row for table in content for row in table["rows"]] for study, content in tables.items()}
    return Run(top1, {each["name"]: 100 * each["value"] for each in measured}, studies)


def top1(run: Run) -> float:
    return run.top1


def shown(difference: Paired, digits: int = 2) -> str:
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.{digits}f}"
    return f"{difference.mean:+.{digits}f} ({difference.low:+.{digits}f} to {difference.high:+.{digits}f})"


@dataclass(frozen=True)
class Figure:
    """A difference, in what it is measured, and the sign that the claim gives it."""

    about: str
    difference: Paired
    claimed: int = 1
    digits: int = 2

    @property
    def agreement(self) -> int:
        return self.claimed * {"better": 1, "worse": -1}.get(self.difference.verdict, 0)

    def __str__(self) -> str:
        return f"{self.about} {shown(self.difference, self.digits)}"


@dataclass(frozen=True)
class Claim:
    text: str
    figures: Sequence[Figure]

    def __str__(self) -> str:
        parts = [figure.agreement for figure in self.figures]
        verdicts = [(PART[sign], parts.count(sign)) for sign in (1, -1, 0) if sign in parts]
        many = len(verdicts) > 1
        judged = ", ".join(f"{word} in {count} of {len(parts)}" if many else word for word, count in verdicts)
        return f"| {self.text} | {'; '.join(map(str, self.figures))} | {judged} |"


def correlation(rule: str, *, last: bool) -> Measure:
    """Of the shares by this rule with those by the tokens' similarity: last block, or mean over the blocks."""
    return lambda run: fmean(run.numbers("fluctuation", "correlation", rule=rule)[-1 if last else 0 :])


def region(pair: str, method: str, *, last: bool = True) -> Measure:
    return lambda run: 1000 * fmean(run.numbers("regions", pair, method=method)[-1 if last else 0 :])


def recognized(top: str, method: str) -> Measure:
    return lambda run: 100 * run.number("accuracy", top, method=method)


def covered(column: str, method: str) -> Measure:
    return lambda run: 100 * run.number("coverage", column, method=method)


def occluded(share: int) -> Measure:
    return lambda run: run.robustness[f"occlusion random {share} %"]


def changed(part: str) -> Measure:
    """Mean top-1 in % over all changed images of this part."""
    unchanged = (" 0 %", "sigma=0")
    return lambda run: fmean(
        value for name, value in run.robustness.items() if name.startswith(part) and not name.endswith(unchanged)
    )


def kept(part: str) -> Measure:
    """What is left of the clean top-1 on changed images, in %."""
    return lambda run: 100 * changed(part)(run) / run.robustness["clean"]


def better(stored: Comparison, row: str, *others: str) -> list[Figure]:
    return [Figure(f"to {other}", stored.less(row, other, top1)) for other in others if stored.has(row, other)]


def claims(stored: Comparison) -> list[Claim]:
    """Those about rows that were trained."""
    found = [
        *_claims_of_smmix(stored),
        *_claims_of_tokenmix(stored),
        *_claims_of_tl_align(stored),
        Claim("TransMix trains better models than CutMix (points of top-1)", better(stored, TRANSMIX, CUTMIX)),
        *_claims_of_tokenmixup(stored),
        Claim(
            "mixing trains better models than none, which all of them take for granted (points of top-1)",
            [Figure(row, stored.less(row, NONE, top1)) for row in stored.rows if row != NONE],
        ),
    ]
    return [claim for claim in found if claim.figures]


def _claims_of_smmix(stored: Comparison) -> list[Claim]:
    def regions(method: str, *, last: bool = True) -> list[Figure]:
        return [
            Figure(name, stored.less(SMMIX, CUTMIX, region(pair, method, last=last)), claimed)
            for name, (pair, claimed) in REGIONS.items()
        ]

    random = "smmix(source=random, destination=random)"
    fig5 = {"one of the two named": "top-1", "both": "top-2"}
    return [
        Claim("SMMix trains better models (points of top-1)", better(stored, SMMIX, CUTMIX, EITHER, TOKENMIX, NONE)),
        Claim("... in turns with MixUp, better than CutMix in turns with it", better(stored, MIXUP_OR_SMMIX, EITHER)),
        Claim(
            "in its models the pasted region attends to itself, the rest to the rest (tables A1, A2; × 1000, less "
            "CutMix's models, on images mixed by SMMix for each; last block)",
            regions("smmix"),
        ),
        Claim("... mean over the blocks", regions("smmix", last=False)),
        Claim("... on CutMix boxes, the same for both; last block", regions("cutmix")),
        Claim(
            "... and the rest more to itself than to the pasted (× 1000, in its models; last block)",
            [
                Figure(name, stored.less(SMMIX, SMMIX, region("own to own", method), region("own to partner", method)))
                for name, method in (("on its images", "smmix"), ("on CutMix boxes", "cutmix"))
            ],
        ),
        Claim(
            "its images are recognized better by its models than CutMix's by CutMix's (figure 5, points)",
            [
                Figure(name, stored.less(SMMIX, CUTMIX, recognized(top, "smmix"), recognized(top, "cutmix")), digits=1)
                for name, top in fig5.items()
            ],
        ),
        Claim(
            "its windows show more of the partner's object and hide less of the own than random ones (points of the "
            "object, or of its box where only that is known)",
            [
                Figure(name, stored.less(SMMIX, SMMIX, covered(column, "smmix"), covered(column, random)), claimed, 1)
                for name, column, claimed in (("shown", "pasted", 1), ("hidden", "own hidden", -1))
            ],
        ),
    ]


def _claims_of_tokenmix(stored: Comparison) -> list[Claim]:
    def drop(run: Run) -> float:
        return occluded(80)(run) - occluded(0)(run)

    return [
        Claim("TokenMix trains better models than CutMix (points of top-1)", better(stored, TOKENMIX, CUTMIX)),
        Claim(
            "... which bear occlusion better, the more so the more is dropped (figure 5, points of top-1)",
            [
                Figure("half of the patches dropped", stored.less(TOKENMIX, CUTMIX, occluded(50))),
                Figure("80 %", stored.less(TOKENMIX, CUTMIX, occluded(80))),
                Figure("80 % less none", stored.less(TOKENMIX, CUTMIX, drop)),
            ],
        ),
    ]


def _claims_of_tl_align(stored: Comparison) -> list[Claim]:
    def follows(rule: str, *, last: bool) -> list[Figure]:
        aligned, other = correlation("aligned", last=last), correlation(rule, last=last)
        return [
            Figure(f"in {row} models", stored.less(row, row, aligned, other), digits=3) for row in (CUTMIX, TL_ALIGN)
        ]

    return [
        Claim("TL-Align trains better models (points of top-1)", better(stored, TL_ALIGN, CUTMIX, EITHER, TRANSMIX)),
        Claim("... with TokenMix's masks too (table 7)", better(stored, BLOCKS_ALIGNED, TOKENMIX)),
        Claim(
            "its labels follow the tokens more than area's (correlation with the share by the tokens' similarity to "
            "the images' own, mean over the blocks)",
            follows("area", last=False),
        ),
        Claim("... after the last block, more than area's", follows("area", last=True)),
        Claim("... and than TransMix's", follows("TransMix", last=True)),
    ]


def _claims_of_tokenmixup(stored: Comparison) -> list[Claim]:
    plain = stored.baseline
    noise = [Figure("top-1 kept", stored.less(HTM, plain, kept("noise")))] if stored.has(HTM) else []
    return [
        Claim("HTM trains better models (points of top-1)", better(stored, HTM, plain)),
        Claim("... which bear Gaussian noise better (table 8, points)", noise),
        Claim("VTM trains better models (points of top-1)", better(stored, VTM, plain)),
        Claim("both together train better models (points of top-1)", better(stored, BOTH, plain)),
    ]


def robustness_rows(stored: Comparison) -> list[str]:
    """Top-1, and the part that it is of the clean top-1, less CutMix's, of the seeds that were measured."""
    lines = []
    for row in stored.rows:
        if row == CUTMIX:
            continue
        both = zip(stored.rows[row], stored.rows[CUTMIX], strict=True)
        runs, references = zip(*(pair for pair in both if all(run.robustness for run in pair)), strict=True)
        measured = Comparison({row: list(runs), CUTMIX: list(references)}, CUTMIX)
        for name, measure in (("top-1", changed), ("kept", kept)):
            cells = [shown(measured.less(row, CUTMIX, measure(part))) for part in ORDERS.values()]
            lines.append(f"| {row}, {name} | {len(runs)} | {' | '.join(cells)} |")
    return lines


def label_rows(stored: Comparison) -> list[str]:
    """Error of a rule's label less area's on the same images; over the pairs where one seed was measured."""
    rules = ("CutMix box, aligned (TL-Align)", "CutMix box, attention (TransMix)", "blocks, aligned")
    lines = []
    for row, trained in stored.rows.items():
        runs = [run for run in trained if "labels" in run.studies]
        cells = [
            paired_difference([run.number("labels", "to area", rule=rule) for run in runs], [0] * len(runs))
            for rule in rules
        ]
        lines.append(f"| {row} | {len(runs)} | {' | '.join(shown(cell, 3) for cell in cells)} |")
    return lines


def accuracy_rows(stored: Comparison) -> list[str]:
    lines = []
    for row, runs in stored.rows.items():
        accuracies = [run.top1 for run in runs]
        cells = "| |"
        if row != stored.baseline:
            found = stored.less(row, stored.baseline, top1)
            cells = f"{found.mean:+.2f} | {found.low:+.2f} to {found.high:+.2f} | {found.verdict}"
        lines.append(f"| {row} | {len(runs)} | {fmean(accuracies):.2f} ± {stdev(accuracies):.2f} | {cells} |")
    return lines


def tables(stored: Comparison) -> list[list[str]]:
    """The lines of each table; of a comparison without CutMix alone, TokenMixup's, those that need no CutMix."""
    all_methods = stored.has(CUTMIX)
    judged = claims(stored) if all_methods else _claims_of_tokenmixup(stored)
    heads = f"| | seeds | top-1, % | to {stored.baseline} | 95 % interval | |"
    rules = "CutMix box, aligned | CutMix box, attention (TransMix) | blocks, aligned"
    found = [
        [heads, "|---|---|---|---|---|---|", *accuracy_rows(stored)],
        ["| claim | here | |", "|---|---|---|", *map(str, judged)],
    ]
    if all_methods:
        found += [
            [f"| | seeds | {' | '.join(ORDERS)} |", "|---|---|---|---|---|", *robustness_rows(stored)],
            [f"| models | seeds | {rules} |", "|---|---|---|---|---|", *label_rows(stored)],
        ]
    return found


def main(name: str) -> None:
    found = "\n\n".join("\n".join(lines) for lines in tables(read(name)))
    print(found)
    print(f"\n{len(re.findall(r' to [+-]', found))} intervals")


if __name__ == "__main__":
    main(sys.argv[1])
