"""SCAFFOLD (Karimireddy et al., 2020): control variates against client drift, on submodels.

The server knows what it sent and what came back, so it computes the variates of option II itself:
a client is sent one correction (c - c_i) and sends nothing more than its weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fjord.core.width import Width, parse_width
from fjord.elastic.client_model import SliceIndex
from fjord.elastic.indexing import AxisIndices, take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection
from fjord.federated.aggregation import add_at
from fjord.federated.fednova import active_steps
from fjord.federated.validation import AcceptedUpdate


@dataclass
class ControlVariate:
    """A client's control variate c_i, on the units it last had."""

    units: UnitSelection
    widths: tuple[Width, ...]
    tensors: dict[str, Tensor]


class ScaffoldState:
    """The server's control variate c, and those of the clients that took part.

    Published, c is the mean of all c_i, which are 0 for clients not seen yet. Here each weight has
    its own mean, over the clients that hold it; where everyone holds everything the two are the
    same.
    """

    def __init__(self, model: ElasticModel, num_clients: int, slice_index: SliceIndex) -> None:
        self.model = model
        self.num_clients = num_clients
        self.slice_index = slice_index
        self.clients: dict[int, ControlVariate] = {}
        self.total: dict[str, Tensor] = {}
        """The sum of the c_i."""
        self.holders: dict[str, Tensor] = {}
        """How many clients have each weight."""
        for key, tensor in model.tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.total[key] = torch.zeros_like(tensor.detach())
                self.holders[key] = torch.zeros_like(tensor.detach())
        self.end_round()

    def end_round(self) -> None:
        """Bring c up to date: within a round all clients are corrected by the same c."""
        share = len(self.clients) / self.num_clients
        self.control: dict[str, Tensor] = {}
        for key, total in self.total.items():
            self.control[key] = share * total / self.holders[key].clamp(min=1)

    def correction(
        self, client_id: int, units: UnitSelection, index: Mapping[str, AxisIndices]
    ) -> dict[str, Tensor]:
        """Return c - c_i on a client's submodel."""
        correction = {}
        for key, own in self._variate(client_id, units, index).items():
            correction[key] = take_slice(self.control[key], index[key]) - own
        return correction

    def _variate(
        self, client_id: int, units: UnitSelection, index: Mapping[str, AxisIndices]
    ) -> dict[str, Tensor]:
        """Return c_i on the units a client has now; it is 0 for those it never had."""
        keys = [key for key in index if key in self.total]
        known = self.clients.get(client_id)
        if known is None:
            return {
                key: torch.zeros_like(take_slice(self.control[key], index[key])) for key in keys
            }
        if list(known.tensors) == keys and _same_units(known.units, units):
            return known.tensors
        old_index = self.slice_index(known.units, known.widths)
        variate = {}
        for key in keys:
            full = torch.zeros_like(self.total[key])
            if key in known.tensors:
                add_at(full, old_index[key], known.tensors[key])
            variate[key] = take_slice(full, index[key]).clone()
        return variate

    def add(self, accepted: AcceptedUpdate) -> None:
        """Take in one client: c_i = c_i - c + (w - w_i) / (K lr).

        K counts the steps that could move a weight.
        """
        sent = accepted.trained
        index = self.slice_index(sent.units, sent.space.widths)
        counts = active_steps(self.model, accepted)
        variate: dict[str, Tensor] = {}
        for key, before in self._variate(sent.client_id, sent.units, index).items():
            steps = counts[key]
            moved = sent.tensors[key] - accepted.update.tensors[key]
            slope = moved / (steps.clamp(min=1) * sent.lr)
            change = slope - take_slice(self.control[key], index[key])
            variate[key] = before + torch.where(steps > 0, change, 0.0)
        old = self.clients.get(sent.client_id)
        if old is not None:
            self._count(old.tensors, self.slice_index(old.units, old.widths), -1)
        self._count(variate, index, 1)
        self.clients[sent.client_id] = ControlVariate(sent.units, sent.space.widths, variate)

    def _count(
        self, variate: Mapping[str, Tensor], index: Mapping[str, AxisIndices], sign: int
    ) -> None:
        for key, value in variate.items():
            add_at(self.total[key], index[key], value, sign)
            add_at(self.holders[key], index[key], torch.ones_like(value), sign)

    def state_dict(self) -> dict[str, Any]:
        """Return all variates, as tensors and the clients' widths."""
        state: dict[str, Any] = {}
        state |= {f"total/{key}": tensor for key, tensor in self.total.items()}
        state |= {f"holders/{key}": tensor for key, tensor in self.holders.items()}
        widths: dict[str, list[str]] = {}
        for client_id, variate in self.clients.items():
            widths[str(client_id)] = [str(width) for width in variate.widths]
            for key, tensor in variate.tensors.items():
                state[f"client/{client_id}/value/{key}"] = tensor
            for family, units in variate.units.items():
                state[f"client/{client_id}/held/{family}"] = units
        state["clients"] = widths
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to the variates of a state."""
        self.total = _with_prefix("total/", state)
        self.holders = _with_prefix("holders/", state)
        self.clients = {}
        for client_id, widths in state["clients"].items():
            values = _with_prefix(f"client/{client_id}/value/", state)
            in_order = {key: values[key] for key in self.model.tensors if key in values}
            self.clients[int(client_id)] = ControlVariate(
                units=_with_prefix(f"client/{client_id}/held/", state),
                widths=tuple(parse_width(width) for width in widths),
                tensors=in_order,
            )
        self.end_round()


def _same_units(units: UnitSelection, others: UnitSelection) -> bool:
    return all(torch.equal(units[name], selected) for name, selected in others.items())


def _with_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Tensor]:
    selected = {}
    for key, value in state.items():
        if key.startswith(prefix):
            selected[key.removeprefix(prefix)] = value
    return selected
