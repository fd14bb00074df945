"""What the devices of a tier manage, and how long a client's work takes them."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fjord.core.errors import UserError
from fjord.core.units import parse_count, parse_duration, parse_rate
from fjord.core.width import Width, parse_width

SPEEDS = ("macs_per_second", "seconds_per_step", "profile")
COLUMNS = ("ceiling", *SPEEDS, "kd", "down", "up", "latency", "jitter")
Steps = Mapping[Width, tuple[float, float]]
"""For each width the seconds of a step, and those that are spent once a round."""


@dataclass(frozen=True)
class ClientWorkload:
    """What a client does in a round."""

    bytes_down: int
    bytes_up: int
    steps: int
    macs: int
    """Multiply-accumulates of all forward and backward passes."""
    width: Width
    """The width that has as many units as the client holds."""


@dataclass(frozen=True)
class TierSpeed:
    """What the devices of one tier manage."""

    ceiling: Width
    down: float
    """Bytes per second to the device."""
    up: float
    macs_per_second: float | None = None
    steps: Steps = field(default_factory=dict)
    """In place of MACs: the mean step of a client that holds the units of a width."""
    latency: float = 0.0
    """Seconds before the first byte, of each of the two transfers."""
    jitter: float = 0.0
    """The standard deviation of the logarithm of a client's delay in a round; the median delay is 1."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any], folder: Path = Path()) -> Self:
        """Read one row of a table; profiles are files in the folder."""
        given = {key: value for key, value in row.items() if value not in (None, "")}
        _demand_columns(given)
        ceiling, speed = parse_width(str(given["ceiling"])), given.get("macs_per_second")
        return cls(
            ceiling,
            parse_rate("down", given["down"]),
            parse_rate("up", given["up"]),
            None if speed is None else parse_count("macs_per_second", str(speed)),
            _steps(given, ceiling, folder),
            parse_duration("latency", given.get("latency", 0)),
            _jitter(given.get("jitter", 0)),
        )

    def total_seconds(self, work: ClientWorkload) -> float:
        """Return how long a client takes, without jitter: download, training, upload."""
        transfers = 2 * self.latency + work.bytes_down / self.down + work.bytes_up / self.up
        return transfers + self.training_seconds(work)

    def training_seconds(self, work: ClientWorkload) -> float:
        """Return the seconds of local training."""
        if self.macs_per_second is not None:
            return work.macs / self.macs_per_second
        if work.width not in self.steps:
            raise UserError(
                f"clock: tier {self.ceiling} has the seconds of a step at width {', '.join(map(str, self.steps))}, and "
                f"its clients train the units of width {work.width}: add it ('1/5:20ms 1:0.2s') or give macs_per_second"
            )
        step, once = self.steps[work.width]
        return work.steps * step + once

    def to_row(self) -> dict[str, Any]:
        """Return the numbers as plain data, in seconds and bytes per second."""
        steps = {
            str(width): {"step": step, "once": once} for width, (step, once) in self.steps.items()
        }
        speed = {"steps": steps} if steps else {"macs_per_second": self.macs_per_second}
        link = {"down": self.down, "up": self.up, "latency": self.latency}
        return {"ceiling": str(self.ceiling), **speed, **link, "jitter": self.jitter}


def _demand_columns(given: Mapping[str, Any]) -> None:
    tier = f"tier {given.get('ceiling', 'without a ceiling')}"
    unknown = [key for key in given if key not in COLUMNS]
    if unknown:
        raise UserError(f"{tier}: {unknown[0]!r} is not one of {', '.join(COLUMNS)}")
    missing = [key for key in ("ceiling", "down", "up") if key not in given]
    if missing:
        raise UserError(f"{tier}: has no {missing[0]!r}")
    if sum(key in given for key in SPEEDS) != 1:
        raise UserError(f"{tier}: give one of {', '.join(SPEEDS)}")


def _steps(given: Mapping[str, Any], ceiling: Width, folder: Path) -> Steps:
    """Return the seconds of a step: from 20ms (at the ceiling), '1/5:20ms 1:0.2s', an object, or a profile."""
    if "profile" in given:
        return _profiled(folder / str(given["profile"]), given.get("kd"))
    value = given.get("seconds_per_step", {})
    if isinstance(value, str) and ":" in value:
        value = {
            width: seconds for width, _, seconds in (part.partition(":") for part in value.split())
        }
    if not isinstance(value, Mapping):
        value = {str(ceiling): value}
    return {
        parse_width(str(w)): (parse_duration("seconds_per_step", seconds), 0.0)
        for w, seconds in value.items()
    }


def _profiled(path: Path, kd: Any) -> Steps:
    """Return the seconds that `fjord profile --json` measured."""
    try:
        data = json.loads(path.read_text())
        costs = [
            cost
            for cost in data["costs"]
            if kd is None or str(cost["kd"]).lower() == str(kd).lower()
        ]
        kinds = {cost["kd"] for cost in costs}
        ran = [
            cost for cost in costs if cost.get("time") != "failed"
        ]  # a step that never was takes no time there
        steps = {
            parse_width(cost["width"]): (cost["step_seconds"], cost["setup_seconds"])
            for cost in ran
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"profile {path}: is no output of fjord profile --json: {error!r}"
        ) from error
    if len(kinds) != 1:
        held = "both, with distillation and without" if kinds else f"no step with kd={kd}"
        raise UserError(f"profile {path}: holds {held}; choose in the column kd: true or false")
    if not steps:
        raise UserError(f"profile {path}: no width could be trained on that device")
    return steps


def _jitter(value: Any) -> float:
    try:
        jitter = float(value)
    except (TypeError, ValueError):
        jitter = math.nan
    if not 0 <= jitter <= 5:
        raise UserError(f"jitter {value}: must be a number from 0 to 5, such as 0.3")
    return jitter
