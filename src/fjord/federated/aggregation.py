"""Eq. (1) as one rule: average every weight over the clients that hold it, and leave the others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fjord.elastic.client_model import SliceIndex
from fjord.elastic.indexing import AxisIndices, is_leading, sliced_shape, strided_view, take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.tensor_key import TensorKey
from fjord.federated.validation import AcceptedUpdate


@dataclass(frozen=True)
class CoveredMean:
    """A mean over the clients that hold each weight, and the sum of their examples."""

    mean: Tensor
    weight: Tensor
    """0 where nobody holds a weight. Axes along which all clients hold the same have size 1."""


class Aggregator(Protocol):
    """Takes in the updates of one round, and gives the new value of each tensor."""

    def add(self, accepted: AcceptedUpdate) -> None:
        """Take in one client's update."""

    def result(self, key: str) -> CoveredMean:
        """Return the new value of one tensor, and where somebody holds it."""

    def write(self, key: str, current: Tensor) -> None:
        """Write the new value over the current weights, wherever somebody holds them."""


@dataclass
class SliceHolders:
    """Clients that hold the same part of the model."""

    index: Mapping[str, AxisIndices]
    views: dict[str, Tensor | None]
    """Views of the sums there; None where strides cannot express the part."""
    weight: float = 0.0


class NestedMean:
    """Eq. (1) in one pass: total and weight of every element over the clients that hold it."""

    def __init__(self, model: ElasticModel, slice_index: SliceIndex) -> None:
        self.model = model
        self.slice_index = slice_index
        self.total: dict[str, Tensor] = {}
        self._shapes: dict[str, list[int]] = {}
        for key, tensor in model.tensors.items():
            self.total[key] = torch.zeros_like(tensor, dtype=sum_type(tensor)).detach()
            self._shapes[key] = count_shape(model, key)
        self._holders: dict[int, SliceHolders] = {}

    def add(self, accepted: AcceptedUpdate) -> None:
        """Take in one client's weights, weighted by its examples."""
        update = accepted.update
        self.add_tensors(update.tensors, self.index_of(accepted), update.num_examples)

    def index_of(self, accepted: AcceptedUpdate) -> Mapping[str, AxisIndices]:
        """Return where the tensors of an update lie in the model."""
        trained = accepted.trained
        return self.slice_index(trained.units, trained.space.widths)

    def add_tensors(
        self, tensors: Mapping[str, Tensor], index: Mapping[str, AxisIndices], weight: float
    ) -> None:
        """Add tensors that lie at this index."""
        holders = self._holders_of(index)
        holders.weight += weight
        sums: list[Tensor] = []
        values: list[Tensor] = []
        for key, tensor in tensors.items():
            view = holders.views[key]
            if view is None:
                add_at(self.total[key], index[key], tensor, weight)
            else:
                sums.append(view)
                values.append(tensor.reshape(view.shape))
        torch._foreach_add_(sums, values, alpha=weight)

    def _holders_of(self, index: Mapping[str, AxisIndices]) -> SliceHolders:
        # By identity: the index of leading units is one object for all clients of a tier.
        holders = self._holders.get(id(index))
        if holders is None:
            views = {key: view_at(self.total[key], indices) for key, indices in index.items()}
            holders = SliceHolders(index, views)
            self._holders[id(index)] = holders
        return holders

    @property
    def total_weight(self) -> float:
        """The sum of the weights of all clients."""
        return sum(holders.weight for holders in self._holders.values())

    def weight(self, key: str) -> Tensor:
        """Return the sum of the weights of the clients that hold each element."""
        holders = [h for h in self._holders.values() if key in h.index]
        if all(_is_whole(h.index[key]) for h in holders):
            return torch.tensor(float(sum(h.weight for h in holders)))
        weight = torch.zeros(self._shapes[key])
        for each in holders:
            add_coverage(weight, each.index[key], each.weight)
        return weight

    def result(self, key: str) -> CoveredMean:
        """Return the mean of one tensor."""
        weight = self.weight(key)
        return CoveredMean(self.total[key] / weight.clamp(min=1e-30), weight)

    def write(self, key: str, current: Tensor) -> None:
        """Write the mean of one tensor over the current weights, wherever somebody holds them."""
        weight = self.weight(key)
        if current.dtype == self.total[key].dtype and bool((weight > 0).all()):
            torch.div(self.total[key], weight, out=current.detach())
        else:
            write_where_covered(current, self.result(key))


class MeanOverAll(NestedMean):
    """A mean over all clients: a weight that a client does not hold counts as unchanged."""

    def __init__(self, model: ElasticModel, slice_index: SliceIndex) -> None:
        super().__init__(model, slice_index)
        self._completed: set[str] = set()

    def weight(self, key: str) -> Tensor:
        """Return the weight of all clients; what some do not hold is first added as it was."""
        if key not in self._completed:
            missing = self.total_weight - super().weight(key)
            self.total[key] += missing * self.model.tensors[key].detach()
            self._completed.add(key)
        return torch.tensor(float(self.total_weight))


def _is_whole(indices: AxisIndices) -> bool:
    return all(index is None for index in indices)


def count_shape(model: ElasticModel, key: str) -> list[int]:
    """Return the shape of a count per element: axes that all clients hold whole have size 1."""
    name = TensorKey.parse(key).name
    shape = []
    for axis, size in enumerate(model.tensors[key].shape):
        shape.append(size if (name, axis) in model.plan.families_of else 1)
    return shape


def add_coverage(counts: Tensor, indices: AxisIndices, amount: float) -> None:
    """Add an amount to the counts of these elements."""
    shape = sliced_shape(counts.shape, indices)
    ones = torch.ones((), dtype=counts.dtype).expand(shape)
    add_at(counts, indices, ones, amount)


def write_where_covered(current: Tensor, result: CoveredMean) -> None:
    """Write a mean over the current weights, wherever somebody holds them."""
    mean = result.mean
    if not current.is_floating_point():
        mean = mean.round().to(current.dtype)
    covered = result.weight > 0
    if not bool(covered.all()):
        mean = torch.where(covered, mean, current)
    current.copy_(mean)


def sum_type(tensor: Tensor) -> torch.dtype:
    """Return the type sums are kept in: single precision at least, double for counters."""
    if tensor.is_floating_point():
        return torch.promote_types(tensor.dtype, torch.float32)
    return torch.float64


def view_at(tensor: Tensor, indices: AxisIndices) -> Tensor | None:
    """Return a view of the elements at these indices, where strides can express it."""
    if all(index is None or is_leading(index) for index in indices):
        return take_slice(tensor, indices)
    return strided_view(tensor, indices)


def add_at(tensor: Tensor, indices: AxisIndices, value: Tensor, factor: float = 1.0) -> None:
    """Add factor * value to the elements at these indices, in place."""
    view = view_at(tensor, indices)
    if view is not None:
        view.add_(value.reshape(view.shape), alpha=factor)
        return
    full_indices = []
    for size, index in zip(tensor.shape, indices, strict=True):
        full_indices.append(torch.arange(size) if index is None else index)
    grid = torch.meshgrid(*full_indices, indexing="ij")
    tensor.index_put_(grid, (factor * value).to(tensor.dtype), accumulate=True)
