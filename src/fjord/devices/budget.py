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
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise UserError(f"{name}={value!r} must be above 0")
        if self.deadline is not None and self.examples is None:
            raise UserError("--deadline needs --examples: how many examples a round trains on")

    @classmethod
    def parse(cls, limits: Mapping[str, Any], prefix: str = "--") -> Self:
        """Return the budget of limits as people write them.

        >>> Budget.parse({"deadline": "1min", "examples": 500, "bandwidth": "5Mbit"})
        Budget(deadline=60.0, memory=None, bandwidth=625000.0, examples=500)
        """
        given = {key: value for key, value in limits.items() if value is not None}
        strange = sorted(given.keys() - set(BUDGET_LIMITS))
        if strange:
            raise UserError(
                f"{prefix}{strange[0]}: no such limit; known: {', '.join(BUDGET_LIMITS)}"
            )
        readers: dict[str, Callable[[str, Any], Any]]
        readers = {
            "deadline": parse_seconds,
            "memory": parse_bytes,
            "bandwidth": parse_rate,
            "examples": _count,
        }
        return cls(**{key: readers[key](f"{prefix}{key}", value) for key, value in given.items()})

    @classmethod
    def split_limits(cls, text: str) -> dict[str, str]:
        """Return limits written as words, checked but as they were.

        >>> Budget.split_limits("memory=512MB deadline=60s examples=500")
        {'memory': '512MB', 'deadline': '60s', 'examples': '500'}
        """
        limits: dict[str, str] = {}
        for word in text.split():
            key, equals, value = word.partition("=")
            if not equals:
                raise UserError(f"--budget {word}: write it as limit=value, such as deadline=60s")
            limits[key] = value
        cls.parse(
            {"examples": 1, **limits}, "--budget "
        )  # a node bound to a client knows how many examples it has
        return limits


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
        raise UserError(f"{name} {value}: must be a whole number of at least 1")
    return int(value)
