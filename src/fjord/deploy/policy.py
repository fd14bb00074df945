"""Which width the next request gets, from how long the last ones took: no clock in here, so that it can be proved.

One number says how loaded the device is: the time a request took over the time its width takes when nothing else runs.
It is the same for all widths, as far as load slows everything down alike, so one request tells of every width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fjord.core.errors import UserError
from fjord.core.width import Width

LONGEST_PATIENCE = 4
"""How far patience grows, in windows: a step up that fails costs two misses, so that vain ones cost about one in 80."""


@dataclass(frozen=True)
class PolicyState:
    """The width in use, the load that the last requests met, and how long a step up has to wait."""

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
    """Use the largest width whose requests keep to the target: down at once, up after a while and with a margin."""

    idle: Mapping[Width, float]
    """Seconds of a request at each width when nothing else runs."""
    target: float
    quantile: float = 0.95
    """The share of requests that is to keep to the target."""
    margin: float = 0.1
    """How much room a step up must leave."""

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise UserError(f"quantile={self.quantile} must lie between 0 and 1, such as 0.95")
        if not 0 <= self.margin < math.inf:
            raise UserError(f"margin={self.margin} must be 0 or more")
        if not self.idle or not all(0 < seconds < math.inf for seconds in self.idle.values()):
            raise UserError(f"idle={dict(self.idle)}: a time above 0 for each width is needed")
        if not 0 < self.target < math.inf:
            raise UserError(f"target={self.target} must be a number of seconds above 0")
        if (least := min(self.idle.values())) > self.target:
            raise UserError(
                f"target={self.target:.3g} s: the fastest width takes {least:.3g} s when nothing else runs; "
                f"give at least {least * (1 + self.margin):.3g}"
            )

    @property
    def window(self) -> int:
        """The number of requests that are remembered: as many as may miss the target twice."""
        return math.ceil(2 / (1 - self.quantile) - 1e-9)

    def start(self) -> PolicyState:
        """Begin with the largest width that fits when nothing else runs."""
        return PolicyState(self._widest(1.0, 1.0) or self._fastest)

    def after(self, state: PolicyState, seconds: float) -> PolicyState:
        """Take in how long a request at the current width took."""
        loads = (*state.loads, seconds / self.idle[state.width])[-self.window :]
        state = replace(state, loads=loads, since=state.since + 1)
        load = self.load(state)
        if self.idle[state.width] * load > self.target:
            return self._fallen(state, self._widest(load, 1.0) or self._fastest)
        calm = state.since >= state.patience * self.window
        wider = self._widest(load, 1 + self.margin) if calm else None
        if wider is not None and wider > state.width:
            return replace(state, width=wider, since=0, risen=True)
        settled = state.risen and state.since >= 2 * state.patience * self.window
        return replace(state, patience=1, risen=False) if settled else state

    def load(self, state: PolicyState) -> float:
        """Return the load that all but half of the requests allowed to miss were below."""
        ranked = sorted(state.loads, reverse=True)
        return ranked[int(len(ranked) * (1 - self.quantile) / 2 + 1e-9)]

    def _fallen(self, state: PolicyState, width: Width) -> PolicyState:
        """Go down; a step up that did not last makes the next one wait longer."""
        if width == state.width:
            return state
        hasty = state.risen and state.since < state.patience * self.window
        patience = min(LONGEST_PATIENCE, 2 * state.patience) if hasty else state.patience
        return replace(state, width=width, since=0, patience=patience, risen=False)

    def _widest(self, load: float, room: float) -> Width | None:
        return max(
            (w for w, idle in self.idle.items() if idle * load * room <= self.target), default=None
        )

    @property
    def _fastest(self) -> Width:
        return min(self.idle, key=lambda width: self.idle[width])
