"""What a device can spare for a round: time, memory and bandwidth."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from fjord.core.errors import UserError
from fjord.core.units import parse_bytes, parse_rate, parse_seconds

BUDGET_LIMITS = ("deadline", "memory", "bandwidth", "examples")
"""What a budget is made of, by the names that the command line and a node's configuration use."""


@dataclass(frozen=True)
class Budget:
    """Limits of a round on one device; None does not limit."""

    deadline: float | None = None
    """Seconds for download, training and upload together."""
    memory: int | None = None
    """Bytes that training may add to the process."""
    bandwidth: float | None = None
    """Bytes a second, down and up; without it, transfers take no time."""
    examples: int | None = None
    """How many examples a round trains on, once for each epoch."""

    def __post_init__(self) -> None:
        for name in BUDGET_LIMITS:
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int | float) or not value > 0:
                raise UserError("must be a number above 0", field=name, value=repr(value))
        if self.deadline is not None and self.examples is None:
            fault = "needs examples, the number of examples that a round trains on"
            raise UserError(fault, field="deadline", value=self.deadline)

    @classmethod
    def parse(cls, limits: Mapping[str, Any]) -> Self:
        """Return the budget of limits as people write them; None does not limit.

        >>> Budget.parse({"deadline": "1min", "examples": 500, "bandwidth": "5Mbit"})
        Budget(deadline=60.0, memory=None, bandwidth=625000.0, examples=500)
        """
        parsed = {}
        for name, value in limits.items():
            if value is None:
                continue
            if name not in LIMIT_PARSERS:
                allowed = ", ".join(BUDGET_LIMITS)
                raise UserError(f"is not a limit; the limits are {allowed}", field=name)
            parse_limit = LIMIT_PARSERS[name]
            parsed[name] = parse_limit(name, value)
        return cls(**parsed)

    @classmethod
    def split_limits(cls, text: str) -> dict[str, str]:
        """Return limits written as words, checked but not converted.

        >>> Budget.split_limits("memory=512MB deadline=60s examples=500")
        {'memory': '512MB', 'deadline': '60s', 'examples': '500'}
        """
        limits: dict[str, str] = {}
        for word in text.split():
            name, equals, value = word.partition("=")
            if not equals:
                fault = "is not of the form limit=value, such as deadline=60s"
                raise UserError(fault, field="budget", value=word)
            limits[name] = value
        # The number of examples may come later, from the client that a node is bound to.
        cls.parse({"examples": 1, **limits})
        return limits


def _parse_examples(name: str, value: Any) -> int:
    is_whole = str(value).isdigit() and not isinstance(value, bool)
    if not is_whole or int(value) < 1:
        raise UserError("must be a whole number of at least 1", field=name, value=value)
    return int(value)


LIMIT_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "deadline": parse_seconds,
    "memory": parse_bytes,
    "bandwidth": parse_rate,
    "examples": _parse_examples,
}
