"""FedNova (Wang et al., 2020): clients that take more steps do not count for more."""

import torch
from torch import Tensor, nn

from fjord.core.width import Width
from fjord.elastic.client_model import SliceIndex, units_below
from fjord.elastic.indexing import relative_indices, take_slice
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
from fjord.federated.validation import AcceptedUpdate
from fjord.training.local import LocalTraining


def active_steps(model: ElasticModel, accepted: AcceptedUpdate) -> dict[str, Tensor]:
    """Return in how many local steps each weight of a client's submodel could move.

    Axes along which that never differs have size 1. A weight shared by widths moves when the
    widest submodel of the step holds it; one kept per width moves when that width is run.
    """
    trained = accepted.trained
    update = accepted.update
    outer = model.plan.kept_indices(trained.units)
    inner = {}
    for width in update.widest_steps:
        units = units_below(model.plan, trained.units, width)
        inner[width] = model.plan.kept_indices(units)
    counts: dict[str, Tensor] = {}
    for key in trained.tensors:
        name, own_width = TensorKey.parse(key)
        if isinstance(own_width, Width):
            counts[key] = torch.tensor(update.steps.get(own_width, 0))
            continue
        count = _zero_counts(model, key, trained.tensors[key])
        for width, steps in update.widest_steps.items():
            add_coverage(count, relative_indices(inner[width][name], outer[name]), steps)
        counts[key] = count
    return counts


def _zero_counts(model: ElasticModel, key: str, tensor: Tensor) -> Tensor:
    shape = []
    for size, counted in zip(tensor.shape, count_shape(model, key), strict=True):
        shape.append(1 if counted == 1 else size)
    return torch.zeros(shape, dtype=torch.int64)


def step_lengths(max_steps: int, training: LocalTraining, lr: float) -> Tensor:
    """Return |a|_1 of FedNova after 0, 1, ... steps.

    This is how far unit gradients carry a client, in step sizes. Without momentum and proximal term
    it is the number of steps.
    """
    lengths = [0.0]
    velocity = 0.0
    moved = 0.0
    for _ in range(max_steps):
        velocity = training.momentum * velocity + 1 - training.prox * lr * moved
        moved += velocity
        lengths.append(moved)
    return torch.tensor(lengths)


class NormalisedMean(NestedMean):
    """w + tau_eff * mean of (w_i - w) / |a_i|, over the holders of each weight.

    tau_eff is the mean of |a_i|.
    """

    def __init__(
        self, model: ElasticModel, slice_index: SliceIndex, training: LocalTraining
    ) -> None:
        super().__init__(model, slice_index)
        self.training = training
        self.length: dict[str, Tensor] = {}
        for key, tensor in model.tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.length[key] = torch.zeros(count_shape(model, key))

    def add(self, accepted: AcceptedUpdate) -> None:
        """Take in one client's normalised update."""
        sent = accepted.trained
        update = accepted.update
        index = self.index_of(accepted)
        counts = active_steps(self.model, accepted)
        max_steps = max(int(count.max()) for count in counts.values())
        lengths = step_lengths(max_steps, self.training, sent.lr)
        normalised: dict[str, Tensor] = {}
        for key, value in update.tensors.items():
            if key not in self.length:
                normalised[key] = value
                continue
            length = lengths[counts[key]]
            divisor = length.where(length > 0, 1)  # a weight that never moved adds 0
            normalised[key] = (value - sent.tensors[key]) / divisor
            shape = take_slice(self.length[key], index[key]).shape
            add_at(self.length[key], index[key], length.expand(shape), update.num_examples)
        self.add_tensors(normalised, index, update.num_examples)

    def result(self, key: str) -> CoveredMean:
        """Return the normalised mean of one tensor."""
        result = super().result(key)
        if key not in self.length:
            return result
        effective = self.length[key] / result.weight.clamp(min=1e-30)
        moved = self.model.tensors[key].detach() + effective * result.mean
        return CoveredMean(moved, result.weight)

    def write(self, key: str, current: Tensor) -> None:
        """Write the normalised mean of one tensor over the current weights."""
        write_where_covered(current, self.result(key))
