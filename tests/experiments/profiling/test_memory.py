"""Memory of a piece of work, in a child process."""

import os
import signal
import sys

import pytest
import torch
from profiles import mlp, quick  # noqa: F401

from fjord.experiments.profiling.memory import ChildOutOfMemory, PeakMemory, run_in_child

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")


@LINUX
@pytest.mark.parametrize("before", [0, 60])
def test_the_peak_is_what_was_taken_whatever_was_freed_before(before):
    def work():
        for _ in range(before):  # in pieces that the allocator keeps for later
            [torch.ones(2**14) for _ in range(16)]
        peak = PeakMemory()
        held = [
            torch.ones(5 * 2**20),
            *(torch.ones(2**14) for _ in range(160)),
        ]  # 20 MiB, and 10 in small pieces
        torch.ones(5 * 2**18)  # 5 MiB that come and go
        return {"growth": peak.growth(), "held": len(held)}

    found = run_in_child(work)["growth"]
    assert 34.5 * 2**20 <= found <= 38 * 2**20


def fails(error):
    def work():
        raise error

    return work


def test_a_child_that_fails_is_told_apart_from_one_that_ran_out_of_memory():
    with pytest.raises(ChildOutOfMemory):
        run_in_child(fails(MemoryError()))
    with pytest.raises(ChildOutOfMemory):
        run_in_child(lambda: {"x": torch.empty(2**50)})
    with pytest.raises(ChildOutOfMemory, match="killed"):
        run_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(ValueError, match="training failed: KeyError: 'x'"):
        run_in_child(fails(KeyError("x")))
    assert run_in_child(lambda: {"x": 1}) == {"x": 1}
