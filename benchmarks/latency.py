"""Request time at each width beside its multiply-accumulates: `python -m benchmarks.latency`.

The paper's three models, batch 1, one thread: an image of 32x32, a character of 28x28, a text of
80 characters.
"""

from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import fjord
from fjord.deploy.latency import WidthLatency, first_example
from fjord.models.catalog import CatalogEntry, find_model

MODELS = ("resnet18", "cnn", "rnn")
COLUMNS = ("width", "MACs / full", "latency / full", "ms", "median, ms")


def request_inputs(name: str, entry: CatalogEntry) -> tuple[Any, ...]:
    if name == "rnn":
        return (torch.randint(0, 90, (1, 80)),)
    return first_example(entry.inputs)


def latency_table(name: str, rows: list[WidthLatency]) -> Table:
    table = Table(*COLUMNS, title=f"{name}, batch 1")
    full = rows[-1]
    for row in rows:
        table.add_row(
            str(row.width),
            f"{row.macs / full.macs:.2f}",
            f"{row.seconds / full.seconds:.2f}",
            f"{row.seconds * 1e3:.2f}",
            f"{row.median * 1e3:.2f}",
        )
    return table


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    console = Console(width=110, highlight=False)
    for name in MODELS:
        entry = find_model(name)
        inputs = request_inputs(name, entry)
        model = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
        rows = fjord.measure_latencies(model, inputs)
        console.print(latency_table(name, rows))


if __name__ == "__main__":
    main()
