"""A network of its own for this thread and all that it starts: loopback only."""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path("/proc/thread-self/ns/net")
NEW_NETWORK, SET_FLAGS, UP = 0x40000000, 0x8914, 1


@contextmanager
def cut_off() -> Iterator[bool]:
    """Leave the network, where the kernel permits (Linux, root); say whether it did."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open(HERE, os.O_RDONLY) if HERE.exists() else None
    if before is None or libc.unshare(NEW_NETWORK) != 0:
        yield False
        return
    try:
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh22x", b"lo", UP))
        yield True
    finally:
        assert libc.setns(before, NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
        os.close(before)


def demand_cut_off(cut: bool) -> None:
    """Skip, visibly, where there is a network; else make sure that there is none."""
    if not cut:
        pytest.skip("leaving the network takes root on Linux")
    with pytest.raises(OSError, match="unreachable"):
        socket.create_connection(("192.0.2.1", 443), timeout=5)
