"""What each width costs on one device, and the widest one that fits a budget."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from fjord.core.errors import UserError
from fjord.core.units import format_bytes, format_rate, format_seconds
from fjord.core.width import Width, parse_width
from fjord.devices.budget import Budget

VERSION = 1
Source = Literal["measured", "predicted", "failed"]


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
    time: Source = "measured"
    memory: Source = "measured"
    note: str = ""
    """Why nothing could be measured."""


@dataclass(frozen=True)
class BudgetVerdict:
    """How one width stands against a budget."""

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
        """Whether it breaks none."""
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
        """With and without distillation: what the profile holds."""
        return tuple(dict.fromkeys(cost.kd for cost in self.costs))

    def cost(self, width: Width, kd: bool | None = None) -> WidthCost:
        """Return the cost of one ceiling."""
        return next(cost for cost in self._of(kd) if cost.width == width)

    def _of(self, kd: bool | None) -> list[WidthCost]:
        """Return the costs of one kind; None takes the only kind there is."""
        if kd is None and len(self.kd_kinds) == 1:
            kd = self.kd_kinds[0]
        if kd not in self.kd_kinds:
            raise UserError(
                f"kd={kd}: the profile of {self.model} holds kd={', '.join(map(str, self.kd_kinds))}"
            )
        return sorted((cost for cost in self.costs if cost.kd is kd), key=lambda cost: cost.width)

    def check_budget(self, budget: Budget, kd: bool | None = None) -> list[BudgetVerdict]:
        """Return how each width stands, in rising order."""
        return [self._verdict(cost, budget) for cost in self._of(kd)]

    def _verdict(self, cost: WidthCost, budget: Budget) -> BudgetVerdict:
        transfer = (
            0.0
            if budget.bandwidth is None
            else (cost.bytes_down + cost.bytes_up) / budget.bandwidth
        )
        steps = self.epochs * math.ceil((budget.examples or 0) / self.batch_size)
        steps = steps if self.max_steps is None else min(steps, self.max_steps)
        train = cost.setup_seconds + steps * cost.step_seconds if steps else 0.0
        # A sum of floats may be a hair above the deadline that an error named.
        late = budget.deadline is not None and transfer + train > budget.deadline * (1 + 1e-9)
        large = budget.memory is not None and cost.memory_bytes > budget.memory
        limits = [name for name, broken in (("deadline", late), ("memory", large)) if broken]
        return BudgetVerdict(cost, transfer, train, tuple(limits))

    def widest_fit(self, budget: Budget, kd: bool | None = None) -> Width:
        """Return the widest ceiling that fits; if none does, the error says which budget would do."""
        verdicts = self.check_budget(budget, kd)
        fitting = [verdict.cost.width for verdict in verdicts if verdict.fits]
        if not fitting:
            raise UserError(nothing_fits_message(budget, verdicts[0]))
        return max(fitting)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; docs/devices.md names the keys."""
        plain = {
            **asdict(self),
            "costs": [{**asdict(cost), "width": str(cost.width)} for cost in self.costs],
        }
        return {"fjord_profile": VERSION, **plain}

    def fit_summary(self, budget: Budget) -> dict[str, Any]:
        """Return a budget and the widest that fits it, as plain data; null where nothing fits."""
        answers = []
        for kd in self.kd_kinds:
            fitting = [verdict for verdict in self.check_budget(budget, kd) if verdict.fits]
            best = max(fitting, key=lambda verdict: verdict.cost.width, default=None)
            row = {"kd": kd, "width": None if best is None else str(best.cost.width)}
            answers.append(
                {
                    **row,
                    "round_seconds": None if best is None or not budget.examples else best.seconds,
                }
            )
        return {"budget": asdict(budget), "answers": answers}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the profile in plain data."""
        if data.get("fjord_profile") != VERSION:
            raise UserError(
                f"fjord_profile={data.get('fjord_profile')!r}: this version reads {VERSION}"
            )
        known = {field.name: data[field.name] for field in fields(cls) if field.name != "max_steps"}
        known["max_steps"] = data.get("max_steps")  # profiles of before have none
        costs = tuple(
            WidthCost(**{**cost, "width": parse_width(cost["width"])}) for cost in known["costs"]
        )
        return cls(**{**known, "costs": costs})


def nothing_fits_message(budget: Budget, smallest: BudgetVerdict) -> str:
    """Say, for each limit that even the smallest width breaks, the least that would do."""
    width = smallest.cost.width
    if smallest.cost.time == "failed":
        return f"nothing fits: the smallest width {width} could not be trained here: {smallest.cost.note}"
    found = []
    if budget.memory is not None and "memory" in smallest.limits:
        need = format_bytes(smallest.cost.memory_bytes)
        given = format_bytes(budget.memory, 3)
        found.append(
            f"--memory {given}: the smallest width {width} needs {need}; give at least --memory {need}"
        )
    if budget.deadline is not None and "deadline" in smallest.limits:
        found.append(_too_slow(budget, budget.deadline, smallest))
    return f"nothing fits: {'; and '.join(found)}"


def _too_slow(budget: Budget, deadline: float, smallest: BudgetVerdict) -> str:
    parts = f"training {format_seconds(smallest.train_seconds)}"
    instead = ""
    if budget.bandwidth is not None:
        parts += f", transfer {format_seconds(smallest.transfer_seconds)}"
        left = deadline - smallest.train_seconds
        size = smallest.cost.bytes_down + smallest.cost.bytes_up
        instead = (
            f" or --bandwidth {format_rate(size / left)}"
            if left > 0
            else " (no bandwidth would be enough)"
        )
    need = format_seconds(smallest.seconds)
    return (
        f"--deadline {format_seconds(deadline, 3)}: the smallest width {smallest.cost.width} takes {need} ({parts}); "
        f"give at least --deadline {need}{instead}"
    )


def read_profile(path: str | Path) -> DeviceProfile:
    """Read the file of one profile."""
    try:
        return DeviceProfile.from_json(json.loads(Path(path).read_text()))
    except OSError as error:
        raise UserError(f"profile {path}: cannot be read: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"profile {path}: {error}") from error
    except KeyError as error:
        raise UserError(f"profile {path}: has no {error}") from error
