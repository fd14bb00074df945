"""How long `elasticize` takes, proof included: `python -m benchmarks.plan_time`."""

import importlib.util
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table
from torch import nn

import fjord
from fjord.models.catalog import find_model

Case = tuple[str, Callable[[], tuple[nn.Module, tuple[object, ...]]]]


def cases() -> Iterator[Case]:
    for name in ("resnet18", "cnn", "rnn"):
        entry = find_model(name)
        yield name, lambda e=entry: (e.model, e.inputs)
    if importlib.util.find_spec("timm"):
        from benchmarks.zoo import build

        for name in ("vit_tiny_patch16_224", "vit_base_patch16_224"):
            yield f"{name} (12 blocks)", lambda n=name: build(n)


def main() -> None:
    table = Table(
        "model", "parameters", "seconds", "again", "built from", title="elasticize, two cores"
    )
    for name, make in cases():
        model, inputs = make()
        spans = []
        for _ in range(2):
            start = time.perf_counter()
            elastic = fjord.elasticize(model, inputs)
            spans.append(f"{time.perf_counter() - start:.1f}")
        table.add_row(
            name, f"{sum(p.numel() for p in model.parameters()):,}", *spans, elastic.blueprint.route
        )
    Console(width=100, highlight=False).print(table)


if __name__ == "__main__":
    main()
