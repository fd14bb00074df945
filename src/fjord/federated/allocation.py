"""Which submodel a client gets, and what it falls back to when it can carry less than that."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthSpace
from fjord.elastic.client_model import SliceIndex
from fjord.elastic.indexing import AxisIndices, relative_indices, take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection
from fjord.federated.methods import ClientContext, Method
from fjord.training.assignment import Assignment


@dataclass(frozen=True)
class SubmodelAllocator:
    """Gives clients their submodels by a method. Server and clients work them out alike."""

    model: ElasticModel
    method: Method
    space: WidthSpace
    """P."""
    target: Width
    """The width of the model that is trained."""
    lowest: Width
    """The smallest ceiling of the population."""
    seed: int
    slice_index: SliceIndex

    def usable_ceiling(self, client_id: int, ceiling: Width) -> Width:
        """Return the widest width of P that a client can carry."""
        smallest = self.space.widths[0]
        if ceiling < smallest:
            raise UserError(
                f"client {client_id}: ceiling {ceiling} is below the smallest width {smallest}"
            )
        return self.space.up_to(ceiling).largest

    def client_context(
        self,
        client_id: int,
        round_index: int,
        ceiling: Width,
        sent_units: UnitSelection | None = None,
    ) -> ClientContext:
        """Return what a method knows of a client with this ceiling, which must be a width of P."""
        generator = torch.Generator()
        generator.manual_seed(derive_seed(self.seed, "client", round_index, client_id, "units"))
        return ClientContext(
            client_id=client_id,
            ceiling=ceiling,
            target=self.target,
            lowest=self.lowest,
            space=self.space,
            round_index=round_index,
            generator=generator,
            sent_units=sent_units,
        )

    def select_submodel(self, context: ClientContext) -> tuple[UnitSelection, WidthSpace]:
        """Return the units a client gets, and the widths it samples from."""
        selected = self.method.select(self.model.plan, context)
        units = {family.name: selected[family.name] for family in self.model.plan.families}
        return units, self.method.sample(context)

    def at_ceiling(self, assignment: Assignment, ceiling: Width) -> Assignment | None:
        """Return the assignment of a ceiling, if it is a smaller part of one that was sent."""
        context = self.client_context(
            assignment.client_id, assignment.round_index, ceiling, assignment.units
        )
        if ceiling not in self.space.widths or not self.method.joins(context):
            return None
        units, space = self.select_submodel(context)
        if not _is_inside(units, assignment.units):
            return None
        if _is_same(units, assignment.units) and space.largest >= assignment.space.largest:
            return None
        sent_index = self.slice_index(assignment.units, assignment.space.widths)
        index = self.slice_index(units, space.widths)
        if not index.keys() <= sent_index.keys():
            return None  # it has BatchNorm layers of a width that was not sent
        corrected = {key: index[key] for key in index if key in assignment.correction}
        return replace(
            assignment,
            ceiling=ceiling,
            units=units,
            space=space,
            tensors=_cut_tensors(assignment.tensors, sent_index, index),
            correction=_cut_tensors(assignment.correction, sent_index, corrected),
        )

    def all_smaller(self, assignment: Assignment) -> Iterator[Assignment]:
        """Yield all smaller assignments, the widest first."""
        for ceiling in reversed(self.space.widths):
            smaller = self.at_ceiling(assignment, ceiling)
            if smaller is not None:
                yield smaller


def _is_inside(units: UnitSelection, others: UnitSelection) -> bool:
    for name, selected in units.items():
        if not bool(torch.isin(selected, others[name]).all()):
            return False
    return True


def _is_same(units: UnitSelection, others: UnitSelection) -> bool:
    return all(torch.equal(selected, others[name]) for name, selected in units.items())


def _cut_tensors(
    tensors: dict[str, Tensor], old: dict[str, AxisIndices], new: dict[str, AxisIndices]
) -> dict[str, Tensor]:
    """Cut tensors whose place in the model is `old` to those whose place is `new`."""
    cut = {}
    for key, indices in new.items():
        cut[key] = take_slice(tensors[key], relative_indices(indices, old[key]))
    return cut
