"""What a request takes at each width beside its multiply-accumulates: `python -m benchmarks.latency`.

The paper's three models, batch 1, one thread: an image of 32x32, a character of 28x28, a text of 80 characters.
"""

import torch
from rich.console import Console
from rich.table import Table

import fjord
from fjord.deploy.latency import first_example
from fjord.models.catalog import find_model


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out = Console(width=110, highlight=False)
    for name in ("resnet18", "cnn", "rnn"):
        entry = find_model(name)
        inputs = (torch.randint(0, 90, (1, 80)),) if name == "rnn" else first_example(entry.inputs)
        rows = fjord.measure_latencies(
            fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze), inputs
        )
        table = Table(
            "width", "MACs / full", "latency / full", "ms", "median, ms", title=f"{name}, batch 1"
        )
        for row in rows:
            ratios = f"{row.macs / rows[-1].macs:.2f}", f"{row.seconds / rows[-1].seconds:.2f}"
            table.add_row(
                str(row.width), *ratios, f"{row.seconds * 1e3:.2f}", f"{row.median * 1e3:.2f}"
            )
        out.print(table)


if __name__ == "__main__":
    main()
