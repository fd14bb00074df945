"""How much less a node trains than it was sent, because of its own load, memory and battery."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthSpace
from fjord.devices.host import MB, HostLimits, HostReading
from fjord.devices.profile import read_memory_bytes
from fjord.elastic.footprint import measure_footprint
from fjord.elastic.plan import UnitSelection
from fjord.training.assignment import Assignment, Reduction
from fjord.training.local import ClientTrainer


@dataclass(frozen=True)
class LoadThrottle:
    """Reduces what a device trains to what it has memory, power and time for."""

    trainer: ClientTrainer
    space: WidthSpace
    """All widths of the experiment (P)."""
    profile: str | None = None
    """The path of a measurement, as `fjord profile --json` writes it."""

    def reduce(
        self,
        task: Assignment,
        limits: HostLimits,
        now: HostReading,
    ) -> Reduction | None:
        """Return up to which ceiling to train, and why; None if all that was sent may be trained.

        If the method cannot train less than was sent, all is tried.
        """
        tiers_down, reason = limits.tiers_down(now)
        free = limits.free_bytes(now)
        needed = 0
        if limits.spare_bytes is not None:
            needed = self._needed_bytes(task.units)
        if not tiers_down and needed <= free:
            return None
        if needed > free:
            needed_mb = needed / MB
            free_mb = max(0, free) / MB
            shortage = f"{needed_mb:.0f} MB needed and {free_mb:.0f} to spare"
            reason = ", ".join(filter(None, [reason, shortage]))
        reduction = None
        for tier, smaller in enumerate(self.trainer.fallbacks.all_smaller(task), 1):
            reduction = Reduction(smaller.ceiling, reason)
            if tier < tiers_down:
                continue
            if limits.spare_bytes is None or self._needed_bytes(smaller.units) <= free:
                break
        return reduction

    def _needed_bytes(self, units: UnitSelection) -> int:
        """Return the memory for training these units: that of the narrowest width with as many."""
        for width in self.space.widths:
            if self._fits_width(units, width):
                return self.bytes_by_width[width]
        return self.bytes_by_width[self.space.largest]

    def _fits_width(self, units: UnitSelection, width: Width) -> bool:
        for family in self.trainer.model.plan.families:
            if len(units[family.name]) > family.unit_count(width):
                return False
        return True

    @cached_property
    def bytes_by_width(self) -> Mapping[Width, int]:
        """The memory that training takes at each ceiling: measured, or else estimated."""
        if self.profile:
            return _measured_bytes(Path(self.profile), self.space)
        return self._estimated_bytes()

    def _estimated_bytes(self) -> dict[Width, int]:
        """Return weights, gradients and activations, and the weights as sent and as sent back."""
        model = self.trainer.model
        examples, _ = self.trainer.data.test.batch(0, 2)
        batch_size = self.trainer.training.batch_size
        estimates = {}
        for width in self.space.widths:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that BatchNorm is not trained: only sizes count
                cost = measure_footprint(
                    model.cut(width),
                    width,
                    (examples,),
                    batch_size,
                )
            estimates[width] = cost.training_bytes + 2 * cost.bytes
        return estimates


def _measured_bytes(path: Path, space: WidthSpace) -> dict[Width, int]:
    """Return the memory that a profile names for each width of the experiment."""
    measured = read_memory_bytes(path)
    missing = [str(width) for width in space.widths if width not in measured]
    if missing:
        reason = f"has no width {', '.join(missing)}, which the recipe needs"
        raise UserError(reason, field="profile", value=path)
    return measured
