"""From unit ids to families: units that occur along the same axes belong together."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from fjord.core.seeding import derive_seed
from fjord.core.width import Width
from fjord.elastic.constraints import freeze_layers, round_to_heads, tie_ragged_values
from fjord.elastic.layer_axes import in_torch_layer, is_output_axis, layer_name
from fjord.elastic.module_tensors import named_tensors
from fjord.elastic.plan import Axis, FrozenAxis, UnitFamily, WidthPlan
from fjord.elastic.trace.labels import FROZEN
from fjord.elastic.trace.model_trace import ModelTrace

UNUSED_REASON = "not used by the model"
TIED_REASON = "tied to an axis that is frozen"
LONE_REASON = "no other axis holds these units, or there is only one"


def build_plan(
    model: nn.Module,
    trace: ModelTrace,
    widths: Iterable[Width],
    freeze: Iterable[str] = (),
    round_to: int = 1,
) -> WidthPlan:
    """Group the traced units into families that can be cut at these widths.

    The plan also lists the axes that stay whole, each with a reason.
    """
    freeze_layers(model, trace, freeze)
    plan = group_units(model, trace, round_to)
    while tie_ragged_values(trace, plan, widths):
        plan = group_units(model, trace, round_to)
    return plan


def group_units(model: nn.Module, trace: ModelTrace, round_to: int) -> WidthPlan:
    """Group units that occur along the same axes into families."""
    units = _units_of_axes(trace)
    families = []
    for group in _unit_groups(trace, units):
        family = _build_family(model, group, units)
        families.append(replace(family, multiple=family.rounding_multiple(round_to)))
    families = round_to_heads(model, families)
    elastic_axes: set[Axis] = set()
    for family in families:
        elastic_axes.update(family.members)
    frozen = _frozen_axes(trace, elastic_axes)
    shapes = {}
    for name, tensor in named_tensors(model).items():
        shapes[name] = tuple(tensor.shape)
    return WidthPlan(tuple(families), shapes, tuple(frozen))


def _units_of_axes(trace: ModelTrace) -> dict[Axis, Tensor]:
    """Return the units along each axis of each tensor that the model uses."""
    units = {}
    for name, axes in trace.owners.items():
        if name in trace.used:
            for dim, ids in enumerate(axes):
                units[name, dim] = trace.units.root[ids]
    return units


def _unit_groups(trace: ModelTrace, units: dict[Axis, Tensor]) -> list[Tensor]:
    """Return the elastic units of each family.

    Units belong together if they occur along the same axes, as often, and in the same segments.
    Every axis and segment gets a random number: units with equal sums of them agree.
    """
    generator = torch.Generator().manual_seed(derive_seed(0, "signatures"))
    num_ids = len(trace.units.root)
    signatures = torch.zeros(num_ids, dtype=torch.long)
    for ids in units.values():
        number = _random_number(generator)
        signatures.index_add_(0, ids, number.expand(len(ids)))
    for ids in _units_of_segments(trace):
        signatures[ids] += _random_number(generator)
    elastic = _elastic_units(units, num_ids)
    axis_counts = _axis_counts(units, num_ids)
    _, group_of_unit = torch.unique(signatures[elastic], return_inverse=True)
    groups = []
    for number in dict.fromkeys(group_of_unit.tolist()):
        group = elastic[group_of_unit == number]
        # Units along one axis alone (rows of a table) are no hidden units.
        num_axes = int(axis_counts[group[0]])
        if len(group) > 1 and num_axes > 1:
            groups.append(group)
    return groups


def _random_number(generator: torch.Generator) -> Tensor:
    return torch.randint(1 << 62, (1,), generator=generator)


def _units_of_segments(trace: ModelTrace) -> Iterator[Tensor]:
    """Yield the units of each segment: of each part of each split and concatenation."""
    segments: dict[tuple[str, int], list[Tensor]] = defaultdict(list)
    for ids, segment in trace.units.segments:
        segments[segment].append(ids)
    for parts in segments.values():
        yield torch.unique(trace.units.root[torch.cat(parts)])


def _elastic_units(units: dict[Axis, Tensor], num_ids: int) -> Tensor:
    """Return all units along these axes that are not frozen, in the order of their first place."""
    first_place = torch.full((num_ids,), num_ids)
    start = 0
    for ids in units.values():
        places = torch.arange(start, start + len(ids))
        first_place.scatter_reduce_(0, ids, places, "amin")
        start += len(ids)
    elastic = (first_place < num_ids).nonzero()[:, 0]
    elastic = elastic[elastic > FROZEN]
    return elastic[first_place[elastic].argsort()]


def _axis_counts(units: dict[Axis, Tensor], num_ids: int) -> Tensor:
    """Return along how many axes each unit occurs."""
    counts = torch.zeros(num_ids, dtype=torch.long)
    for ids in units.values():
        counts[torch.unique(ids)] += 1
    return counts


def _build_family(model: nn.Module, group: Tensor, units: dict[Axis, Tensor]) -> UnitFamily:
    """Return the family of some units, in the order of the layer that produces them."""
    members = _family_members(group, units)
    first_axis = min(members, key=lambda axis: _naming_rank(model, axis))
    order = members[first_axis][:, 0].argsort()
    members = {axis: indices[order] for axis, indices in members.items()}
    layers: dict[str, None] = {}
    for name, dim in members:
        if is_output_axis(model, (name, dim)):
            layers[layer_name(model, name)] = None
    name, dim = first_axis
    family_name = f"{name}[{dim}]"
    start = int(members[first_axis][0, 0])
    if start:
        family_name += f"@{start}"
    return UnitFamily(family_name, members, tuple(layers))


def _naming_rank(model: nn.Module, axis: Axis) -> tuple[bool, bool]:
    """Rank the axes that may name a family: outputs come first, then tensors of layers."""
    return not is_output_axis(model, axis), not in_torch_layer(model, axis[0])


def _family_members(group: Tensor, units: dict[Axis, Tensor]) -> dict[Axis, Tensor]:
    """Return for each axis with units of the group the indices of every unit."""
    largest = max(int(ids.max()) for ids in units.values() if len(ids))
    number_of_unit = torch.full((largest + 1,), -1)
    number_of_unit[group] = torch.arange(len(group))
    members = {}
    for axis, ids in units.items():
        numbers = number_of_unit[ids]
        if bool((numbers >= 0).any()):
            members[axis] = _unit_rows(numbers)
    return members


def _unit_rows(numbers: Tensor) -> Tensor:
    """Return for each unit the indices at which its number stands, one row a unit.

    >>> _unit_rows(torch.tensor([1, 0, -1, 1, 0]))
    tensor([[1, 4],
            [0, 3]])
    """
    positions = (numbers >= 0).nonzero()[:, 0]
    by_unit = positions[numbers[positions].argsort(stable=True)]
    return by_unit.reshape(int(numbers.max()) + 1, -1)


def _frozen_axes(trace: ModelTrace, elastic_axes: set[Axis]) -> Iterator[FrozenAxis]:
    """Yield the axes that no family covers, each with the first reason that froze it."""
    reasons: dict[int, str] = {}
    for reason, ids in trace.units.reasons:
        for unit in ids.tolist():
            reasons.setdefault(unit, reason)
    for name, axes in trace.owners.items():
        for dim, ids in enumerate(axes):
            axis = (name, dim)
            if axis in elastic_axes or len(ids) <= 1:
                continue
            reason = UNUSED_REASON
            if name in trace.used:
                reason = _frozen_reason(trace, ids, reasons)
            yield FrozenAxis(axis, len(ids), reason)


def _frozen_reason(trace: ModelTrace, ids: Tensor, reasons: dict[int, str]) -> str:
    for unit in ids.tolist():
        if unit in reasons:
            return reasons[unit]
    if bool((trace.units.root[ids] == FROZEN).any()):
        return TIED_REASON
    return LONE_REASON
