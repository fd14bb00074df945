"""What tracing a model gives: its graphs, and the unit ids of every value in them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fjord.elastic.module_tensors import meta_tensor_like
from fjord.elastic.trace.unit_table import UnitTable


@dataclass
class ModelTrace:
    """The graphs of a model with the labels of every value, and the ids of the model's tensors.

    `graphs` and `values` are by mode: False is evaluation, True is training.
    """

    units: UnitTable = field(default_factory=UnitTable)
    owners: dict[str, list[Tensor]] = field(default_factory=dict)
    """The unit ids along each axis of each floating-point tensor of the model."""
    graphs: dict[bool, GraphModule] = field(default_factory=dict)
    values: dict[bool, dict[Node, Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    """The tensors that some operation reads."""
    tied: dict[str, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    """The precision of the traced weights."""

    def forget_weights(self) -> None:
        """Release the model's weights: a graph that is run gets its own."""
        for graph in self.graphs.values():
            for path, module in graph.named_modules():
                self._release_tensors(path, module._parameters)
                self._release_tensors(path, module._buffers)

    def _release_tensors(self, path: str, tensors: dict[str, Any]) -> None:
        for leaf, tensor in tensors.items():
            name = f"{path}.{leaf}" if path else leaf
            if tensor is not None and name in self.tied:
                tensors[leaf] = meta_tensor_like(tensor)
