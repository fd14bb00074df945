"""The plan in words: families, their layers and units, and what is frozen and why."""

from collections import defaultdict
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fjord.core.width import WidthSpace
from fjord.elastic.plan import UnitFamily, WidthPlan

if TYPE_CHECKING:
    from fjord.elastic.model import ElasticModel

ROUTES = {
    "module": "the model's own modules",
    "graph": "the model's graph",
    "factory": "the given factory",
}


def summarize_model(model: "ElasticModel") -> str:
    """Return the explanation as text."""
    blueprint = model.blueprint
    text = (
        f"{type(blueprint.template).__name__}: {len(model.plan.families)} unit families, "
        f"submodels built from {ROUTES[blueprint.route]}, BatchNorm: {model.norms}\n"
    )
    if blueprint.note:
        text += f"(not from its modules: {blueprint.note})\n"
    return text + describe_plan(model.plan, model.space)


def describe_plan(
    plan: WidthPlan,
    space: WidthSpace,
    columns: int = 110,
) -> str:
    """Return the families and the frozen axes as two tables."""
    output = StringIO()
    console = Console(file=output, width=columns, highlight=False)
    console.print(_family_table(plan, space))
    console.print(_frozen_table(plan))
    return output.getvalue()


def _family_table(plan: WidthPlan, space: WidthSpace) -> Table:
    widths = map(str, space.widths)
    table = Table("family", "layers", "units", "channels a unit", *widths, title="Elastic")
    for family in plan.families:
        counts = [str(family.unit_count(width)) for width in space.widths]
        table.add_row(
            _escape_markup(family.name),
            _shorten_list(family.layers),
            str(family.num_units),
            _channels_per_unit(family),
            *counts,
        )
    return table


def _channels_per_unit(family: UnitFamily) -> str:
    sizes = {indices.shape[1] for indices in family.members.values()}
    return " or ".join(map(str, sorted(sizes)))


def _shorten_list(names: Sequence[str], most: int = 4) -> str:
    """Join names, but no more than some.

    >>> _shorten_list(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


def _frozen_table(plan: WidthPlan) -> Table:
    axes: dict[str, list[str]] = defaultdict(list)
    for frozen in plan.frozen:
        name, dim = frozen.axis
        axes[frozen.reason].append(f"{name}[{dim}] ({frozen.size})")
    table = Table("axes kept whole", "why", title="Frozen")
    for reason, texts in axes.items():
        table.add_row(_escape_markup(_shorten_list(texts)), _escape_markup(reason))
    return table


def _escape_markup(text: str) -> str:
    """Keep rich from reading brackets as markup."""
    return text.replace("[", r"\[")
