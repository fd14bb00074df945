"""Copies runs without their weights, small enough to be kept beside the code: all their models that are done."""

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path

from fjord.experiments.runs import RunFolder
from reproduction.curves import CURVES, TASKS, run_place
from reproduction.exact import svd_runs
from reproduction.measured import measure_curve

PLAIN, PACKED = ("config.json", "env.json"), ("metrics.jsonl", "clients.json")


def worth_keeping(runs: Path) -> Iterator[tuple[Path, int | None]]:
    """Yield the folders, under RUNS, of all runs that have a model that is done, and how many rows (None: all) it has.

    Rounds of a model that is not done are left out: without its weights nobody can go on from there.
    """
    for task in TASKS.values():
        for curve in CURVES.values():
            if curve.reads == "scores" and (not curve.alone or task.central):
                found, _ = measure_curve(task, curve, runs)
                for seed, run in found.runs.items() if found else ():
                    yield Path(run_place(task, curve)) / str(seed), len(run.rows)
    for name in ("paper", "decaying"):
        yield from ((Path("theorem1") / name / str(seed), None) for seed in svd_runs(runs, name))
    if (runs / "table1b" / "0" / "config.json").exists():
        yield Path("table1b/0"), None


def pack_runs(runs: Path, target: Path) -> tuple[int, list[str]]:
    """Copy them: settings as they are, metrics and client scores packed, bit for bit.

    Return the bytes written, and what was left as it is, as the copy that is there goes further.
    """
    size, left = 0, list[str]()
    for name, rows in worth_keeping(runs):
        source, place = runs / name, target / name
        if rows is not None and place.exists() and len(RunFolder(place).metrics()) > rows:
            left.append(f"{name}: has more models than {source}")
            continue
        place.mkdir(parents=True, exist_ok=True)
        for file in PLAIN:
            shutil.copyfile(source / file, place / file)
        for file in PACKED:
            _pack(source, place, file, rows if file == "metrics.jsonl" else None)
        size += sum(path.stat().st_size for path in place.iterdir())
    return size, left


def _pack(source: Path, place: Path, file: str, lines: int | None) -> None:
    """Pack the first lines of a file; what is packed already is copied as it is."""
    if (source / file).exists():
        content = b"".join((source / file).read_bytes().splitlines(keepends=True)[:lines])
        # Without a time in it, the same run gives the same bytes.
        (place / f"{file}.gz").write_bytes(gzip.compress(content, mtime=0))
    elif (source / f"{file}.gz").exists():
        shutil.copyfile(source / f"{file}.gz", place / f"{file}.gz")
