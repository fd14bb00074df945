"""What a device says of itself just now: how busy it is, how much memory is free, how full its battery is.

Linux only: the files are those of /proc and /sys.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fjord.core.errors import UserError

MB = 10**6
KEYS = ("max-load", "min-battery", "spare-mb")


@dataclass(frozen=True)
class HostReading:
    """A device at one moment; None is what it does not tell."""

    load: float | None = None
    """How many processes wanted to run, for each core: the mean of the last minute."""
    memory: int | None = None
    """The bytes that a process can still have."""
    battery: int | None = None
    """Its charge in percent while it runs on its battery."""


def read_host(root: Path = Path("/"), cores: int | None = None) -> HostReading:
    """Read a device's state; `root` is where its /proc and /sys lie."""
    told = _text(root / "proc/loadavg").split()
    load = float(told[0]) / (cores or os.cpu_count() or 1) if told else None
    free = [size for size in (_machine_memory(root), *_group_memory(root)) if size is not None]
    return HostReading(load, min(free, default=None), _battery(root))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not every device has each of them
        return ""


def _machine_memory(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_memory(root: Path) -> list[int]:
    """Return what is left in each control group around this process: a container or a service has less than all."""
    own = [
        line[3:] for line in _text(root / "proc/self/cgroup").splitlines() if line.startswith("0::")
    ]
    top, found = root / "sys/fs/cgroup", []
    inner = top / own[0].strip("/") if own else top
    for group in [inner, *(g for g in inner.parents if g.is_relative_to(top))]:
        most, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
        if most.isdigit() and used.isdigit():
            found.append(max(0, int(most) - int(used) + _cached(group)))
    return found


def _cached(group: Path) -> int:
    """Return what a control group holds of files, and gives back when it is needed."""
    lines = (line.split() for line in _text(group / "memory.stat").splitlines())
    return sum(int(words[1]) for words in lines if words[:1] == ["inactive_file"])


def _battery(root: Path) -> int | None:
    """Return the charge of the weakest battery in use; those of mice and keyboards do not count."""
    charges = []
    for supply in sorted((root / "sys/class/power_supply").glob("*")):
        kind, scope, status, charge = (
            _text(supply / n).strip() for n in ("type", "scope", "status", "capacity")
        )
        if kind == "Battery" and scope != "Device" and status == "Discharging" and charge.isdigit():
            charges.append(int(charge))
    return min(charges, default=None)


@dataclass(frozen=True)
class HostLimits:
    """From when on a device trains less than it is asked to."""

    max_load: float | None = None
    """Processes for each core; at twice as many it goes down two tiers, and so on."""
    min_battery: float | None = None
    """Percent; below it, one tier."""
    spare_bytes: int | None = None
    """Bytes of memory that training must leave free."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the limits in a node's configuration.

        >>> HostLimits.from_config({"max-load": 1.5, "client-id": 3})
        HostLimits(max_load=1.5, min_battery=None, spare_bytes=None)
        """
        given = {key: _number(key, config[key]) for key in KEYS if key in config}
        if given.get("max-load", 1) <= 0:
            raise UserError(f"max-load={config['max-load']} must be above 0")
        if given.get("min-battery", 0) > 100:
            raise UserError(
                f"min-battery={config['min-battery']} must be a number of percent, at most 100"
            )
        spare = int(given["spare-mb"] * MB) if "spare-mb" in given else None
        return cls(given.get("max-load"), given.get("min-battery"), spare)

    def __bool__(self) -> bool:
        """Say whether there is any."""
        return any(
            limit is not None for limit in (self.max_load, self.min_battery, self.spare_bytes)
        )

    def tiers_down(self, now: HostReading) -> tuple[int, str]:
        """Return by how many tiers a device is weaker because of its load and its battery, and why."""
        down, why = 0, []
        if self.max_load is not None:
            load = _told("max-load", now.load, "/proc/loadavg")
            if load > self.max_load:
                down += math.floor(load / self.max_load)
                why.append(f"load {load:.2f} a core")
        if (
            self.min_battery is not None
            and now.battery is not None
            and now.battery < self.min_battery
        ):
            down += 1
            why.append(f"battery at {now.battery}%")
        return down, ", ".join(why)

    def free_bytes(self, now: HostReading) -> float:
        """Return how many bytes training may take."""
        if self.spare_bytes is None:
            return math.inf
        return _told("spare-mb", now.memory, "/proc/meminfo") - self.spare_bytes


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UserError(f"{key}={value!r:.40} must be a number of at least 0, without quotes")
    return float(value)


def _told(key: str, value: float | None, file: str) -> float:
    if value is None:
        raise UserError(f"{key}: this device has no {file} to read it from")
    return value
