"""`fjord latency`: how long a request takes at each width."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fjord.cli.models import Freeze, Input, Model, RoundTo, build_elastic
from fjord.cli.tables import format_milliseconds, format_ratio, out, print_table
from fjord.cli.trained import NEEDS_RECIPE, open_trained
from fjord.core.errors import UserError
from fjord.core.width import parse_space
from fjord.deploy.latency import WidthLatency, first_example, measure_latencies
from fjord.elastic.model import ElasticModel
from fjord.models.catalog import PAPER_MODELS

Data = Annotated[
    str | None,
    typer.Option("--data", help="The recipe of a saved file; a run folder knows its own."),
]
Threads = Annotated[int, typer.Option(help="How many threads a request may use.")]
COLUMNS = ("width", "MACs", "MACs / full", "ms", "latency / full", "median, ms")


def print_latency(
    model: Model,
    data: Data = None,
    input: Input = None,
    widths: Annotated[
        str | None,
        typer.Option(
            help="uniform-5, or a list such as 1/4,1/2,1 (default: those trained, or uniform-5)."
        ),
    ] = None,
    freeze: Freeze = None,
    round_to: RoundTo = 1,
    threads: Threads = 1,
) -> None:
    """Time one request at each width of a model, a run folder or a saved file."""
    use_threads(threads)
    if model not in PAPER_MODELS and Path(model).exists():
        if freeze or round_to != 1:
            raise UserError(
                f"--freeze and --round-to: {model} is trained; "
                "they can only be chosen before training"
            )
        elastic, inputs = _open_model(Path(model), data, input)
    else:
        _check_untrained(model, data)
        elastic, entry = build_elastic(model, input, widths or "uniform-5", freeze, round_to)
        inputs = entry.inputs
    selected = None
    if widths:
        selected = parse_space(widths).widths
    rows = measure_latencies(elastic, first_example(inputs), selected)
    print_table(COLUMNS, _format_rows(rows), title=f"{model}, batch 1")
    unit = "thread"
    if threads > 1:
        unit = "threads"
    out.print(f"Best of some runs that took turns, {threads} {unit}; full is the widest here.")


def _open_model(
    path: Path, recipe: str | None, shape: str | None
) -> tuple[ElasticModel, tuple[Any, ...]]:
    """Return a trained model with its example inputs."""
    trained = open_trained(path, NEEDS_RECIPE, recipe=recipe, shape=shape)
    return trained.load_elastic(), trained.source.entry.inputs


def _check_untrained(model: str, recipe: str | None) -> None:
    """Raise an error where the name of a model is meant for something trained."""
    if recipe is not None:
        message = f"is for a run folder or a saved file, and there is none called {model}"
        raise UserError(message, field="data", value=recipe)
    if "/" in model:
        raise UserError(f"{model}: there is no such run folder or file")


def _format_rows(rows: list[WidthLatency]) -> list[list[str]]:
    full = rows[-1]
    table = []
    for row in rows:
        cells = [
            str(row.width),
            f"{row.macs:,}",
            format_ratio(row.macs, full.macs),
            format_milliseconds(row.seconds),
            format_ratio(row.seconds, full.seconds),
            format_milliseconds(row.median),
        ]
        table.append(cells)
    return table


def use_threads(threads: int) -> None:
    """Let a request use this many threads."""
    if threads < 1:
        raise UserError("must be at least 1", field="threads", value=threads)
    torch.set_num_threads(threads)
