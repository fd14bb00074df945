"""How much memory a piece of work takes.

The work runs in a forked child, so that each measurement begins with the same clean process.
"""

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

PROCESS_STATUS = Path("/proc/self/status")
CLEAR_PEAK = Path("/proc/self/clear_refs")
JsonDict = dict[str, Any]


class ChildOutOfMemory(Exception):
    """The work could not get the memory it needed."""


def run_in_child(work: Callable[[], JsonDict]) -> JsonDict:
    """Return the result of work that is done in a child process.

    On systems without fork, the work is done in this process.
    """
    if not hasattr(os, "fork"):
        return _do_work(work)
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        _work_and_exit(work, writing)
    os.close(writing)
    try:
        with os.fdopen(reading) as file:
            text = file.read()
    except BaseException:  # such as Ctrl-C
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    return _read_reply(text, os.waitstatus_to_exitcode(status))


def _work_and_exit(work: Callable[[], JsonDict], writing: int) -> None:  # pragma: no cover
    """Do the work, send the result and end, whatever happens."""
    try:
        reply: JsonDict
        try:
            reply = {"result": _do_work(work)}
        except ChildOutOfMemory as error:
            reply = {"memory": str(error)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing, "w") as file:
            json.dump(reply, file)
        os._exit(0)
    finally:
        os._exit(1)


def _do_work(work: Callable[[], JsonDict]) -> JsonDict:
    try:
        return work()
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise ChildOutOfMemory("out of memory") from error


def _read_reply(text: str, exit_code: int) -> JsonDict:
    if exit_code == -signal.SIGKILL:
        raise ChildOutOfMemory("its process was killed, as the system does when memory runs out")
    if exit_code or not text:
        raise UserError(f"training failed: its process ended with code {exit_code}")
    reply: JsonDict = json.loads(text)
    if "memory" in reply:
        raise ChildOutOfMemory(reply["memory"])
    if "error" in reply:
        raise UserError(f"training failed: {reply['error']}")
    result: JsonDict = reply["result"]
    return result


class PeakMemory:
    """The most memory this process has taken since this object was made.

    It starts from the memory in use: freed memory is returned to the system first.
    """

    def __init__(self) -> None:
        gc.collect()
        _return_freed_memory()
        _reset_peak()
        self.start = _read_status("VmRSS")
        self.files = _read_status("RssFile")

    def growth(self) -> int | None:
        """Return by how many bytes the process grew at most; None where this is unknown.

        Files do not count: the code of libraries is mapped in as it is first used, and no width
        needs it for itself.
        """
        peak = _read_status("VmHWM")
        files = _read_status("RssFile")
        if self.start is None or self.files is None or peak is None or files is None:
            return None
        before = self.start - self.files
        return max(0, (peak - files) - before)


def _return_freed_memory() -> None:
    """Return freed memory to the system: reused, it would hide what the work needs."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc
        pass


def _reset_peak() -> None:
    try:
        CLEAR_PEAK.write_text("5")
    except OSError:
        # Not Linux, or not allowed: the peak is then that of the process so far, which is no less.
        pass


def _read_status(name: str) -> int | None:
    """Return a number of bytes from the status of this process."""
    try:
        lines = PROCESS_STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            kibibytes = int(line.split()[1])
            return 1024 * kibibytes
    return None
