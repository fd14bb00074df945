"""Which positions of every value in a graph survive a cut."""

import torch
from torch import Tensor

from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.trace.labels import UnitLabels, varying_axes
from fjord.elastic.trace.model_trace import ModelTrace


class KeptUnits:
    """Says which positions of a labelled value remain if only the selected units are kept."""

    def __init__(
        self,
        trace: ModelTrace,
        plan: WidthPlan,
        selection: UnitSelection,
    ) -> None:
        self.root = trace.units.root
        self.alive = torch.ones(len(self.root), dtype=torch.bool)
        for family in plan.families:
            dropped = family.dropped_units(selection)
            for (name, dim), indices in family.members.items():
                ids = trace.owners[name][dim][indices[dropped]]
                self.alive[self.root[ids]] = False

    def mask(self, value: UnitLabels, dim: int) -> Tensor:
        """Return a mask of the indices along one axis that are kept."""
        mask = torch.ones(value.shape[dim], dtype=torch.bool)
        for channel in value.channels:
            if dim in varying_axes(channel):
                units = self.root[channel]
                alive = self.alive[units].movedim(dim, -1)
                rows = alive.reshape(-1, channel.shape[dim])
                mask &= rows.any(0)
        return mask

    def kept_sizes(self, value: UnitLabels) -> list[int]:
        """Return the kept size of every axis."""
        sizes = []
        for dim in range(value.rank):
            mask = self.mask(value, dim)
            sizes.append(int(mask.sum()))
        return sizes
