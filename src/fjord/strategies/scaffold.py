"""SCAFFOLD (Karimireddy et al., 2020): control variates against client drift, on slices.

The server knows what it sent and what came back, so it computes the variates of option II itself: a client is
sent one correction (c - c_i) and sends nothing more than its weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import Indices, Kept, take
from fjord.elastic.slice import places
from fjord.local import Task, Update
from fjord.merge import add_at
from fjord.strategies.nova import active_steps
from fjord.width import Width


@dataclass
class Variate:
    """A client's control variate c_i, on the units it last held."""

    held: Kept
    widths: tuple[Width, ...]
    tensors: dict[str, Tensor]


@dataclass
class Scaffold:
    """The server's control variate c, and those of the clients that took part.

    Published, c is the mean of all c_i, which are 0 for clients not seen yet. Here each weight has its own mean, over
    the clients that hold it; where everyone holds everything the two are the same.
    """

    model: ElasticModel
    num_clients: int
    clients: dict[int, Variate] = field(default_factory=dict)
    total: dict[str, Tensor] = field(default_factory=dict)
    """The sum of the c_i."""
    holders: dict[str, Tensor] = field(default_factory=dict)
    """How many of them each weight has."""

    def __post_init__(self) -> None:
        trained = {key: t.detach() for key, t in self.model.tensors.items() if isinstance(t, nn.Parameter)}
        self.total = {key: torch.zeros_like(t) for key, t in trained.items()}
        self.holders = {key: torch.zeros_like(t) for key, t in trained.items()}
        self.end_round()

    def end_round(self) -> None:
        """Bring c up to date: within a round all clients are corrected by the same."""
        share = len(self.clients) / self.num_clients
        self.control = {key: share * total / self.holders[key].clamp(min=1) for key, total in self.total.items()}

    def correction(self, client_id: int, held: Kept, where: Mapping[str, Indices]) -> dict[str, Tensor]:
        """Return c - c_i on a client's slice."""
        own = self._variate(client_id, held, where)
        return {key: take(self.control[key], where[key]) - value for key, value in own.items()}

    def _variate(self, client_id: int, held: Kept, where: Mapping[str, Indices]) -> dict[str, Tensor]:
        """Return c_i on the units a client holds now; what it never held is 0."""
        keys = [key for key in where if key in self.total]
        known = self.clients.get(client_id)
        if known is None:
            return {key: torch.zeros_like(take(self.control[key], where[key])) for key in keys}
        if list(known.tensors) == keys and all(torch.equal(known.held[f], units) for f, units in held.items()):
            return known.tensors
        old, moved = places(self.model, known.held, known.widths), {}
        for key in keys:
            full = torch.zeros_like(self.total[key])
            if key in known.tensors:
                add_at(full, old[key], known.tensors[key])
            moved[key] = take(full, where[key]).clone()
        return moved

    def learn(self, task: Task, update: Update, where: Mapping[str, Indices]) -> None:
        """Take in one client: c_i = c_i - c + (w - w_i) / (K lr), where K counts the steps that could move a weight."""
        counts = active_steps(self.model, task, update)
        own = self._variate(task.client_id, task.held, where)
        fresh: dict[str, Tensor] = {}
        for key, before in own.items():
            steps = counts[key]
            slope = (task.tensors[key] - update.tensors[key]) / (steps.clamp(min=1) * task.lr)
            fresh[key] = before + torch.where(steps > 0, slope - take(self.control[key], where[key]), 0.0)
        if task.client_id in self.clients:
            old = self.clients[task.client_id]
            self._count(old.tensors, places(self.model, old.held, old.widths), -1)
        self._count(fresh, where, 1)
        self.clients[task.client_id] = Variate(task.held, task.space.widths, fresh)

    def _count(self, variate: Mapping[str, Tensor], where: Mapping[str, Indices], sign: int) -> None:
        for key, value in variate.items():
            add_at(self.total[key], where[key], value, sign)
            add_at(self.holders[key], where[key], torch.ones_like(value), sign)
