"""What the devices of a tier manage, and how long a client's work takes them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fjord.devices.units import parse_rate, parse_seconds, parse_speed
from fjord.width import Width, parse_width

COLUMNS = ("ceiling", "macs_per_second", "seconds_per_step", "down", "up", "latency", "jitter")


@dataclass(frozen=True)
class Work:
    """What a client does in a round."""

    bytes_down: int
    bytes_up: int
    steps: int
    macs: int
    """Multiply-accumulates of all forward and backward passes."""
    width: Width
    """The width that has as many units as the client holds."""


@dataclass(frozen=True)
class Pace:
    """What the devices of one tier manage."""

    ceiling: Width
    down: float
    """Bytes per second to the device."""
    up: float
    macs_per_second: float | None = None
    seconds_per_step: Mapping[Width, float] = field(default_factory=dict)
    """In place of MACs: the mean step of a device that holds the units of each width."""
    latency: float = 0.0
    """Seconds before the first byte, of each of the two transfers."""
    jitter: float = 0.0
    """The standard deviation of the logarithm of a client's delay in a round; the median delay is 1."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Read one row of a table."""
        given = {key: value for key, value in row.items() if value not in (None, "")}
        _demand_columns(given)
        ceiling = parse_width(str(given["ceiling"]))
        speed, step = given.get("macs_per_second"), given.get("seconds_per_step")
        return cls(
            ceiling,
            parse_rate("down", given["down"]),
            parse_rate("up", given["up"]),
            None if speed is None else parse_speed("macs_per_second", speed),
            {} if step is None else _steps(ceiling, step),
            parse_seconds("latency", given.get("latency", 0)),
            _jitter(given.get("jitter", 0)),
        )

    def seconds(self, work: Work) -> float:
        """Return how long a client takes, without jitter: download, training, upload."""
        transfers = 2 * self.latency + work.bytes_down / self.down + work.bytes_up / self.up
        return transfers + self.compute(work)

    def compute(self, work: Work) -> float:
        """Return the seconds of local training."""
        if self.macs_per_second is not None:
            return work.macs / self.macs_per_second
        if work.width not in self.seconds_per_step:
            known = ", ".join(map(str, self.seconds_per_step))
            raise ValueError(
                f"clock: tier {self.ceiling} has seconds_per_step at width {known}, and its clients train the units of "
                f"width {work.width}: add that width ('1/5:20ms 1:0.2s'), or give macs_per_second"
            )
        return work.steps * self.seconds_per_step[work.width]

    def row(self) -> dict[str, Any]:
        """Return the numbers by the names they have in a table, in seconds and bytes per second."""
        steps = {str(width): seconds for width, seconds in self.seconds_per_step.items()}
        speed = {"seconds_per_step": steps} if steps else {"macs_per_second": self.macs_per_second}
        link = {"down": f"{self.down:.12g}B/s", "up": f"{self.up:.12g}B/s"}
        return {"ceiling": str(self.ceiling), **speed, **link, "latency": self.latency, "jitter": self.jitter}


def _demand_columns(given: Mapping[str, Any]) -> None:
    tier = f"tier {given.get('ceiling', 'without a ceiling')}"
    unknown = [key for key in given if key not in COLUMNS]
    if unknown:
        raise ValueError(f"{tier}: {unknown[0]!r} is not one of {', '.join(COLUMNS)}")
    missing = [key for key in ("ceiling", "down", "up") if key not in given]
    if missing:
        raise ValueError(f"{tier}: has no {missing[0]!r}")
    if ("macs_per_second" in given) == ("seconds_per_step" in given):
        raise ValueError(f"{tier}: give either macs_per_second or seconds_per_step")


def _steps(ceiling: Width, value: Any) -> dict[Width, float]:
    """Return the seconds of a step at some widths, from 20ms (at the ceiling), '1/5:20ms 1:0.2s' or an object."""
    if isinstance(value, str) and ":" in value:
        value = {width: seconds for width, _, seconds in (part.partition(":") for part in value.split())}
    if not isinstance(value, Mapping):
        value = {str(ceiling): value}
    return {parse_width(str(w)): parse_seconds("seconds_per_step", seconds) for w, seconds in value.items()}


def _jitter(value: Any) -> float:
    try:
        jitter = float(value)
    except (TypeError, ValueError):
        jitter = math.nan
    if not 0 <= jitter <= 5:
        raise ValueError(f"jitter={value!r} must be a number from 0 to 5, such as 0.3")
    return jitter
