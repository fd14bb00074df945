"""FedNova (Wang et al., 2020): clients that take more steps do not count for more, weight by weight."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fjord.elastic.client_model import units_below
from fjord.elastic.indexing import AxisIndices, relative_indices, take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.tensor_key import TensorKey
from fjord.federated.aggregation import (
    CoveredMean,
    NestedMean,
    add_at,
    add_coverage,
    count_shape,
    write_where_covered,
)
from fjord.training.local import Assignment, ClientUpdate, LocalTraining


def active_steps(model: ElasticModel, task: Assignment, update: ClientUpdate) -> dict[str, Tensor]:
    """Return in how many local steps each weight of a client's slice could move.

    Axes along which that never differs have size 1. A weight shared by widths moves when the widest submodel
    of the step holds it; one kept per width moves when that width is run.
    """
    outer = model.plan.kept_indices(task.held)
    inner = {
        w: model.plan.kept_indices(units_below(model.plan, task.held, w)) for w in update.reach
    }
    counts: dict[str, Tensor] = {}
    for key, tensor in task.tensors.items():
        name, width = TensorKey.parse(key)
        if width is not None:
            counts[key] = torch.tensor(sum(n for w, n in update.steps.items() if w == width))
            continue
        whole = [n == 1 for n in count_shape(model, key)]
        count = torch.zeros(
            [1 if w else n for n, w in zip(tensor.shape, whole, strict=True)], dtype=torch.int64
        )
        for w, steps in update.reach.items():
            add_coverage(
                count,
                relative_indices(inner[w][name], outer[name]),
                steps,
            )
        counts[key] = count
    return counts


def step_lengths(most: int, how: LocalTraining, lr: float) -> Tensor:
    """Return |a|_1 of FedNova after 0, 1, ... steps: how far unit gradients carry a client, in units of the step.

    Without momentum and proximal term this is the number of steps.
    """
    found, velocity, moved = [0.0], 0.0, 0.0
    for _ in range(most):
        velocity = how.momentum * velocity + 1 - how.prox * lr * moved
        moved += velocity
        found.append(moved)
    return torch.tensor(found)


class NormalisedMean(NestedMean):
    """w + tau_eff * mean of (w_i - w) / |a_i|, where tau_eff is the mean of |a_i|; over the holders of each weight."""

    def __init__(self, model: ElasticModel, how: LocalTraining) -> None:
        super().__init__(model)
        self.model, self.how = model, how
        trained = [key for key, t in model.tensors.items() if isinstance(t, nn.Parameter)]
        self.length = {key: torch.zeros(count_shape(model, key)) for key in trained}

    def learn(
        self, task: Assignment, update: ClientUpdate, where: Mapping[str, AxisIndices]
    ) -> None:
        """Add one client's normalised update."""
        counts = active_steps(self.model, task, update)
        table = step_lengths(max(int(c.max()) for c in counts.values()), self.how, task.lr)
        normal: dict[str, Tensor] = {}
        for key, value in update.tensors.items():
            if key not in self.length:
                normal[key] = value
                continue
            length = table[counts[key]]
            normal[key] = (value - task.tensors[key]) / length.where(
                length > 0, 1
            )  # a weight that never moved adds 0
            shape = take_slice(self.length[key], where[key]).shape
            add_at(self.length[key], where[key], length.expand(shape), update.num_examples)
        self.add(normal, where, update.num_examples)

    def result(self, key: str) -> CoveredMean:
        """Return the normalised mean of one tensor."""
        found = super().result(key)
        if key not in self.length:
            return found
        effective = self.length[key] / found.weight.clamp(min=1e-30)
        return CoveredMean(self.model.tensors[key].detach() + effective * found.mean, found.weight)

    def write(self, key: str, current: Tensor) -> None:
        """Write the normalised mean of one tensor over the current weights."""
        write_where_covered(current, self.result(key))
