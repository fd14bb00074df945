"""A simulated clock: how long a client takes in a round, from its tier's speed and link and from what it does."""

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.tables import read_csv
from fjord.core.units import format_duration, parse_duration
from fjord.core.width import Width
from fjord.devices.speeds import COLUMNS, ClientWorkload, TierSpeed

PHONES = """
ceiling,macs_per_second,down,up,latency,jitter
1/5,2G,5Mbit,1Mbit,100ms,0.3
2/5,4G,10Mbit,3Mbit,80ms,0.3
3/5,8G,20Mbit,5Mbit,60ms,0.3
4/5,12G,40Mbit,10Mbit,50ms,0.3
1,20G,60Mbit,15Mbit,40ms,0.3
"""
PRESETS = {"phones": PHONES}
"""Tables by name. Their numbers are assumptions, not measurements."""


@dataclass(frozen=True)
class SpeedTable:
    """The paces of all tiers, and when a round ends at the latest."""

    tier_speeds: tuple[TierSpeed, ...]
    deadline: float | None = None
    """Simulated seconds; who would be back later is left out."""

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        deadline: float | str | None = None,
        *,
        folder: Path = Path(),
    ) -> Self:
        """Make a clock of the rows of a table, such as {"ceiling": "1/5", "macs_per_second": "2G", "down": ...}."""
        paces = sorted(
            (TierSpeed.from_row(row, folder) for row in rows), key=lambda pace: pace.ceiling
        )
        if not paces:
            raise UserError("clock: there is no tier in the table")
        twice = [a.ceiling for a, b in pairwise(paces) if a.ceiling == b.ceiling]
        if twice:
            raise UserError(f"clock: ceiling {twice[0]} is there more than once")
        return cls(tuple(paces), None if deadline is None else parse_deadline(deadline))

    def find_speed(self, ceiling: Width) -> TierSpeed:
        """Return the pace of a device: that of the highest tier of the table that is not above its ceiling."""
        found = [pace for pace in self.tier_speeds if pace.ceiling <= ceiling]
        if not found:
            raise UserError(
                f"clock: no tier for ceiling {ceiling}; the lowest is {self.tier_speeds[0].ceiling}"
            )
        return found[-1]

    def client_seconds(
        self, ceiling: Width, work: ClientWorkload, *, seed: int, round_index: int, client_id: int
    ) -> float:
        """Return after how many seconds a client of this ceiling is back."""
        pace = self.find_speed(ceiling)
        return pace.total_seconds(work) * jitter_factor(
            pace.jitter, derive_seed(seed, "clock", round_index, client_id)
        )

    def late_reason(self, seconds: float) -> str | None:
        """Say by when a client is back, if that is too late."""
        if self.deadline is None or seconds <= self.deadline:
            return None
        return f"later than the deadline: {format_duration(seconds)}"


def jitter_factor(jitter: float, seed: int) -> float:
    """Return a log-normal factor of median 1 from a seed of 63 bits."""
    chance = ((seed >> 11) + 0.5) / (1 << 52)  # never 0 or 1
    return math.exp(jitter * NormalDist().inv_cdf(chance)) if jitter else 1.0


def parse_deadline(value: float | str) -> float:
    """Return a deadline in seconds."""
    seconds = parse_duration("deadline", value)
    if not seconds:
        raise UserError(f"deadline {value}: must be above 0, such as 60s or 2min")
    return seconds


def find_speed_table(name: str) -> SpeedTable:
    """Return a preset, or read a table from a file (.csv, .json)."""
    if name in PRESETS:
        return SpeedTable.from_rows(csv.DictReader(PRESETS[name].strip().splitlines()))
    if not name.endswith((".csv", ".json")):
        raise UserError(
            f"clock={name!r} is not {' or '.join(PRESETS)}, nor a .csv or .json file of tiers"
        )
    try:
        return SpeedTable.from_rows(_rows(Path(name)), folder=Path(name).parent)
    except OSError as error:
        raise UserError(f"clock {name}: cannot be read: {error}") from error
    except ValueError as error:
        raise UserError(f"clock {name}: {str(error).removeprefix('clock: ')}") from error


def _rows(path: Path) -> Iterable[Mapping[str, Any]]:
    rows: Any = read_csv(path) if path.suffix == ".csv" else json.loads(path.read_text())
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"a list of tiers is needed, each with some of: {', '.join(COLUMNS)}")
    return rows
