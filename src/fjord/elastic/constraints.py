"""Conditions that a plan must meet besides the graph: frozen layers, whole tensors, whole heads."""

from collections.abc import Iterable
from dataclasses import replace
from math import lcm

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.elastic.layer_axes import is_output_axis
from fjord.elastic.plan import Axis, UnitFamily, WidthPlan, matches_name
from fjord.elastic.submodel.kept_units import KeptUnits
from fjord.elastic.trace.labels import UnitLabels, varying_axes
from fjord.elastic.trace.model_trace import ModelTrace


def freeze_layers(model: nn.Module, trace: ModelTrace, patterns: Iterable[str]) -> None:
    """Keep whole the output units of the layers a user names; their inputs stay elastic."""
    for pattern in patterns:
        for name in _matching_tensors(model, trace, pattern):
            for dim, ids in enumerate(trace.owners[name]):
                if is_output_axis(model, (name, dim)):
                    trace.units.freeze(ids, f"frozen by the user ({pattern})")


def _matching_tensors(model: nn.Module, trace: ModelTrace, pattern: str) -> set[str]:
    """Return the first names of all tensors that match; a pattern that matches none is an error."""
    names = set()
    for name, first_name in trace.tied.items():
        if matches_name(pattern, name):
            names.add(first_name)
    if not names:
        layers = ", ".join(name for name, _ in model.named_modules() if name)
        raise UserError(
            f"freeze={pattern!r} names no layer of {type(model).__name__}; layers: {layers}"
        )
    return names


def tie_ragged_values(trace: ModelTrace, plan: WidthPlan, widths: Iterable[Width]) -> bool:
    """Tie units until every value keeps a whole rectangle; return whether any had to be tied.

    Where one axis is split in two (keys and values, the halves of a channel shuffle), the parts
    must lose the same units, or what is left is no tensor.
    """
    channels = _channels_of_several_axes(trace)
    tied = False
    for width in widths:
        kept = KeptUnits(trace, plan, plan.leading_units(width))
        for channel in channels:
            if _tie_if_ragged(trace, kept, channel):
                tied = True
    return tied


def _channels_of_several_axes(trace: ModelTrace) -> list[Tensor]:
    channels = []
    for values in trace.values.values():
        for value in values.values():
            for labels in value if isinstance(value, list) else [value]:
                if isinstance(labels, UnitLabels):
                    channels += labels.channels
    return [channel for channel in channels if len(varying_axes(channel)) > 1]


def _tie_if_ragged(trace: ModelTrace, kept: KeptUnits, channel: Tensor) -> bool:
    """Fuse the shorter axis of a channel if its kept positions are no rectangle."""
    channel = trace.units.current_units(channel)
    axes = varying_axes(channel)
    if len(axes) < 2:
        return False
    alive = kept.alive[channel]
    rectangle = torch.ones_like(alive)
    for dim in axes:
        others = [other for other in range(channel.dim()) if other != dim]
        rectangle &= alive.amax(others, keepdim=True)
    if torch.equal(rectangle, alive):
        return False
    shortest = min(axes, key=lambda dim: channel.shape[dim])
    trace.units.fuse(channel, [shortest])
    return True


def round_to_heads(model: nn.Module, families: list[UnitFamily]) -> list[UnitFamily]:
    """Round the width around each `nn.MultiheadAttention` to whole heads, as the layer requires."""
    family_at: dict[Axis, UnitFamily] = {}
    for family in families:
        for axis in family.members:
            family_at[axis] = family
    multiples = {family.name: family.multiple for family in families}
    for name, module in model.named_modules():
        if not isinstance(module, nn.MultiheadAttention):
            continue
        projection = f"{name}.out_proj.weight"
        heads = family_at.get((projection, 1))
        outer = family_at.get((projection, 0))
        if heads is not None and outer is not None and heads is not outer:
            multiple = module.head_dim * heads.multiple
            multiples[outer.name] = lcm(multiples[outer.name], multiple)
    return [replace(family, multiple=multiples[family.name]) for family in families]
