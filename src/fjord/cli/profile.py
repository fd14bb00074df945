"""`fjord profile`: what training costs on this device at each width, and the widest that fits a budget."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fjord.cli.models import Freeze, Input
from fjord.cli.runs import Settings
from fjord.core.errors import UserError
from fjord.core.units import format_bytes, format_seconds
from fjord.core.width import WidthSpace, parse_space, uniform_widths
from fjord.devices.budget import Budget
from fjord.devices.profile import BudgetVerdict, DeviceProfile
from fjord.elastic.elasticize import elasticize
from fjord.experiments.experiment import Experiment
from fjord.experiments.profiling.profile import profile_training as profile_model
from fjord.experiments.recipes.find import RECIPES, apply_settings, find_function
from fjord.models.catalog import PAPER_MODELS, CatalogEntry, find_model, make_entry

out = Console(highlight=False)
told = Console(stderr=True, highlight=False)
KINDS: dict[bool | None, str] = {
    True: "with distillation",
    False: "without distillation",
    None: "as the method trains",
}

Model = Annotated[
    str,
    typer.Argument(
        help=f"{', '.join(PAPER_MODELS)}; your own module:function or file.py:function; or a recipe of `fjord list`."
    ),
]
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
    """Measure step time, training memory and bytes at each width; name the widest that fits a budget."""
    limits = {"deadline": deadline, "memory": memory, "bandwidth": bandwidth, "examples": examples}
    budget = Budget.parse(limits)
    space = parse_space(widths) if widths else None
    found = _found(model, input, settings or [])
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "epochs": epochs,
        "kd": kd,
        "examples": budget.examples,
    }
    options |= {"measure": measure.split(",") if measure else None, "device": name, "name": model}
    options["say"] = _say
    if isinstance(found, Experiment):
        result = profile_model(found, widths=space, **options)
    else:
        inputs = _only_input(found, model)
        result = profile_model(_elastic(found, space, freeze), inputs, **options)
    _say("")
    if to_json != "-":
        _show(result, budget)
    if to_json:
        _write(result, budget, to_json)
    asked = result.kd_kinds[:1] if isinstance(found, Experiment) else result.kd_kinds
    if budget != Budget() and not any(
        v.fits for kind in asked for v in result.check_budget(budget, kind)
    ):
        result.widest_fit(budget, asked[0])  # says what would do


def _say(line: str) -> None:
    """Show on a terminal what is going on, in one line; without a thread of its own, as this process is forked."""
    if told.is_terminal:
        told.print(f"{line:<60}", end="\r")


def _found(name: str, shape: str | None, settings: list[str]) -> Experiment | CatalogEntry:
    """Return a recipe's experiment, or a model; a file's function may return either."""
    made = RECIPES[name]() if name in RECIPES else None
    if made is None and name.partition(":")[0].endswith(".py"):
        made = find_function(name)()
    if isinstance(made, Experiment):
        if shape is not None:
            raise UserError(f"--input {shape}: recipe {name} brings its own data")
        return apply_settings(made, settings)
    if settings:
        raise UserError(f"--set {settings[0]}: {name} is a model; only recipes have settings")
    if made is None and ":" not in name and name not in PAPER_MODELS:
        known = ", ".join([*PAPER_MODELS, *RECIPES])
        raise UserError(
            f"model {name!r} is neither one of {known} nor of the form module:function or file.py:function"
        )
    return find_model(name, shape) if made is None else make_entry(made, name, shape)


def _elastic(entry: CatalogEntry, space: WidthSpace | None, freeze: list[str] | None) -> Any:
    return elasticize(
        entry.model,
        entry.inputs,
        widths=space or uniform_widths(5),
        freeze=[*entry.freeze, *(freeze or [])],
    )


def _only_input(entry: CatalogEntry, name: str) -> Any:
    if len(entry.inputs) != 1:
        raise UserError(
            f"model {name!r} takes {len(entry.inputs)} inputs; clients train on one tensor of examples"
        )
    return entry.inputs[0]


def _show(profile: DeviceProfile, budget: Budget) -> None:
    limited = budget.deadline is not None or budget.memory is not None
    for kind in profile.kd_kinds:
        verdicts = profile.check_budget(budget, kind)
        title = f"{profile.model} on {profile.device}, {KINDS[kind]}"
        columns = [
            "width",
            "a step",
            "memory",
            "down",
            "up",
            *(["a round"] if budget.examples else []),
        ]
        table = Table(*columns, *(["in the budget?"] if limited else []), title=title)
        for verdict in verdicts:
            table.add_row(*_row(verdict, budget), *([_judged(verdict, budget)] if limited else []))
        out.print(table)
        if limited:
            fitting = [v.cost.width for v in verdicts if v.fits]
            answer = f"width {max(fitting)}" if fitting else "none"
            out.print(f"The widest that fits, {KINDS[kind]}: {answer}", markup=False)
    rest = (
        "~ is predicted; a"
        if any("predicted" in (c.time, c.memory) for c in profile.costs)
        else "A"
    )
    out.print(
        f"{rest} client whose ceiling is this width, in batches of {profile.batch_size}, one thread. Memory is what "
        f"training adds to the process, which takes {format_bytes(profile.process_bytes)} before.",
        soft_wrap=True,
    )


def _row(verdict: BudgetVerdict, budget: Budget) -> list[str]:
    cost = verdict.cost
    if cost.time == "failed":
        return [
            str(cost.width),
            "-",
            f"~{format_bytes(cost.memory_bytes)}",
            "",
            "",
            *([""] if budget.examples else []),
        ]
    mark = {"measured": "", "predicted": "~"}
    time, memory = mark[cost.time], mark.get(cost.memory, "~")
    row = [
        str(cost.width),
        time + format_seconds(cost.step_seconds, 3),
        memory + format_bytes(cost.memory_bytes, 3),
    ]
    row += [format_bytes(cost.bytes_down, 3), format_bytes(cost.bytes_up, 3)]
    return [*row, time + format_seconds(verdict.seconds, 3)] if budget.examples else row


def _judged(verdict: BudgetVerdict, budget: Budget) -> str:
    if verdict.cost.time == "failed":
        return f"no: {verdict.cost.note}"
    reasons = []
    if "deadline" in verdict.limits and budget.deadline is not None:
        reasons.append(
            f"{format_seconds(verdict.seconds, 3)} of {format_seconds(budget.deadline, 3)}"
        )
    if "memory" in verdict.limits and budget.memory is not None:
        reasons.append(
            f"{format_bytes(verdict.cost.memory_bytes, 3)} of {format_bytes(budget.memory, 3)}"
        )
    return f"no: {', '.join(reasons)}" if reasons else "yes"


def _write(profile: DeviceProfile, budget: Budget, where: str) -> None:
    text = json.dumps({**profile.to_json(), **profile.fit_summary(budget)}, indent=1)
    if where == "-":
        print(text)
        return
    try:
        Path(where).write_text(text + "\n")
    except OSError as error:
        raise UserError(f"--json {where}: cannot be written: {error}") from error
    out.print(f"Profile: {where}", markup=False, soft_wrap=True)
