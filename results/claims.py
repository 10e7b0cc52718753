"""Prints the tables of a results page from the runs of one comparison; a test compares them with the page.

python results/claims.py tinyimagenet100     README.md
python results/claims.py built_in            built_in.md
python results/claims.py cifar10_short       README.md
"""

import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from vitmix.lab.comparison import compare, read_matrix
from vitmix.lab.comparison.rows import verdict
from vitmix.lab.runs import Estimate, Run

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


class NotMeasured(Exception):
    """The requested number was not measured for a run."""


Measure = Callable[[Run], float]


def top1(run: Run) -> float:
    """Of the last epoch, in %."""
    return 100 * run.epochs[-1].values["accuracy"]


def numbers(run: Run, study: str, column: str, **where: str) -> list[float]:
    """The means of a column in the rows with these names, of which there can be one per block."""
    if study not in run.analyses:
        raise NotMeasured(study)
    tables = [table for table in run.analyses[study].tables if where.keys() <= {*table.keys}]
    return [value for table in tables for value in table.column(column, **where)]


def on_changed(run: Run, part: str) -> dict[str, float]:
    """Top-1 in % by the names of this part of the suite."""
    measured = () if run.robustness is None else run.robustness.measurements
    found = {each.name: 100 * each.estimate.mean for each in measured if each.name.startswith(part)}
    if not found:
        raise NotMeasured(part)
    return found


@dataclass(frozen=True)
class Comparison:
    """The runs of each row, by seed, and the row with which the others are compared."""

    rows: Mapping[str, Mapping[int, Run]]
    baseline: str

    def less(self, row: str, other: str, measure: Measure, other_measure: Measure | None = None) -> Estimate | None:
        """The difference between a measure of two rows (or of two measures of one row), paired by seed.

        Seeds for which one of the two was not measured are left out; None if none is left.
        """
        pairs = []
        for seed in self.rows[row].keys() & self.rows[other].keys():
            with contextlib.suppress(NotMeasured):
                pairs.append((measure(self.rows[row][seed]), (other_measure or measure)(self.rows[other][seed])))
        return Estimate.paired([one for one, _ in pairs], [other for _, other in pairs]) if pairs else None

    def has(self, *rows: str) -> bool:
        return self.rows.keys() >= {*rows}


def read(name: str) -> Comparison:
    matrix = read_matrix(str(RESULTS / name))
    found = compare(matrix, matrix.trainings(RESULTS / name))
    return Comparison({row.row: row.by_seed for row in found.rows}, found.baseline)


def shown(difference: Estimate, digits: int = 2) -> str:
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.{digits}f}"
    return f"{difference.mean:+.{digits}f} ({difference.low:+.{digits}f} to {difference.high:+.{digits}f})"


@dataclass(frozen=True)
class Figure:
    """A difference, what it is about, and the sign that the claim predicts."""

    about: str
    difference: Estimate
    claimed: int = 1
    digits: int = 2

    @property
    def agreement(self) -> int:
        return self.claimed * {"better": 1, "worse": -1}.get(verdict(self.difference), 0)

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
    """Correlation of a rule's shares with those from token similarity: last block, or mean over the blocks."""
    return lambda run: fmean(numbers(run, "fluctuation", "correlation", rule=rule)[-1 if last else 0 :])


def region(pair: str, method: str, *, last: bool = True) -> Measure:
    return lambda run: 1000 * fmean(numbers(run, "regions", pair, method=method)[-1 if last else 0 :])


def recognized(top: str, method: str) -> Measure:
    return lambda run: 100 * numbers(run, "accuracy", top, method=method)[-1]


def covered(column: str, method: str) -> Measure:
    return lambda run: 100 * numbers(run, "coverage", column, method=method)[-1]


def occluded(share: int) -> Measure:
    return lambda run: on_changed(run, "occlusion random")[f"occlusion random {share} %"]


def changed(part: str) -> Measure:
    """Mean top-1 in % over all changed images of this part."""
    unchanged = (" 0 %", "sigma=0")
    return lambda run: fmean(value for name, value in on_changed(run, part).items() if not name.endswith(unchanged))


def kept(part: str) -> Measure:
    """The remaining part of the clean top-1 on changed images, in %."""
    return lambda run: 100 * changed(part)(run) / on_changed(run, "clean")["clean"]


def figures(
    stored: Comparison,
    about: str,
    rows: tuple[str, str],
    measures: Measure | tuple[Measure, Measure],
    claimed: int = 1,
    digits: int = 2,
) -> list[Figure]:
    """The first row minus the second; empty if one of them was not trained."""
    pair = measures if isinstance(measures, tuple) else (measures, measures)
    difference = stored.less(*rows, *pair) if stored.has(*rows) else None
    return [] if difference is None else [Figure(about, difference, claimed, digits)]


def better(stored: Comparison, row: str, *others: str) -> list[Figure]:
    return [each for other in others for each in figures(stored, f"to {other}", (row, other), top1)]


def claims(stored: Comparison) -> list[Claim]:
    """The claims about rows that were trained. Rows are compared with rows that use the same additional mixing."""
    others = [row for row in stored.rows if row != NONE]
    found = [
        *_claims_of_smmix(stored),
        *_claims_of_tokenmix(stored),
        *_claims_of_tl_align(stored),
        Claim("TransMix trains better models than CutMix (points of top-1)", better(stored, TRANSMIX, CUTMIX)),
        *_claims_of_tokenmixup(stored),
        Claim(
            "mixing trains better models than no mixing, which all papers assume (points of top-1)",
            [each for row in others for each in figures(stored, row, (row, NONE), top1)],
        ),
    ]
    return [claim for claim in found if claim.figures]


def _claims_of_smmix(stored: Comparison) -> list[Claim]:
    def regions(method: str, *, last: bool = True) -> list[Figure]:
        return [
            each
            for name, (pair, claimed) in REGIONS.items()
            for each in figures(stored, name, (SMMIX, CUTMIX), region(pair, method, last=last), claimed)
        ]

    def own(method: str) -> tuple[Measure, Measure]:
        return region("own to own", method), region("own to partner", method)

    def named(top: str) -> tuple[Measure, Measure]:
        return recognized(top, "smmix"), recognized(top, "cutmix")

    def windows(column: str) -> tuple[Measure, Measure]:
        return covered(column, "smmix"), covered(column, "smmix(source=random, destination=random)")

    return [
        Claim("SMMix trains better models (points of top-1)", better(stored, SMMIX, CUTMIX, TOKENMIX, NONE)),
        Claim(
            "... alternating with MixUp, better than CutMix alternating with MixUp",
            better(stored, MIXUP_OR_SMMIX, EITHER),
        ),
        Claim(
            "in its models, the pasted region attends to itself and the rest to the rest (tables A1, A2; × 1000, "
            "difference to CutMix's models, both on images mixed by SMMix; last block)",
            regions("smmix"),
        ),
        Claim("... mean over the blocks", regions("smmix", last=False)),
        Claim("... both on the same CutMix boxes; last block", regions("cutmix")),
        Claim(
            "... and the rest attends more to itself than to the pasted region (× 1000, in its models; last block)",
            [
                *figures(stored, "on its images", (SMMIX, SMMIX), own("smmix")),
                *figures(stored, "on CutMix boxes", (SMMIX, SMMIX), own("cutmix")),
            ],
        ),
        Claim(
            "its models recognize its images better than CutMix's models recognize CutMix's (figure 5, points)",
            [
                *figures(stored, "one of the two classes", (SMMIX, CUTMIX), named("top-1"), digits=1),
                *figures(stored, "both", (SMMIX, CUTMIX), named("top-2"), digits=1),
            ],
        ),
        Claim(
            "its windows show more of the partner's object and hide less of the original object than random ones "
            "(points of the object, or of its box if only that is known)",
            [
                *figures(stored, "shown", (SMMIX, SMMIX), windows("pasted"), digits=1),
                *figures(stored, "hidden", (SMMIX, SMMIX), windows("own hidden"), -1, digits=1),
            ],
        ),
    ]


def _claims_of_tokenmix(stored: Comparison) -> list[Claim]:
    def drop(run: Run) -> float:
        return occluded(80)(run) - occluded(0)(run)

    rows = (TOKENMIX, CUTMIX)
    return [
        Claim("TokenMix trains better models than CutMix (points of top-1)", better(stored, *rows)),
        Claim(
            "... which are more robust to occlusion, increasingly so with more dropped patches (figure 5, points of "
            "top-1)",
            [
                *figures(stored, "half of the patches dropped", rows, occluded(50)),
                *figures(stored, "80 %", rows, occluded(80)),
                *figures(stored, "80 % minus none", rows, drop),
            ],
        ),
    ]


def _claims_of_tl_align(stored: Comparison) -> list[Claim]:
    def follows(rule: str, *, last: bool) -> list[Figure]:
        measures = correlation("aligned", last=last), correlation(rule, last=last)
        return [
            each
            for row in (CUTMIX, TL_ALIGN)
            for each in figures(stored, f"in {row} models", (row, row), measures, digits=3)
        ]

    return [
        Claim("TL-Align trains better models (points of top-1)", better(stored, TL_ALIGN, CUTMIX, TRANSMIX)),
        Claim("... with TokenMix's masks too (table 7)", better(stored, BLOCKS_ALIGNED, TOKENMIX)),
        Claim(
            "its labels follow the tokens more closely than area labels (correlation with the share from the tokens' "
            "similarity to those of the unmixed images, mean over the blocks)",
            follows("area", last=False),
        ),
        Claim("... after the last block, more closely than area labels", follows("area", last=True)),
        Claim("... and than TransMix's labels", follows("TransMix", last=True)),
    ]


def _claims_of_tokenmixup(stored: Comparison) -> list[Claim]:
    plain = stored.baseline
    return [
        Claim("HTM trains better models (points of top-1)", better(stored, HTM, plain)),
        Claim(
            "... which are more robust to Gaussian noise (table 8, points)",
            figures(stored, "top-1 kept", (HTM, plain), kept("noise")),
        ),
        Claim("VTM trains better models (points of top-1)", better(stored, VTM, plain)),
        Claim("both together train better models (points of top-1)", better(stored, BOTH, plain)),
    ]


def robustness_rows(stored: Comparison) -> list[str]:
    """Top-1 and its part of the clean top-1, minus CutMix's, for the seeds that were measured."""
    lines = []
    for row in stored.rows:
        for name, measure in (("top-1", changed), ("kept", kept)) if row != CUTMIX else ():
            lines += _line(f"{row}, {name}", [stored.less(row, CUTMIX, measure(part)) for part in ORDERS.values()])
    return lines


def label_rows(stored: Comparison) -> list[str]:
    """Error of a label rule minus that of area on the same images; over the pairs if one seed was measured."""
    lines = []
    for row in stored.rows:
        found = [
            stored.less(
                row, row, lambda run, rule=rule: numbers(run, "labels", "to area", rule=rule)[-1], lambda run: 0
            )
            for rule in ("CutMix box, aligned (TL-Align)", "CutMix box, attention (TransMix)", "blocks, aligned")
        ]
        lines += _line(row, found, digits=3)
    return lines


def _line(name: str, found: Sequence[Estimate | None], digits: int = 2) -> list[str]:
    """A row of differences with their number of seeds; empty if one of them was not measured at all."""
    measured = [each for each in found if each is not None]
    if len(measured) < len(found):
        return []
    seeds = " to ".join(map(str, sorted({each.n for each in measured})))
    return [f"| {name} | {seeds} | {' | '.join(shown(each, digits) for each in measured)} |"]


def accuracy_rows(stored: Comparison) -> list[str]:
    lines = []
    for row, runs in stored.rows.items():
        accuracies = [top1(run) for run in runs.values()]
        cells = "| |"
        found = stored.less(row, stored.baseline, top1)
        if row != stored.baseline and found is not None:
            cells = f"{found.mean:+.2f} | {found.low:+.2f} to {found.high:+.2f} | {verdict(found)}"
        lines.append(f"| {row} | {len(runs)} | {fmean(accuracies):.2f} ± {stdev(accuracies):.2f} | {cells} |")
    return lines


def tables(stored: Comparison) -> list[list[str]]:
    """The lines of each table; the last two only if CutMix, to which they compare, is among the rows."""
    heads = f"| | seeds | top-1, % | to {stored.baseline} | 95 % interval | |"
    rules = "CutMix box, aligned | CutMix box, attention (TransMix) | blocks, aligned"
    found = [
        [heads, "|---|---|---|---|---|---|", *accuracy_rows(stored)],
        ["| claim | here | |", "|---|---|---|", *map(str, claims(stored))],
    ]
    if stored.has(CUTMIX):
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
