"""What a submodel may cost: multiply-accumulates, bytes or time.

Each limit is a number with a unit, or a share of the full model's cost.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fjord.core.errors import UserError
from fjord.core.units import (
    format_bytes,
    format_count,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_seconds,
)
from fjord.core.width import Width
from fjord.deploy.latency import RequestInputs, as_request, time_networks
from fjord.elastic.footprint import submodel_bytes, submodel_macs
from fjord.elastic.model import ElasticModel, LayerWidths, as_layer_widths
from fjord.elastic.recalibrate import uncalibrated_submodel

DIGITS = 3
LATENCY_SECONDS = 0.5
"""How long each submodel is timed at most."""


@dataclass(frozen=True)
class CostKind:
    """How a cost is read and written, and an example of a limit."""

    parse: Callable[[str, str], float]
    format: Callable[[float, int], str]
    example: str


COST_KINDS = {
    "macs": CostKind(parse_count, format_count, "50% or 200M"),
    "bytes": CostKind(parse_bytes, format_bytes, "50% or 2MB"),
    "latency": CostKind(parse_seconds, format_seconds, "50% or 5ms"),
}


@dataclass(frozen=True)
class CostLimits:
    """The most that a submodel may cost on these inputs; None does not limit.

    Latency is measured on this machine when a submodel is tried.
    """

    inputs: RequestInputs
    macs: str | None = None
    bytes: str | None = None
    latency: str | None = None

    def __post_init__(self) -> None:
        if not self.active:
            raise UserError(
                "limits: give at least one of macs, bytes and latency, such as macs='50%'"
            )
        for name, text in self.active.items():
            parse_limit(name, text, 1.0)

    @property
    def active(self) -> dict[str, str]:
        """The limits that are set."""
        limits = {"macs": self.macs, "bytes": self.bytes, "latency": self.latency}
        return {name: text for name, text in limits.items() if text is not None}


def parse_limit(name: str, text: str, full: float) -> float:
    """Return a limit as a number; a share refers to the full model's cost.

    >>> parse_limit("macs", "50%", 400.0), parse_limit("macs", "2M", 0.0)
    (200.0, 2000000.0)
    >>> parse_limit("latency", "5 ms", 0.0)
    0.005
    """
    kind = COST_KINDS[name]
    stripped = str(text).strip()
    try:
        if stripped.endswith("%"):
            return _parse_share(name, stripped) * full / 100
        return kind.parse(name, stripped)
    except UserError as error:
        message = f"{error.message}; or a share of the full model: {kind.example}"
        raise UserError(message, field=name, value=text) from None


def _parse_share(name: str, text: str) -> float:
    share = parse_count(name, text.removesuffix("%"))
    if share > 100:
        raise UserError("is more than the full model costs", field=name, value=text)
    return share


def format_cost(name: str, value: float) -> str:
    """Return a cost in its unit, rounded up so that it can be given as a limit.

    >>> format_cost("macs", 23_110_000), format_cost("bytes", 1_000)
    ('23.2M', '1kB')
    >>> format_cost("latency", 0.00234)
    '2.34ms'
    """
    return COST_KINDS[name].format(value, DIGITS)


@dataclass
class CostMeter:
    """Compares costs of submodels with limits; each submodel is counted or measured once."""

    model: ElasticModel
    limits: CostLimits
    most: dict[str, float] = field(init=False)
    """Each limit as a number."""
    _costs: dict[LayerWidths, dict[str, float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        largest = self.model.space.largest
        full = self.costs(self.model.plan.family_widths(largest))
        self.most = {}
        for name, text in self.limits.active.items():
            self.most[name] = parse_limit(name, text, full[name])

    def costs(self, widths: dict[str, Width]) -> dict[str, float]:
        """Return the limited costs of a submodel, by name."""
        key = as_layer_widths(widths)
        if key not in self._costs:
            measured = {name: self._measure_cost(name, widths) for name in self.limits.active}
            self._costs[key] = measured
        return self._costs[key]

    def fits(self, widths: dict[str, Width]) -> bool:
        """Return whether a submodel keeps to all limits."""
        for name, cost in self.costs(widths).items():
            if cost > self.most[name]:
                return False
        return True

    def share(self, widths: dict[str, Width]) -> float:
        """Return how much of its limits a submodel uses, on average."""
        costs = self.costs(widths)
        shares = [cost / self.most[name] for name, cost in costs.items()]
        return sum(shares) / len(shares)

    def _measure_cost(self, name: str, widths: dict[str, Width]) -> float:
        inputs = as_request(self.limits.inputs)
        if name == "macs":
            return float(submodel_macs(self.model, widths, inputs))
        if name == "bytes":
            return float(submodel_bytes(self.model, widths))
        nets = {"submodel": uncalibrated_submodel(self.model, widths)}
        times = time_networks(nets, inputs, seconds=LATENCY_SECONDS)
        return min(times["submodel"])
