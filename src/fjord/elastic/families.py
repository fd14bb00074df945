"""From unit ids to families: units that stand in the same places belong together."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from math import lcm

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.width import Width
from fjord.elastic.module_tensors import named_tensors
from fjord.elastic.plan import Axis, FrozenAxis, UnitFamily, WidthPlan, matches_name
from fjord.elastic.submodel.kept_units import KeptUnits
from fjord.elastic.trace.labels import FROZEN, UnitLabels, varying_axes
from fjord.elastic.trace.model_trace import ModelTrace

TIED = "tied to an axis that is frozen"
ALONE = "no other axis holds these units, or there is only one"


def build_plan(
    model: nn.Module,
    trace: ModelTrace,
    widths: Iterable[Width],
    freeze: Iterable[str] = (),
    round_to: int = 1,
) -> WidthPlan:
    """Group the traced units into families that can be cut at these widths, and say what is frozen and why."""
    freeze_named(model, trace, freeze)
    plan = group_units(model, trace, round_to)
    while make_rectangular(trace, plan, widths):
        plan = group_units(model, trace, round_to)
    return plan


def group_units(model: nn.Module, trace: ModelTrace, round_to: int) -> WidthPlan:
    """Group units that stand in the same places into families."""
    axes = [
        (name, dim)
        for name, dims in trace.owners.items()
        if name in trace.used
        for dim in range(len(dims))
    ]
    units = {(name, dim): trace.units.root[trace.owners[name][dim]] for name, dim in axes}
    families = [_family(model, group, units) for group in _groups(trace, units)]
    families = [replace(f, multiple=f.rounding_multiple(round_to)) for f in families]
    shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
    covered = {axis for f in families for axis in f.members}
    return WidthPlan(tuple(tie_heads(model, families)), shapes, tuple(_frozen(trace, covered)))


def _groups(trace: ModelTrace, units: dict[Axis, Tensor]) -> list[Tensor]:
    """Return the elastic units of each family: those on the same axes, as often, and in the same segments.

    Every axis and segment has a random number; units with equal sums of them agree.
    """
    generator = torch.Generator().manual_seed(derive_seed(0, "signatures"))
    signature = torch.zeros(len(trace.units.root), dtype=torch.long)
    first = torch.full_like(signature, len(signature))
    seen = 0
    for ids in units.values():
        signature.index_add_(0, ids, _number(generator).expand(len(ids)))
        first.scatter_reduce_(0, ids, torch.arange(seen, seen + len(ids)), "amin")
        seen += len(ids)
    elastic = (first < len(signature)).nonzero()[:, 0]
    segments: dict[tuple[str, int], list[Tensor]] = defaultdict(list)
    for ids, segment in trace.units.segments:
        segments[segment].append(ids)
    for parts in segments.values():
        signature[torch.unique(trace.units.root[torch.cat(parts)])] += _number(generator)
    elastic = elastic[elastic > FROZEN]
    elastic = elastic[first[elastic].argsort()]
    _, group = torch.unique(signature[elastic], return_inverse=True)
    found = [elastic[group == g] for g in dict.fromkeys(group.tolist())]
    spread = _axes_of(units)
    return [group for group in found if len(group) > 1 and int(spread[group[0]]) > 1]


def _axes_of(units: dict[Axis, Tensor]) -> Tensor:
    """Return on how many axes each unit stands: on one alone (rows of a table) it is no hidden unit."""
    count = torch.zeros(
        1 + max(int(ids.max()) for ids in units.values() if len(ids)), dtype=torch.long
    )
    for ids in units.values():
        count[torch.unique(ids)] += 1
    return count


def _number(generator: torch.Generator) -> Tensor:
    return torch.randint(1 << 62, (1,), generator=generator)


def make_rectangular(trace: ModelTrace, plan: WidthPlan, widths: Iterable[Width]) -> bool:
    """Tie units until every value keeps a whole rectangle of its axes; say whether any had to be tied.

    Where one axis is split in two (keys and values, the halves of a channel shuffle), the parts must
    lose the same units, or what is left is no tensor.
    """
    tied = False
    for width in widths:
        kept = KeptUnits(trace, plan, plan.leading_units(width))
        for values in trace.values.values():
            for value in values.values():
                for labels in value if isinstance(value, list) else [value]:
                    for channel in labels.channels if isinstance(labels, UnitLabels) else ():
                        tied |= _tie_if_ragged(trace, kept, channel)
    return tied


def _tie_if_ragged(trace: ModelTrace, kept: KeptUnits, channel: Tensor) -> bool:
    channel = trace.units.current_units(channel)
    axes = varying_axes(channel)
    if len(axes) < 2:
        return False
    alive = kept.alive[channel]
    box = torch.ones_like(alive)
    for dim in axes:
        others = [d for d in range(channel.dim()) if d != dim]
        box &= alive.amax(others, keepdim=True)
    if torch.equal(box, alive):
        return False
    trace.units.fuse(channel, [min(axes, key=lambda dim: channel.shape[dim])])
    return True


def freeze_named(model: nn.Module, trace: ModelTrace, patterns: Iterable[str]) -> None:
    """Keep the units of layers the user names whole (not their inputs); a pattern that names nothing is an error."""
    for pattern in patterns:
        names = {first for name, first in trace.tied.items() if matches_name(pattern, name)}
        if not names:
            modules = ", ".join(name for name, _ in model.named_modules() if name)
            raise UserError(
                f"freeze={pattern!r} names no layer of {type(model).__name__}; layers: {modules}"
            )
        for name in names:
            for dim, ids in enumerate(trace.owners[name]):
                if _produces(model, (name, dim)):
                    trace.units.freeze(ids, f"frozen by the user ({pattern})")


def _family(model: nn.Module, group: Tensor, units: dict[Axis, Tensor]) -> UnitFamily:
    """Return the family of some units, ordered as they stand in the layer that produces them."""
    place = torch.full((int(max(ids.max() for ids in units.values() if len(ids))) + 1,), -1)
    place[group] = torch.arange(len(group))
    members = {
        axis: _rows(place[ids])
        for axis, ids in units.items()
        if len(ids) and bool((place[ids] >= 0).any())
    }
    first = min(
        members, key=lambda axis: (not _produces(model, axis), not _is_layer(model, axis[0]))
    )
    order = members[first][:, 0].argsort()
    members = {axis: rows[order] for axis, rows in members.items()}
    layers = dict.fromkeys(
        _layer(model, name) for name, dim in members if _produces(model, (name, dim))
    )
    start = int(members[first][0, 0])
    return UnitFamily(
        f"{first[0]}[{first[1]}]" + (f"@{start}" if start else ""), members, tuple(layers)
    )


def _layer(model: nn.Module, name: str) -> str:
    return name.rpartition(".")[0] if _is_layer(model, name) else name


def _rows(places: Tensor) -> Tensor:
    """Return for each unit the indices at which it stands."""
    held = (places >= 0).nonzero()[:, 0]
    order = held[places[held].argsort(stable=True)]
    return order.reshape(int(places.max()) + 1, -1)


def _produces(model: nn.Module, axis: Axis) -> bool:
    """Say whether a layer's output, not its input, runs along this axis; a bare parameter may be either."""
    name, dim = axis
    if not _is_layer(model, name):
        return True
    owner = model.get_submodule(name.rpartition(".")[0])
    weighted = isinstance(owner, nn.Embedding) or (
        isinstance(owner, nn.modules.conv._ConvNd) and owner.transposed
    )
    is_vector = named_tensors(owner)[name.rpartition(".")[2]].dim() == 1
    return dim == (1 if weighted and not is_vector else 0)


def _is_layer(model: nn.Module, name: str) -> bool:
    """Say whether a tensor belongs to a layer of `torch.nn`, whose axes are known to be inputs or outputs."""
    return type(model.get_submodule(name.rpartition(".")[0])).__module__.startswith("torch.nn.")


def _frozen(trace: ModelTrace, covered: set[Axis]) -> Iterable[FrozenAxis]:
    """List the axes that no family covers, each with the first reason that froze it."""
    reason_of: dict[int, str] = {}
    for reason, ids in trace.units.reasons:
        for unit in ids.tolist():
            reason_of.setdefault(unit, reason)
    for name, dims in trace.owners.items():
        for dim, ids in enumerate(dims):
            if (name, dim) not in covered and len(ids) > 1:
                unused = "not used by the model" if name not in trace.used else ""
                known = (reason_of[i] for i in ids.tolist() if i in reason_of)
                yield FrozenAxis(
                    (name, dim),
                    len(ids),
                    unused or next(known, TIED if _is_frozen(trace, ids) else ALONE),
                )


def _is_frozen(trace: ModelTrace, ids: Tensor) -> bool:
    return bool((trace.units.root[ids] == FROZEN).any())


def tie_heads(model: nn.Module, families: list[UnitFamily]) -> list[UnitFamily]:
    """Round the width around each `nn.MultiheadAttention` to whole heads: the layer allows nothing else."""
    multiples: dict[str, int] = {}
    by_axis = {axis: f for f in families for axis in f.members}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            heads, outer = (by_axis.get((f"{name}.out_proj.weight", dim)) for dim in (1, 0))
            if heads is not None and outer is not None and heads is not outer:
                multiple = module.head_dim * heads.multiple
                multiples[outer.name] = lcm(multiples.get(outer.name, 1), multiple)
    return [replace(f, multiple=lcm(f.multiple, multiples.get(f.name, 1))) for f in families]
