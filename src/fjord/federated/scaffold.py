"""SCAFFOLD (Karimireddy et al., 2020): control variates against client drift, on slices.

The server knows what it sent and what came back, so it computes the variates of option II itself: a client is
sent one correction (c - c_i) and sends nothing more than its weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fjord.core.width import Width
from fjord.elastic.client_model import slice_index
from fjord.elastic.indexing import AxisIndices, take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection
from fjord.federated.aggregation import add_at
from fjord.federated.fednova import active_steps
from fjord.training.local import Assignment, ClientUpdate


@dataclass
class ControlVariate:
    """A client's control variate c_i, on the units it last held."""

    held: UnitSelection
    widths: tuple[Width, ...]
    tensors: dict[str, Tensor]


@dataclass
class ScaffoldState:
    """The server's control variate c, and those of the clients that took part.

    Published, c is the mean of all c_i, which are 0 for clients not seen yet. Here each weight has its own mean, over
    the clients that hold it; where everyone holds everything the two are the same.
    """

    model: ElasticModel
    num_clients: int
    clients: dict[int, ControlVariate] = field(default_factory=dict)
    total: dict[str, Tensor] = field(default_factory=dict)
    """The sum of the c_i."""
    holders: dict[str, Tensor] = field(default_factory=dict)
    """How many of them each weight has."""

    def __post_init__(self) -> None:
        trained = {
            key: t.detach() for key, t in self.model.tensors.items() if isinstance(t, nn.Parameter)
        }
        self.total = {key: torch.zeros_like(t) for key, t in trained.items()}
        self.holders = {key: torch.zeros_like(t) for key, t in trained.items()}
        self.end_round()

    def end_round(self) -> None:
        """Bring c up to date: within a round all clients are corrected by the same."""
        share = len(self.clients) / self.num_clients
        self.control = {
            key: share * total / self.holders[key].clamp(min=1) for key, total in self.total.items()
        }

    def correction(
        self, client_id: int, held: UnitSelection, where: Mapping[str, AxisIndices]
    ) -> dict[str, Tensor]:
        """Return c - c_i on a client's slice."""
        own = self._variate(client_id, held, where)
        return {
            key: take_slice(self.control[key], where[key]) - value for key, value in own.items()
        }

    def _variate(
        self, client_id: int, held: UnitSelection, where: Mapping[str, AxisIndices]
    ) -> dict[str, Tensor]:
        """Return c_i on the units a client holds now; what it never held is 0."""
        keys = [key for key in where if key in self.total]
        known = self.clients.get(client_id)
        if known is None:
            return {
                key: torch.zeros_like(take_slice(self.control[key], where[key])) for key in keys
            }
        if list(known.tensors) == keys and all(
            torch.equal(known.held[f], units) for f, units in held.items()
        ):
            return known.tensors
        old, moved = slice_index(self.model, known.held, known.widths), {}
        for key in keys:
            full = torch.zeros_like(self.total[key])
            if key in known.tensors:
                add_at(full, old[key], known.tensors[key])
            moved[key] = take_slice(full, where[key]).clone()
        return moved

    def learn(
        self, task: Assignment, update: ClientUpdate, where: Mapping[str, AxisIndices]
    ) -> None:
        """Take in one client: c_i = c_i - c + (w - w_i) / (K lr), where K counts the steps that could move a weight."""
        counts = active_steps(self.model, task, update)
        own = self._variate(task.client_id, task.held, where)
        fresh: dict[str, Tensor] = {}
        for key, before in own.items():
            steps = counts[key]
            slope = (task.tensors[key] - update.tensors[key]) / (steps.clamp(min=1) * task.lr)
            fresh[key] = before + torch.where(
                steps > 0, slope - take_slice(self.control[key], where[key]), 0.0
            )
        if task.client_id in self.clients:
            old = self.clients[task.client_id]
            self._count(old.tensors, slice_index(self.model, old.held, old.widths), -1)
        self._count(fresh, where, 1)
        self.clients[task.client_id] = ControlVariate(task.held, task.space.widths, fresh)

    def _count(
        self, variate: Mapping[str, Tensor], where: Mapping[str, AxisIndices], sign: int
    ) -> None:
        for key, value in variate.items():
            add_at(self.total[key], where[key], value, sign)
            add_at(self.holders[key], where[key], torch.ones_like(value), sign)
