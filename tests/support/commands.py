"""Python in processes of their own, forked from one that has imported torch and this package.

The import is most of what a command costs. Each process has its folder, environment, session,
output and end as if a shell had started it. A few tests start Python anew.
"""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import torch

from fjord.cli import main

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["fjord.cli", "fjord.report", "torch._dynamo", "torch.export._trace"]
)


def _begin(
    words: tuple[str, ...], folder: Path, env: dict[str, str], output: tuple[str, str]
) -> None:
    """Become `python WORDS`, in the forked process."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate(output, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    sys.path.insert(0, str(folder))
    first, *rest = words
    sys.argv = [first, *rest] if first not in ("-m", "-c") else [first, *rest[1:]]
    if first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        exec(rest[0], {"__name__": "__main__"})
    else:
        runpy.run_path(first, run_name="__main__")


class Python:
    """A process that runs `python WORDS`."""

    def __init__(self, *words: str, cwd: Path | None = None, **env: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._output = tuple(str(Path(self._folder.name, name)) for name in ("out", "err"))
        for path in self._output:
            Path(path).touch()
        arguments = (words, Path(cwd or Path.cwd()), {**os.environ, **env}, self._output)
        self._process = CONTEXT.Process(target=_begin, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float = 300) -> int:
        """Return the exit code when it has ended."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"it still runs after {seconds} s"
        return self._process.exitcode

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Return the exit code and what was printed when it has ended."""
        code = self.wait()
        return subprocess.CompletedProcess(
            [], code, *(Path(path).read_text() for path in self._output)
        )


def fjord(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does."""
    return Python("-m", "fjord.cli", *words, cwd=cwd, **env).finish()


def wait_until(true: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for what another process does; fail where it takes longer."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


def call(monkeypatch, *arguments: str) -> int:
    """Run the command line in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["fjord", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0
