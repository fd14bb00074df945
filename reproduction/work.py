"""Run what is missing, each run in a process of its own, several at the same time."""

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
from typing import Protocol

from filelock import FileLock, Timeout

from fjord.core.errors import UserError
from reproduction import theorem1
from reproduction.curves import RunJob
from reproduction.folders import run_state

ROOT = Path(__file__).parents[1]
POLL_SECONDS = 0.5
STOP_SECONDS = 20
"""How long a run that is stopped may take to end by itself."""


class QueueWatcher(Protocol):
    """Is called as the work goes on."""

    def on_start(self, job: RunJob, how: str) -> None:
        """React to a run that was started or resumed."""

    def on_poll(self, job: RunJob) -> None:
        """React to a run that is still going on."""

    def on_end(self, job: RunJob, failure: str | None) -> None:
        """React to a run that ended, and to what went wrong if something did."""


@dataclass
class _RunProcess:
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
            raise UserError("must be at least 1", field="workers", value=self.workers)

    def run(self) -> None:
        """Do all runs that are not finished; one that fails does not stop the others."""
        waiting = deque(job for job in self.jobs if run_state(job, self.runs) != "finished")
        active: list[_RunProcess] = []
        with _stop_at_exit(active):
            while waiting or active:
                while waiting and len(active) < self.workers:
                    self._start_run(waiting.popleft(), active)
                if active:
                    time.sleep(POLL_SECONDS)
                for one in list(active):
                    self._poll_run(one, active)

    def _start_run(self, job: RunJob, active: list[_RunProcess]) -> None:
        lock = run_lock(self.runs, job)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._end_run(job, "another process is at work on it")
            return
        resume = run_state(job, self.runs) == "unfinished"
        log = self.runs / "logs" / f"{_file_name(job)}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                job_command(job, self.runs, resume),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                start_new_session=True,  # a Ctrl-C reaches it once, through us
            )
        active.append(_RunProcess(job, process, log, lock))
        self.watcher.on_start(job, "resumed" if resume else "started")

    def _poll_run(self, one: _RunProcess, active: list[_RunProcess]) -> None:
        code = one.process.poll()
        if code is None:
            self.watcher.on_poll(one.job)
            return
        active.remove(one)
        one.lock.release()
        failure = None
        if code != 0:
            failure = f"{_last_line(one.log)} (exit code {code}; see {one.log})"
        self._end_run(one.job, failure)

    def _end_run(self, job: RunJob, failure: str | None) -> None:
        if failure is not None:
            self.failed[job.name] = failure
        self.watcher.on_end(job, failure)


def job_command(job: RunJob, runs: Path, resume: bool = False) -> list[str]:
    """Return what a person would type for one run."""
    folder = str(runs / job.name)
    new_run = ["--output", folder, "--seed", str(job.seed)]
    if job.recipe in theorem1.RECIPES:
        base = [sys.executable, "-m", "reproduction", job.recipe]
        return [*base, "--resume", folder] if resume else [*base, *new_run]
    base = [sys.executable, "-m", "fjord.cli", "run"]
    if resume:
        return [*base, "--resume", folder, "--no-page"]
    settings: list[str] = []
    for setting in job.settings:
        settings += ["--set", setting]
    return [*base, job.recipe, *new_run, *settings, "--no-page"]


def _environment() -> dict[str, str]:
    """Return the environment of a run, in which this package can be imported from any folder."""
    paths = [str(ROOT)]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["OMP_NUM_THREADS"] = "1"  # runs at the same time do not compete for processors
    return environment


def run_lock(runs: Path, job: RunJob) -> FileLock:
    """Return the lock of a run; it is released as soon as its process ends, however it ends."""
    folder = runs / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f".{_file_name(job)}.lock")


def _file_name(job: RunJob) -> str:
    return job.name.replace("/", "-")


@contextmanager
def _stop_at_exit(active: list[_RunProcess]) -> Iterator[None]:
    """Stop the runs that are going on when the work ends; each keeps its last checkpoint."""
    previous = None
    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
        for one in active:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGINT)
        for one in active:
            _wait_or_kill(one.process)
            one.lock.release()


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    for line in reversed(lines):
        if line.strip():
            return line
    return "no output"


def default_workers() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
