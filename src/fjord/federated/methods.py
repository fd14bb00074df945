"""The methods compared: each is a record of functions, composed with `replace`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from fjord.core.errors import UserError, suggest_name
from fjord.core.width import Width, WidthSpace
from fjord.elastic.client_model import units_below
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.training.objective import Objective, ordered_dropout, self_distillation

DROPOUT_CAP = Fraction(1, 4)
"""The largest share of units that FjORD with eFD drops at random."""


@dataclass(frozen=True)
class ClientContext:
    """What a method knows when it gives a client its submodel."""

    client_id: int
    ceiling: Width
    """The widest width of P that the client can carry."""
    target: Width
    """The width of the model that is trained."""
    lowest: Width
    """The smallest ceiling of the population."""
    space: WidthSpace
    """P."""
    round_index: int
    generator: torch.Generator
    """The client's own, for this round."""
    sent_units: UnitSelection | None = None
    """The units it has already, if it is to get fewer: it cannot train what it was sent."""


SelectUnits = Callable[[WidthPlan, ClientContext], UnitSelection]
SampleWidths = Callable[[ClientContext], WidthSpace]
TargetWidths = Callable[[WidthSpace, Width], tuple[Width, ...]]


def everyone_joins(context: ClientContext) -> bool:
    """Let every client take part."""
    return True


@dataclass(frozen=True)
class Method:
    """How unequal clients train together."""

    name: str
    select: SelectUnits
    """The units a client gets."""
    sample: SampleWidths
    """The widths it samples from; it gets the BatchNorm layers of these."""
    objective: Objective
    targets: TargetWidths
    """The widths of the models to train, one after the other; from P and the lowest ceiling."""
    nested: bool = False
    """Whether one model serves every width of P; else each model has only its own."""
    joins: Callable[[ClientContext], bool] = everyone_joins
    """Which clients take part."""

    def __post_init__(self) -> None:
        if not isinstance(self.objective, Objective):
            raise UserError(
                f"method {self.name}: its objective must say which widths a step runs; "
                "make it with fjord.training.objective.Objective(loss, widths)"
            )


def first_units(plan: WidthPlan, context: ClientContext) -> UnitSelection:
    """Select the first units up to the client's ceiling."""
    return plan.leading_units(context.ceiling)


def target_units(plan: WidthPlan, context: ClientContext) -> UnitSelection:
    """Select all units of the model that is trained."""
    return plan.leading_units(context.target)


def random_units(plan: WidthPlan, context: ClientContext, width: Width) -> UnitSelection:
    """Select as many units as a width has, out of the target's, at random."""
    units = {}
    for family in plan.families:
        order = torch.randperm(family.unit_count(context.target), generator=context.generator)
        units[family.name] = order[: family.unit_count(width)].sort().values
    return units


def rolling_units(plan: WidthPlan, context: ClientContext) -> UnitSelection:
    """Select a window of units that moves on by one each round, and wraps around."""
    width = min(context.ceiling, context.target)
    units = {}
    for family in plan.families:
        window = torch.arange(family.unit_count(width)) + context.round_index
        units[family.name] = (window % family.unit_count(context.target)).sort().values
    return units


def stretched_units(plan: WidthPlan, context: ClientContext, cap: Fraction) -> UnitSelection:
    """Reach beyond the ceiling by dropping at most a share `cap` of the units at random."""
    if context.sent_units is not None:
        return units_below(plan, context.sent_units, context.ceiling)
    first_unit = torch.zeros(1, dtype=torch.int64)
    units = {}
    for family in plan.families:
        own = family.unit_count(context.ceiling)
        reachable = min(family.unit_count(reachable_width(context, cap)), int(own / (1 - cap)))
        others = torch.randperm(max(own, reachable) - 1, generator=context.generator)
        chosen = 1 + others[: own - 1]  # unit 0 always stays
        units[family.name] = torch.cat([first_unit, chosen]).sort().values
    return units


def reachable_width(context: ClientContext, cap: Fraction) -> Width:
    """Return the next tier if a client can run it by dropping at most `cap`; else its ceiling."""
    if context.sent_units is not None:
        return context.ceiling
    wider = [width for width in context.space.widths if width > context.ceiling]
    if wider and wider[0] * (1 - cap) <= context.ceiling:
        return wider[0]
    return context.ceiling


def largest_target(space: WidthSpace, lowest: Width) -> tuple[Width, ...]:
    """Train one model of full width."""
    return (space.largest,)


def every_target(space: WidthSpace, lowest: Width) -> tuple[Width, ...]:
    """Train one model for each width."""
    return space.widths


def lowest_target(space: WidthSpace, lowest: Width) -> tuple[Width, ...]:
    """Train one model of the width that every client can carry."""
    return (lowest,)


def widths_up_to_ceiling(context: ClientContext) -> WidthSpace:
    """Sample from all widths that the client can carry."""
    return context.space.up_to(context.ceiling)


def ceiling_only(context: ClientContext) -> WidthSpace:
    """Train the client's ceiling at every step."""
    return WidthSpace.of([context.ceiling])


def target_only(context: ClientContext) -> WidthSpace:
    """Train the whole submodel at every step."""
    return WidthSpace.of([context.target])


def fjord() -> Method:
    """Ordered Dropout up to each client's ceiling."""
    return Method(
        name="fjord",
        select=first_units,
        sample=widths_up_to_ceiling,
        objective=ordered_dropout(),
        targets=largest_target,
        nested=True,
    )


def fjord_kd() -> Method:
    """FjORD where the widest submodel a client can carry teaches the sampled one."""
    return replace(fjord(), name="fjord-kd", objective=self_distillation())


def fjord_efd(cap: Fraction = DROPOUT_CAP) -> Method:
    """FjORD with random dropout of up to 1/4 on top: a client reaches into the next tier."""

    def select(plan: WidthPlan, context: ClientContext) -> UnitSelection:
        return stretched_units(plan, context, cap)

    def sample(context: ClientContext) -> WidthSpace:
        return context.space.up_to(reachable_width(context, cap))

    return replace(fjord(), name="fjord-efd", select=select, sample=sample)


def fedavg() -> Method:
    """One full-width model on all clients, whatever they can carry: the upper bound."""
    return Method(
        name="fedavg",
        select=target_units,
        sample=target_only,
        objective=ordered_dropout(),
        targets=largest_target,
    )


def single() -> Method:
    """One model for each width, on all clients, whatever they can carry."""
    return replace(fedavg(), name="single", targets=every_target)


def drop_low_tier() -> Method:
    """One full-width model on only those clients that can carry it."""

    def joins(context: ClientContext) -> bool:
        return context.ceiling >= context.target

    return replace(fedavg(), name="drop-low-tier", joins=joins)


def exclusive_small() -> Method:
    """One model that every client can carry: the width of the lowest tier."""
    return replace(fedavg(), name="exclusive-small", targets=lowest_target)


def efd() -> Method:
    """One model for each width; weaker clients drop random units (Extended Federated Dropout)."""

    def select(plan: WidthPlan, context: ClientContext) -> UnitSelection:
        return random_units(plan, context, min(context.ceiling, context.target))

    return replace(single(), name="efd", select=select)


def fd() -> Method:
    """One model for each width; all clients drop what the lowest tier must (Federated Dropout)."""

    def select(plan: WidthPlan, context: ClientContext) -> UnitSelection:
        return random_units(plan, context, min(context.lowest, context.target))

    return replace(single(), name="fd", select=select)


def heterofl() -> Method:
    """Each client trains only its ceiling (Diao et al., 2021)."""
    return replace(fjord(), name="heterofl", sample=ceiling_only)


def fedrolex() -> Method:
    """One full-width model; clients train a window of units that rolls on (Alam et al., 2022)."""
    return replace(fedavg(), name="fedrolex", select=rolling_units)


METHODS: dict[str, Callable[[], Method]] = {
    "fjord": fjord,
    "fjord-kd": fjord_kd,
    "fjord-efd": fjord_efd,
    "fedavg": fedavg,
    "single": single,
    "drop-low-tier": drop_low_tier,
    "exclusive-small": exclusive_small,
    "efd": efd,
    "fd": fd,
    "heterofl": heterofl,
    "fedrolex": fedrolex,
}
"""The methods by the name that `Experiment(method=...)` takes."""


def find_method(name: str) -> Method:
    """Return a method by name."""
    if name not in METHODS:
        hint = suggest_name(name, METHODS)
        raise UserError(f"method {name!r} is unknown; known: {', '.join(METHODS)}{hint}")
    return METHODS[name]()
