"""The speeds of all tiers: how long a client takes in a round, in simulated seconds."""

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
    """The speeds of all tiers, and when a round ends at the latest."""

    tier_speeds: tuple[TierSpeed, ...]
    deadline: float | None = None
    """Simulated seconds; clients that would be back later are excluded."""

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        deadline: float | str | None = None,
        *,
        folder: Path = Path(),
    ) -> Self:
        """Read the rows of a table, such as {"ceiling": "1/5", "macs_per_second": "2G", ...}.

        Profiles are files in the folder.
        """
        speeds = [TierSpeed.from_row(row, folder) for row in rows]
        if not speeds:
            raise UserError("clock: there is no tier in the table")
        speeds.sort(key=lambda speed: speed.ceiling)
        for lower, higher in pairwise(speeds):
            if lower.ceiling == higher.ceiling:
                raise UserError(f"clock: ceiling {lower.ceiling} is there more than once")
        seconds = None
        if deadline is not None:
            seconds = parse_deadline(deadline)
        return cls(tuple(speeds), seconds)

    def find_speed(self, ceiling: Width) -> TierSpeed:
        """Return the speed of a device: that of the highest tier not above its ceiling."""
        speeds = [speed for speed in self.tier_speeds if speed.ceiling <= ceiling]
        if not speeds:
            lowest = self.tier_speeds[0].ceiling
            raise UserError(f"clock: no tier for ceiling {ceiling}; the lowest is {lowest}")
        return speeds[-1]

    def client_seconds(
        self,
        ceiling: Width,
        work: ClientWorkload,
        *,
        seed: int,
        round_index: int,
        client_id: int,
    ) -> float:
        """Return after how many seconds a client of this ceiling is back."""
        speed = self.find_speed(ceiling)
        delay_seed = derive_seed(seed, "clock", round_index, client_id)
        return speed.total_seconds(work) * jitter_factor(speed.jitter, delay_seed)

    def late_reason(self, seconds: float) -> str | None:
        """Return why a client that takes so long is excluded; None if it is not."""
        if self.deadline is None or seconds <= self.deadline:
            return None
        return f"later than the deadline: {format_duration(seconds)}"


def jitter_factor(jitter: float, seed: int) -> float:
    """Return a log-normal factor of median 1 from a seed of 63 bits."""
    if jitter == 0:
        return 1.0
    probability = ((seed >> 11) + 0.5) / (1 << 52)  # never 0 or 1
    deviation = NormalDist().inv_cdf(probability)
    return math.exp(jitter * deviation)


def parse_deadline(value: float | str) -> float:
    """Return a deadline in seconds.

    >>> parse_deadline("2min"), parse_deadline(60)
    (120.0, 60.0)
    """
    seconds = parse_duration("deadline", value)
    if seconds == 0:
        raise UserError("must be above 0, such as 60s or 2min", field="deadline", value=value)
    return seconds


def find_speed_table(name: str) -> SpeedTable:
    """Return a preset, or read a table from a file (.csv, .json)."""
    if name in PRESETS:
        lines = PRESETS[name].strip().splitlines()
        return SpeedTable.from_rows(csv.DictReader(lines))
    if not name.endswith((".csv", ".json")):
        presets = " or ".join(PRESETS)
        allowed = f"{presets}, nor a .csv or .json file of tiers"
        raise UserError(f"is not {allowed}", field="clock", value=name)
    path = Path(name)
    try:
        return SpeedTable.from_rows(_read_rows(path), folder=path.parent)
    except OSError as error:
        raise UserError(f"clock {name}: cannot be read: {error}") from error
    except ValueError as error:
        fault = str(error).removeprefix("clock: ")
        raise UserError(f"clock {name}: {fault}") from error


def _read_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    rows: Any
    if path.suffix == ".csv":
        rows = read_csv(path)
    else:
        rows = json.loads(path.read_text())
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"a list of tiers is needed, each with some of: {', '.join(COLUMNS)}")
    return rows
