"""What a client is sent, what it sends back, and why an update is not used."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fjord.core.width import Width, WidthSpace
from fjord.elastic.plan import UnitSelection


@dataclass(frozen=True)
class Assignment:
    """What a client is sent in a round: its submodel, and how to train it."""

    client_id: int
    round_index: int
    ceiling: Width
    """The widest width of P that the client can carry."""
    lr: float
    units: UnitSelection
    """The units of each family that the submodel has."""
    space: WidthSpace
    """The widths the client samples from; its units hold all of them."""
    tensors: dict[str, Tensor]
    """The weights. They may be views of the server's model, and are only read."""
    correction: dict[str, Tensor] = field(default_factory=dict)
    """Added to every gradient (SCAFFOLD)."""

    @property
    def num_bytes(self) -> int:
        """The bytes that are sent to the client."""
        return total_bytes(self.tensors) + total_bytes(self.correction)


@dataclass(frozen=True)
class Reduction:
    """That a client trained a smaller submodel than it was sent: up to which ceiling, and why."""

    ceiling: Width
    reason: str


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends back."""

    client_id: int
    tensors: dict[str, Tensor]
    num_examples: int
    loss: float
    steps: dict[Width, int]
    """In how many steps each submodel was run."""
    widest_steps: dict[Width, int]
    """In how many steps each submodel was the widest one run."""
    macs: int
    """Multiply-accumulates of all passes; a backward pass counts as two forward passes."""
    reduction: Reduction | None = None
    """None if the client trained all it was sent."""


@dataclass(frozen=True)
class Rejected:
    """That an assignment came to nothing: the client is named with the reason, and not merged."""

    reason: str


class Fallbacks(Protocol):
    """The smaller assignments within an assignment, for a client that cannot train all of it."""

    def at_ceiling(self, assignment: Assignment, ceiling: Width) -> Assignment | None:
        """Return the smaller assignment of a ceiling, if there is one."""

    def all_smaller(self, assignment: Assignment) -> Iterable[Assignment]:
        """Return all smaller assignments, the widest first."""


class NoFallbacks:
    """A client trains what it is sent, or nothing."""

    def at_ceiling(self, assignment: Assignment, ceiling: Width) -> Assignment | None:
        """Return nothing."""
        return None

    def all_smaller(self, assignment: Assignment) -> Iterable[Assignment]:
        """Return nothing."""
        return ()


def total_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
