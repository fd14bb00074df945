"""An ordered map over forked worker processes of one thread each, which may die without loss."""

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
MAX_DEATHS = 3
"""How many workers may die of one job before the run gives up."""
SMALL_BYTES = 1 << 17
"""Messages up to this size are sent in one piece, and also to a worker that is still busy."""
PackedMessage = tuple[bytes, list[memoryview]]
"""A pickle, and the memory of the arrays in it."""


@dataclass
class _PoolJob:
    index: int
    message: PackedMessage
    deaths: int = 0

    @property
    def num_bytes(self) -> int:
        header, blocks = self.message
        return len(header) + sum(map(len, blocks))

    @property
    def is_small(self) -> bool:
        return self.num_bytes <= SMALL_BYTES


@dataclass
class _PoolWorker:
    process: multiprocessing.process.BaseProcess
    connection: Connection
    jobs: deque[_PoolJob] = field(default_factory=deque)
    """The one it works on, and one that waits in its pipe."""
    pipe_bytes: int = 0

    def __post_init__(self) -> None:
        with socket.socket(fileno=os.dup(self.connection.fileno())) as pipe:
            self.pipe_bytes = pipe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def has_room(self, job: _PoolJob) -> bool:
        """Return whether a job fits in the pipe: if not, both sides might wait for each other."""
        return 1.5 * job.num_bytes < self.pipe_bytes


class WorkerError(UserError):
    """A job failed in a worker."""


class WorkerPool:
    """Runs jobs in forked processes, which inherit models and data without a copy.

    Only a fork passes a user's model, data and loss to a worker as they are; on systems without it
    there is one worker.
    """

    def __init__(self, handlers: Handlers, num_workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            reason = "needs a system that can fork processes; use workers=1"
            raise UserError(reason, field="workers", value=num_workers)
        self.handlers = handlers
        self.workers: list[_PoolWorker] = []
        for _ in range(num_workers):
            self.workers.append(self._start_worker())

    def _start_worker(self, replaces: _PoolWorker | None = None) -> _PoolWorker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [worker.connection for worker in self.workers if worker is not replaces]
        arguments = (theirs, [*inherited, ours], self.handlers)
        process = context.Process(
            target=_serve_jobs,
            args=arguments,
            daemon=True,
        )
        process.start()
        theirs.close()
        return _PoolWorker(process, ours)

    def map(
        self,
        kind: str,
        payloads: Iterable[Any],
        ahead: int | None = None,
    ) -> Iterator[Any]:
        """Yield the results in the order of the payloads.

        At most `ahead` jobs (by default three for each worker) are begun whose results are not yet
        consumed: a slow one must not keep the others waiting, nor all results pile up behind it.
        """
        if any(worker.jobs for worker in self.workers):
            raise WorkerError("the pool is at work on other jobs, whose results are not all read")
        try:
            limit = ahead or 3 * len(self.workers)
            yield from self._map_jobs(kind, payloads, limit)
        finally:
            self._stop_unfinished()

    def _stop_unfinished(self) -> None:
        """Replace workers that are still busy: nobody may get results of a map that was left."""
        for place, worker in enumerate(self.workers):
            if worker.jobs:
                worker.process.kill()
                worker.process.join()
                worker.connection.close()
                self.workers[place] = self._start_worker(replaces=worker)

    def _map_jobs(
        self,
        kind: str,
        payloads: Iterable[Any],
        ahead: int,
    ) -> Iterator[Any]:
        jobs = _make_jobs(kind, payloads)
        queue = deque(islice(jobs, 1))
        results: dict[int, Any] = {}
        wanted = 0
        while True:
            while queue and queue[0].index < wanted + ahead:
                place = self._free_worker(queue)
                if place is None:
                    break
                self._send_job(place, queue.popleft())
                self._fill_queue(queue, jobs)
            while wanted in results:
                yield results.pop(wanted)
                wanted += 1
            busy = [worker.connection for worker in self.workers if worker.jobs]
            if busy:
                self._receive_results(busy, results)
            elif not queue:
                return

    def _fill_queue(self, queue: deque[_PoolJob], jobs: Iterator[_PoolJob]) -> None:
        """Make jobs ahead: one more than workers while they are small, else one at a time."""
        length = 1
        if all(job.is_small for job in queue):
            length += len(self.workers)
        missing = max(0, length - len(queue))
        queue.extend(islice(jobs, missing))

    def _free_worker(self, queue: Sequence[_PoolJob]) -> int | None:
        """Return the worker for the next job: an idle one, or a busy one that can have it waiting.

        The last jobs are left for idle workers, so that all end at the same time.
        """
        lengths = [len(worker.jobs) for worker in self.workers]
        shortest = min(lengths)
        place = lengths.index(shortest)
        if shortest == 0:
            return place
        job = queue[0]
        may_wait = len(queue) > len(lengths) and job.is_small
        if shortest == 1 and may_wait and self.workers[place].has_room(job):
            return place
        return None

    def _send_job(self, place: int, job: _PoolJob) -> None:
        self.workers[place].jobs.append(job)
        try:
            _send_message(self.workers[place].connection, job.message)
        except OSError:
            self._replace_dead(place)

    def _receive_results(self, busy: list[Connection], results: dict[int, Any]) -> None:
        """Wait until at least one worker has a result or is dead."""
        for ready in wait(busy):
            for place, worker in enumerate(self.workers):
                if worker.connection is ready:
                    self._receive_result(place, results)
                    break

    def _receive_result(self, place: int, results: dict[int, Any]) -> None:
        worker = self.workers[place]
        try:
            succeeded, result = _receive_message(worker.connection)
        except (EOFError, OSError):
            self._replace_dead(place)
            return
        job = worker.jobs.popleft()
        if not succeeded:
            raise WorkerError(result)
        results[job.index] = result

    def _replace_dead(self, place: int) -> None:
        """Replace a dead worker and run its jobs again."""
        dead = self.workers[place]
        dead.process.join()
        dead.connection.close()
        dead.jobs[0].deaths += 1
        if dead.jobs[0].deaths >= MAX_DEATHS:
            code = dead.process.exitcode
            raise WorkerError(
                f"{MAX_DEATHS} workers died of the same job, the last with exit code {code} "
                "(-9 is often a lack of memory)"
            )
        self.workers[place] = self._start_worker(replaces=dead)
        for job in dead.jobs:
            self._send_job(place, job)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
        self.workers.clear()


def _make_jobs(kind: str, payloads: Iterable[Any]) -> Iterator[_PoolJob]:
    for index, payload in enumerate(payloads):
        yield _PoolJob(index, _pack_message((kind, payload)))


def _serve_jobs(
    connection: Connection,
    inherited: list[Connection],
    handlers: Handlers,
) -> None:
    """Run jobs until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:  # if they stay open, a worker does not see that the main process ended
        other.close()
    # Not those of the progress display, which one process draws.
    sys.stdout = sys.__stdout__
    sys.stderr = sys.__stderr__
    torch.set_num_threads(1)
    gc.freeze()  # what was inherited stays shared: a collection would touch, and so copy, all of it
    while True:
        try:
            kind, payload = _receive_message(connection)
            _send_message(connection, _run_handler(handlers[kind], payload))
        except (EOFError, OSError):
            return


def _pack_message(content: Any) -> PackedMessage:
    """Pickle a message, except for the memory of arrays, which is not copied."""
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    return header, [buffer.raw() for buffer in buffers]


def _send_message(connection: Connection, message: PackedMessage) -> None:
    header, blocks = message
    parts: list[bytes | memoryview] = [header, *blocks]
    sizes = list(map(len, parts))
    first = pickle.dumps(sizes)
    if sum(sizes) <= SMALL_BYTES:  # in one piece: each piece wakes the other side
        connection.send_bytes(b"".join((first, *parts)))
        return
    connection.send_bytes(first)
    for part in parts:
        if len(part):
            connection.send_bytes(part)


def _receive_message(connection: Connection) -> Any:
    first = io.BytesIO(connection.recv_bytes())
    sizes = pickle.load(first)
    is_small = sum(sizes) <= SMALL_BYTES
    blocks = list(map(bytearray, sizes))
    for block in blocks:
        if is_small:
            first.readinto(block)
        elif block:
            connection.recv_bytes_into(block)
    return pickle.loads(blocks[0], buffers=blocks[1:])


def _run_handler(handler: Callable[[Any], Any], payload: Any) -> PackedMessage:
    try:
        return _pack_message((True, handler(payload)))
    except Exception as error:  # whatever it is, the main process has to know
        return _pack_message((False, _failure_text(error)))


def _failure_text(error: Exception) -> str:
    """Return what the main process reports of a failed job: its client, the error and where."""
    notes = ""
    for note in getattr(error, "__notes__", []):
        notes += f"{note}: "
    if isinstance(error, UserError):
        return notes + str(error)
    message = traceback.format_exception_only(error)[0].strip()
    trail = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return f"{notes}{message}\n{trail}"
