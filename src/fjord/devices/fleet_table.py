"""A fleet from files: profiles that devices measured, or a table of what they are beside one measured profile."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fjord.core.errors import UserError
from fjord.core.tables import read_csv
from fjord.core.units import parse_bytes, parse_count, parse_rate
from fjord.core.width import Width
from fjord.devices.budget import Budget
from fjord.devices.profile import BudgetVerdict, DeviceProfile, Source, WidthCost

COLUMNS = ("name", "count", "speed", "macs_per_second", "memory", "bandwidth")


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
        return replace(
            budget, memory=min(limits, default=None), bandwidth=self.bandwidth or budget.bandwidth
        )

    def check_budget(self, budget: Budget, kd: bool | None) -> list[BudgetVerdict]:
        """Return how each width stands, under the budget and what the device has."""
        return self.profile.check_budget(self.limit_budget(budget), kd)

    def widest_fit(self, budget: Budget, kd: bool | None) -> Width | None:
        """Return the widest that fits; None if nothing does."""
        return max((v.cost.width for v in self.check_budget(budget, kd) if v.fits), default=None)


def read_fleet_table(
    paths: Sequence[str | Path], reference: DeviceProfile | None = None
) -> list[FleetDevice]:
    """Read the devices of some files, all measured with one model, the same widths and one batch size."""
    found = [machine for path in paths for machine in _machines(Path(path), reference)]
    if not found:
        raise UserError(f"{', '.join(map(str, paths))}: there is no device")
    first = _measured(found[0].profile)
    for machine in found:
        if _measured(machine.profile) != first:
            raise UserError(
                f"device {machine.name}: was measured with {_measured(machine.profile)}, the first with {first}; "
                "give profiles of one model, the same widths and one batch size"
            )
    return found


def _measured(profile: DeviceProfile) -> str:
    return f"{profile.model} at widths {', '.join(map(str, profile.widths))} in batches of {profile.batch_size}"


def _machines(path: Path, reference: DeviceProfile | None) -> list[FleetDevice]:
    """Read one file; an error names it."""
    try:
        rows = _rows(path)
        return [_machine(row, i + 1, reference) for i, row in enumerate(rows)]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: {error}") from error
    except KeyError as error:
        raise UserError(f"{path}: a profile without {error}") from error


def _rows(path: Path) -> list[Any]:
    if path.suffix == ".csv":
        return list(read_csv(path))
    data = json.loads(path.read_text())
    return data if isinstance(data, list) else [data]


def _machine(row: Mapping[str, Any], number: int, reference: DeviceProfile | None) -> FleetDevice:
    if "fjord_profile" in row:
        profile = DeviceProfile.from_json(row)
        return FleetDevice(profile.device, 1, profile)
    strange = [str(key) for key in row if key not in COLUMNS]
    if strange:
        raise UserError(f"column {strange[0]!r} is unknown; known: {', '.join(COLUMNS)}")
    if reference is None:
        raise UserError(
            "a table of devices needs --profile FILE: the profile of one device to reckon from"
        )
    given = {key: value for key, value in row.items() if value not in (None, "")}
    name = str(given.get("name", f"device {number}"))
    memory, bandwidth = given.get("memory"), given.get("bandwidth")
    return FleetDevice(
        name,
        _count(name, given.get("count", 1)),
        replace(
            reference,
            device=name,
            costs=tuple(_scaled(cost, name, given) for cost in reference.costs),
        ),
        None if memory is None else parse_bytes(f"{name}: memory", str(memory)),
        None if bandwidth is None else parse_rate(f"{name}: bandwidth", str(bandwidth)),
    )


def _scaled(cost: WidthCost, name: str, row: Mapping[str, Any]) -> WidthCost:
    """Return a cost of the reference on a device of another speed: relative to it, or in multiply-accumulates."""
    if ("speed" in row) == ("macs_per_second" in row):
        raise UserError(
            f"{name}: give either speed (1 is as fast as the profile's device) or macs_per_second"
        )
    if "speed" in row:
        step = cost.step_seconds / _above_zero(name, "speed", row["speed"])
    else:
        step = cost.macs_per_step / parse_count(
            f"{name}: macs_per_second", str(row["macs_per_second"])
        )
    setup = cost.setup_seconds * step / cost.step_seconds if cost.step_seconds else 0.0
    source: Source = "failed" if cost.time == "failed" else "predicted"
    return replace(cost, step_seconds=step, setup_seconds=setup, time=source, memory="predicted")


def _above_zero(name: str, column: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise UserError(f"{name}: {column}={value!r} must be a number above 0")
    return number


def _count(name: str, value: Any) -> int:
    if not str(value).isdigit() or int(value) < 1:
        raise UserError(f"{name}: count={value!r} must be a whole number of at least 1")
    return int(value)
