"""Files of torch.export (.pt2).

They are loaded by `torch.export.load(path).module()`, without this package.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fjord.deploy.exports.plain import PlainNetwork, RunFile, Tensors, as_tensors
from fjord.deploy.exports.traced import trace_network

FACTS_FILE = "fjord.json"


def write_torch(plain: PlainNetwork, facts: Mapping[str, Any], path: Path) -> PlainNetwork:
    """Write a program of torch.export; return the network as it was written."""
    program, plain = trace_network(plain)
    program._example_inputs = None  # they would be written as well
    text = json.dumps({**facts, "inputs": plain.describe_inputs()})
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={FACTS_FILE: text})
    return plain


def open_torch(path: Path) -> tuple[RunFile, dict[str, Any]]:
    """Return a function that runs a file, and the facts in it."""
    extra_files = {FACTS_FILE: ""}
    with path.open("rb") as file:
        module = torch.export.load(file, extra_files=extra_files).module()

    def run(tensors: Sequence[Tensor]) -> Tensors:
        with torch.no_grad():
            return as_tensors(module(*tensors))

    return run, json.loads(extra_files[FACTS_FILE])
