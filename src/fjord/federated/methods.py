"""The methods compared: each a record of functions, composed and never subclassed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthSpace
from fjord.elastic.client_model import units_below
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.training.objective import Objective, ordered_dropout, self_distillation


@dataclass(frozen=True)
class ClientContext:
    """What is known when a client is given its part of a model."""

    ceiling: Width
    """The widest submodel it can carry, out of P."""
    target: Width
    """The width of the model that is trained."""
    lowest: Width
    """The smallest ceiling of the population."""
    space: WidthSpace
    """P."""
    round_index: int
    generator: torch.Generator
    """The client's own, for this round."""
    sent: UnitSelection | None = None
    """The units it holds already, where it is to be given fewer of them: it cannot carry what it was sent."""


SelectUnits = Callable[[WidthPlan, ClientContext], UnitSelection]
SampleWidths = Callable[[ClientContext], WidthSpace]
TargetWidths = Callable[[WidthSpace, Width], tuple[Width, ...]]


@dataclass(frozen=True)
class Method:
    """How unequal clients train together."""

    name: str
    select: SelectUnits
    """The units a client gets."""
    sample: SampleWidths
    """The widths it samples from; it holds the BatchNorm layers of these."""
    objective: Objective
    targets: TargetWidths
    """The widths of the models to train, one after the other; from P and the lowest ceiling."""
    nested: bool = False
    """Whether one model serves every width of P; else each model has only its own."""
    joins: Callable[[ClientContext], bool] = lambda grant: True
    """Which clients take part."""


def _ordered(plan: WidthPlan, grant: ClientContext) -> UnitSelection:
    return plan.leading_units(grant.ceiling)


def _whole(plan: WidthPlan, grant: ClientContext) -> UnitSelection:
    return plan.leading_units(grant.target)


def _random(plan: WidthPlan, grant: ClientContext, keep: Width) -> UnitSelection:
    """Keep as many units as width `keep` has, out of the target's, at random."""
    return {
        f.name: torch.randperm(f.unit_count(grant.target), generator=grant.generator)[
            : f.unit_count(keep)
        ]
        .sort()
        .values
        for f in plan.families
    }


def _rolling(plan: WidthPlan, grant: ClientContext) -> UnitSelection:
    """Keep a window of units that moves on by one each round and wraps round."""
    return {
        f.name: (
            (torch.arange(f.unit_count(min(grant.ceiling, grant.target))) + grant.round_index)
            % f.unit_count(grant.target)
        )
        .sort()
        .values
        for f in plan.families
    }


def _stretched(plan: WidthPlan, grant: ClientContext, cap: Fraction) -> UnitSelection:
    """Reach beyond the ceiling, dropping a share of at most `cap` of the units at random; unit 0 stays."""
    if grant.sent is not None:
        return units_below(plan, grant.sent, grant.ceiling)
    kept: UnitSelection = {}
    for f in plan.families:
        own = f.unit_count(grant.ceiling)
        reached = max(own, min(f.unit_count(_reach(grant, cap)), int(own / (1 - cap))))
        chosen = torch.randperm(reached - 1, generator=grant.generator)[: own - 1] + 1
        kept[f.name] = torch.cat([torch.zeros(1, dtype=torch.int64), chosen]).sort().values
    return kept


def _reach(grant: ClientContext, cap: Fraction) -> Width:
    """Return the next tier, if a client of this one can run it by dropping no more than the cap; else its ceiling."""
    if grant.sent is not None:
        return grant.ceiling
    above = next((w for w in grant.space.widths if w > grant.ceiling), grant.ceiling)
    return above if above * (1 - cap) <= grant.ceiling else grant.ceiling


def _largest(space: WidthSpace, lowest: Width) -> tuple[Width, ...]:
    return (space.largest,)


def _each(space: WidthSpace, lowest: Width) -> tuple[Width, ...]:
    return space.widths


def _smallest(space: WidthSpace, lowest: Width) -> tuple[Width, ...]:
    return (lowest,)


def _target_only(grant: ClientContext) -> WidthSpace:
    return WidthSpace.of([grant.target])


def fjord() -> Method:
    """Ordered Dropout up to each client's ceiling."""
    return Method(
        "fjord",
        _ordered,
        lambda g: g.space.up_to(g.ceiling),
        ordered_dropout(),
        _largest,
        nested=True,
    )


def fjord_kd() -> Method:
    """FjORD where the widest submodel a client can carry teaches the sampled one."""
    return replace(fjord(), name="fjord-kd", objective=self_distillation())


def fjord_efd(cap: Fraction = Fraction(1, 4)) -> Method:
    """FjORD with random dropout of at most 1/4 on top, by which a client reaches into the next tier."""
    return replace(
        fjord(),
        name="fjord-efd",
        select=lambda plan, grant: _stretched(plan, grant, cap),
        sample=lambda g: g.space.up_to(_reach(g, cap)),
    )


def fedavg() -> Method:
    """One full-width model on all clients, whatever they can carry: the bound without unequal devices."""
    return Method("fedavg", _whole, _target_only, ordered_dropout(), _largest)


def single() -> Method:
    """One model for each width, on all clients, whatever they can carry."""
    return replace(fedavg(), name="single", targets=_each)


def drop_low_tier() -> Method:
    """One full-width model on only those clients that can carry it."""
    return replace(fedavg(), name="drop-low-tier", joins=lambda g: g.ceiling >= g.target)


def exclusive_small() -> Method:
    """One model that every client can carry: the width of the lowest tier."""
    return replace(fedavg(), name="exclusive-small", targets=_smallest)


def efd() -> Method:
    """Train a model for each width; who cannot carry it drops units at random (Extended Federated Dropout)."""
    return replace(
        single(), name="efd", select=lambda plan, g: _random(plan, g, min(g.ceiling, g.target))
    )


def fd() -> Method:
    """Train the same with the dropout that the lowest tier needs, for all clients (Federated Dropout)."""
    return replace(
        single(), name="fd", select=lambda plan, g: _random(plan, g, min(g.lowest, g.target))
    )


def heterofl() -> Method:
    """Each client trains only its ceiling (Diao et al., 2021)."""
    return replace(fjord(), name="heterofl", sample=lambda g: WidthSpace.of([g.ceiling]))


def fedrolex() -> Method:
    """One full-width model; each client trains a window of units that rolls on each round (Alam et al., 2022)."""
    return replace(fedavg(), name="fedrolex", select=_rolling)


METHODS: dict[str, Callable[[], Method]] = {
    make().name: make
    for make in (
        fjord,
        fjord_kd,
        fjord_efd,
        fedavg,
        single,
        drop_low_tier,
        exclusive_small,
        efd,
        fd,
        heterofl,
        fedrolex,
    )
}


def find_method(name: str) -> Method:
    """Return a method by name."""
    if name not in METHODS:
        raise UserError(f"method {name!r} is unknown; known: {', '.join(METHODS)}")
    return METHODS[name]()
