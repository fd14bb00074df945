"""What a client is given of a model, and what it falls back to when it can carry less than that."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthSpace
from fjord.elastic.client_model import SliceIndex
from fjord.elastic.indexing import AxisIndices, relative_indices, take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection
from fjord.federated.methods import ClientContext, Method
from fjord.training.local import Assignment


@dataclass(frozen=True)
class SubmodelAllocator:
    """The parts of one model that a method gives to clients; server and clients work them out alike."""

    model: ElasticModel
    method: Method
    space: WidthSpace
    """P."""
    target: Width
    lowest: Width
    seed: int
    places: SliceIndex

    def grant(
        self, client_id: int, round_index: int, ceiling: Width, sent: UnitSelection | None = None
    ) -> ClientContext:
        """Return what is known when a client of this ceiling is given its part."""
        generator = torch.Generator().manual_seed(
            derive_seed(self.seed, "client", round_index, client_id, "units")
        )
        return ClientContext(
            ceiling, self.target, self.lowest, self.space, round_index, generator, sent
        )

    def given(self, grant: ClientContext) -> tuple[UnitSelection, WidthSpace]:
        """Return the units a client gets, and the widths it samples from."""
        chosen = self.method.select(self.model.plan, grant)
        return {
            family.name: chosen[family.name] for family in self.model.plan.families
        }, self.method.sample(grant)

    def smaller(self, task: Assignment, ceiling: Width) -> Assignment | None:
        """Return the task of this ceiling, if it is a part of a larger one that was sent."""
        grant = self.grant(task.client_id, task.round_index, ceiling, task.held)
        if ceiling not in self.space.widths or not self.method.joins(grant):
            return None
        held, space = self.given(grant)
        if not _inside(held, task.held) or (
            _same(held, task.held) and space.largest >= task.space.largest
        ):
            return None
        old, new = self.places(task.held, task.space.widths), self.places(held, space.widths)
        if not new.keys() <= old.keys():  # such as BatchNorm layers of a width that it did not have
            return None
        correction = {key: new[key] for key in new if key in task.correction}
        return replace(
            task,
            held=held,
            space=space,
            tensors=_cut(task.tensors, old, new),
            correction=_cut(task.correction, old, correction),
        )

    def below(self, task: Assignment) -> Iterator[tuple[Width, Assignment]]:
        """Yield all smaller tasks with their ceilings, the widest first."""
        for ceiling in reversed(self.space.widths):
            found = self.smaller(task, ceiling)
            if found is not None:
                yield ceiling, found


def _inside(part: UnitSelection, whole: UnitSelection) -> bool:
    return all(bool(torch.isin(units, whole[name]).all()) for name, units in part.items())


def _same(one: UnitSelection, other: UnitSelection) -> bool:
    return all(torch.equal(units, other[name]) for name, units in one.items())


def _cut(
    tensors: dict[str, Tensor], old: dict[str, AxisIndices], new: dict[str, AxisIndices]
) -> dict[str, Tensor]:
    """Cut tensors that lie at the old places to the new ones."""
    return {key: take_slice(tensors[key], relative_indices(new[key], old[key])) for key in new}
