"""Which ids are one unit, which units must stay whole, and why."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fjord.elastic.trace.labels import FROZEN, NO_ID, UnitLabels, collapse_labels, labels_along


class UnitTable:
    """Equivalence classes of ids: equal ids are one unit, kept or dropped as a whole."""

    def __init__(self) -> None:
        # The unit of each id is the smallest id of its class; NO_ID and FROZEN are ids 0 and 1.
        self.root = torch.arange(2)
        self.reasons: list[tuple[str, Tensor]] = []
        self.segments: list[tuple[Tensor, tuple[str, int]]] = []

    def new_ids(self, count: int) -> Tensor:
        """Return ids that no value has yet."""
        start = len(self.root)
        ids = torch.arange(start, start + count)
        self.root = torch.cat([self.root, ids])
        return ids

    def new_labels(
        self, shape: Sequence[int], *, blank: bool = False, table: bool = False
    ) -> UnitLabels:
        """Return labels with a new id for each index of each dimension."""
        channels = []
        for dim, size in enumerate(shape):
            if size > 1:
                ids = self.new_ids(size)
                channels.append(labels_along(ids, dim, len(shape)))
        return UnitLabels(tuple(shape), channels, blank, table)

    def current_units(self, channel: Tensor) -> Tensor:
        """Return a channel with every id replaced by its unit."""
        return collapse_labels(self.root[channel])

    def refresh(self, labels: UnitLabels) -> None:
        """Replace ids by their units, and forget channels that no longer tell positions apart."""
        channels = []
        for channel in labels.channels:
            current = self.current_units(channel)
            if current.numel() > 1:
                channels.append(current)
        labels.channels = channels

    def equate(self, a: Tensor, b: Tensor) -> None:
        """Make ids at the same (broadcast) position one unit; positions without an id do not count.

        >>> units = UnitTable()
        >>> rows = units.new_ids(3)
        >>> columns = units.new_ids(3)
        >>> units.equate(rows, columns)
        >>> units.current_units(columns)
        tensor([2, 3, 4])
        """
        a_units, b_units = torch.broadcast_tensors(self.root[a], self.root[b])
        differ = (a_units != b_units) & (a_units != NO_ID) & (b_units != NO_ID)
        # A pair becomes one number, so that torch removes the many repeated pairs quickly.
        base = len(self.root)
        pairs = torch.unique(a_units[differ] * base + b_units[differ])
        if pairs.numel():
            self._unite([divmod(pair, base) for pair in pairs.tolist()])

    def _unite(self, pairs: list[tuple[int, int]]) -> None:
        """Join classes pair by pair: the smaller id stands for both."""
        parent: dict[int, int] = {}

        def find_root(unit: int) -> int:
            while unit in parent:
                unit = parent[unit]
            return unit

        for x, y in pairs:
            low, high = sorted((find_root(x), find_root(y)))
            if low != high:
                parent[high] = low
        joined = list(parent)
        roots = [find_root(unit) for unit in joined]
        moved = torch.arange(len(self.root))
        moved[torch.tensor(joined)] = torch.tensor(roots)
        self.root = moved[self.root]

    def freeze(self, channel: Tensor, reason: str) -> None:
        """Keep these units whole, and remember why."""
        ids = torch.unique(self.root[channel])
        ids = ids[ids > FROZEN]
        if len(ids):
            self.reasons.append((reason, ids))
            self.equate(ids, torch.full_like(ids, FROZEN))

    def fuse(self, channel: Tensor, dims: Iterable[int]) -> None:
        """Make all ids along some dimensions one unit."""
        for dim in dims:
            self.equate(channel, channel.narrow(dim, 0, 1))

    def mark_segment(self, channel: Tensor, name: str, index: int) -> None:
        """Note that these units are cut on their own: one part of a split or a concatenation."""
        self.segments.append((torch.unique(channel), (name, index)))
