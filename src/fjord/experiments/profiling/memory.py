"""How much memory a piece of work takes: in a forked child, so that each begins with the same clean process."""

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.memory import is_out_of_memory

STATUS = Path("/proc/self/status")
Plain = dict[str, Any]


class ChildOutOfMemory(Exception):
    """The work could not get the memory it needed."""


def run_in_child(work: Callable[[], Plain]) -> Plain:
    """Return what work returns, done in a child that ends afterwards; where there is no fork, do it here."""
    if not hasattr(os, "fork"):
        return _done(work)
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        _answer(work, writing)
    os.close(writing)
    try:
        with os.fdopen(reading) as file:
            text = file.read()
    except BaseException:  # such as Ctrl-C
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    return _understood(text, os.waitstatus_to_exitcode(status))


def _answer(work: Callable[[], Plain], writing: int) -> None:  # pragma: no cover
    """Do the work, send the result and end, whatever happens."""
    try:
        found: Plain
        try:
            found = {"result": _done(work)}
        except ChildOutOfMemory as error:
            found = {"memory": str(error)}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing, "w") as file:
            json.dump(found, file)
        os._exit(0)
    finally:
        os._exit(1)


def _done(work: Callable[[], Plain]) -> Plain:
    try:
        return work()
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise ChildOutOfMemory("out of memory") from error


def _understood(text: str, code: int) -> Plain:
    if code == -signal.SIGKILL:
        raise ChildOutOfMemory("its process was killed, as the system does when memory runs out")
    if code or not text:
        raise UserError(f"training failed: its process ended with code {code}")
    found: Plain = json.loads(text)
    if "memory" in found:
        raise ChildOutOfMemory(found["memory"])
    if "error" in found:
        raise UserError(f"training failed: {found['error']}")
    result: Plain = found["result"]
    return result


class PeakMemory:
    """The most memory this process has taken since now; it starts from what is in use, without what lies idle."""

    def __init__(self) -> None:
        gc.collect()
        _give_back()
        _forget_peak()
        self.start, self.files = _status("VmRSS"), _status("RssFile")

    def growth(self) -> int | None:
        """Return by how many bytes the process grew at most; None where the system does not tell.

        Without files: the code of libraries is mapped in as it is first used, and no width needs it for itself.
        """
        highest, files = _status("VmHWM"), _status("RssFile")
        if self.start is None or self.files is None or highest is None or files is None:
            return None
        return max(0, (highest - files) - (self.start - self.files))


def _give_back() -> None:
    """Return freed memory to the system: reused, it would hide what the work needs."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc
        pass


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or not allowed: the peak is then that of the whole process so far, which is no less
        pass


def _status(name: str) -> int | None:
    try:
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return None
    return 1024 * int(line.split()[1])
