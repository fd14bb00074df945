"""Files of torch.export (.pt2): loaded by `torch.export.load(path).module()`, without this package."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fjord.deploy.exports.plain import PlainNetwork, RunFile, Tensors
from fjord.deploy.exports.traced import trace_network

FACTS = "fjord.json"


def write(plain: PlainNetwork, facts: Mapping[str, Any], path: Path) -> PlainNetwork:
    """Write a program of torch.export; return the network as it was written."""
    program, plain = trace_network(plain)
    program._example_inputs = None  # they would be written as well
    with path.open("wb") as file:
        torch.export.save(
            program, file, extra_files={FACTS: json.dumps({**facts, "inputs": plain.described()})}
        )
    return plain


def open_file(path: Path) -> tuple[RunFile, dict[str, Any]]:
    """Return a function that runs a file, and the facts in it."""
    extra = {FACTS: ""}
    with path.open("rb") as file:
        module = torch.export.load(file, extra_files=extra).module()

    def run(tensors: Sequence[Tensor]) -> Tensors:
        with torch.no_grad():
            result = module(*tensors)
        return [result] if isinstance(result, Tensor) else list(result)

    return run, json.loads(extra[FACTS])
