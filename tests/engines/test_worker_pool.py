"""Workers: results in order, whatever the sizes of messages, who is slow and who dies."""

import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fjord.engines.worker_pool import SMALL_BYTES, WorkerError, WorkerPool


@pytest.fixture(autouse=True)
def no_hanging():
    """End a test in which both sides wait for each other."""

    def end(*_: object) -> None:
        raise TimeoutError("the pool hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def doubled(values: np.ndarray) -> np.ndarray:
    time.sleep(0.002)
    return values * 2


sizes = st.lists(
    st.sampled_from([0, 100, SMALL_BYTES // 8 - 200, SMALL_BYTES // 8, SMALL_BYTES]), max_size=14
)


@settings(max_examples=25, deadline=None)
@example(
    [
        SMALL_BYTES,
        1,
        1,
        SMALL_BYTES,
        SMALL_BYTES,
        1,
        SMALL_BYTES,
        1,
        1,
        SMALL_BYTES,
        1,
        1,
        1,
        SMALL_BYTES,
    ],
    2,
)
@example([SMALL_BYTES] + [1] * 3 + [SMALL_BYTES] * 8, 2)
@given(sizes, st.integers(1, 3))
def test_results_come_in_order_whatever_their_sizes(lengths: list[int], num_workers: int) -> None:
    pool = WorkerPool({"double": doubled}, num_workers)
    try:
        given_ = [np.arange(n, dtype=np.float64) + i for i, n in enumerate(lengths)]
        for _ in range(2):
            found = list(pool.map("double", iter(given_)))
            assert len(found) == len(given_)
            assert all(np.array_equal(f, 2 * g) for f, g in zip(found, given_, strict=True))
    finally:
        pool.close()


def test_a_dead_worker_loses_neither_its_job_nor_the_one_that_waits_for_it(tmp_path: Path) -> None:
    def fragile(number: int) -> int:
        mark = tmp_path / str(number)
        if number % 5 == 1 and not mark.exists():
            mark.touch()
            time.sleep(0.05)  # so that the next job is in its pipe
            os._exit(9)
        return number * number

    pool = WorkerPool({"square": fragile}, 2)
    try:
        assert list(pool.map("square", range(30))) == [n * n for n in range(30)]
        assert len(list(tmp_path.iterdir())) == 6
    finally:
        pool.close()


def test_a_job_of_which_all_workers_die_ends_the_run_in_words() -> None:
    pool = WorkerPool({"die": lambda number: os._exit(7) if number == 4 else number}, 2)
    try:
        with pytest.raises(
            WorkerError, match="3 workers died of the same job, the last with exit code 7"
        ):
            list(pool.map("die", range(9)))
    finally:
        pool.close()


def test_jobs_are_made_only_a_little_ahead() -> None:
    made: list[int] = []

    def payloads():
        for number in range(60):
            made.append(number)
            yield number

    pool = WorkerPool({"same": lambda number: number}, 2)
    try:
        for taken, _ in enumerate(pool.map("same", payloads())):
            assert len(made) <= taken + 1 + 3 * 2 + 3
    finally:
        pool.close()


def slow(number: object) -> object:
    time.sleep(0.02)
    return number


@pytest.mark.parametrize("how", ["left", "failed", "raised"])
def test_results_of_jobs_that_nobody_waits_for_are_given_to_nobody(how: str) -> None:
    def breaking(number: object) -> object:
        if number == "bad":
            raise KeyError(number)
        return slow(number)

    def payloads():
        yield from ["old0", "old1", "old2"]
        if how == "raised":
            raise OverflowError
        yield from ["bad" if how == "failed" else "old3", "old4", "old5"]

    pool = WorkerPool({"same": breaking}, 2)
    try:
        first = pool.map("same", payloads())
        if how == "left":
            assert next(first) == "old0"
            first.close()
        else:
            with pytest.raises(WorkerError if how == "failed" else OverflowError):
                list(first)
        assert list(pool.map("same", [f"new{i}" for i in range(7)])) == [
            f"new{i}" for i in range(7)
        ]
    finally:
        pool.close()


def test_a_second_map_must_wait_for_the_first() -> None:
    pool = WorkerPool({"same": slow}, 2)
    try:
        first = pool.map("same", range(9))
        next(first)
        with pytest.raises(WorkerError, match="at work on other jobs"):
            next(pool.map("same", range(3)))
        assert list(first) == list(range(1, 9))
    finally:
        pool.close()


def test_small_pipes_do_not_make_both_sides_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    make = multiprocessing.get_context("fork").Pipe

    def small_pipe() -> tuple:
        ends = make()
        for end in ends:
            with socket.socket(fileno=os.dup(end.fileno())) as pipe:
                pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return ends

    monkeypatch.setattr(multiprocessing.get_context("fork"), "Pipe", small_pipe)
    pool = WorkerPool({"grow": lambda values: np.tile(values, 20)}, 2)
    try:
        found = list(pool.map("grow", (np.arange(12_000.0) + i for i in range(12))))
        assert [float(f[0]) for f in found] == list(range(12))
    finally:
        pool.close()


def test_a_result_that_cannot_be_sent_is_an_error_of_the_job() -> None:
    pool = WorkerPool({"make": lambda number: lambda: number}, 2)
    try:
        with pytest.raises(WorkerError, match="pickle"):
            list(pool.map("make", range(2)))
    finally:
        pool.close()
