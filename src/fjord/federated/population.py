"""The clients of an experiment: who is there in a round, and what each can carry."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from fjord.core.seeding import derive_seed
from fjord.core.width import Width
from fjord.devices.tiers import DevicePopulation


class RoundClients(Protocol):
    """The clients in one round. They are asked about one at a time, as there may be millions."""

    @property
    def round_index(self) -> int:
        """Which round it is."""

    @property
    def num_clients(self) -> int:
        """How many clients there are, reachable or not; they are numbered from 0."""

    def ceiling(self, client_id: int) -> Width | None:
        """Return the width that a client's device can carry now, or None if it is not there."""


@dataclass(frozen=True)
class Population:
    """All clients of a simulated experiment."""

    num_clients: int
    devices: DevicePopulation
    availability: Fraction
    """The share of clients that is there in a round."""
    seed: int

    def clients_in(self, round_index: int) -> "SimulatedClients":
        """Return the clients in a round."""
        return SimulatedClients(self, round_index)


@dataclass(frozen=True)
class SimulatedClients:
    """The clients of a simulated experiment in one round: who is there is drawn by name."""

    population: Population
    round_index: int

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return self.population.num_clients

    def ceiling(self, client_id: int) -> Width | None:
        """Return what a client can carry, or None if it is not there."""
        draw = derive_seed(self.population.seed, "available", self.round_index, client_id)
        if Fraction(draw, 1 << 63) >= self.population.availability:
            return None
        return self.population.devices.ceiling(client_id, self.round_index)
