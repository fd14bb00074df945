"""Every random decision has a name: a seed derived from a root seed and a path of names."""

import hashlib


def derive(seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for the decision at `path`; equal paths give equal seeds everywhere.

    >>> derive(7, "client", 3, "width") == derive(7, "client", 3, "width")
    True
    >>> derive(7, "client", 3) == derive(7, "client", 4)
    False
    """
    text = repr((seed, *path)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
