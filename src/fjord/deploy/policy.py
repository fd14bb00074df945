"""Which width the next request gets, given how long the last ones took.

There is no clock in here, so that the rule can be tested exactly.

One number describes the load of a device: the time a request took, divided by the time its width
takes when nothing else runs. As far as load slows all widths down alike, one request shows what
every width would take.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fjord.core.errors import UserError
from fjord.core.width import Width

LONGEST_PATIENCE = 4
"""How far patience grows, in windows.

A step up that fails costs two misses, so that futile steps cost about one request in 80.
"""
ROUNDING = 1e-9
"""Allowed error of floats: 2 / (1 - 0.95) is a little more than 40."""


@dataclass(frozen=True)
class PolicyState:
    """The width in use, the load of the last requests, and how long a step up has to wait."""

    width: Width
    loads: tuple[float, ...] = ()
    since: int = 0
    """Requests since the width last changed."""
    patience: int = 1
    """Windows without a change before a step up."""
    risen: bool = False
    """Whether the last change was a step up."""


@dataclass(frozen=True)
class WidthPolicy:
    """Use the largest width whose requests keep to the target.

    The width goes down at once, and up after a while and with a margin.
    """

    idle: Mapping[Width, float]
    """Seconds of a request at each width when nothing else runs."""
    target: float
    quantile: float = 0.95
    """The share of requests that has to keep to the target."""
    margin: float = 0.1
    """How much room a step up must leave."""

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            message = "must lie between 0 and 1, such as 0.95"
            raise UserError(message, field="quantile", value=self.quantile)
        if not 0 <= self.margin < math.inf:
            raise UserError("must be 0 or more", field="margin", value=self.margin)
        self._check_idle()
        if not 0 < self.target < math.inf:
            message = "must be a number of seconds above 0"
            raise UserError(message, field="target", value=self.target)
        self._check_reachable()

    def _check_idle(self) -> None:
        times = list(self.idle.values())
        if not times or not all(0 < seconds < math.inf for seconds in times):
            message = "must have a time above 0 for each width"
            raise UserError(message, field="idle", value=dict(self.idle))

    def _check_reachable(self) -> None:
        fastest = min(self.idle.values())
        if fastest > self.target:
            enough = fastest * (1 + self.margin)
            raise UserError(
                f"target={self.target:.3g} s: the fastest width takes {fastest:.3g} s when "
                f"nothing else runs; give at least {enough:.3g}"
            )

    @property
    def window(self) -> int:
        """The number of requests that are remembered: as many as may miss the target twice."""
        return math.ceil(2 / (1 - self.quantile) - ROUNDING)

    def start(self) -> PolicyState:
        """Begin with the largest width that fits when nothing else runs."""
        return PolicyState(self._widest_or_fastest(1.0))

    def after(self, state: PolicyState, seconds: float) -> PolicyState:
        """Return the state after a request at the current width that took these seconds."""
        idle = self.idle[state.width]
        loads = (*state.loads, seconds / idle)
        state = replace(state, loads=loads[-self.window :], since=state.since + 1)
        load = self.load(state)
        if idle * load > self.target:
            return self._step_down(state, self._widest_or_fastest(load))
        patience = state.patience * self.window
        if state.since >= patience:
            wider = self._widest_fitting(load, 1 + self.margin)
            if wider is not None and wider > state.width:
                return replace(state, width=wider, since=0, risen=True)
        if state.risen and state.since >= 2 * patience:  # the last step up has proved right
            return replace(state, patience=1, risen=False)
        return state

    def load(self, state: PolicyState) -> float:
        """Return the load that all but half of the requests allowed to miss were below."""
        ranked = sorted(state.loads, reverse=True)
        allowed = len(ranked) * (1 - self.quantile) / 2
        return ranked[int(allowed + ROUNDING)]

    def _step_down(self, state: PolicyState, width: Width) -> PolicyState:
        """Go down; a step up that did not last makes the next one wait longer."""
        if width == state.width:
            return state
        patience = state.patience
        if state.risen and state.since < state.patience * self.window:
            patience = min(LONGEST_PATIENCE, 2 * state.patience)
        return replace(state, width=width, since=0, patience=patience, risen=False)

    def _widest_or_fastest(self, load: float) -> Width:
        """Return the largest width that keeps to the target at a load, or else the fastest."""
        widest = self._widest_fitting(load, 1.0)
        if widest is not None:
            return widest
        return min(self.idle, key=lambda width: self.idle[width])

    def _widest_fitting(self, load: float, room: float) -> Width | None:
        fitting = []
        for width, idle in self.idle.items():
            if idle * load * room <= self.target:
                fitting.append(width)
        return max(fitting, default=None)
