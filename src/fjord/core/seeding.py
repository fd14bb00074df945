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
    text = repr((seed, *path))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class ShuffledRange:
    """A random order of 0 ... size - 1, computed item by item, so that the size costs nothing.

    >>> sorted(ShuffledRange(10, 7)) == list(range(10))
    True
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        num_bits = (size - 1).bit_length()
        self.half_bits = max(1, (num_bits + 1) // 2)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        for index in range(self.size):
            yield self[index]

    def __getitem__(self, index: int) -> int:
        """Return the item at an index.

        A Feistel network permutes a range whose size is a power of 4; it is applied again until
        the result lies within this range.
        """
        if not 0 <= index < self.size:
            raise IndexError(index)
        item = self._permute_bits(index)
        while item >= self.size:
            item = self._permute_bits(item)
        return item

    def _permute_bits(self, value: int) -> int:
        mask = (1 << self.half_bits) - 1
        left = value >> self.half_bits
        right = value & mask
        for turn in range(4):
            mixed = left ^ (derive_seed(self.seed, turn, right) & mask)
            left = right
            right = mixed
        return left << self.half_bits | right
