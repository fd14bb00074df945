"""What a submodel may cost: multiply-accumulates, bytes or time, as numbers or as a share of the full model."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fjord.elastic.model import ElasticModel, Mix, as_mix
from fjord.elastic.recalibrate import uncalibrated
from fjord.footprint import mix_bytes, mix_macs
from fjord.inference.latency import time_networks
from fjord.width import Width

UNITS: dict[str, dict[str, float]] = {
    "macs": {"": 1, "k": 1e3, "M": 1e6, "G": 1e9},
    "bytes": {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "latency": {"us": 1e-6, "ms": 1e-3, "s": 1.0},
}
EXAMPLES = {"macs": "50% or 200M", "bytes": "50% or 2MB", "latency": "50% or 5ms"}


@dataclass(frozen=True)
class Limits:
    """The most that a submodel may cost on these inputs; None does not limit. Time is measured here and now."""

    inputs: tuple[Any, ...]
    macs: str | None = None
    bytes: str | None = None
    latency: str | None = None

    def __post_init__(self) -> None:
        if not self.given:
            raise ValueError("limits: give at least one of macs, bytes and latency, such as macs='50%'")
        for name, text in self.given.items():
            parse_limit(name, text, 1.0)

    @property
    def given(self) -> dict[str, str]:
        """The limits that are set."""
        every = {"macs": self.macs, "bytes": self.bytes, "latency": self.latency}
        return {name: text for name, text in every.items() if text is not None}


def parse_limit(name: str, text: str, full: float) -> float:
    """Return a limit as a number; a share is one of the full model's cost.

    >>> parse_limit("macs", "50%", 400.0), parse_limit("macs", "2M", 0.0), parse_limit("latency", "5 ms", 0.0)
    (200.0, 2000000.0, 0.005)
    """
    units = {**UNITS[name], "%": full / 100}
    found = re.fullmatch(r"\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*(\S*)\s*", str(text))
    if not found or found[2] not in units:
        words = ", ".join(unit or "no unit" for unit in units)
        raise ValueError(f"{name}={text}: write a number and one of {words}, such as {EXAMPLES[name]}")
    value = float(found[1]) * units[found[2]]
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={text}: must be above 0, such as {EXAMPLES[name]}")
    return value


def show_cost(name: str, value: float) -> str:
    """Return a cost in its unit, rounded up so that it can be given as a limit.

    >>> show_cost("macs", 23_110_000), show_cost("bytes", 1_000), show_cost("latency", 0.00234)
    ('23.2M', '1kB', '2.34ms')
    """
    units = UNITS[name]
    unit = max((u for u, size in units.items() if size <= value), key=units.__getitem__, default=next(iter(units)))
    scaled = value / units[unit]
    step = 10.0 ** (math.floor(math.log10(scaled)) - 2) if scaled > 0 else 1.0
    return f"{math.ceil(scaled / step - 1e-9) * step:.10g}{unit}"


@dataclass
class Meter:
    """Costs of submodels against limits; each is counted or measured once."""

    model: ElasticModel
    limits: Limits
    most: dict[str, float] = field(init=False)
    """Each limit as a number."""
    _known: dict[Mix, dict[str, float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        full = self.costs(self.model.plan.widths(self.model.space.largest))
        self.most = {name: parse_limit(name, text, full[name]) for name, text in self.limits.given.items()}

    def costs(self, widths: dict[str, Width]) -> dict[str, float]:
        """Return what is limited of the cost of a submodel."""
        known = self._known.get(mix := as_mix(widths))
        if known is None:
            known = self._known[mix] = {name: self._measure(name, widths) for name in self.limits.given}
        return known

    def fits(self, widths: dict[str, Width]) -> bool:
        """Say whether a submodel keeps to all limits."""
        return all(cost <= self.most[name] for name, cost in self.costs(widths).items())

    def share(self, widths: dict[str, Width]) -> float:
        """Return how much of its limits a submodel uses up, on average."""
        costs = self.costs(widths)
        return sum(cost / self.most[name] for name, cost in costs.items()) / len(costs)

    def _measure(self, name: str, widths: dict[str, Width]) -> float:
        count: dict[str, Callable[[], float]] = {
            "macs": lambda: mix_macs(self.model, widths, self.limits.inputs),
            "bytes": lambda: mix_bytes(self.model, widths),
            "latency": lambda: self._seconds(widths),
        }
        return float(count[name]())

    def _seconds(self, widths: dict[str, Width]) -> float:
        times = time_networks({0: uncalibrated(self.model, widths)}, self.limits.inputs, seconds=0.5)
        return min(times[0])
