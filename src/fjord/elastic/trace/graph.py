"""Export a model to its graph of core ATen operations."""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fjord.core.errors import UserError
from fjord.elastic.errors import ADVICE, FORWARD_ERRORS, ElasticityError
from fjord.elastic.module_tensors import fresh_copy

A = torch.ops.aten

KEPT_WHOLE = (
    A.linear.default,
    A.scaled_dot_product_attention.default,
    A.detach.default,
    A.lstm.input,
    A.gru.input,
    A.rnn_tanh.input,
    A.rnn_relu.input,
)
"""Operations that are not decomposed: their parts would hide what they are, and cost time."""


def export_graph(model: nn.Module, inputs: tuple[Any, ...], *, open_batch: bool) -> GraphModule:
    """Return the graph of core ATen operations that the model runs on these inputs.

    With `open_batch` the graph accepts any batch size, where the model allows it.
    """
    dynamic_shapes = None
    if open_batch:
        dynamic_shapes = pytree.tree_map(_open_first_axis, inputs)
    twin = fresh_copy(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(twin, inputs, dynamic_shapes=dynamic_shapes)
            stops_gradients = _stops_gradients(program)
            decompositions = _decompositions(tuple(torch.ops._dir))
            program = program.run_decompositions(decompositions)
            graph = program.module(check_guards=False)
    except Exception as error:  # torch.export raises many kinds; all mean that there is no graph
        _check_runs(model, inputs)
        raise ElasticityError(_export_failure(model, error)) from error
    assert isinstance(graph, GraphModule)
    # The decomposition removes torch.no_grad from the graph, so it has to be noted here.
    graph.meta["stops_gradients"] = stops_gradients
    return graph


def _open_first_axis(value: Any) -> Any:
    """Let torch choose the size of the first axis, unless it is 1: torch treats 1 as fixed."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return None
    if value.shape[0] <= 1:
        return None
    return {0: torch.export.Dim.AUTO}


def _stops_gradients(program: ExportedProgram) -> bool:
    return any("set_grad_enabled" in str(node.target) for node in program.graph.nodes)


@cache
def _decompositions(namespaces: tuple[str, ...]) -> dict[OpOverload, Any]:
    """Return the decomposition of each operation.

    The table covers all operations torch knows, which takes time to collect: it is made once for
    each set of loaded operator libraries (`namespaces`).
    """
    table = dict(torch.export.default_decompositions())
    for operation in KEPT_WHOLE:
        table.pop(operation, None)
    return table


def _check_runs(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise an error about the inputs if the model does not even run on them."""
    try:
        with torch.no_grad():
            fresh_copy(model)(*inputs)
    except FORWARD_ERRORS as error:
        name = type(model).__name__
        described = "; ".join(_describe_input(value) for value in inputs)
        raise UserError(
            f"example_inputs: {name} does not run on them ({described}): {error}"
        ) from error


def _describe_input(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} of {value.dtype}"
    return repr(value)


def _export_failure(model: nn.Module, error: Exception) -> str:
    name = type(model).__name__
    kind = type(error).__name__
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = " ".join(lines[:3]).strip()[:600]
    return (
        f"{name} cannot be traced: torch.export raised {kind}: "
        f"{reason}. A forward whose control flow depends on the data has no graph. {ADVICE}"
    )
