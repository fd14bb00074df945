"""The current state of a device: its load, its free memory and the charge of its battery.

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
LIMIT_KEYS = ("max-load", "min-battery", "spare-mb")


@dataclass(frozen=True)
class HostReading:
    """A device at one moment; None is what cannot be read on it."""

    load: float | None = None
    """How many processes wanted to run, for each core: the mean of the last minute."""
    memory: int | None = None
    """The bytes that a process can still allocate."""
    battery: int | None = None
    """Its charge in percent while it runs on its battery."""


def read_host(root: Path = Path("/"), cores: int | None = None) -> HostReading:
    """Read a device's state; `root` is the folder of its /proc and /sys."""
    load = _read_load(root, cores or os.cpu_count() or 1)
    free_memory = _group_memory(root)
    machine_memory = _machine_memory(root)
    if machine_memory is not None:
        free_memory.append(machine_memory)
    return HostReading(load, min(free_memory, default=None), _read_battery(root))


def _read_text(path: Path) -> str:
    """Return the content of a file, or nothing: not every device has each of them."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_load(root: Path, cores: int) -> float | None:
    words = _read_text(root / "proc/loadavg").split()
    if not words:
        return None
    return float(words[0]) / cores


def _machine_memory(root: Path) -> int | None:
    for line in _read_text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            kibibytes = line.split()[1]
            return int(kibibytes) * 1024
    return None


def _group_memory(root: Path) -> list[int]:
    """Return what is left in each control group around this process.

    A container or a service has less than the whole machine.
    """
    free_memory = []
    for group in _control_groups(root):
        most = _read_text(group / "memory.max").strip()
        used = _read_text(group / "memory.current").strip()
        if most.isdigit() and used.isdigit():
            free = int(most) - int(used) + _cached_memory(group)
            free_memory.append(max(0, free))
    return free_memory


def _control_groups(root: Path) -> list[Path]:
    """Return the control group of this process, and those around it."""
    top = root / "sys/fs/cgroup"
    group = top
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            group = top / line.removeprefix("0::").strip("/")
            break
    outer_groups = [parent for parent in group.parents if parent.is_relative_to(top)]
    return [group, *outer_groups]


def _cached_memory(group: Path) -> int:
    """Return what a control group has of files in memory, and frees when it is needed."""
    total = 0
    for line in _read_text(group / "memory.stat").splitlines():
        words = line.split()
        if words[:1] == ["inactive_file"]:
            total += int(words[1])
    return total


def _read_battery(root: Path) -> int | None:
    """Return the charge of the weakest battery in use; mice and keyboards do not count."""
    charges = []
    for supply in sorted((root / "sys/class/power_supply").glob("*")):
        is_battery = _read_text(supply / "type").strip() == "Battery"
        of_peripheral = _read_text(supply / "scope").strip() == "Device"
        in_use = _read_text(supply / "status").strip() == "Discharging"
        charge = _read_text(supply / "capacity").strip()
        if is_battery and in_use and not of_peripheral and charge.isdigit():
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
    """Memory that training must leave free."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the limits in a node's configuration.

        >>> HostLimits.from_config({"max-load": 1.5, "client-id": 3})
        HostLimits(max_load=1.5, min_battery=None, spare_bytes=None)
        """
        numbers = {}
        for key in LIMIT_KEYS:
            if key in config:
                numbers[key] = _check_number(key, config[key])
        max_load = numbers.get("max-load")
        if max_load is not None and max_load <= 0:
            raise UserError("must be above 0", field="max-load", value=config["max-load"])
        min_battery = numbers.get("min-battery")
        if min_battery is not None and min_battery > 100:
            fault = "must be a number of percent, at most 100"
            raise UserError(fault, field="min-battery", value=config["min-battery"])
        spare_bytes = None
        if "spare-mb" in numbers:
            spare_bytes = int(numbers["spare-mb"] * MB)
        return cls(max_load, min_battery, spare_bytes)

    def __bool__(self) -> bool:
        """Say whether there is any limit."""
        limits = (self.max_load, self.min_battery, self.spare_bytes)
        return any(limit is not None for limit in limits)

    def tiers_down(self, now: HostReading) -> tuple[int, str]:
        """Return by how many tiers load and battery weaken a device, and why."""
        num_tiers = 0
        reasons = []
        if self.max_load is not None:
            load = _require_reading("max-load", now.load, "/proc/loadavg")
            if load > self.max_load:
                num_tiers += math.floor(load / self.max_load)
                reasons.append(f"load {load:.2f} a core")
        if self._is_battery_low(now):
            num_tiers += 1
            reasons.append(f"battery at {now.battery}%")
        return num_tiers, ", ".join(reasons)

    def _is_battery_low(self, now: HostReading) -> bool:
        if self.min_battery is None or now.battery is None:
            return False
        return now.battery < self.min_battery

    def free_bytes(self, now: HostReading) -> float:
        """Return how many bytes training may use."""
        if self.spare_bytes is None:
            return math.inf
        return _require_reading("spare-mb", now.memory, "/proc/meminfo") - self.spare_bytes


def _check_number(key: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        shown = f"{value!r:.40}"
        raise UserError("must be a number of at least 0, without quotes", field=key, value=shown)
    return float(value)


def _require_reading(key: str, value: float | None, file: str) -> float:
    if value is None:
        raise UserError(f"{key}: this device has no {file} to read it from")
    return value
