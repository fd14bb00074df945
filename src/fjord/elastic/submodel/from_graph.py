"""Build a submodel from the graph itself: every size written in it is rewritten for the width."""

import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fjord.core.errors import UserError
from fjord.elastic.errors import ADVICE, ElasticityError
from fjord.elastic.module_tensors import tied_names
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.submodel.graph_rewrites import REWRITES, NodeCut
from fjord.elastic.submodel.kept_units import KeptUnits
from fjord.elastic.trace.labels import UnitLabels
from fjord.elastic.trace.model_trace import ModelTrace

A = torch.ops.aten
STRIDED = (A.as_strided.default, A.view.default)
"""Operations that depend on the strides of their input."""


def cut_graph(
    model: nn.Module,
    trace: ModelTrace,
    tensors: Mapping[str, Tensor],
    plan: WidthPlan,
    selection: UnitSelection,
) -> nn.Module:
    """Return a module that runs the cut graphs of training and evaluation on the cut tensors."""
    units = KeptUnits(trace, plan, selection)
    dtype = _float_dtype(tensors, default=trace.dtype)
    for graph in trace.graphs.values():
        if graph.meta["stops_gradients"]:
            raise ElasticityError(
                "forward stops gradients with torch.no_grad, which its graph does not show. "
                f"{ADVICE}"
            )
    casts = {trace.dtype: dtype}
    graphs = {}
    for mode, graph in trace.graphs.items():
        values = trace.values[mode]
        graphs[mode] = _rewrite_graph(graph, values, units, casts)
    return GraphNet(model, tensors, graphs)


def _float_dtype(tensors: Mapping[str, Tensor], default: torch.dtype) -> torch.dtype:
    """Return the type of the first floating-point tensor."""
    for tensor in tensors.values():
        if tensor.is_floating_point():
            return tensor.dtype
    return default


class GraphNet(nn.Module):
    """A plain module with the tensor names of the original model, which runs its cut graph."""

    def __init__(
        self,
        model: nn.Module,
        tensors: Mapping[str, Tensor],
        graphs: dict[bool, GraphModule],
    ) -> None:
        super().__init__()
        for name, first in tied_names(model).items():
            _register_tensor(self, name, tensors[first])
        any_graph = next(iter(graphs.values())).graph
        placeholders = any_graph.find_nodes(op="placeholder")
        self._shapes = [_example_shape(node) for node in placeholders]
        self._forwards: dict[bool, Callable[..., Any]] = {}
        for mode, graph in graphs.items():
            self._forwards[mode] = type(graph).forward
            self._adopt_constants(graph)
        self.train(model.training)

    def _adopt_constants(self, graph: GraphModule) -> None:
        """Take over what the graph needs beside the model's tensors.

        These are lifted constants and the layout of its arguments.
        """
        for node in graph.graph.nodes:
            name = str(node.target)
            if node.op == "get_attr" and not _has_attribute(self, name):
                constant = operator.attrgetter(name)(graph)
                _register_tensor(self, name, constant, persistent=False)
        self._in_spec = graph._in_spec
        self._out_spec = graph._out_spec

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph of the current mode; there is one for both where they do not differ."""
        inputs = pytree.tree_leaves((args, kwargs))
        for value, shape in zip(inputs, self._shapes, strict=False):
            if isinstance(value, Tensor) and not _fits_shape(value, shape):
                expected = tuple(size or "any" for size in shape)
                raise UserError(
                    f"input of shape {tuple(value.shape)}: this submodel was built from the graph "
                    f"of the example inputs, of shape {expected}; elasticize the model again for "
                    "other sizes"
                )
        mode = self.training if self.training in self._forwards else False
        return self._forwards[mode](self, *args, **kwargs)


def _fits_shape(value: Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor has a shape in which 0 stands for any size."""
    if value.dim() != len(shape):
        return False
    sizes = zip(value.shape, shape, strict=True)
    return all(allowed in (0, size) for size, allowed in sizes)


def _example_shape(node: Node) -> tuple[int, ...]:
    """Return the shape of an example input, with 0 for an axis that may have any size."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return ()
    sizes = []
    for size in value.shape:
        sizes.append(0 if isinstance(size, torch.SymInt) else size)
    return tuple(sizes)


def _register_tensor(
    root: nn.Module,
    name: str,
    value: Tensor,
    *,
    persistent: bool = True,
) -> None:
    """Add a parameter or a buffer under a dotted name, with the modules on the way to it."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if isinstance(value, nn.Parameter):
        root.register_parameter(leaf, value)
    else:
        root.register_buffer(leaf, value, persistent)


def _has_attribute(module: nn.Module, name: str) -> bool:
    """Return whether a module has an attribute of this dotted name."""
    try:
        operator.attrgetter(name)(module)
    except AttributeError:
        return False
    return True


def _rewrite_graph(
    graph: GraphModule,
    values: dict[Node, Any],
    units: KeptUnits,
    casts: dict[torch.dtype, torch.dtype],
) -> GraphModule:
    """Return the graph with every width-carrying literal replaced, as code without weights."""
    new = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    new._codegen = copy.copy(graph.graph._codegen)
    for node in graph.graph.nodes:
        if node.op == "call_module" or node.target is A._assert_tensor_metadata.default:
            continue
        twin = new.node_copy(node, copies.__getitem__)
        copies[node] = twin
        if node.op == "call_function" and isinstance(values.get(node), UnitLabels | list):
            _rewrite_arguments(node, twin, values, units)
            if node.target is A._native_batch_norm_legit_functional.default:
                _copy_statistics(new, twin)
            dtype = twin.kwargs.get("dtype")
            if isinstance(dtype, torch.dtype):
                # Only the model's own precision follows that of its weights.
                twin.kwargs = {**twin.kwargs, "dtype": casts.get(dtype, dtype)}
    return GraphModule(graph, new)


def _rewrite_arguments(
    node: Node,
    twin: Node,
    values: dict[Node, Any],
    units: KeptUnits,
) -> None:
    """Replace the sizes among the arguments of an operation in the cut graph."""
    rewrite = REWRITES.get(getattr(node.target, "overloadpacket", None))
    if rewrite is None:
        return
    cut = NodeCut(node, list(twin.args), values, units)
    rewrite(cut)
    twin.args = tuple(cut.args)
    if len(twin.args) == 2 and node.target in STRIDED:
        twin.target = A.reshape.default  # a smaller value may have other strides


def _copy_statistics(graph: torch.fx.Graph, norm: Node) -> None:
    """Normalise with a copy of the running statistics.

    The graph overwrites them before the backward pass, which needs them.
    """
    args = list(norm.args)
    with graph.inserting_before(norm):
        for position in (3, 4):  # running mean and variance
            statistic = args[position]
            args[position] = graph.call_function(A.clone.default, (statistic,))
    norm.args = tuple(args)
