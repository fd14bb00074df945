"""Tiers from a fleet: the k ceilings that leave the least width unused, and the device of each."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fjord.core.errors import UserError
from fjord.core.seeding import ShuffledRange, derive_seed
from fjord.core.units import format_bytes
from fjord.core.width import Width
from fjord.devices.budget import Budget
from fjord.devices.fleet_table import FleetDevice
from fjord.devices.profile import BudgetVerdict, nothing_fits_message

TiersWithLoss = tuple[Width, tuple[Width, ...]]
"""The width that some tiers leave unused, and the tiers."""


@dataclass(frozen=True)
class DeviceGrouping:
    """A fleet in tiers."""

    widths: tuple[Width, ...]
    """The widths of the model's submodels."""
    widest_fits: dict[str, Width | None]
    """What each kind of device can carry; None for nothing."""
    counts: dict[str, int]
    """How many devices there are of each kind."""
    tiers: tuple[Width, ...]
    """The ceilings, in rising order."""

    def device_ceiling(self, name: str) -> Width | None:
        """Return the ceiling of a kind of device: the highest tier that it can carry."""
        widest = self.widest_fits[name]
        if widest is None:
            return None
        return max(tier for tier in self.tiers if tier <= widest)

    def count_excluded(self, ceiling: Width) -> int:
        """Return how many devices cannot carry a width."""
        excluded = 0
        for name, count in self.counts.items():
            widest = self.widest_fits[name]
            if widest is None or widest < ceiling:
                excluded += count
        return excluded

    def count_in_tier(self, tier: Width) -> int:
        """Return how many devices get this ceiling."""
        total = 0
        for name, count in self.counts.items():
            if self.device_ceiling(name) == tier:
                total += count
        return total

    def client_ceilings(self, num_clients: int | None = None) -> list[Width]:
        """Return a ceiling for each device that can take part, in order.

        With a number of clients, a ceiling for each of them: they get the devices in random order,
        over and over.
        """
        ceilings = []
        for name, count in self.counts.items():
            ceiling = self.device_ceiling(name)
            if ceiling is not None:
                ceilings += [ceiling] * count
        if num_clients is None:
            return ceilings
        order = ShuffledRange(num_clients, derive_seed(0, "fleet"))
        return [ceilings[place % len(ceilings)] for place in order]


def group_devices(
    devices: Sequence[FleetDevice],
    budget: Budget,
    num_tiers: int,
    kd: bool | None = None,
) -> DeviceGrouping:
    """Return a fleet in at most so many tiers."""
    if num_tiers < 1:
        raise UserError("must be at least 1", field="tiers", value=num_tiers)
    counts: dict[str, int] = {}
    widest_fits: dict[str, Width | None] = {}
    num_devices: Counter[Width] = Counter()
    for device in devices:
        if device.name in counts:
            hint = "give each a name of its own"
            raise UserError(f"device {device.name} is listed more than once; {hint}")
        widest = device.widest_fit(budget, kd)
        counts[device.name] = device.count
        widest_fits[device.name] = widest
        if widest is not None:
            num_devices[widest] += device.count
    if not num_devices:
        raise UserError(_no_device_message(devices, budget, kd))
    tiers = best_ceilings(num_devices, num_tiers)
    return DeviceGrouping(devices[0].profile.widths, widest_fits, counts, tiers)


def best_ceilings(num_devices: Mapping[Width, int], num_tiers: int) -> tuple[Width, ...]:
    """Return the ceilings that waste the least width, of the devices that carry each width.

    The lowest width is always a ceiling, so that no device is excluded.

    >>> from fractions import Fraction
    >>> fleet = {Fraction(1, 5): 1, Fraction(2, 5): 10, Fraction(3, 5): 1, Fraction(1): 10}
    >>> [str(width) for width in best_ceilings(fleet, 3)]
    ['1/5', '2/5', '1']
    """
    widths = sorted(num_devices)

    def wasted_width(first: int, after: int) -> Width:
        """Return what is lost if the widths from one to before another get the first."""
        total = Width(0)
        for width in widths[first:after]:
            total += (width - widths[first]) * num_devices[width]
        return total

    @cache
    def best_tiers(first: int, num_more: int) -> TiersWithLoss:
        """Return the least loss, and its tiers, if one begins here and so many may follow."""
        best: TiersWithLoss = (wasted_width(first, len(widths)), (widths[first],))
        if num_more == 0:
            return best
        for after in range(first + 1, len(widths)):
            loss, tiers = best_tiers(after, num_more - 1)
            total_loss = wasted_width(first, after) + loss
            best = min(best, (total_loss, (widths[first], *tiers)))
        return best

    _, ceilings = best_tiers(0, num_tiers - 1)
    return ceilings


def _no_device_message(
    devices: Sequence[FleetDevice],
    budget: Budget,
    kd: bool | None,
) -> str:
    """Return what the nearest device would need: one that some budget would do for, if possible."""
    smallest = {}
    for device in devices:
        verdicts = device.check_budget(budget, kd)
        smallest[device.name] = verdicts[0]

    def distance(device: FleetDevice) -> tuple[bool, bool, int, float]:
        verdict = smallest[device.name]
        has_failed = verdict.cost.time == "failed"
        too_small = _has_too_little_memory(device, verdict)
        return has_failed, too_small, len(verdict.limits), verdict.seconds

    nearest = min(devices, key=distance)
    verdict = smallest[nearest.name]
    intro = f"no device can take part; {nearest.name}, the nearest"
    has_failed = verdict.cost.time == "failed"
    if has_failed or nearest.memory is None or not _has_too_little_memory(nearest, verdict):
        own_budget = nearest.limit_budget(budget)
        return f"{intro}: {nothing_fits_message(own_budget, verdict)}"
    memory = format_bytes(nearest.memory, 3)
    needed = format_bytes(verdict.cost.memory_bytes)
    fault = f"the smallest width {verdict.cost.width} needs {needed}: no budget would be enough"
    return f"{intro}, has {memory} of memory, and {fault}"


def _has_too_little_memory(device: FleetDevice, verdict: BudgetVerdict) -> bool:
    """Say whether a device itself has too little memory, whatever the budget."""
    return device.memory is not None and device.memory < verdict.cost.memory_bytes


def write_ceilings(path: Path, ceilings: Sequence[Width]) -> None:
    """Write a file that the setting `tiers` reads: .json or .csv."""
    if path.suffix not in (".json", ".csv"):
        fault = "must end in .json or .csv, as the setting tiers takes it"
        raise UserError(fault, field="output", value=path)
    if path.suffix == ".csv":
        rows = ["client,ceiling"]
        for client, ceiling in enumerate(ceilings):
            rows.append(f"{client},{ceiling}")
        text = "\n".join(rows)
    else:
        text = json.dumps([str(ceiling) for ceiling in ceilings])
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise UserError(f"cannot be written: {error}", field="output", value=path) from error
