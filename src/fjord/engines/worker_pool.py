"""Worker processes that are noticed when they die: an ordered map over forked workers of one thread each."""

import gc
import io
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fjord.core.errors import UserError

Handlers = dict[str, Callable[[Any], Any]]
ATTEMPTS = 3
"""How many workers may die of one job before the run gives up."""
SMALL = 1 << 17
"""Messages up to this size go in one piece, and, if its pipe holds them, to a worker that is still busy."""
Message = tuple[bytes, list[memoryview]]


@dataclass
class _Job:
    index: int
    message: Message
    deaths: int = 0

    @property
    def size(self) -> int:
        return len(self.message[0]) + sum(map(len, self.message[1]))

    @property
    def small(self) -> bool:
        return self.size <= SMALL


@dataclass
class _Worker:
    process: multiprocessing.process.BaseProcess
    connection: Connection
    jobs: deque[_Job] = field(default_factory=deque)
    """The one it works on, and one that waits in its pipe."""
    room: int = 0

    def __post_init__(self) -> None:
        with socket.socket(fileno=os.dup(self.connection.fileno())) as pipe:
            self.room = pipe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def has_room(self, job: _Job) -> bool:
        """Say whether a job fits in the pipe while nobody reads it: else both sides might wait for each other."""
        return 1.5 * job.size < self.room


class WorkerError(UserError):
    """A job failed in a worker."""


class WorkerPool:
    """Runs jobs in forked processes, which inherit models and data without a copy.

    Only fork lets a user's model, data and loss reach a worker as they are; systems without it have one worker.
    """

    def __init__(self, handlers: Handlers, num_workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError(
                f"workers={num_workers}: this system cannot fork processes; use workers=1"
            )
        self.handlers = handlers
        self.workers: list[_Worker] = []
        for _ in range(num_workers):
            self.workers.append(self._start())

    def _start(self, without: _Worker | None = None) -> _Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        others = [worker.connection for worker in self.workers if worker is not without] + [ours]
        process = context.Process(target=_serve, args=(theirs, others, self.handlers), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def map(self, kind: str, payloads: Iterable[Any], ahead: int | None = None) -> Iterator[Any]:
        """Yield the results in the order of the payloads.

        At most `ahead` jobs (by default three for each worker) are begun whose results were not taken yet: one that
        takes long must not keep the others waiting, nor all results pile up behind it.
        """
        if any(worker.jobs for worker in self.workers):
            raise WorkerError("the pool is at work on other jobs, whose results are not all taken")
        try:
            yield from self._map(kind, payloads, ahead or 3 * len(self.workers))
        finally:
            self._stop_unfinished()

    def _stop_unfinished(self) -> None:
        """Replace workers that are still at work for somebody who left: nobody may get their results."""
        for place, worker in enumerate(self.workers):
            if worker.jobs:
                worker.process.kill()
                worker.process.join()
                worker.connection.close()
                self.workers[place] = self._start(without=worker)

    def _map(self, kind: str, payloads: Iterable[Any], ahead: int) -> Iterator[Any]:
        jobs = (_Job(i, _packed((kind, payload))) for i, payload in enumerate(payloads))
        coming, results, wanted = deque(islice(jobs, 1)), dict[int, Any](), 0
        while True:
            while (
                coming
                and coming[0].index < wanted + ahead
                and (place := self._taker(coming)) is not None
            ):
                self._give(place, coming.popleft())
                made_ahead = 1 + len(self.workers) if all(job.small for job in coming) else 1
                coming.extend(islice(jobs, max(0, made_ahead - len(coming))))
            while wanted in results:
                yield results.pop(wanted)
                wanted += 1
            waiting = [w.connection for w in self.workers if w.jobs]
            if not waiting and not coming:
                return
            for connection in wait(waiting) if waiting else ():
                place = next(i for i, w in enumerate(self.workers) if w.connection is connection)
                self._receive(place, results)

    def _taker(self, coming: Sequence[_Job]) -> int | None:
        """Return the worker that takes the next job: an idle one, or a busy one that need not wait for its next then.

        The last jobs go to idle workers only, so that all end at the same time.
        """
        lengths = [len(worker.jobs) for worker in self.workers]
        place = lengths.index(min(lengths))
        waits = (
            len(coming) > len(lengths)
            and coming[0].small
            and self.workers[place].has_room(coming[0])
        )
        return place if lengths[place] <= waits else None

    def _give(self, place: int, job: _Job) -> None:
        self.workers[place].jobs.append(job)
        try:
            _send(self.workers[place].connection, job.message)
        except OSError:
            self._revive(place)

    def _receive(self, place: int, results: dict[int, Any]) -> None:
        worker = self.workers[place]
        try:
            ok, result = _receive(worker.connection)
        except (EOFError, OSError):
            self._revive(place)
            return
        index = worker.jobs.popleft().index
        if not ok:
            raise WorkerError(result)
        results[index] = result

    def _revive(self, place: int) -> None:
        """Replace a dead worker and run its jobs again."""
        dead = self.workers[place]
        dead.process.join()
        dead.connection.close()
        dead.jobs[0].deaths += 1
        if dead.jobs[0].deaths >= ATTEMPTS:
            raise WorkerError(
                f"{ATTEMPTS} workers died of the same job, the last with exit code {dead.process.exitcode} "
                "(-9 is often a lack of memory)"
            )
        self.workers.pop(place)
        self.workers.insert(place, self._start())
        for job in dead.jobs:
            self._give(place, job)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
        self.workers.clear()


def _serve(connection: Connection, others: list[Connection], handlers: Handlers) -> None:
    """Run jobs until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # held open here, a worker would not see that the main process is gone
        other.close()
    sys.stdout, sys.stderr = (
        sys.__stdout__,
        sys.__stderr__,
    )  # not the display's, which is drawn by one process
    torch.set_num_threads(1)
    gc.freeze()  # what was inherited stays shared: a collection would touch, and so copy, all of it
    while True:
        try:
            kind, payload = _receive(connection)
            _send(connection, _run(handlers[kind], payload))
        except (EOFError, OSError):
            return


def _packed(content: Any) -> Message:
    """Return a message: what is not the memory of arrays, and that memory as it is, without a copy."""
    blocks: list[pickle.PickleBuffer] = []
    header = pickle.dumps(content, protocol=5, buffer_callback=blocks.append)
    return header, [block.raw() for block in blocks]


def _send(connection: Connection, message: Message) -> None:
    parts: list[bytes | memoryview] = [message[0], *message[1]]
    sizes = list(map(len, parts))
    first = pickle.dumps(sizes)
    if sum(sizes) <= SMALL:  # one piece: each wakes the other side, which has better things to do
        connection.send_bytes(b"".join((first, *parts)))
        return
    connection.send_bytes(first)
    for memory in parts:
        if len(memory):
            connection.send_bytes(memory)


def _receive(connection: Connection) -> Any:
    first = io.BytesIO(connection.recv_bytes())
    sizes = pickle.load(first)
    small, blocks = sum(sizes) <= SMALL, [bytearray(size) for size in sizes]
    for block in blocks:
        if small:
            first.readinto(block)
        elif block:
            connection.recv_bytes_into(block)
    return pickle.loads(blocks[0], buffers=blocks[1:])


def _run(handler: Callable[[Any], Any], payload: Any) -> Message:
    try:
        return _packed((True, handler(payload)))
    except Exception as error:  # whatever it is, the main process has to hear of it
        return _packed((False, _failure_text(error)))


def _failure_text(error: Exception) -> str:
    """Return what the main process says of a failed job: who it was for, what happened and where."""
    notes = "".join(f"{note}: " for note in getattr(error, "__notes__", []))
    if isinstance(error, UserError):
        return notes + str(error)
    message = traceback.format_exception_only(error)[0].strip()
    trail = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return f"{notes}{message}\n{trail}"
