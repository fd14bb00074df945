"""Eq. (1) as one rule: average every weight over the clients that hold it, and leave the others as they are."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fjord.elastic.indexing import AxisIndices, is_leading, sliced_shape, strided_view, take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.tensor_key import TensorKey


@dataclass(frozen=True)
class CoveredMean:
    """A mean over the clients that hold each weight, and the sum of their examples (0: nobody holds it)."""

    mean: Tensor
    weight: Tensor
    """Axes along which all clients hold the same have size 1."""


@dataclass
class _Holders:
    """Clients that hold the same places: views of the sums there (None where strides cannot say it)."""

    where: Mapping[str, AxisIndices]
    views: dict[str, Tensor | None]
    weight: float = 0.0


class NestedMean:
    """Eq. (1) as one rule, in one pass: total and weight of every element over the clients that hold it."""

    def __init__(self, model: ElasticModel) -> None:
        self.total = {
            key: torch.zeros_like(t, dtype=sum_type(t)).detach() for key, t in model.tensors.items()
        }
        self._shapes = {key: count_shape(model, key) for key in model.tensors}
        self._holders: dict[int, _Holders] = {}

    def add(
        self, tensors: Mapping[str, Tensor], where: Mapping[str, AxisIndices], weight: float
    ) -> None:
        """Add one client's tensors, which lie at these places."""
        holders = self._holders.get(id(where))
        if holders is None:
            views = {key: view_at(self.total[key], indices) for key, indices in where.items()}
            holders = self._holders[id(where)] = _Holders(where, views)
        holders.weight += weight
        places = {key: view for key in tensors if (view := holders.views[key]) is not None}
        torch._foreach_add_(
            list(places.values()),
            [tensors[key].reshape(view.shape) for key, view in places.items()],
            alpha=weight,
        )
        for key in tensors.keys() - places.keys():
            add_at(self.total[key], where[key], tensors[key], weight)

    def weight(self, key: str) -> Tensor:
        """Return the sum of the weights of the clients that hold each element."""
        holders = [h for h in self._holders.values() if key in h.where]
        if all(index is None for h in holders for index in h.where[key]):
            return torch.tensor(float(sum(h.weight for h in holders)))
        found = torch.zeros(self._shapes[key])
        for h in holders:
            add_coverage(found, h.where[key], h.weight)
        return found

    def take_all(self, model: ElasticModel) -> None:
        """Count what a client does not hold as it was before: a mean over all clients, as plain FedAvg takes it."""
        everyone = sum(h.weight for h in self._holders.values())
        for key, current in model.tensors.items():
            self.total[key] += (everyone - self.weight(key)) * current.detach()
        whole: dict[str, AxisIndices] = {key: [None] * t.dim() for key, t in model.tensors.items()}
        self._holders = {id(whole): _Holders(whole, {}, everyone)}

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


def count_shape(model: ElasticModel, key: str) -> list[int]:
    """Return the shape of what is counted per element of a tensor: axes that all clients hold whole have size 1."""
    name = TensorKey.parse(key).name
    return [
        n if (name, axis) in model.plan.families_of else 1
        for axis, n in enumerate(model.tensors[key].shape)
    ]


def add_coverage(counts: Tensor, indices: AxisIndices, amount: float) -> None:
    """Add an amount to the counts of these elements."""
    shape = sliced_shape(counts.shape, indices)
    add_at(counts, indices, torch.ones((), dtype=counts.dtype).expand(shape), amount)


def write_where_covered(current: Tensor, found: CoveredMean) -> None:
    """Write a mean over the current weights, wherever somebody holds them."""
    if bool((found.weight > 0).all()):
        current.copy_(_rounded(found.mean, current))
    else:
        current.copy_(torch.where(found.weight > 0, _rounded(found.mean, current), current))


def _rounded(mean: Tensor, like: Tensor) -> Tensor:
    return mean if like.is_floating_point() else mean.round().to(like.dtype)


def sum_type(tensor: Tensor) -> torch.dtype:
    """Return the type sums are kept in: single precision at least, double for counters."""
    return (
        torch.promote_types(tensor.dtype, torch.float32)
        if tensor.is_floating_point()
        else torch.float64
    )


def view_at(tensor: Tensor, indices: AxisIndices) -> Tensor | None:
    """Return a view of the elements at these indices, where strides can say it."""
    ordered = all(i is None or is_leading(i) for i in indices)
    return take_slice(tensor, indices) if ordered else strided_view(tensor, indices)


def add_at(tensor: Tensor, indices: AxisIndices, value: Tensor, factor: float = 1.0) -> None:
    """Add factor * value to the elements at these indices, in place."""
    place = view_at(tensor, indices)
    if place is not None:
        place.add_(value.reshape(place.shape), alpha=factor)
        return
    whole = [
        torch.arange(n) if i is None else i for n, i in zip(tensor.shape, indices, strict=True)
    ]
    tensor.index_put_(
        torch.meshgrid(*whole, indexing="ij"), (factor * value).to(tensor.dtype), accumulate=True
    )
