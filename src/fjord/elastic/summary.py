"""The plan in words: families, their layers and units, and what is frozen and why."""

from collections import defaultdict
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fjord.core.width import WidthSpace
from fjord.elastic.plan import UnitFamily, WidthPlan

if TYPE_CHECKING:
    from fjord.elastic.model import ElasticModel


def summarize_model(model: "ElasticModel") -> str:
    """Return the explanation as text."""
    routes = {
        "module": "the model's own modules",
        "graph": "the model's graph",
        "factory": "the given factory",
    }
    head = (
        f"{type(model.blueprint.template).__name__}: {len(model.plan.families)} unit families, "
        f"submodels built from {routes[model.blueprint.route]}, BatchNorm: {model.norms}\n"
    )
    note = f"(not from its modules: {model.blueprint.note})\n" if model.blueprint.note else ""
    return head + note + describe_plan(model.plan, model.space)


def describe_plan(plan: WidthPlan, space: WidthSpace, columns: int = 110) -> str:
    """Return the families and the frozen axes as two tables."""
    console = Console(file=StringIO(), width=columns, highlight=False)
    console.print(_families(plan, space))
    console.print(_frozen(plan))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _families(plan: WidthPlan, space: WidthSpace) -> Table:
    table = Table(
        "family", "layers", "units", "channels a unit", *map(str, space.widths), title="Elastic"
    )
    for family in plan.families:
        kept = [str(family.unit_count(width)) for width in space.widths]
        table.add_row(
            _escape(family.name),
            _shorten(family.layers),
            str(family.num_units),
            _block(family),
            *kept,
        )
    return table


def _block(family: UnitFamily) -> str:
    sizes = sorted({m.shape[1] for m in family.members.values()})
    return " or ".join(map(str, sizes))


def _shorten(layers: tuple[str, ...], most: int = 4) -> str:
    rest = f" and {len(layers) - most} more" if len(layers) > most else ""
    return ", ".join(layers[:most]) + rest


def _frozen(plan: WidthPlan) -> Table:
    grouped: dict[str, list[str]] = defaultdict(list)
    for frozen in plan.frozen:
        name, dim = frozen.axis
        grouped[frozen.reason].append(f"{name}[{dim}] ({frozen.size})")
    table = Table("axes kept whole", "why", title="Frozen")
    for reason, axes in grouped.items():
        table.add_row(_escape(_shorten(tuple(axes))), _escape(reason))
    return table


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
