"""`vitmix score`."""

from dataclasses import dataclass
from pathlib import Path

from vitmix.lab.cli._common import OutputFile
from vitmix.lab.cli._parser import Command
from vitmix.lab.settings import File, Settings, option


@dataclass(frozen=True, kw_only=True)
class Score(Settings):
    """Compute the average precision of a file of detections."""

    annotations: File = option(..., "COCO file with the true objects", positional=True)
    detections: File = option(..., "detections in COCO's format, such as a run's detections.json", positional=True)
    output: OutputFile | None = option(None, "write the scores to this JSON file")


def run(settings: Score) -> int:
    from vitmix.lab.dense.detection.results import score_file
    from vitmix.lab.dense.evaluation import score_lines
    from vitmix.lab.writing import write_file

    scores = score_file(Path(settings.annotations), Path(settings.detections))
    print("\n".join([f"{settings.detections} on {settings.annotations}, {scores.n:,} images:", *score_lines(scores)]))
    if settings.output:
        write_file(Path(settings.output), scores.encoded(indent=1))
    return 0


COMMAND = Command(Score, run)
