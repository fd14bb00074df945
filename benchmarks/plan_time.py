"""Time `elasticize`, proof included: `python -m benchmarks.plan_time`."""

import importlib.util
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn

import fjord
from fjord.models.catalog import find_model

PAPER_NAMES = ("resnet18", "cnn", "rnn")
TIMM_NAMES = ("vit_tiny_patch16_224", "vit_base_patch16_224")
CALLS = 2
ModelCase = tuple[str, nn.Module, tuple[Any, ...]]
"""A name, a model and its example inputs."""


def model_cases() -> Iterator[ModelCase]:
    for name in PAPER_NAMES:
        entry = find_model(name)
        yield name, entry.model, entry.inputs
    if importlib.util.find_spec("timm"):
        from benchmarks.zoo import build_model

        for name in TIMM_NAMES:
            model, inputs = build_model(name)
            yield f"{name} (12 blocks)", model, inputs


def main() -> None:
    columns = ("model", "parameters", "seconds", "again", "built from")
    table = Table(*columns, title="elasticize, two cores")
    for name, model, inputs in model_cases():
        spans = []
        for _ in range(CALLS):
            start = time.perf_counter()
            elastic = fjord.elasticize(model, inputs)
            spans.append(f"{time.perf_counter() - start:.1f}")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        table.add_row(name, f"{parameters:,}", *spans, elastic.blueprint.route)
    Console(width=100, highlight=False).print(table)


if __name__ == "__main__":
    main()
