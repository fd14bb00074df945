"""`fjord latency`: what a request takes at each width."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from fjord.cli.models import Freeze, Input, Model, RoundTo, build_elastic
from fjord.cli.trained import RECIPE, open_trained
from fjord.core.errors import UserError
from fjord.core.width import parse_space
from fjord.deploy.latency import first_example, measure_latencies
from fjord.models.catalog import PAPER_MODELS

out = Console(highlight=False)
Data = Annotated[
    str | None,
    typer.Option("--data", help="The recipe of a saved file; a run folder knows its own."),
]
Threads = Annotated[int, typer.Option(help="How many threads a request may use.")]


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
    """Time one request at each width, beside its multiply-accumulates: a model, a run folder or a saved file."""
    use_threads(threads)
    if model not in PAPER_MODELS and Path(model).exists():
        if freeze or round_to != 1:
            raise UserError(
                f"--freeze and --round-to: {model} is trained, and what its widths keep is settled"
            )
        opened = open_trained(Path(model), RECIPE, recipe=data, shape=input)
        elastic, inputs = opened.elastic(), opened.source.entry.inputs
    elif data is not None:
        raise UserError(
            f"--data {data}: is for a run folder or a saved file, and there is none called {model}"
        )
    elif "/" in model:
        raise UserError(f"{model}: there is no such run folder or file")
    else:
        elastic, entry = build_elastic(model, input, widths or "uniform-5", freeze, round_to)
        inputs = entry.inputs
    rows = measure_latencies(elastic, first_example(inputs), widths and parse_space(widths).widths)
    table = Table(
        "width",
        "MACs",
        "MACs / full",
        "ms",
        "latency / full",
        "median, ms",
        title=f"{model}, batch 1",
    )
    for row in rows:
        shares = row.macs / rows[-1].macs, row.seconds / rows[-1].seconds
        times = f"{row.seconds * 1e3:.2f}", f"{shares[1]:.2f}", f"{row.median * 1e3:.2f}"
        table.add_row(str(row.width), f"{row.macs:,}", f"{shares[0]:.2f}", *times)
    out.print(table)
    out.print(
        f"Best of some runs that took turns, {threads} thread{'s' * (threads > 1)}; full is the widest here."
    )


def use_threads(threads: int) -> None:
    """Let a request use this many threads."""
    if threads < 1:
        raise UserError(f"--threads {threads}: must be at least 1")
    torch.set_num_threads(threads)
