"""How fast the devices of a tier are, and how long a client's work takes them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fjord.core.errors import UserError
from fjord.core.tables import filled_cells
from fjord.core.units import parse_count, parse_duration, parse_rate
from fjord.core.width import Width, parse_width
from fjord.devices.profile import StepSeconds, read_step_seconds

SPEED_COLUMNS = ("macs_per_second", "seconds_per_step", "profile")
"""A tier has one of these."""
COLUMNS = ("ceiling", *SPEED_COLUMNS, "kd", "down", "up", "latency", "jitter")


@dataclass(frozen=True)
class ClientWorkload:
    """What a client does in a round."""

    bytes_down: int
    bytes_up: int
    steps: int
    macs: int
    """Multiply-accumulates of all forward and backward passes."""
    width: Width
    """The width that has as many units as the client's submodel."""


@dataclass(frozen=True)
class TierSpeed:
    """The computing speed and the network link of the devices of one tier."""

    ceiling: Width
    down: float
    """Bytes per second to the device."""
    up: float
    macs_per_second: float | None = None
    steps: StepSeconds = field(default_factory=dict)
    """In place of MACs: the mean step of a client that has the units of a width."""
    latency: float = 0.0
    """Seconds before the first byte, of each of the two transfers."""
    jitter: float = 0.0
    """The standard deviation of the logarithm of a client's delay in a round; the median is 1."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any], folder: Path = Path()) -> Self:
        """Read one row of a table; profiles are files in the folder."""
        cells = filled_cells(row)
        _check_columns(cells)
        ceiling = parse_width(str(cells["ceiling"]))
        macs_per_second = None
        if "macs_per_second" in cells:
            macs_per_second = parse_count("macs_per_second", str(cells["macs_per_second"]))
        return cls(
            ceiling=ceiling,
            down=parse_rate("down", cells["down"]),
            up=parse_rate("up", cells["up"]),
            macs_per_second=macs_per_second,
            steps=_read_steps(cells, ceiling, folder),
            latency=parse_duration("latency", cells.get("latency", 0)),
            jitter=_parse_jitter(cells.get("jitter", 0)),
        )

    def total_seconds(self, work: ClientWorkload) -> float:
        """Return how long a client takes, without jitter: download, training, upload."""
        download = work.bytes_down / self.down
        upload = work.bytes_up / self.up
        transfers = 2 * self.latency + download + upload
        return transfers + self.training_seconds(work)

    def training_seconds(self, work: ClientWorkload) -> float:
        """Return the seconds of local training."""
        if self.macs_per_second is not None:
            return work.macs / self.macs_per_second
        if work.width not in self.steps:
            listed = ", ".join(map(str, self.steps))
            fault = f"tier {self.ceiling} has the seconds of a step at width {listed}"
            needed = f"its clients train the units of width {work.width}"
            hint = "add it ('1/5:20ms 1:0.2s') or give macs_per_second"
            raise UserError(f"clock: {fault}, and {needed}: {hint}")
        step_seconds, setup_seconds = self.steps[work.width]
        return work.steps * step_seconds + setup_seconds

    def to_row(self) -> dict[str, Any]:
        """Return the numbers as plain data, in seconds and bytes per second."""
        row: dict[str, Any] = {"ceiling": str(self.ceiling)}
        if self.steps:
            row["steps"] = {
                str(width): {"step": step_seconds, "once": setup_seconds}
                for width, (step_seconds, setup_seconds) in self.steps.items()
            }
        else:
            row["macs_per_second"] = self.macs_per_second
        row["down"] = self.down
        row["up"] = self.up
        row["latency"] = self.latency
        row["jitter"] = self.jitter
        return row


def _check_columns(cells: Mapping[str, Any]) -> None:
    tier = f"tier {cells.get('ceiling', 'without a ceiling')}"
    for column in cells:
        if column not in COLUMNS:
            raise UserError(f"{tier}: {column!r} is not one of {', '.join(COLUMNS)}")
    for column in ("ceiling", "down", "up"):
        if column not in cells:
            raise UserError(f"{tier}: has no {column!r}")
    num_speeds = sum(column in cells for column in SPEED_COLUMNS)
    if num_speeds != 1:
        raise UserError(f"{tier}: give one of {', '.join(SPEED_COLUMNS)}")


def _read_steps(
    cells: Mapping[str, Any],
    ceiling: Width,
    folder: Path,
) -> StepSeconds:
    """Return the seconds of a step at each width, from a profile or from `seconds_per_step`.

    That is 20ms (at the ceiling), '1/5:20ms 1:0.2s', or an object.
    """
    if "profile" in cells:
        path = folder / str(cells["profile"])
        return read_step_seconds(path, cells.get("kd"))
    value = cells.get("seconds_per_step", {})
    if isinstance(value, str) and ":" in value:
        pairs = [word.partition(":") for word in value.split()]
        value = {width: seconds for width, _, seconds in pairs}
    if not isinstance(value, Mapping):
        value = {str(ceiling): value}
    steps = {}
    for width, seconds in value.items():
        step_seconds = parse_duration("seconds_per_step", seconds)
        steps[parse_width(str(width))] = (step_seconds, 0.0)
    return steps


def _parse_jitter(value: Any) -> float:
    try:
        jitter = float(value)
    except (TypeError, ValueError):
        jitter = math.nan
    if not 0 <= jitter <= 5:
        raise UserError("must be a number from 0 to 5, such as 0.3", field="jitter", value=value)
    return jitter
