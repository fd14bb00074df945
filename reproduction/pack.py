"""Copy runs without their weights, small enough to be kept beside the code."""

import gzip
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fjord.experiments.runs import RunFolder
from reproduction.curves import CURVES, TASKS, run_place
from reproduction.exact import TABLE_FOLDER, svd_runs
from reproduction.measured import measure_curve

PLAIN = ("config.json", "env.json")
PACKED = ("metrics.jsonl", "clients.json")


@dataclass(frozen=True)
class KeptRun:
    """A run worth keeping, by its folder under RUNS."""

    name: Path
    rows: int | None = None
    """How many rows of metrics belong to finished models; None: all."""


def runs_to_keep(runs: Path) -> Iterator[KeptRun]:
    """Yield all runs that have a finished model.

    Rounds of an unfinished model are left out: without its weights it cannot be resumed.
    """
    for task in TASKS.values():
        for curve in CURVES.values():
            if curve.reads != "scores" or (curve.central and not task.central):
                continue
            measured, _ = measure_curve(task, curve, runs)
            if measured:
                for seed, run in measured.runs.items():
                    yield KeptRun(Path(run_place(task, curve), str(seed)), len(run.rows))
    for name in ("paper", "decaying"):
        for seed in svd_runs(runs, name):
            yield KeptRun(Path("theorem1", name, str(seed)))
    if RunFolder(runs / TABLE_FOLDER).has("config.json"):
        yield KeptRun(Path(TABLE_FOLDER))


def pack_runs(runs: Path, target: Path) -> tuple[int, list[str]]:
    """Copy runs: settings as they are, metrics and client scores compressed without loss.

    Return the bytes written, and the runs that were skipped because the copy there has more models.
    """
    size = 0
    skipped: list[str] = []
    for run in runs_to_keep(runs):
        source = runs / run.name
        place = target / run.name
        if _has_more_rows(place, run.rows):
            skipped.append(f"{run.name}: has more models than {source}")
            continue
        place.mkdir(parents=True, exist_ok=True)
        for file in PLAIN:
            shutil.copyfile(source / file, place / file)
        for file in PACKED:
            rows = run.rows if file == "metrics.jsonl" else None
            _pack_file(source, place, file, rows)
        size += sum(path.stat().st_size for path in place.iterdir())
    return size, skipped


def _has_more_rows(place: Path, rows: int | None) -> bool:
    if rows is None or not place.exists():
        return False
    return len(RunFolder(place).metrics()) > rows


def _pack_file(source: Path, place: Path, file: str, lines: int | None) -> None:
    """Compress the first lines of a file; a compressed file is copied as it is."""
    packed = f"{file}.gz"
    if (source / file).exists():
        content = (source / file).read_bytes().splitlines(keepends=True)
        # Without a time in it, the same run gives the same bytes.
        compressed = gzip.compress(b"".join(content[:lines]), mtime=0)
        (place / packed).write_bytes(compressed)
    elif (source / packed).exists():
        shutil.copyfile(source / packed, place / packed)
