"""What each width costs on one device, and the widest one that fits a budget.

The JSON of a profile is written and read here alone; docs/devices.md names its keys.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from fjord.core.errors import UserError
from fjord.core.units import format_bytes, format_rate, format_seconds
from fjord.core.width import Width, parse_width
from fjord.devices.budget import Budget

PROFILE_VERSION = 1
VERSION_KEY = "fjord_profile"
CostSource = Literal["measured", "predicted", "failed"]
StepSeconds = Mapping[Width, tuple[float, float]]
"""For each width the seconds of a step, and those that are spent once a round."""


@dataclass(frozen=True)
class WidthCost:
    """What training costs a client whose ceiling is `width`."""

    width: Width
    kd: bool | None
    """With self-distillation or without; None: with the loss of the recipe's own method."""
    step_seconds: float
    """A step, averaged over the widths that the client samples."""
    setup_seconds: float
    """Once a round: building the submodels, the first slow steps, packing what is sent back."""
    memory_bytes: int
    """The most that training adds to the memory of the process."""
    bytes_down: int
    bytes_up: int
    macs_per_step: int
    """Multiply-accumulates forward and backward, averaged likewise."""
    time: CostSource = "measured"
    memory: CostSource = "measured"
    note: str = ""
    """Why nothing could be measured."""

    @property
    def transfer_bytes(self) -> int:
        """What a round sends, down and up."""
        return self.bytes_down + self.bytes_up

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "width": str(self.width)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the cost in plain data."""
        width = parse_width(data["width"])
        return cls(**{**data, "width": width})


@dataclass(frozen=True)
class BudgetVerdict:
    """Whether one width fits a budget, and what it takes."""

    cost: WidthCost
    transfer_seconds: float
    train_seconds: float
    limits: tuple[str, ...]
    """The limits it breaks: deadline, memory."""

    @property
    def seconds(self) -> float:
        """Download, training and upload."""
        return self.transfer_seconds + self.train_seconds

    @property
    def fits(self) -> bool:
        """Whether it breaks no limit."""
        return not self.limits and self.cost.time != "failed"


@dataclass(frozen=True)
class DeviceProfile:
    """The costs of a model's widths on one device."""

    device: str
    model: str
    method: str
    batch_size: int
    epochs: int
    process_bytes: int
    """The memory of the process before it trains: libraries, the model, data."""
    costs: tuple[WidthCost, ...]
    max_steps: int | None = None
    """A round has no more steps than this (the recipe's `max_local_steps`)."""

    @property
    def widths(self) -> tuple[Width, ...]:
        """All ceilings, in rising order."""
        return tuple(sorted({cost.width for cost in self.costs}))

    @property
    def kd_kinds(self) -> tuple[bool | None, ...]:
        """The values of `kd` that the profile has costs for."""
        return tuple(dict.fromkeys(cost.kd for cost in self.costs))

    def find_cost(self, width: Width, kd: bool | None = None) -> WidthCost:
        """Return the cost of one ceiling."""
        costs = self._costs_of_kind(kd)
        return next(cost for cost in costs if cost.width == width)

    def _costs_of_kind(self, kd: bool | None) -> list[WidthCost]:
        """Return the costs of one kind by rising width; None stands for the only kind there is."""
        kinds = self.kd_kinds
        if kd is None and len(kinds) == 1:
            kd = kinds[0]
        if kd not in kinds:
            listed = ", ".join(map(str, kinds))
            raise UserError(f"kd={kd}: the profile of {self.model} holds kd={listed}")
        costs = [cost for cost in self.costs if cost.kd is kd]
        return sorted(costs, key=lambda cost: cost.width)

    def check_budget(self, budget: Budget, kd: bool | None = None) -> list[BudgetVerdict]:
        """Return a verdict for each width, in rising order."""
        return [self._check_cost(cost, budget) for cost in self._costs_of_kind(kd)]

    def _check_cost(self, cost: WidthCost, budget: Budget) -> BudgetVerdict:
        transfer_seconds = 0.0
        if budget.bandwidth is not None:
            transfer_seconds = cost.transfer_bytes / budget.bandwidth
        train_seconds = 0.0
        num_steps = self._count_steps(budget.examples or 0)
        if num_steps:
            train_seconds = cost.setup_seconds + num_steps * cost.step_seconds
        limits = []
        # A sum of floats may be a hair above the deadline that an error named.
        tolerance = 1 + 1e-9
        total_seconds = transfer_seconds + train_seconds
        if budget.deadline is not None and total_seconds > budget.deadline * tolerance:
            limits.append("deadline")
        if budget.memory is not None and cost.memory_bytes > budget.memory:
            limits.append("memory")
        return BudgetVerdict(
            cost,
            transfer_seconds,
            train_seconds,
            tuple(limits),
        )

    def _count_steps(self, num_examples: int) -> int:
        """Return how many steps a round has."""
        num_steps = self.epochs * math.ceil(num_examples / self.batch_size)
        if self.max_steps is None:
            return num_steps
        return min(num_steps, self.max_steps)

    def widest_fit(self, budget: Budget, kd: bool | None = None) -> Width:
        """Return the widest ceiling that fits; if none does, the error says what is needed."""
        verdicts = self.check_budget(budget, kd)
        fitting = [verdict.cost.width for verdict in verdicts if verdict.fits]
        if not fitting:
            raise UserError(nothing_fits_message(budget, verdicts[0]))
        return max(fitting)

    def to_json(self, budget: Budget | None = None) -> dict[str, Any]:
        """Return plain data; with a budget, also that and the widest width of each kind."""
        data: dict[str, Any] = {VERSION_KEY: PROFILE_VERSION, **asdict(self)}
        data["costs"] = [cost.to_json() for cost in self.costs]
        if budget is not None:
            data["budget"] = asdict(budget)
            data["answers"] = [self._widest_fit_json(budget, kd) for kd in self.kd_kinds]
        return data

    def _widest_fit_json(self, budget: Budget, kd: bool | None) -> dict[str, Any]:
        """Return the widest width that fits, as plain data; null where nothing fits."""
        fitting = [verdict for verdict in self.check_budget(budget, kd) if verdict.fits]
        if not fitting:
            return {"kd": kd, "width": None, "round_seconds": None}
        widest = fitting[-1]
        seconds = widest.seconds if budget.examples else None
        return {"kd": kd, "width": str(widest.cost.width), "round_seconds": seconds}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the profile in plain data."""
        version = data.get(VERSION_KEY)
        if version != PROFILE_VERSION:
            fault = f"{VERSION_KEY}={version!r}: this version reads {PROFILE_VERSION}"
            raise UserError(fault)
        return cls(
            device=data["device"],
            model=data["model"],
            method=data["method"],
            batch_size=data["batch_size"],
            epochs=data["epochs"],
            process_bytes=data["process_bytes"],
            costs=tuple(WidthCost.from_json(cost) for cost in data["costs"]),
            max_steps=data.get("max_steps"),
        )


def is_profile(data: Mapping[str, Any]) -> bool:
    """Say whether plain data is a profile."""
    return VERSION_KEY in data


def nothing_fits_message(budget: Budget, smallest: BudgetVerdict) -> str:
    """Say, for each limit that even the smallest width breaks, what would be enough."""
    cost = smallest.cost
    if cost.time == "failed":
        return f"nothing fits: the smallest width {cost.width} could not be trained: {cost.note}"
    faults = []
    if budget.memory is not None and "memory" in smallest.limits:
        given = format_bytes(budget.memory, 3)
        needed = format_bytes(cost.memory_bytes)
        fault = f"the smallest width {cost.width} needs at least memory={needed}"
        faults.append(f"memory={given}: {fault}")
    if budget.deadline is not None and "deadline" in smallest.limits:
        faults.append(_too_slow_message(budget, budget.deadline, smallest))
    return f"nothing fits: {'; and '.join(faults)}"


def _too_slow_message(
    budget: Budget,
    deadline: float,
    smallest: BudgetVerdict,
) -> str:
    parts = f"training {format_seconds(smallest.train_seconds)}"
    alternative = ""
    if budget.bandwidth is not None:
        parts += f", transfer {format_seconds(smallest.transfer_seconds)}"
        alternative = _bandwidth_hint(deadline, smallest)
    given = format_seconds(deadline, 3)
    needed = format_seconds(smallest.seconds)
    fault = f"the smallest width {smallest.cost.width} takes {needed} ({parts})"
    return f"deadline={given}: {fault} and needs at least deadline={needed}{alternative}"


def _bandwidth_hint(deadline: float, smallest: BudgetVerdict) -> str:
    seconds_left = deadline - smallest.train_seconds
    if seconds_left <= 0:
        return " (no bandwidth would be enough)"
    rate = smallest.cost.transfer_bytes / seconds_left
    return f" or bandwidth={format_rate(rate)}"


def read_profile(path: str | Path) -> DeviceProfile:
    """Read the file of one profile."""
    try:
        data = json.loads(Path(path).read_text())
        return DeviceProfile.from_json(data)
    except OSError as error:
        raise UserError(f"profile {path}: cannot be read: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"profile {path}: {error}") from error
    except KeyError as error:
        raise UserError(f"profile {path}: has no {error}") from error


def read_step_seconds(path: Path, kd: Any) -> StepSeconds:
    """Read how long a step takes at each width; of a profile, only these numbers are needed.

    `kd` says which kind where the profile has both: true, false, or text of them as in a table.
    """
    kinds = set()
    steps = {}
    try:
        for cost in json.loads(path.read_text())["costs"]:
            if kd is not None and str(cost["kd"]).lower() != str(kd).lower():
                continue
            kinds.add(cost["kd"])
            # A step that failed has no time to speak of.
            if cost.get("time") != "failed":
                width = parse_width(cost["width"])
                steps[width] = (cost["step_seconds"], cost["setup_seconds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"is not a profile in JSON: {error!r}"
        raise UserError(f"profile {path}: {fault}") from error
    if len(kinds) != 1:
        found = "both, with distillation and without" if kinds else f"no step with kd={kd}"
        raise UserError(f"profile {path}: holds {found}; choose in the column kd: true or false")
    if not steps:
        raise UserError(f"profile {path}: no width could be trained on that device")
    return steps


def read_memory_bytes(path: Path) -> dict[Width, int]:
    """Read how much memory training takes at each width: the most of the profile's measurements."""
    measured: dict[Width, int] = {}
    try:
        for cost in json.loads(path.read_text())["costs"]:
            width = parse_width(cost["width"])
            num_bytes = int(cost["memory_bytes"])
            measured[width] = max(measured.get(width, 0), num_bytes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"cannot be read as a profile: {error!r:.200}"
        raise UserError(reason, field="profile", value=path) from error
    return measured
