"""How much less a node trains than it was sent, because of its own load, memory and battery."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthSpace, parse_width
from fjord.devices.host import MB, HostLimits, HostReading
from fjord.elastic.footprint import measure_footprint
from fjord.elastic.plan import UnitSelection
from fjord.training.local import Assignment, ClientTrainer, Reduction


@dataclass(frozen=True)
class LoadThrottle:
    """The training of one experiment on this device, as far as its memory goes."""

    trainer: ClientTrainer
    space: WidthSpace
    """P."""
    profile: str | None = None
    """The file of a measurement, as `fjord profile --json` writes it."""

    def reduced(self, task: Assignment, limits: HostLimits, now: HostReading) -> Reduction | None:
        """Return up to which ceiling to train, and why, or nothing where all that was sent may be trained.

        Where nothing smaller can be trained (see `Portions`) it is all or nothing, so all is tried.
        """
        down, why = limits.tiers_down(now)
        room, need = limits.free_bytes(now), 0
        if limits.spare_bytes is not None:
            need = self._need(task.held)
        if not down and need <= room:
            return None
        if need > room:
            why = ", ".join(
                filter(
                    None, [why, f"{need / MB:.0f} MB needed and {max(0, room) / MB:.0f} to spare"]
                )
            )
        chosen = None
        for tier, (ceiling, part) in enumerate(self.trainer.parts.below(task), 1):
            chosen = Reduction(ceiling, why)
            if tier >= down and (limits.spare_bytes is None or self._need(part.held) <= room):
                break
        return chosen

    def _need(self, held: UnitSelection) -> int:
        """Return the memory that training these units takes: that of the smallest width with as many."""
        families = self.trainer.model.plan.families
        fits = (
            w
            for w in self.space.widths
            if all(len(held[f.name]) <= f.unit_count(w) for f in families)
        )
        return self.needs[next(fits, self.space.largest)]

    @cached_property
    def needs(self) -> Mapping[Width, int]:
        """The bytes that training takes at each ceiling: measured, or else estimated."""
        return _measured(Path(self.profile), self.space) if self.profile else self._estimated()

    def _estimated(self) -> dict[Width, int]:
        """Return weights, gradients and what the backward pass needs; and the weights as sent and as sent back."""
        model, inputs = self.trainer.model, (self.trainer.data.test.batch(0, 2)[0],)
        found = {}
        for width in self.space.widths:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # of BatchNorm layers that were not trained: only sizes count
                cost = measure_footprint(
                    model.cut(width), width, inputs, self.trainer.how.batch_size
                )
            found[width] = cost.training_bytes + 2 * cost.bytes
        return found


def _measured(path: Path, space: WidthSpace) -> dict[Width, int]:
    """Return the memory that a profile gives for each width, the most of what was measured there."""
    found: dict[Width, int] = {}
    try:
        for cost in json.loads(path.read_text())["costs"]:
            width = parse_width(cost["width"])
            found[width] = max(found.get(width, 0), int(cost["memory_bytes"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"profile {path}: cannot be read as a profile: {error!r:.200}") from error
    missing = [str(width) for width in space.widths if width not in found]
    if missing:
        raise UserError(
            f"profile {path}: has no width {', '.join(missing)}, which the recipe needs"
        )
    return found
