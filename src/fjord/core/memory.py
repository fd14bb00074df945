"""Running out of memory: recognise it, and free memory for another attempt."""

import errno
import gc

import torch

OUT_OF_MEMORY_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "bad allocation",
)
"""What torch says on a CPU, under Linux, Windows and macOS, and on accelerators of all kinds."""


class ClientOutOfMemory(MemoryError):
    """A client cannot train even the smallest submodel of what it was sent."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error is a lack of memory.

    >>> is_out_of_memory(MemoryError())
    True
    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."))
    True
    >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error).lower()
    return any(sign in message for sign in OUT_OF_MEMORY_SIGNS)


def free_memory() -> None:
    """Return unused memory to the system."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
