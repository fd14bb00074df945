"""Which clients have which weights, and Eq. (1) taken literally."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import oracles
import torch
from torch import Tensor, nn

from fjord.core.width import Width, WidthSpace
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection

State = dict[str, Tensor]
Masks = dict[str, Tensor]


_MASKS: dict[tuple[Any, ...], Masks] = {}


def unit_masks(net: nn.Module, model: ElasticModel, units: UnitSelection) -> Masks:
    """Say of each weight of the full net whether it belongs to the units, by the definition."""
    numbers = [(name, tuple(units[name].tolist())) for name in sorted(units)]
    key = (id(net), *numbers)
    if key not in _MASKS:
        masks = oracles.masks(net, model.plan, units)
        _MASKS[key] = {name: mask.bool() for name, mask in masks.items()}
    return _MASKS[key]


def first_units(model: ElasticModel, width: Fraction) -> UnitSelection:
    units = {}
    for family in model.plan.families:
        count = oracles.first_units(width, family.num_units)
        units[family.name] = torch.arange(count)
    return units


def random_units(model: ElasticModel, width: Width, seed: int) -> UnitSelection:
    """Return random units, unit 0 among them, so that every width has one."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(1, dtype=torch.int64)
    units = {}
    for family in model.plan.families:
        count = oracles.first_units(width, family.num_units) - 1
        others = 1 + torch.randperm(family.num_units - 1, generator=generator)[:count]
        units[family.name] = torch.cat([first, others]).sort().values
    return units


def holds(
    net: nn.Module,
    model: ElasticModel,
    units: UnitSelection,
    widths: Iterable[Width],
) -> Masks:
    """Say of each stored element whether a client with these units and these widths has it."""
    per_unit = unit_masks(net, model, units)
    widths = frozenset(widths)
    cache_key = (id(per_unit), widths)
    if cache_key in _MASKS:
        return _MASKS[cache_key]
    masks: Masks = {}
    for key, tensor in model.tensors.items():
        name, _, width = key.partition("@")
        if not width:
            masks[key] = per_unit[name]
        elif Fraction(width) not in widths:
            masks[key] = torch.zeros(tensor.shape, dtype=torch.bool)
        else:  # the first units of that width are stored; the client has some of them
            stored_units = first_units(model, Fraction(width))
            stored = unit_masks(net, model, stored_units)[name]
            masks[key] = per_unit[name][stored].reshape(tensor.shape)
    _MASKS[cache_key] = masks
    return masks


def cut_out(full: Tensor, mask: Tensor) -> Tensor:
    """Cut the box of masked elements out of a full-size tensor."""
    if full.dim() == 0:
        return full.clone()
    shape = []
    for dim, size in enumerate(mask.shape):
        rows = mask.movedim(dim, 0).reshape(size, -1)
        shape.append(int(rows.any(1).sum()))
    return full[mask].reshape(shape).clone()


def slice_of(full: State, mask: Masks) -> State:
    return {key: cut_out(t, mask[key]) for key, t in full.items() if bool(mask[key].any())}


@dataclass(frozen=True)
class Reply:
    """What a client sent, as full-size tensors of which only its own part means anything."""

    ceiling: Width
    num_examples: int
    full: State


def eq1_literal(
    net: nn.Module,
    model: ElasticModel,
    current: State,
    replies: list[Reply],
    space: WidthSpace,
) -> State:
    """Eq. (1), with s_1 < ... < s_k.

    The block w_{s_j} without w_{s_{j-1}} is averaged over clients with p_max >= s_j.
    """
    result = {key: t.clone() for key, t in current.items()}
    inner = {key: torch.zeros(t.shape, dtype=torch.bool) for key, t in current.items()}
    for s in space.widths:
        able = [reply for reply in replies if reply.ceiling >= s]
        widths = [width for width in space.widths if width <= s]
        outer = holds(net, model, first_units(model, s), widths)
        for key in current:
            block = outer[key] & ~inner[key]
            if able and bool(block.any()):
                total = sum(reply.num_examples * reply.full[key].double() for reply in able)
                mean = total / sum(reply.num_examples for reply in able)
                if not current[key].is_floating_point():
                    mean = mean.round()
                result[key][block] = mean.to(current[key].dtype)[block]
        inner = outer
    return result


def mean_of_holders(current: State, replies: list[tuple[Masks, int, State]]) -> State:
    """Take each element by itself: the mean over those that have it, or what it was.

    Replies are (mask, number of examples, full-size tensors).
    """
    result = {key: t.clone() for key, t in current.items()}
    for key, tensor in current.items():
        flat = result[key].reshape(-1)
        columns = []
        for mask, num_examples, full in replies:
            columns.append(
                (mask[key].reshape(-1).tolist(), num_examples, full[key].reshape(-1).tolist())
            )
        for place in range(tensor.numel()):
            own = [(n, values[place]) for mask, n, values in columns if mask[place]]
            if own:
                mean = sum(n * value for n, value in own) / sum(n for n, _ in own)
                flat[place] = mean if tensor.is_floating_point() else round(mean)
    return result


def random_state(like: State, seed: int) -> State:
    """Return other values for every tensor, in its own type."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for key, t in like.items():
        if t.is_floating_point():
            values = torch.randn(t.shape, generator=generator, dtype=torch.float64)
            state[key] = values.to(t.dtype)
        else:
            state[key] = torch.randint(0, 1000, t.shape, generator=generator)
    return state
