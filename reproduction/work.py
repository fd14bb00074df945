"""Runs what is missing, each run in a process of its own, as many at once as asked for."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from fjord.core.errors import UserError
from reproduction import theorem1
from reproduction.curves import RunJob
from reproduction.folders import run_state

ROOT = Path(__file__).parents[1]
POLL = 0.5
"""Seconds between two looks at the processes."""


class QueueWatcher(Protocol):
    """Is told how the work goes on."""

    def begun(self, job: RunJob, how: str) -> None:
        """Hear that a run was started or resumed."""

    def looked(self, job: RunJob) -> None:
        """Hear that a run is still going on."""

    def ended(self, job: RunJob, failure: str | None) -> None:
        """Hear that a run has ended, and what went wrong if it did."""


@dataclass
class _Process:
    job: RunJob
    process: subprocess.Popen[bytes]
    log: Path
    lock: FileLock


@dataclass
class RunQueue:
    """The runs to do in a folder."""

    runs: Path
    jobs: Iterable[RunJob]
    workers: int
    watcher: QueueWatcher
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by run."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"--workers {self.workers} must be at least 1")

    def run(self) -> None:
        """Do all runs that are not finished; one that fails does not stop the others."""
        waiting = deque(job for job in self.jobs if run_state(job, self.runs) != "finished")
        active: list[_Process] = []
        with _stopping(active):
            while waiting or active:
                while waiting and len(active) < self.workers:
                    self._start(waiting.popleft(), active)
                time.sleep(POLL if active else 0)
                for one in list(active):
                    self._look(one, active)

    def _start(self, job: RunJob, active: list[_Process]) -> None:
        lock = _lock(self.runs, job)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._end(job, "another process is at work on it")
            return
        how = "resumed" if run_state(job, self.runs) == "unfinished" else "started"
        log = self.runs / "logs" / f"{job.name.replace('/', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            streams["env"] = _environment()
            # In a group of its own: a Ctrl-C reaches it once, through us.
            process = subprocess.Popen(
                job_command(job, self.runs, how == "resumed"), start_new_session=True, **streams
            )
        active.append(_Process(job, process, log, lock))
        self.watcher.begun(job, how)

    def _look(self, one: _Process, active: list[_Process]) -> None:
        code = one.process.poll()
        if code is None:
            self.watcher.looked(one.job)
            return
        active.remove(one)
        one.lock.release()
        self._end(
            one.job,
            None if code == 0 else f"{_last_line(one.log)} (exit code {code}; see {one.log})",
        )

    def _end(self, job: RunJob, failure: str | None) -> None:
        if failure is not None:
            self.failed[job.name] = failure
        self.watcher.ended(job, failure)


def job_command(job: RunJob, runs: Path, resume: bool = False) -> list[str]:
    """Return what a person would type for one run."""
    folder = str(runs / job.name)
    if job.recipe in theorem1.RECIPES:
        base = [sys.executable, "-m", "reproduction", job.recipe]
        if resume:
            return [*base, "--resume", folder]
        return [*base, "--output", folder, "--seed", str(job.seed)]
    base = [sys.executable, "-m", "fjord.cli", "run"]
    if resume:
        return [*base, "--resume", folder, "--no-page"]
    settings = [part for setting in job.settings for part in ("--set", setting)]
    return [*base, job.recipe, "--output", folder, "--seed", str(job.seed), *settings, "--no-page"]


def _environment() -> dict[str, str]:
    """Return the environment of a run: one thread each, and this folder importable from anywhere."""
    paths = [str(ROOT)]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    # One thread: runs at the same time do not fight for processors.
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def _lock(runs: Path, job: RunJob) -> FileLock:
    """Return what keeps two processes from working on one run; it is free as soon as its holder is gone."""
    folder = runs / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f".{job.name.replace('/', '-')}.lock")


@contextmanager
def _stopping(active: list[_Process]) -> Iterator[None]:
    """Stop the runs that are going on when the work is: each keeps its last checkpoint."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)) if _in_main_thread() else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
        for one in active:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGINT)
        for one in active:
            try:
                one.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            one.lock.release()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def default_workers() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
