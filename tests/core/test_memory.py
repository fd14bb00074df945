"""Which errors are a lack of memory."""

import errno
import gc
import weakref

import torch

from fjord.core.memory import free_memory, is_out_of_memory

SHORTAGE = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. "
    "DefaultCPUAllocator: can't allocate memory: you tried ..."
)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        OSError(errno.ENOMEM, "fork"),
    ):
        assert is_out_of_memory(error)
    for text in (
        SHORTAGE,
        "std::bad_alloc",
        "MPS backend out of memory",
        "DefaultCPUAllocator: not enough memory: x",
    ):
        assert is_out_of_memory(RuntimeError(text))
    for error in (
        RuntimeError("shapes"),
        ValueError("out of memory"),
        OSError(errno.ENOSPC, "full"),
        KeyError("x"),
    ):
        assert not is_out_of_memory(error)


def test_freeing_memory_collects_what_refers_to_itself() -> None:
    class Cycle:
        pass

    cycle = Cycle()
    cycle.itself = cycle
    reference = weakref.ref(cycle)
    gc.disable()
    try:
        del cycle
        assert reference() is not None
        free_memory()
        assert reference() is None
    finally:
        gc.enable()
