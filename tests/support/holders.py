"""Who holds which weights, and Eq. (1) taken literally."""

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


_MASKS: dict[tuple[Any, ...], State] = {}


def unit_masks(net: nn.Module, model: ElasticModel, kept: UnitSelection) -> dict[str, Tensor]:
    """Say of each weight of the full net whether it belongs to the kept units, from the definition of a family."""
    key = (id(net), *((name, tuple(units.tolist())) for name, units in sorted(kept.items())))
    if key not in _MASKS:
        _MASKS[key] = {name: m.bool() for name, m in oracles.masks(net, model.plan, kept).items()}
    return _MASKS[key]


def first_units(model: ElasticModel, width: Fraction) -> UnitSelection:
    return {
        f.name: torch.arange(oracles.first_units(width, f.num_units)) for f in model.plan.families
    }


def random_units(model: ElasticModel, width: Width, seed: int) -> UnitSelection:
    """Return random units, unit 0 among them, so that every width has one."""
    generator = torch.Generator().manual_seed(seed)
    kept = {}
    for f in model.plan.families:
        count = oracles.first_units(width, f.num_units) - 1
        others = torch.randperm(f.num_units - 1, generator=generator)[:count] + 1
        kept[f.name] = torch.cat([torch.zeros(1, dtype=torch.int64), others]).sort().values
    return kept


def holds(
    net: nn.Module, model: ElasticModel, held: UnitSelection, widths: Iterable[Width]
) -> dict[str, Tensor]:
    """Say of each stored element whether a client with these units and these widths holds it."""
    per_unit, widths = unit_masks(net, model, held), frozenset(widths)
    known = (id(per_unit), widths)
    if known in _MASKS:
        return _MASKS[known]
    found: dict[str, Tensor] = {}
    for key, tensor in model.tensors.items():
        name, _, width = key.partition("@")
        if not width:
            found[key] = per_unit[name]
        elif Fraction(width) not in widths:
            found[key] = torch.zeros(tensor.shape, dtype=torch.bool)
        else:  # stored are the first units of that width, of which the client has those it holds
            stored = unit_masks(net, model, first_units(model, Fraction(width)))[name]
            found[key] = per_unit[name][stored].reshape(tensor.shape)
    _MASKS[known] = found
    return found


def cut_out(full: Tensor, mask: Tensor) -> Tensor:
    """Cut the box of held elements out of a full-size tensor."""
    if full.dim() == 0:
        return full.clone()
    shape = [
        int(mask.movedim(d, 0).reshape(mask.shape[d], -1).any(1).sum()) for d in range(mask.dim())
    ]
    return full[mask].reshape(shape).clone()


def slice_of(full: State, mask: dict[str, Tensor]) -> State:
    return {key: cut_out(t, mask[key]) for key, t in full.items() if bool(mask[key].any())}


@dataclass(frozen=True)
class Reply:
    """What a client sent, as full-size tensors of which only its own part means anything."""

    ceiling: Width
    num_examples: int
    full: State


def eq1_literal(
    net: nn.Module, model: ElasticModel, current: State, replies: list[Reply], space: WidthSpace
) -> State:
    """Eq. (1): for s_1 < ... < s_k the block w_{s_j} without w_{s_{j-1}} is averaged over clients with p_max >= s_j."""
    result = {key: t.clone() for key, t in current.items()}
    inner = {key: torch.zeros(t.shape, dtype=torch.bool) for key, t in current.items()}
    for s in space.widths:
        held = [reply for reply in replies if reply.ceiling >= s]
        outer = holds(net, model, first_units(model, s), [w for w in space.widths if w <= s])
        for key in current:
            block = outer[key] & ~inner[key]
            if held and bool(block.any()):
                total = sum(reply.num_examples * reply.full[key].double() for reply in held)
                mean = total / sum(reply.num_examples for reply in held)
                mean = mean if current[key].is_floating_point() else mean.round()
                result[key][block] = mean.to(current[key].dtype)[block]
        inner = outer
    return result


def mean_of_holders(current: State, replies: list[tuple[dict[str, Tensor], int, State]]) -> State:
    """Take each element by itself: the mean over those that hold it, or what it was. Replies are (mask, n, full)."""
    result = {key: t.clone() for key, t in current.items()}
    for key, tensor in current.items():
        flat, masks = (
            result[key].reshape(-1),
            [mask[key].reshape(-1).tolist() for mask, _, _ in replies],
        )
        values = [full[key].reshape(-1).tolist() for _, _, full in replies]
        for place in range(tensor.numel()):
            mine = [
                (n, v[place])
                for (_, n, _), m, v in zip(replies, masks, values, strict=True)
                if m[place]
            ]
            if mine:
                mean = sum(n * v for n, v in mine) / sum(n for n, _ in mine)
                flat[place] = mean if tensor.is_floating_point() else round(mean)
    return result


def random_state(like: State, seed: int) -> State:
    """Return other values for every tensor, in its own type."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype)
        if t.is_floating_point()
        else torch.randint(0, 1000, t.shape, generator=generator)
        for key, t in like.items()
    }
