"""Processes that outlive the command that starts them, and are found again by a mark, never by a mere pid."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "FJORD_FLEET"  # an environment variable: children inherit it, also those that begin a session of their own
PROC = Path("/proc")


@dataclass(frozen=True)
class MarkedProcess:
    """A process that was started; with its start time (clock ticks since boot), as pids are used again."""

    name: str
    pid: int
    start_time: int
    port: int
    command: tuple[str, ...]
    log: str
    mark: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs: not its pid in another's hands, and not a dead one nobody reaped."""
        return _start_time(self.pid) == self.start_time and _carries(self.pid, self.mark)


def start_process(
    name: str, command: Iterable[str], port: int, *, log: Path, work: Path, env: Mapping[str, str]
) -> MarkedProcess:
    """Start a command in a session of its own, in the folder `work`, its output in `log`; `env` holds the mark."""
    words = tuple(command)
    with log.open("ab") as file:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=dict(env),
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
        )
    while child.poll() is None and not _carries(child.pid, env[MARK]):
        time.sleep(
            0.005
        )  # on a busy machine Popen returns before the system shows what the process was started with
    return MarkedProcess(
        name, child.pid, _start_time(child.pid) or 0, port, words, str(log), env[MARK]
    )


def find_marked(mark: str) -> dict[int, int]:
    """Return pid and start time of every living process with this mark, or with one below it, and their descendants.

    Below `a` are `a/b` and `a/c`: the mark of a fleet, and those of its processes.
    """
    parents = {
        int(entry.name): _parent(int(entry.name))
        for entry in PROC.iterdir()
        if entry.name.isdigit()
    }
    found = {pid for pid in parents if _carries(pid, mark)}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: begun for pid in sorted(found) if (begun := _start_time(pid)) is not None}


def end_processes(mark: str, first: Iterable[MarkedProcess] = (), *, patience: float = 5.0) -> int:
    """End all processes with this mark, those of `first` before the rest; return how many there were.

    They are asked to end, and killed where they have not after `patience` seconds.
    """
    family = find_marked(
        mark
    )  # kept: a child without the mark is known only as long as its parent lives
    _ask({process.pid: process.start_time for process in first if process.alive}, patience)
    family |= find_marked(mark)
    _ask(family, patience)
    while rest := _living(
        family | find_marked(mark)
    ):  # again until none is left: a process may start another meanwhile
        family |= rest
        _signal(rest, signal.SIGKILL)
        time.sleep(0.05)
    return len(family)


def last_lines(log: Path, count: int = 20) -> str:
    """Return the end of a log, indented and without colours."""
    lines = (
        re.sub(r"\x1b\[[\d;]*m", "", log.read_text(errors="replace")).splitlines()
        if log.exists()
        else []
    )
    return "\n".join(f"  {line}" for line in lines[-count:]) or "  (the log is empty)"


def _ask(processes: dict[int, int], patience: float) -> None:
    _signal(processes, signal.SIGTERM)
    limit = time.monotonic() + patience
    while time.monotonic() < limit and _living(processes):
        time.sleep(0.05)


def _living(processes: dict[int, int]) -> dict[int, int]:
    return {pid: begun for pid, begun in processes.items() if _start_time(pid) == begun}


def _signal(processes: dict[int, int], number: signal.Signals) -> None:
    for pid, begun in processes.items():
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:  # the handle holds on to the process: between the look at its start time and the signal it cannot change
            if _start_time(pid) == begun:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)


def _carries(pid: int, mark: str) -> bool:
    try:
        variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return False
    wanted = f"{MARK}={mark}".encode()
    return any(variable == wanted or variable.startswith(wanted + b"/") for variable in variables)


def _fields(pid: int) -> list[str]:
    """Return what /proc/PID/stat says after the name, which may itself hold spaces and brackets."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[1]) if fields else None


def _start_time(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None
