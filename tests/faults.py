"""Fault injection: every file operation of a training, an evaluation, a comparison and a report fails once, in turn.

    python tests/faults.py [--commands train,eval,compare,report] [--kinds EIO,ENOSPC,full,short,death,power]
                           [--sample 40 --seed 1] [--jobs 2] [--log FILE] [--list]

Each command is run once to count its operations, then again for each of them and each kind of fault that can happen to
it. Afterwards the same command is started again, and must not have lost finished work, must have told the truth, must
finish, and must leave the files of an undisturbed run, bit for bit (clocks stand still here). What fails is printed.

EIO     the operation fails once: opening, writing, fsync, renaming, removing, closing, listing, reading, stat
ENOSPC  the operation fails once; half of what was to be written is there
full    ENOSPC for this operation and all that need room after it
short   half is written, and the system says so
death   the process ends at the operation, with half of what was to be written
power   the machine ends before the operation, or after the last one. Twice: once everything that was not synced is
        lost (the content of files since their last fsync; names made, renamed or removed since the last fsync of their
        folder), once the names are there and only content is lost, as on file systems that keep a journal of names.

Not modelled: content that is damaged without an error, blocks of one file that reach the disk in another order, an
fsync that fails and whose next call succeeds without having written, several faults at once.

With --log, results are kept in that file, and the same command continues where it was stopped.

A process per start, forked from one that has torch and vitmix; a comparison's trainings are forks of their own too.
"""

import argparse
import contextlib
import gc
import hashlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from faulty_files import CUT, DEAD, KINDS, Fault, Files
from training import TINY
from vitmix.lab import writing
from vitmix.lab.cli import main as cli
from vitmix.lab.comparison import evaluations, process, runner
from vitmix.lab.engines import local
from vitmix.lab.evaluation import classification, conditions
from vitmix.lab.report import page  # noqa: F401  imported before the fork
from vitmix.lab.runs import Estimate
from vitmix.lab.training import checkpoints, engine  # noqa: F401

CASE, NOTES, SAID = "case", "notes", "said"  # in the folder of a worker
SECONDS, STEP = 60, 0.01  # after so long, looked at in such steps, a start may hang
SETTINGS = {
    **TINY,
    "data": "shapes(size=16, length=16, test_length=8)",
    "model_args": {"patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2},
    "checkpoint_every": "1 step",
}
POWER = ("power", "power, names kept")
TRAIN = ("train", "--config", "../tiny.yaml", "--output", f"{CASE}/run")
RUN = Path(CASE) / "run"
COMPARE = ("compare", "../matrix.yaml", "--output", f"{CASE}/compared")
SUITE = ("eval", str(RUN), "--workers", "0", "--suite")


class Ended(NamedTuple):
    """How a start of a command ended."""

    code: int
    said: str
    notes: list[dict[str, Any]]
    operations: list[tuple[str, str]]


# One start of a command


def start(arguments: Sequence[str], fault: Fault | None = None) -> Ended:
    """Runs a command in a process of its own, on the files in `CASE`."""
    for name in (NOTES, f"{NOTES}.state", f"{NOTES}.left"):
        Path(name).unlink(missing_ok=True)
    before = {path: path.stat().st_size for path in Path(CASE).rglob("train.log")}
    child = os.fork()
    if child == 0:
        _run(arguments, fault)
    code = _wait(child)
    if code == CUT:
        shutil.rmtree(CASE)
        pickle.loads(Path(f"{NOTES}.left").read_bytes()).write(Path(CASE))
    notes = [json.loads(line) for line in Path(NOTES).read_text().splitlines()] if Path(NOTES).exists() else []
    state = Path(f"{NOTES}.state")
    operations = pickle.loads(state.read_bytes())[0] if state.exists() else []
    said = [Path(SAID), *sorted(Path(CASE).rglob("train.log"))]  # of a comparison's trainings
    text = b"".join(path.read_bytes()[before.get(path, 0) :] for path in said).decode(errors="replace")
    return Ended(code, text, notes, operations)


def _wait(child: int) -> int:
    """The exit code of a process, ended with those that it started where it hangs.

    Steps are counted, not time: a machine that is paused for minutes has not let the process run. Nor has a busy one
    let it run while it, or a process that it started, waited for a processor, unless that takes very long.
    """
    code, idle = _end_within(child, SECONDS, STEP), 0
    for _ in range(1200):
        if code is not None or idle >= 60:
            break
        idle += not _is_queued(child)
        code = _end_within(child, SECONDS / 60, STEP)
    if code is not None:
        return code
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _end_within(child: int, seconds: float, step: float) -> int | None:
    for _ in range(max(1, int(seconds / step))):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(step)
    return None


def _is_queued(group: int) -> bool:
    """Whether a process of a group computes, or waits for a processor."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, _, found, *_ = place.read_text().rpartition(")")[2].split()
            if state == "R" and int(found) == group:
                return True
    return False


def _run(arguments: Sequence[str], fault: Fault | None) -> None:
    os.setpgid(0, 0)
    output = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    files = Files(CASE, fault, os.path.abspath(NOTES))
    _stop_clocks()
    _take_notes(files)
    local.subprocess.Popen = lambda *command, **settings: _Process(files, *command, **settings)  # type: ignore
    files.install()
    _end(files, lambda: cli.main(arguments))


def _end(files: Files, action: Callable[[], int]) -> None:
    code = 70
    try:
        code = action()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    files.leave(code)


def _stop_clocks() -> None:
    """So that files do not differ in their times."""
    time.perf_counter = time.monotonic = lambda: 0.0
    runner.LOOK_SECONDS, conditions.SAVE_SECONDS = 0.0, -1.0
    classification.throughput = lambda *_, **__: Estimate(1.0, None, 1)


def _take_notes(files: Files) -> None:
    """Writes down what is promised: files and checkpoints that are written once the function has returned."""
    write_file, save_checkpoint, ask = writing.write_file, checkpoints.save_checkpoint, conditions.Examiner._ask

    def write_and_note(path: Path, content: bytes) -> None:
        facts = {"file": str(path), "sha": hashlib.sha256(content).hexdigest()}
        files.note(begun=True, **facts)
        write_file(path, content)
        files.note(written=True, **facts)

    def save_and_note(folder: Path, update: int, *rest: Any, **settings: Any) -> Path:
        path = save_checkpoint(folder, update, *rest, **settings)
        files.note(checkpoint=update, folder=str(folder))
        return path

    def ask_and_note(self: Any, condition: Any, found: Any, place: Path | None) -> None:
        files.note(measured=str(place), start=found.done)
        ask(self, condition, found, place)

    checkpoints.save_checkpoint, conditions.Examiner._ask = save_and_note, ask_and_note
    for module in [*sys.modules.values()]:
        if getattr(module, "write_file", None) is write_file:
            module.write_file = write_and_note  # type: ignore[attr-defined]


def _cell(settings: str) -> int:
    """As the module does when it is run."""
    try:
        return process.run(settings, evaluations.Evaluations())
    except (ValueError, OSError) as error:
        print(f"vitmix: error: {error}")
        return 1


class _Process:
    """`subprocess.Popen` as a comparison uses it: a fork, which has ended when it is there."""

    def __init__(self, files: Files, command: list[str], *, stdout: Any, **_: Any) -> None:
        Path(f"{files.notes}.state").unlink(missing_ok=True)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            files.main = False
            _end(files, lambda: _cell(command[4]))
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if self.returncode == CUT:
            os._exit(CUT)
        files.rejoin()

    def poll(self) -> int:
        return self.returncode


# What is run


@dataclass(frozen=True)
class Scenario:
    """A command on files that `prepare` makes in `CASE`."""

    name: str
    arguments: tuple[str, ...]
    prepare: Callable[[], None]

    @property
    def command(self) -> str:
        return self.name.split(",")[0]


def _trained(*without: str) -> None:
    Path(CASE).mkdir()
    assert start(TRAIN).code == 0
    for name in without:
        (RUN / name).unlink()


def _measured() -> None:
    """A run of which a part of the suite is measured, which stays when another is added."""
    _trained()
    assert start((*SUITE, "clean")).code == 0


def _compared() -> None:
    """A comparison of which one training is done."""
    Path(CASE).mkdir()
    assert start((*COMPARE, "--rows", "none")).code == 0


def _interrupted() -> None:
    """A run that was killed when its third checkpoint was written but not named, and one that a disk damaged."""
    Path(CASE).mkdir()
    operations = start(TRAIN).operations
    number = operations.index(("rename", "run/checkpoints/.update-000000003.partial"))
    shutil.rmtree(CASE)
    Path(CASE).mkdir()
    assert start(TRAIN, Fault(number, "death")).code == DEAD
    folder = RUN / "checkpoints"
    shutil.copytree(folder / "update-000000002", folder / "update-000000004")
    os.truncate(folder / "update-000000004" / "model.safetensors", 100)


SCENARIOS = (
    Scenario("train", TRAIN, lambda: Path(CASE).mkdir()),
    Scenario("train, resumed", TRAIN, _interrupted),
    Scenario("eval", ("eval", str(RUN), "--output", f"{CASE}/eval.json"), lambda: _trained("evaluation.json")),
    Scenario("eval, suite", (*SUITE, "noise"), _measured),
    Scenario("compare", (*COMPARE, "--publish", f"{CASE}/published"), _compared),
    Scenario(
        "report",
        ("report", str(RUN), "--output", f"{CASE}/page.html", "--examples", "1"),
        lambda: _trained("evaluation.json"),
    ),
)


# What is held against what


class Reference(NamedTuple):
    """An undisturbed start: its files, and its operations."""

    files: dict[str, str]
    operations: list[tuple[str, str]]


def refer(scenario: Scenario, base: Path) -> Reference:
    """Makes the files to start from, and runs the command on a copy of them, whose folders list them in that order."""
    shutil.rmtree(CASE, ignore_errors=True)
    scenario.prepare()
    shutil.move(CASE, base)
    shutil.copytree(base, CASE)
    ended = start(scenario.arguments)
    assert ended.code == 0, ended.said
    return Reference(products(), ended.operations)


def products() -> dict[str, str]:
    """The checksum of each file that a command is for; of checkpoints the newest."""
    found = {}
    for path in sorted(Path(CASE).rglob("*")):
        parts = path.relative_to(CASE).parts
        if not path.is_file() or path.name == "train.log" or any(part.startswith(".") for part in parts):
            continue
        if "checkpoints" in parts and path.parent != checkpoints.newest_checkpoint(path.parents[1])[0]:
            continue
        found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def inject(scenario: Scenario, base: Path, reference: Reference, fault: Fault) -> list[str]:
    """What is wrong after a fault, and after the next start."""
    shutil.rmtree(CASE, ignore_errors=True)
    shutil.copytree(base, CASE)
    before, broken = products(), damaged()
    first = start(scenario.arguments, fault)
    wrong = [*_said(first, fault, reference), *_lost(before, first.notes), *_lies(first, broken)]
    after = start_again(scenario, base.parent / "next starts")
    wrong += [*after.wrong, *_differences(reference, after.files, told=first.said)]
    return [*wrong, f"--- first start, code {first.code}:\n{first.said[-3000:]}"] if wrong else []


class Next(NamedTuple):
    """What is wrong with a start after a fault, and the files that it left."""

    wrong: list[str]
    files: dict[str, str]


def start_again(scenario: Scenario, memory: Path) -> Next:
    """Starts a command on the files in `CASE`, or says what it did before on the same files: clocks stand still."""
    known = memory / fingerprint(scenario.name)
    if known.exists():
        return pickle.loads(known.read_bytes())
    kept, measured, broken = newest(), _kept_answers(), damaged()
    ended = start(scenario.arguments)
    wrong = []
    if ended.code != 0:
        wrong.append(f"the next start ended with {ended.code}: {ended.said[-2000:]}")
    if "Traceback" in ended.said:
        wrong.append(f"the next start had a traceback: {ended.said[-2000:]}")
    wrong += [f"next start: {each}" for each in _lies(ended, broken)]
    for folder, update in kept.items():
        resumed = re.findall(r"resuming at update (\d+)", ended.said)
        if folder == str(RUN / "checkpoints") and resumed and int(resumed[0]) < update:
            wrong.append(f"the next start resumed at {resumed[0]}, before {update}")
    for note in ended.notes:
        if "measured" in note and note["start"] < measured.get(note["measured"], 0):
            wrong.append(f"{note['measured']} was measured again from {note['start']}")
    found = Next([*wrong, *(f"{each} was left behind" for each in leftovers())], products())
    memory.mkdir(exist_ok=True)
    written = memory / f"{os.getpid()}"
    written.write_bytes(pickle.dumps(found))
    written.rename(known)
    return found


def fingerprint(name: str) -> str:
    """A checksum of all that the next start can see, without the number of a process in names of temporary files."""
    found = hashlib.sha256(name.encode())
    for path in sorted(Path(CASE).rglob("*")):
        called, state = re.sub(r"\.\d+\.partial$", ".partial", str(path)), path.lstat()
        found.update(f"\0{called}\0{state.st_mode}\0".encode())
        if path.is_symlink():
            found.update(os.readlink(path).encode())
        elif path.is_file():
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _said(first: Ended, fault: Fault, reference: Reference) -> list[str]:
    """A start that failed says why, and one that says that it succeeded has."""
    happened = [note["happened"] for note in first.notes if "happened" in note]
    if happened != [name for name, _ in reference.operations[fault.number : fault.number + 1]]:
        return [f"the fault happened at {happened}"]
    expected = {"death": DEAD, "power": CUT, "power, names kept": CUT}.get(fault.kind)
    if first.code < 0:
        return [f"signal {-first.code} ended the start, as when it hangs"]
    if expected is not None:
        # A comparison survives the death of its trainings, and does not notice that of one that had written everything.
        survived = "Failed: " in first.said or not _different(reference, products())
        return [] if first.code == expected or (fault.kind == "death" and survived) else ["no fault"]
    wrong = ["it had a traceback"] if "Traceback" in first.said else []
    why = os.strerror(5 if fault.kind == "EIO" else 28)
    told = why in first.said or "could not be" in first.said
    if first.code != 0 and not told:
        wrong.append(f"it ended with {first.code} and did not say why")
    if first.code == 0 and not told and (different := _different(reference, products())):
        wrong.append(f"it ended well, and {different[0]} is not as it should be")
    return wrong


def _lost(before: dict[str, str], notes: list[dict[str, Any]]) -> list[str]:
    """Files and checkpoints that were there, or said to be written, and are not any more."""
    allowed = {path: {sha} for path, sha in before.items() if "checkpoints/" not in path}
    updates: dict[str, int] = {}
    for note in notes:
        if "written" in note:
            allowed[note["file"]] = {note["sha"]}
        elif "begun" in note and note["file"] in allowed:
            allowed[note["file"]].add(note["sha"])
        elif "checkpoint" in note:
            updates[note["folder"]] = note["checkpoint"]
    wrong = []
    for path, shas in allowed.items():
        if not Path(path).exists() or hashlib.sha256(Path(path).read_bytes()).hexdigest() not in shas:
            wrong.append(f"{path} was written and is {'changed' if Path(path).exists() else 'gone'}")
    found = newest()
    return wrong + [
        f"checkpoint {update} was written, and {found.get(folder, 'none')} is there"
        for folder, update in updates.items()
        if found.get(folder, -1) < update
    ]


def _lies(ended: Ended, broken: set[str]) -> list[str]:
    """Statements that are not true."""
    wrong = [
        f"it said that {name} is damaged, and it was not"
        for name in re.findall(r"checkpoint (update-\d+) is damaged", ended.said)
        if name not in broken
    ]
    for update in re.findall(r"(?:Checkpoint of update |newest complete checkpoint is update-)(\d+)", ended.said):
        if max(newest().values(), default=-1) < int(update):
            wrong.append(f"it said that there is a checkpoint of update {int(update)}")
    return wrong


def _differences(reference: Reference, files: dict[str, str], told: str) -> list[str]:
    """Files that are not those of an undisturbed run; the best weights need not be if they could not be written."""
    results = ("evaluation.json", "examples.json", "compare.json")
    best = ("best.safetensors", "summary.json", ".html", "README.md", *results)
    different = _different(reference, files)
    if "best weights could not be written" in told:
        different = [path for path in different if not path.endswith(best)]
    if re.search(r"(best weights|checkpoint of update \d+) could not be written", told):
        different = [path for path in different if "checkpoints" not in path]
    return [f"{path} is not as in an undisturbed run" for path in different]


def _different(reference: Reference, files: dict[str, str]) -> list[str]:
    return [path for path, sha in reference.files.items() if files.get(path) != sha]


def _folders() -> Iterator[Path]:
    return Path(CASE).rglob("checkpoints")


def newest() -> dict[str, int]:
    """The update of the newest whole checkpoint of each run."""
    found = {str(folder): checkpoints.newest_checkpoint(folder)[0] for folder in _folders()}
    return {folder: checkpoints.update_of(path) for folder, path in found.items() if path is not None}


def damaged() -> set[str]:
    every = (path for folder in _folders() for path in checkpoints.list_checkpoints(folder))
    return {path.name for path in every if checkpoints.find_damage(path) is not None}


def _kept_answers() -> dict[str, int]:
    found = {}
    for path in Path(CASE).rglob("robustness/*.json"):
        try:
            found[str(path)] = json.loads(path.read_bytes())["done"]
        except ValueError:
            found[str(path)] = 0
    return found


def leftovers() -> list[str]:
    """Temporary files. Those of a page or an evaluation stay: only a training locks its folder."""
    found = [path for path in Path(CASE).rglob(".*") if path.suffix in (".partial", ".old")]
    locked = re.compile(r"\.(update-|config|summary|metrics|best|last)")
    return [str(path) for path in found if locked.match(path.name) and "published" not in path.parts]


# The command


class Case(NamedTuple):
    scenario: Scenario
    fault: Fault
    at: tuple[str, str]


def _warm_up() -> None:
    """Trains and evaluates in this process, so that forks find imported what is imported late."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        assert cli.main(TRAIN) == 0
        assert cli.main(["report", str(RUN), "--output", "page.html", "--examples", "1"]) == 0
    gc.freeze()  # so that forks do not copy what their collector looks at


def cases_of(scenario: Scenario, reference: Reference, kinds: Sequence[str]) -> list[Case]:
    found = []
    for kind in kinds:
        for number, at in enumerate(reference.operations):
            if at[0] in KINDS[kind]:
                found.append(Case(scenario, Fault(number, kind), at))
        if kind in POWER:
            found.append(Case(scenario, Fault(len(reference.operations), kind), ("the end", "")))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commands", default="train,eval,compare,report")
    parser.add_argument("--kinds", default="EIO,ENOSPC,full,short,death,power")
    parser.add_argument("--sample", type=int, metavar="N", help="so many faults at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the operations and inject nothing")
    parser.add_argument("--only", metavar="TEXT", help="faults whose line, as printed, holds this text")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep results there and go on from those it has")
    given = parser.parse_args()
    log = Path(os.devnull if given.log is None else given.log).resolve()
    torch.set_num_threads(1)
    os.environ |= {"COLUMNS": "1000", "NO_COLOR": "1", "TERM": "dumb"}
    kinds = [each for name in given.kinds.split(",") for each in (POWER if name == "power" else (name,))]
    scenarios = [each for each in SCENARIOS if each.command in given.commands.split(",")]
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as folder:
        os.chdir(folder)
        Path("tiny.yaml").write_text(yaml.safe_dump(SETTINGS))
        shared = {
            name: value for name, value in SETTINGS.items() if name not in ("method", "checkpoint_every", "track")
        }
        matrix = {"rows": {"CutMix": "cutmix", "none": "none"}, "seeds": [0], "settings": {**shared, "epochs": 1}}
        Path("matrix.yaml").write_text(yaml.safe_dump(matrix, sort_keys=False))
        os.mkdir("first")
        os.chdir("first")
        _warm_up()
        references = {each.name: refer(each, Path(folder) / each.name) for each in scenarios}
        cases = [case for each in scenarios for case in cases_of(each, references[each.name], kinds)]
        if given.list:
            for each in scenarios:
                counts = Counter(name for name, _ in references[each.name].operations)
                print(f"{each.name}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
            return 0
        cases = [case for case in cases if given.only is None or given.only in _line(case)]
        if given.sample is not None:
            chosen = random.Random(given.seed).sample(range(len(cases)), min(given.sample, len(cases)))
            cases = [cases[number] for number in sorted(chosen)]
        failed = _inject_all(cases, references, given.jobs, Path(folder), log)
        os.chdir("/")
        gc.unfreeze()
    _print_counts(cases, kinds)
    print(f"{len(cases)} faults injected, {len(cases) - failed} recovered")
    return int(failed > 0)


def _inject_all(cases: Sequence[Case], references: dict[str, Reference], jobs: int, folder: Path, log: Path) -> int:
    """Injects the faults in so many processes; prints what is wrong, and returns how many were not recovered from."""
    results = folder / "results"
    results.write_bytes(log.read_bytes() if log.exists() else b"")
    known = {json.loads(line)[0] for line in results.read_text().splitlines()}
    left, workers = [case for case in cases if _name(case) not in known], []
    for job in range(jobs):
        sys.stdout.flush()
        child = os.fork()
        workers.append(child)
        if child == 0:
            (folder / f"worker{job}").mkdir()
            os.chdir(folder / f"worker{job}")
            for number, case in enumerate(left[job::jobs]):
                if number % 100 == 0:
                    print(f"process {job}: {number} of {len(left[job::jobs])}", file=sys.stderr, flush=True)
                wrong = inject(case.scenario, folder / case.scenario.name, references[case.scenario.name], case.fault)
                for file in (results, log):
                    with file.open("a") as kept:
                        kept.write(json.dumps([_name(case), wrong]) + "\n")
                if wrong:
                    print("\n".join([f"### {_line(case)}", *wrong]), flush=True)
            os._exit(0)
    for child in workers:
        assert os.waitpid(child, 0)[1] == 0
    found = dict(json.loads(line) for line in results.read_text().splitlines())
    return sum(bool(found[_name(case)]) for case in cases)


def _name(case: Case) -> str:
    return f"{case.scenario.name}: {case.fault.kind} at operation {case.fault.number}"


def _line(case: Case) -> str:
    """With the path, which may hold the number of a process."""
    return f"{_name(case)}, {' '.join(case.at)}"


def _print_counts(cases: Sequence[Case], kinds: Sequence[str]) -> None:
    counts = Counter((case.scenario.name, case.fault.kind) for case in cases)
    names = list(dict.fromkeys(case.scenario.name for case in cases))
    rows = [["", *kinds], *([name, *(str(counts[name, kind]) for kind in kinds)] for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{each:>{width}}" for each, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    raise SystemExit(main())
