"""A client's part of an elastic model: its units, and the submodels of its widths on them."""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from fjord.core.width import Width, WidthSpace
from fjord.elastic.batchnorm import StoredSlice, batchnorm_tensors
from fjord.elastic.indexing import (
    AxisIndices,
    all_indices,
    is_leading,
    relative_indices,
    take_slice,
)
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.submodel.blueprint import as_parameters_like
from fjord.elastic.tensor_key import TensorKey


def units_below(
    plan: WidthPlan,
    selection: UnitSelection,
    width: Width,
) -> UnitSelection:
    """Return the selected units among the first ceil(width * K) of each family."""
    below = {}
    for family in plan.families:
        units = selection[family.name]
        limit = family.unit_count(width)
        below[family.name] = units[units < limit]
    return below


def slice_index(
    model: ElasticModel,
    selection: UnitSelection,
    widths: Iterable[Width],
) -> dict[str, AxisIndices]:
    """Return, by key, the indices of the tensors that a client with these units gets.

    Of tensors stored once per width (`bn1.weight@2/5`), a client gets those of its own widths.
    """
    plan = model.plan
    per_width = batchnorm_tensors(model.blueprint.template, model.norms)
    index: dict[str, AxisIndices] = {}
    for name, indices in plan.kept_indices(selection).items():
        if name not in per_width:
            index[name] = indices
    if not per_width:
        return index
    for width in widths:
        wanted = plan.kept_indices(units_below(plan, selection, width))
        stored = plan.kept_indices(plan.leading_units(width))
        for name in sorted(per_width):
            key = str(TensorKey(name, width))
            index[key] = relative_indices(wanted[name], stored[name])
    return index


class SliceIndex:
    """Computes `slice_index` for the clients of a model, and caches it for leading units."""

    def __init__(self, model: ElasticModel) -> None:
        self.model = model
        self._cached = lru_cache(maxsize=64)(self._leading_index)

    def __call__(
        self, selection: UnitSelection, widths: tuple[Width, ...]
    ) -> dict[str, AxisIndices]:
        """Return, by key, the indices of the tensors that a client with these units gets."""
        if all(is_leading(units) for units in selection.values()):
            counts = tuple(len(units) for units in selection.values())
            return self._cached(counts, widths)
        return slice_index(self.model, selection, widths)

    def _leading_index(
        self, counts: tuple[int, ...], widths: tuple[Width, ...]
    ) -> dict[str, AxisIndices]:
        """Return the index of the first `counts` units of the families."""
        selection = {}
        for family, count in zip(self.model.plan.families, counts, strict=True):
            selection[family.name] = torch.arange(count)
        return slice_index(self.model, selection, widths)


def take_tensors(model: ElasticModel, index: dict[str, AxisIndices]) -> dict[str, Tensor]:
    """Return the tensors at an index: views of the model where the units are leading.

    They are valid as long as the model does not change.
    """
    tensors = {}
    for key, indices in index.items():
        full = model.tensors[key].detach()
        tensors[key] = take_slice(full, indices)
    return tensors


class ClientModel(ElasticModel):
    """The submodels of one client on its own tensors.

    The submodel of width p keeps those of the client's units that are among the first ceil(p K).
    """

    def __init__(
        self,
        model: ElasticModel,
        units: UnitSelection,
        space: WidthSpace,
        tensors: dict[str, Tensor],
    ) -> None:
        template = model.blueprint.template
        own_tensors = as_parameters_like(tensors, template)
        super().__init__(model.blueprint, model.plan, space, model.norms, own_tensors)
        self.units = units
        self.per_width = batchnorm_tensors(template, model.norms)

    def _default_units(self, widths: dict[str, Width]) -> UnitSelection:
        return units_below(self.plan, self.units, widths[""])

    def _stored_slices(
        self,
        widths: dict[str, Width],
        selection: UnitSelection,
        *,
        calibrated: bool = False,
    ) -> dict[str, StoredSlice]:
        own = self.plan.kept_indices(self.units)
        slices: dict[str, StoredSlice] = {}
        for name, indices in self.plan.kept_indices(selection).items():
            if name in self.per_width:
                key = str(TensorKey(name, widths[""]))
                slices[name] = StoredSlice(key, all_indices(len(indices)))
            else:
                slices[name] = StoredSlice(name, relative_indices(indices, own[name]))
        return slices
