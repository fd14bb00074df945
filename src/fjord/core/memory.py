"""Running out of memory: how it is recognised, and how room is made for another try."""

import errno
import gc

import torch

SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "bad allocation",
)
"""What torch says on a CPU, under Linux, Windows and macOS, and on accelerators of all kinds."""


class ClientOutOfMemory(MemoryError):
    """A client cannot train even the smallest part of what it was sent."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error is a lack of memory.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."))
    (True, True)
    >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def free_memory() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
