"""Every random decision has a name: a seed derived from a root seed and a path of names."""

import hashlib
from collections.abc import Iterator


def derive_seed(seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for the decision at `path`; equal paths give equal seeds everywhere.

    >>> derive_seed(7, "client", 3, "width") == derive_seed(7, "client", 3, "width")
    True
    >>> derive_seed(7, "client", 3) == derive_seed(7, "client", 4)
    False
    """
    text = repr((seed, *path)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class ShuffledRange:
    """A random order of 0 ... size - 1 whose items are computed when asked for: the size costs nothing.

    >>> sorted(ShuffledRange(10, 7)) == list(range(10))
    True
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.half = max(1, ((size - 1).bit_length() + 1) // 2)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return (self[index] for index in range(self.size))

    def __getitem__(self, index: int) -> int:
        """Return the item at this place; a Feistel network permutes a power of 4, and is walked until inside."""
        if not 0 <= index < self.size:
            raise IndexError(index)
        index = self._permute(index)
        while index >= self.size:
            index = self._permute(index)
        return index

    def _permute(self, value: int) -> int:
        mask = (1 << self.half) - 1
        left, right = value >> self.half, value & mask
        for turn in range(4):
            left, right = right, left ^ (derive_seed(self.seed, turn, right) & mask)
        return left << self.half | right
