"""Tiers from a fleet: the k ceilings that leave the least width unused, and which device gets which."""

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


@dataclass(frozen=True)
class DeviceGrouping:
    """A fleet in tiers."""

    widths: tuple[Width, ...]
    """What the model can be cut to."""
    widest_fits: dict[str, Width | None]
    """What each kind of device can carry; None for nothing."""
    counts: dict[str, int]
    tiers: tuple[Width, ...]
    """The ceilings, in rising order."""

    def device_ceiling(self, name: str) -> Width | None:
        """Return the ceiling of a kind of device: the highest tier that it can carry."""
        own = self.widest_fits[name]
        return None if own is None else max(tier for tier in self.tiers if tier <= own)

    def count_excluded(self, ceiling: Width) -> int:
        """Return how many devices cannot carry a width."""
        return sum(
            n
            for name, n in self.counts.items()
            if (own := self.widest_fits[name]) is None or own < ceiling
        )

    def count_in_tier(self, tier: Width) -> int:
        """Return how many devices get this ceiling."""
        return sum(n for name, n in self.counts.items() if self.device_ceiling(name) == tier)

    def client_ceilings(self, num_clients: int | None = None) -> list[Width]:
        """Return a ceiling for each client: one for each device that can take part, in order; or for so many clients.

        Those are dealt the devices in random order, over and over.
        """
        each = [self.device_ceiling(name) for name, n in self.counts.items() for _ in range(n)]
        held = [ceiling for ceiling in each if ceiling is not None]
        if num_clients is None:
            return held
        return [
            held[place % len(held)] for place in ShuffledRange(num_clients, derive_seed(0, "fleet"))
        ]


def group_devices(
    machines: Sequence[FleetDevice], budget: Budget, num_tiers: int, kd: bool | None = None
) -> DeviceGrouping:
    """Return a fleet in at most so many tiers."""
    if num_tiers < 1:
        raise UserError(f"--tiers {num_tiers}: must be at least 1")
    twice = [
        name for name, times in Counter(machine.name for machine in machines).items() if times > 1
    ]
    if twice:
        raise UserError(f"device {twice[0]} is listed more than once; give each a name of its own")
    widest = {machine.name: machine.widest_fit(budget, kd) for machine in machines}
    counts = {machine.name: machine.count for machine in machines}
    carried: Counter[Width] = Counter()
    for name, width in widest.items():
        if width is not None:
            carried[width] += counts[name]
    if not carried:
        raise UserError(_nothing(machines, budget, kd))
    return DeviceGrouping(
        machines[0].profile.widths, widest, counts, best_ceilings(carried, num_tiers)
    )


def best_ceilings(carried: Mapping[Width, int], num_tiers: int) -> tuple[Width, ...]:
    """Return the ceilings that waste the least width; the lowest is always one, so that nobody is shut out.

    >>> from fractions import Fraction
    >>> fleet = {Fraction(1, 5): 1, Fraction(2, 5): 10, Fraction(3, 5): 1, Fraction(1): 10}
    >>> [str(width) for width in best_ceilings(fleet, 3)]
    ['1/5', '2/5', '1']
    """
    widths = sorted(carried)

    def wasted(first: int, after: int) -> Width:
        """Return what is lost if all from one width to before another get the first as their ceiling."""
        return sum(((w - widths[first]) * carried[w] for w in widths[first:after]), Width(0))

    @cache
    def best(first: int, left: int) -> tuple[Width, tuple[Width, ...]]:
        """Return the least loss, and the tiers, if one begins here and so many may follow."""
        found: list[tuple[Width, tuple[Width, ...]]] = [
            (wasted(first, len(widths)), (widths[first],))
        ]
        for after in range(first + 1, len(widths)) if left else ():
            loss, tiers = best(after, left - 1)
            found.append((wasted(first, after) + loss, (widths[first], *tiers)))
        return min(found)

    return best(0, num_tiers - 1)[1]


def _nothing(machines: Sequence[FleetDevice], budget: Budget, kd: bool | None) -> str:
    """Say what the device that comes nearest would need: of those that some budget would do for, if there are any."""
    stand = {machine: machine.check_budget(budget, kd)[0] for machine in machines}

    def distance(machine: FleetDevice) -> tuple[bool, bool, int, float]:
        verdict = stand[machine]
        return (
            verdict.cost.time == "failed",
            _too_small(machine, verdict),
            len(verdict.limits),
            verdict.seconds,
        )

    nearest = min(machines, key=distance)
    verdict = stand[nearest]
    if (
        verdict.cost.time != "failed"
        and nearest.memory is not None
        and _too_small(nearest, verdict)
    ):
        has, need = format_bytes(nearest.memory, 3), format_bytes(verdict.cost.memory_bytes)
        why = f"has {has} of memory, and the smallest width {verdict.cost.width} needs {need}: no budget would do"
        return f"no device can take part; {nearest.name}, the nearest, {why}"
    return f"no device can take part; {nearest.name}, the nearest: {nothing_fits_message(nearest.limit_budget(budget), verdict)}"


def _too_small(machine: FleetDevice, verdict: BudgetVerdict) -> bool:
    """Say whether a device itself has too little memory, whatever the budget."""
    return machine.memory is not None and machine.memory < verdict.cost.memory_bytes


def write_ceilings(path: Path, ceilings: Sequence[Width]) -> None:
    """Write a file that `--set tiers=FILE` reads."""
    if path.suffix not in (".json", ".csv"):
        raise UserError(f"--output {path}: must end in .json or .csv, as --set tiers= takes it")
    rows = [f"{client},{ceiling}" for client, ceiling in enumerate(ceilings)]
    text = (
        "\n".join(["client,ceiling", *rows])
        if path.suffix == ".csv"
        else json.dumps([str(c) for c in ceilings])
    )
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise UserError(f"--output {path}: cannot be written: {error}") from error
