"""`fjord profile`: what training costs on this device at each width, and the widest that fits."""

from typing import Annotated, Any

import typer
from rich.console import Console
from torch import Tensor

from fjord.cli.models import Freeze, Input
from fjord.cli.runs import Settings
from fjord.cli.tables import STANDARD_OUTPUT, print_line, print_table, write_json
from fjord.core.errors import UserError
from fjord.core.units import format_bytes, format_seconds
from fjord.core.width import WidthSpace, parse_space, uniform_widths
from fjord.devices.budget import Budget
from fjord.devices.profile import BudgetVerdict, DeviceProfile, WidthCost
from fjord.elastic.elasticize import elasticize
from fjord.elastic.model import ElasticModel
from fjord.experiments.experiment import Experiment
from fjord.experiments.profiling.profile import profile_training
from fjord.experiments.recipes.find import RECIPES, apply_settings, find_function
from fjord.models.catalog import PAPER_MODELS, CatalogEntry, find_model, make_entry

progress = Console(stderr=True, highlight=False)
PROGRESS_COLUMNS = 60
DIGITS = 3
KD_NAMES: dict[bool | None, str] = {
    True: "with distillation",
    False: "without distillation",
    None: "as the method trains",
}
MODEL_HELP = (
    f"{', '.join(PAPER_MODELS)}; your own module:function or file.py:function; "
    "or a recipe of `fjord list`."
)
Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
Deadline = Annotated[
    str | None, typer.Option(help="Time for download, training and upload, such as 60s.")
]
Memory = Annotated[
    str | None, typer.Option(help="What training may add to the process, such as 512MB.")
]
Bandwidth = Annotated[
    str | None, typer.Option(help="Of the device's network, such as 5Mbit or 1MB/s.")
]
Examples = Annotated[str | None, typer.Option(help="How many examples a round trains on.")]


def profile_device(
    model: Model,
    deadline: Deadline = None,
    memory: Memory = None,
    bandwidth: Bandwidth = None,
    examples: Examples = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples a step (default: the recipe's, or 16).")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the examples (default: the recipe's, or 1).")
    ] = None,
    kd: Annotated[
        bool | None, typer.Option("--kd/--no-kd", help="Only with, or only without distillation.")
    ] = None,
    widths: Annotated[
        str | None, typer.Option(help="uniform-5, or a list such as 1/4,1/2,1.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="Run only these widths and predict the others: 1/5,1.")
    ] = None,
    to_json: Annotated[
        str | None, typer.Option("--json", help="Write the profile to this file; - prints it.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="What to call this device (default: its host name).")
    ] = "",
    settings: Settings = None,
    input: Input = None,
    freeze: Freeze = None,
) -> None:
    """Measure step time, memory and bytes at each width; name the widest that fits a budget."""
    limits = {"deadline": deadline, "memory": memory, "bandwidth": bandwidth, "examples": examples}
    budget = Budget.parse(limits)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "epochs": epochs,
        "kd": kd,
        "examples": budget.examples,
        "device": name,
        "name": model,
        "on_progress": _show_progress,
    }
    if measure:
        options["measure"] = measure.split(",")
    space = None
    if widths:
        space = parse_space(widths)
    source = _find_source(model, input, settings or [])
    if isinstance(source, Experiment):
        result = profile_training(source, widths=space, **options)
        asked_kinds = result.kd_kinds[:1]  # the recipe's own
    else:
        inputs = _single_input(source, model)
        result = profile_training(_make_elastic(source, space, freeze), inputs, **options)
        asked_kinds = result.kd_kinds
    _show_progress("")
    if to_json != STANDARD_OUTPUT:
        _print_profile(result, budget)
    if to_json:
        if write_json(result.to_json(budget), to_json, field="to_json"):
            print_line(f"Profile: {to_json}")
    if budget != Budget() and not _any_fits(result, budget, asked_kinds):
        result.widest_fit(budget, asked_kinds[0])  # raises an error that names a sufficient budget


def _any_fits(profile: DeviceProfile, budget: Budget, kinds: tuple[bool | None, ...]) -> bool:
    for kd in kinds:
        if any(verdict.fits for verdict in profile.check_budget(budget, kd)):
            return True
    return False


def _show_progress(line: str) -> None:
    """Show one line on a terminal; without a thread of its own, as this process is forked."""
    if progress.is_terminal:
        progress.print(f"{line:<{PROGRESS_COLUMNS}}", end="\r")


def _find_source(name: str, shape: str | None, settings: list[str]) -> Experiment | CatalogEntry:
    """Return a recipe's experiment, or a model; a file's function may return either."""
    made: Any = None
    if name in RECIPES:
        made = RECIPES[name]()
    elif name.partition(":")[0].endswith(".py"):
        made = find_function(name)()
    if isinstance(made, Experiment):
        if shape is not None:
            message = f"is only for models: recipe {name} brings its own data"
            raise UserError(message, field="input", value=shape)
        return apply_settings(made, settings)
    if settings:
        message = f"is only for recipes: {name} is a model, which has no settings"
        raise UserError(message, field="settings", value=settings[0])
    if made is not None:
        return make_entry(made, name, shape)
    if ":" not in name and name not in PAPER_MODELS:
        known = ", ".join([*PAPER_MODELS, *RECIPES])
        raise UserError(
            f"model {name!r} is neither one of {known} nor of the form module:function or "
            "file.py:function"
        )
    return find_model(name, shape)


def _make_elastic(
    entry: CatalogEntry, space: WidthSpace | None, freeze: list[str] | None
) -> ElasticModel:
    return elasticize(
        entry.model,
        entry.inputs,
        widths=space or uniform_widths(5),
        freeze=[*entry.freeze, *(freeze or [])],
    )


def _single_input(entry: CatalogEntry, name: str) -> Tensor:
    if len(entry.inputs) != 1:
        raise UserError(
            f"model {name!r} takes {len(entry.inputs)} inputs; "
            "clients train on one tensor of examples"
        )
    inputs: Tensor = entry.inputs[0]
    return inputs


def _print_profile(profile: DeviceProfile, budget: Budget) -> None:
    limited = budget.deadline is not None or budget.memory is not None
    columns = ["width", "a step", "memory", "down", "up"]
    if budget.examples:
        columns.append("a round")
    if limited:
        columns.append("in the budget?")
    for kd in profile.kd_kinds:
        verdicts = profile.check_budget(budget, kd)
        rows = []
        for verdict in verdicts:
            row = _format_costs(verdict, budget)
            if limited:
                row.append(_format_verdict(verdict, budget))
            rows.append(row)
        title = f"{profile.model} on {profile.device}, {KD_NAMES[kd]}"
        print_table(columns, rows, title=title)
        if limited:
            print_line(f"The widest that fits, {KD_NAMES[kd]}: {_widest_fit(verdicts)}")
    print_line(_explain_profile(profile))


def _widest_fit(verdicts: list[BudgetVerdict]) -> str:
    fitting = [verdict.cost.width for verdict in verdicts if verdict.fits]
    if not fitting:
        return "none"
    return f"width {max(fitting)}"


def _explain_profile(profile: DeviceProfile) -> str:
    begin = "A"
    if any("predicted" in (cost.time, cost.memory) for cost in profile.costs):
        begin = "~ is predicted; a"
    process = format_bytes(profile.process_bytes)
    return (
        f"{begin} client whose ceiling is this width, in batches of {profile.batch_size}, "
        "one thread. Memory is what training adds to the process, "
        f"which takes {process} before."
    )


def _format_costs(verdict: BudgetVerdict, budget: Budget) -> list[str]:
    """Return the costs of one width; what is predicted is marked."""
    cost = verdict.cost
    row = _format_cost_cells(cost)
    if not budget.examples:
        return row
    if cost.time == "failed":
        return [*row, ""]
    return [*row, _mark_predicted(cost.time) + format_seconds(verdict.seconds, DIGITS)]


def _format_cost_cells(cost: WidthCost) -> list[str]:
    if cost.time == "failed":
        return [str(cost.width), "-", f"~{format_bytes(cost.memory_bytes)}", "", ""]
    return [
        str(cost.width),
        _mark_predicted(cost.time) + format_seconds(cost.step_seconds, DIGITS),
        _mark_predicted(cost.memory) + format_bytes(cost.memory_bytes, DIGITS),
        format_bytes(cost.bytes_down, DIGITS),
        format_bytes(cost.bytes_up, DIGITS),
    ]


def _mark_predicted(source: str) -> str:
    if source == "measured":
        return ""
    return "~"


def _format_verdict(verdict: BudgetVerdict, budget: Budget) -> str:
    """Say whether a width fits the budget, and if not why."""
    cost = verdict.cost
    if cost.time == "failed":
        return f"no: {cost.note}"
    reasons = []
    if "deadline" in verdict.limits and budget.deadline is not None:
        seconds = format_seconds(verdict.seconds, DIGITS)
        reasons.append(f"{seconds} of {format_seconds(budget.deadline, DIGITS)}")
    if "memory" in verdict.limits and budget.memory is not None:
        memory = format_bytes(cost.memory_bytes, DIGITS)
        reasons.append(f"{memory} of {format_bytes(budget.memory, DIGITS)}")
    if not reasons:
        return "yes"
    return f"no: {', '.join(reasons)}"
