"""A fleet from files: measured profiles, or a table of devices compared with one profile."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.tables import filled_cells, read_csv
from fjord.core.units import parse_bytes, parse_count, parse_rate
from fjord.core.width import Width
from fjord.devices.budget import Budget
from fjord.devices.profile import BudgetVerdict, CostSource, DeviceProfile, WidthCost, is_profile

DEVICE_COLUMNS = ("name", "count", "speed", "macs_per_second", "memory", "bandwidth")


@dataclass(frozen=True)
class FleetDevice:
    """A kind of device: what each width costs on it, and what it has."""

    name: str
    count: int
    profile: DeviceProfile
    memory: int | None = None
    bandwidth: float | None = None

    def limit_budget(self, budget: Budget) -> Budget:
        """Return the budget within what the device has."""
        limits = [limit for limit in (self.memory, budget.memory) if limit is not None]
        memory = min(limits, default=None)
        bandwidth = self.bandwidth or budget.bandwidth
        return replace(budget, memory=memory, bandwidth=bandwidth)

    def check_budget(self, budget: Budget, kd: bool | None) -> list[BudgetVerdict]:
        """Return a verdict for each width, under the budget and what the device has."""
        return self.profile.check_budget(self.limit_budget(budget), kd)

    def widest_fit(self, budget: Budget, kd: bool | None) -> Width | None:
        """Return the widest width that fits; None if nothing does."""
        verdicts = self.check_budget(budget, kd)
        fitting = [verdict.cost.width for verdict in verdicts if verdict.fits]
        return max(fitting, default=None)


def read_fleet_table(
    paths: Sequence[str | Path], reference: DeviceProfile | None = None
) -> list[FleetDevice]:
    """Read the devices of some files, all measured with one model, the same widths and batch size.

    A table of devices needs a reference: the profile of one device to scale from.
    """
    devices = []
    for path in paths:
        devices += _read_devices(Path(path), reference)
    if not devices:
        listed = ", ".join(map(str, paths))
        raise UserError(f"{listed}: there is no device")
    first = _describe_measurement(devices[0].profile)
    for device in devices:
        measurement = _describe_measurement(device.profile)
        if measurement != first:
            hint = "give profiles of one model, the same widths and one batch size"
            fault = f"was measured with {measurement}, the first with {first}"
            raise UserError(f"device {device.name}: {fault}; {hint}")
    return devices


def _describe_measurement(profile: DeviceProfile) -> str:
    widths = ", ".join(map(str, profile.widths))
    return f"{profile.model} at widths {widths} in batches of {profile.batch_size}"


def _read_devices(path: Path, reference: DeviceProfile | None) -> list[FleetDevice]:
    """Read one file; an error names it."""
    devices = []
    try:
        for number, row in enumerate(_read_rows(path), 1):
            devices.append(_read_device(row, number, reference))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: {error}") from error
    except KeyError as error:
        raise UserError(f"{path}: a profile without {error}") from error
    return devices


def _read_rows(path: Path) -> list[Any]:
    if path.suffix == ".csv":
        return list(read_csv(path))
    data = json.loads(path.read_text())
    if isinstance(data, list):
        return data
    return [data]


def _read_device(
    row: Mapping[str, Any],
    number: int,
    reference: DeviceProfile | None,
) -> FleetDevice:
    if is_profile(row):
        profile = DeviceProfile.from_json(row)
        return FleetDevice(profile.device, 1, profile)
    for column in row:
        if column not in DEVICE_COLUMNS:
            allowed = ", ".join(DEVICE_COLUMNS)
            raise UserError(f"column {str(column)!r} is unknown; the columns are {allowed}")
    if reference is None:
        raise UserError("a table of devices needs a profile: that of one device to scale from")
    cells = filled_cells(row)
    name = str(cells.get("name", f"device {number}"))
    memory = None
    if "memory" in cells:
        memory = parse_bytes(f"{name}: memory", str(cells["memory"]))
    bandwidth = None
    if "bandwidth" in cells:
        bandwidth = parse_rate(f"{name}: bandwidth", str(cells["bandwidth"]))
    count = _parse_device_count(name, cells.get("count", 1))
    return FleetDevice(
        name,
        count,
        _scale_profile(reference, name, cells),
        memory,
        bandwidth,
    )


def _scale_profile(
    reference: DeviceProfile,
    name: str,
    cells: Mapping[str, Any],
) -> DeviceProfile:
    """Return the profile of a device of another speed: relative to the reference, or in MACs."""
    if ("speed" in cells) == ("macs_per_second" in cells):
        hint = "give either speed (1 is as fast as the profile's device) or macs_per_second"
        raise UserError(f"{name}: {hint}")
    costs = []
    for cost in reference.costs:
        if "speed" in cells:
            step_seconds = cost.step_seconds / _parse_speed(name, cells["speed"])
        else:
            rate = parse_count(f"{name}: macs_per_second", str(cells["macs_per_second"]))
            step_seconds = cost.macs_per_step / rate
        costs.append(_scale_cost(cost, step_seconds))
    return replace(reference, device=name, costs=tuple(costs))


def _scale_cost(cost: WidthCost, step_seconds: float) -> WidthCost:
    setup_seconds = 0.0
    if cost.step_seconds:
        setup_seconds = cost.setup_seconds * step_seconds / cost.step_seconds
    source: CostSource = "failed" if cost.time == "failed" else "predicted"
    return replace(
        cost,
        step_seconds=step_seconds,
        setup_seconds=setup_seconds,
        time=source,
        memory="predicted",
    )


def _parse_speed(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise UserError(f"{name}: speed={value!r} must be a number above 0")
    return number


def _parse_device_count(name: str, value: Any) -> int:
    if not str(value).isdigit() or int(value) < 1:
        raise UserError(f"{name}: count={value!r} must be a whole number of at least 1")
    return int(value)
