"""A device's part of an elastic model: the units it holds, and the submodels of every width it can carry on them."""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from fjord.core.width import Width, WidthSpace
from fjord.elastic.batchnorm import batchnorm_tensors, indices_within
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import AxisIndices, UnitSelection, WidthPlan, take_slice
from fjord.elastic.submodel.blueprint import as_parameters_like


def units_below(plan: WidthPlan, held: UnitSelection, width: Width) -> UnitSelection:
    """Return the held units among the first ceil(width * K) of each family."""
    return {f.name: held[f.name][held[f.name] < f.count(width)] for f in plan.families}


def slice_index(
    model: ElasticModel, held: UnitSelection, widths: Iterable[Width]
) -> dict[str, AxisIndices]:
    """Return where each tensor of a device that holds these units lies in the model, by key.

    What is kept per width (`bn1.weight@2/5`) is held for the device's own widths only.
    """
    per_width = batchnorm_tensors(model.blueprint.template, model.norms)
    found = {name: i for name, i in model.plan.kept_indices(held).items() if name not in per_width}
    for width in widths if per_width else ():
        wanted = model.plan.kept_indices(units_below(model.plan, held, width))
        stored = model.plan.kept_indices(model.plan.ordered(width))
        for name in sorted(per_width):
            found[f"{name}@{width}"] = [
                indices_within(w, s) for w, s in zip(wanted[name], stored[name], strict=True)
            ]
    return found


class SliceIndex:
    """Where the tensors of devices lie in a model; what was asked for before is remembered, if it is leading units."""

    def __init__(self, model: ElasticModel) -> None:
        self.model = model
        self._leading = lru_cache(maxsize=64)(self._of_leading)

    def __call__(self, held: UnitSelection, widths: tuple[Width, ...]) -> dict[str, AxisIndices]:
        """Return where each tensor of a device that holds these units lies."""
        counts = tuple(len(u) if int(u[-1]) == len(u) - 1 else -1 for u in held.values())
        return (
            slice_index(self.model, held, widths) if -1 in counts else self._leading(counts, widths)
        )

    def _of_leading(
        self, counts: tuple[int, ...], widths: tuple[Width, ...]
    ) -> dict[str, AxisIndices]:
        names = [family.name for family in self.model.plan.families]
        held = {name: torch.arange(count) for name, count in zip(names, counts, strict=True)}
        return slice_index(self.model, held, widths)


def take_tensors(model: ElasticModel, where: dict[str, AxisIndices]) -> dict[str, Tensor]:
    """Return the tensors at these places, as long as the model does not change: views of it where units are leading."""
    return {key: take_slice(model.tensors[key].detach(), indices) for key, indices in where.items()}


class ClientModel(ElasticModel):
    """The submodels of one device, on the weights it holds: at each width, the held units among the first ceil(p K)."""

    def __init__(
        self,
        model: ElasticModel,
        held: UnitSelection,
        space: WidthSpace,
        tensors: dict[str, Tensor],
    ) -> None:
        template = model.blueprint.template
        super().__init__(
            model.blueprint, model.plan, space, model.norms, as_parameters_like(tensors, template)
        )
        self.held = held
        self.per_width = batchnorm_tensors(template, model.norms)

    def _ordered(self, widths: dict[str, Width]) -> UnitSelection:
        return units_below(self.plan, self.held, widths[""])

    def _sources(
        self, widths: dict[str, Width], kept: UnitSelection, *, calibrated: bool = False
    ) -> dict[str, tuple[str, AxisIndices]]:
        inner, outer = self.plan.kept_indices(kept), self.plan.kept_indices(self.held)
        return {
            name: (f"{name}@{widths['']}", [None] * len(i))
            if name in self.per_width
            else (
                name,
                [
                    indices_within(wanted, there)
                    for wanted, there in zip(i, outer[name], strict=True)
                ],
            )
            for name, i in inner.items()
        }
