"""What a submodel may cost: multiply-accumulates, bytes or time, as numbers or as a share of the full model."""

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

Parse = Callable[[str, str], float]
Show = Callable[[float, int], str]
KINDS: dict[str, tuple[Parse, Show, str]] = {
    "macs": (parse_count, format_count, "50% or 200M"),
    "bytes": (parse_bytes, format_bytes, "50% or 2MB"),
    "latency": (parse_seconds, format_seconds, "50% or 5ms"),
}
"""How each cost is read and written, and an example."""


@dataclass(frozen=True)
class CostLimits:
    """The most that a submodel may cost on these inputs; None does not limit. Time is measured here and now."""

    inputs: RequestInputs
    macs: str | None = None
    bytes: str | None = None
    latency: str | None = None

    def __post_init__(self) -> None:
        if not self.given:
            raise UserError(
                "limits: give at least one of macs, bytes and latency, such as macs='50%'"
            )
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
    parse, _, example = KINDS[name]
    try:
        given = str(text).strip()
        if not given.endswith("%"):
            return parse(name, given)
        share = parse_count(name, given[:-1])
        if share > 100:
            raise UserError(f"{name}={text}: more than the full model costs")
        return share * full / 100
    except ValueError as error:
        raise UserError(f"{error}; or a share of the full model: {example}") from None


def format_cost(name: str, value: float) -> str:
    """Return a cost in its unit, rounded up so that it can be given as a limit.

    >>> format_cost("macs", 23_110_000), format_cost("bytes", 1_000), format_cost("latency", 0.00234)
    ('23.2M', '1kB', '2.34ms')
    """
    return KINDS[name][1](value, 3)


@dataclass
class CostMeter:
    """Costs of submodels against limits; each is counted or measured once."""

    model: ElasticModel
    limits: CostLimits
    most: dict[str, float] = field(init=False)
    """Each limit as a number."""
    _known: dict[LayerWidths, dict[str, float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        full = self.costs(self.model.plan.family_widths(self.model.space.largest))
        self.most = {
            name: parse_limit(name, text, full[name]) for name, text in self.limits.given.items()
        }

    def costs(self, widths: dict[str, Width]) -> dict[str, float]:
        """Return what is limited of the cost of a submodel."""
        known = self._known.get(mix := as_layer_widths(widths))
        if known is None:
            known = self._known[mix] = {
                name: self._measure(name, widths) for name in self.limits.given
            }
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
            "macs": lambda: submodel_macs(self.model, widths, as_request(self.limits.inputs)),
            "bytes": lambda: submodel_bytes(self.model, widths),
            "latency": lambda: self._seconds(widths),
        }
        return float(count[name]())

    def _seconds(self, widths: dict[str, Width]) -> float:
        times = time_networks(
            {0: uncalibrated_submodel(self.model, widths)},
            as_request(self.limits.inputs),
            seconds=0.5,
        )
        return min(times[0])
