"""What travels with every message, so that a device makes the same experiment as the server."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class RunSpec:
    """How a client makes the same experiment: the recipe, its settings, and which of its models."""

    recipe: str
    settings: tuple[str, ...] = ()
    stage: int = 0
    known_model: str = field(default="", compare=False)
    """The description of that model, if the device has made it before; it does not travel."""

    def fields(self) -> dict[str, int | str]:
        """Return the specification as it travels."""
        return {
            "recipe": self.recipe,
            "settings": shlex.join(self.settings),
            "stage": self.stage,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the specification that was sent."""
        settings = tuple(shlex.split(record["settings"]))
        return cls(record["recipe"], settings, record["stage"])
