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
from fjord.elastic.trace.labels import UnitLabels, varying_axes
from fjord.elastic.trace.model_trace import ModelTrace
from fjord.elastic.trace.rules import describe_node

A = torch.ops.aten


class KeptUnits:
    """Which positions of every value survive a cut."""

    def __init__(self, trace: ModelTrace, plan: WidthPlan, kept: UnitSelection) -> None:
        self.root = trace.units.root
        self.alive = torch.ones(len(self.root), dtype=torch.bool)
        for family in plan.families:
            dropped = torch.ones(family.num_units, dtype=torch.bool)
            dropped[kept[family.name]] = False
            for (name, dim), indices in family.members.items():
                self.alive[self.root[trace.owners[name][dim][indices[dropped]]]] = False

    def mask(self, value: UnitLabels, dim: int) -> Tensor:
        """Return which indices along one axis are kept."""
        mask = torch.ones(value.shape[dim], dtype=torch.bool)
        for channel in value.channels:
            if dim in varying_axes(channel):
                mask &= (
                    self.alive[self.root[channel]]
                    .movedim(dim, -1)
                    .reshape(-1, channel.shape[dim])
                    .any(0)
                )
        return mask

    def size(self, value: UnitLabels) -> list[int]:
        """Return the kept size of every axis."""
        return [int(self.mask(value, dim).sum()) for dim in range(value.rank)]


def cut_graph(
    model: nn.Module,
    trace: ModelTrace,
    tensors: Mapping[str, Tensor],
    plan: WidthPlan,
    kept: UnitSelection,
) -> nn.Module:
    """Return a module that runs the cut graphs, in training and in evaluation, on the cut tensors."""
    units = KeptUnits(trace, plan, kept)
    dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), trace.dtype)
    for graph in trace.graphs.values():
        if graph.meta["stops_gradients"]:
            raise ElasticityError(
                f"forward stops gradients with torch.no_grad, which its graph does not show. {ADVICE}"
            )
    casts = {trace.dtype: dtype}
    runs = {
        mode: _rewritten(graph, trace.values[mode], units, casts)
        for mode, graph in trace.graphs.items()
    }
    return GraphNet(model, tensors, runs)


class GraphNet(nn.Module):
    """A plain module that holds tensors under the names of the original model and runs its cut graph."""

    def __init__(
        self, model: nn.Module, tensors: Mapping[str, Tensor], runs: dict[bool, GraphModule]
    ) -> None:
        super().__init__()
        for name, first in tied_names(model).items():
            _register(self, name, tensors[first])
        self._shapes = [
            _example_shape(node)
            for node in next(iter(runs.values())).graph.find_nodes(op="placeholder")
        ]
        self._runs: dict[bool, Callable[..., Any]] = {
            mode: type(run).forward for mode, run in runs.items()
        }
        for run in runs.values():
            self._adopt_constants(run)
        self.train(model.training)

    def _adopt_constants(self, run: GraphModule) -> None:
        """Take over what the graph needs beside tensors: lifted constants and the layout of its arguments."""
        for node in run.graph.nodes:
            name = str(node.target)
            if node.op == "get_attr" and not _has(self, name):
                _register(self, name, operator.attrgetter(name)(run), persistent=False)
        self._in_spec, self._out_spec = run._in_spec, run._out_spec

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph of the current mode; there is one for both where the modes do not differ."""
        for value, shape in zip(pytree.tree_leaves((args, kwargs)), self._shapes, strict=False):
            if isinstance(value, Tensor) and not _fits(value, shape):
                raise UserError(
                    f"input of shape {tuple(value.shape)}: this submodel was built from the graph of the example "
                    f"inputs, of shape {tuple(n or 'any' for n in shape)}; elasticize the model again for other sizes"
                )
        return self._runs[self.training if self.training in self._runs else False](
            self, *args, **kwargs
        )


def _fits(value: Tensor, shape: tuple[int, ...]) -> bool:
    return value.dim() == len(shape) and all(
        m in (0, n) for n, m in zip(value.shape, shape, strict=True)
    )


def _example_shape(node: Node) -> tuple[int, ...]:
    """Return the shape of an example input, 0 where any size will do."""
    value = node.meta.get("val")
    return (
        tuple(0 if isinstance(n, torch.SymInt) else n for n in value.shape)
        if isinstance(value, Tensor)
        else ()
    )


def _register(root: nn.Module, name: str, value: Tensor, *, persistent: bool = True) -> None:
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if isinstance(value, nn.Parameter):
        root.register_parameter(leaf, value)
    else:
        root.register_buffer(leaf, value, persistent)


def _has(module: nn.Module, name: str) -> bool:
    try:
        operator.attrgetter(name)(module)
    except AttributeError:
        return False
    return True


def _rewritten(
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
        twin = copies[node] = new.node_copy(node, copies.__getitem__)
        if node.op == "call_function" and isinstance(values.get(node), UnitLabels | list):
            rewrite = REWRITES.get(getattr(node.target, "overloadpacket", None))
            if rewrite is not None:
                twin.args = tuple(rewrite(node, list(twin.args), values, units))
                if len(twin.args) == 2 and node.target in (A.as_strided.default, A.view.default):
                    twin.target = A.reshape.default  # a smaller value may have other strides
            if node.target is A._native_batch_norm_legit_functional.default:
                _keep_statistics(new, twin)
            dtype = twin.kwargs.get("dtype")
            if isinstance(
                dtype, torch.dtype
            ):  # only the model's own precision follows that of its weights
                twin.kwargs = {**twin.kwargs, "dtype": casts.get(dtype, dtype)}
    return GraphModule(graph, new)


def _keep_statistics(graph: torch.fx.Graph, norm: Node) -> None:
    """Normalise with a copy of the running statistics: the graph overwrites them before the backward pass."""
    args = list(norm.args)
    with graph.inserting_before(norm):
        args[3:5] = [graph.call_function(A.clone.default, (statistic,)) for statistic in args[3:5]]
    norm.args = tuple(args)


Rewrite = Callable[[Node, list[Any], dict[Node, Any], KeptUnits], list[Any]]


def _sizes(position: int) -> Rewrite:
    """Replace a list of sizes by the kept ones."""

    def rewrite(
        node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits
    ) -> list[Any]:
        out = values[node]
        sizes = zip(args[position], units.size(out), out.shape, strict=True)
        args[position] = [_size(old, kept, full) for old, kept, full in sizes]
        return args

    return rewrite


def _size(old: Any, kept: int, full: int) -> Any:
    """Return one kept size; a symbol (batch times heads) is scaled."""
    if not isinstance(old, Node):
        return -1 if old == -1 else kept
    if kept == full:
        return old
    with old.graph.inserting_after(old):
        scaled = old.graph.call_function(operator.mul, (old, kept))
    with old.graph.inserting_after(scaled):
        return old.graph.call_function(operator.floordiv, (scaled, full))


def _bounds(first: int) -> Rewrite:
    """Move the start and end of a slice to where those units now stand."""

    def rewrite(
        node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits
    ) -> list[Any]:
        x = values[node.args[0]]  # type: ignore[index]
        dim = (args[first] if len(args) > first else 0) % x.rank
        mask = units.mask(x, dim)
        if mask.all():
            return args
        if len(args) > first + 3 and args[first + 3] != 1:
            raise ElasticityError(
                f"a slice with a step runs along the width: {describe_node(node)}. {ADVICE}"
            )
        before = torch.cat([torch.zeros(1, dtype=torch.long), mask.cumsum(0)])
        for i in range(first + 1, min(first + 3, len(args))):
            if isinstance(args[i], int):
                bound = args[i] + len(mask) if args[i] < 0 else args[i]
                args[i] = int(before[min(max(bound, 0), len(mask))])
        return args

    return rewrite


def _select(node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits) -> list[Any]:
    x = values[node.args[0]]  # type: ignore[index]
    mask = units.mask(x, args[1] % x.rank)
    index = args[2] % len(mask) if isinstance(args[2], int) else 0
    if not mask.all():
        if not mask[index]:
            raise ElasticityError(
                f"a unit that is dropped is picked by number: {describe_node(node)}. {ADVICE}"
            )
        args[2] = int(mask[:index].sum())
    return args


def _split(node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits) -> list[Any]:
    x = values[node.args[0]]  # type: ignore[index]
    mask = units.mask(x, (args[2] if len(args) > 2 else 0) % x.rank)
    args[1] = [int(part.sum()) for part in mask.split(list(args[1]))]
    return args


def _layer_norm(
    node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits
) -> list[Any]:
    args[1] = units.size(values[node.args[0]])[-len(args[1]) :]  # type: ignore[index]
    return args


def _group_norm(
    node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits
) -> list[Any]:
    channels = units.size(values[node.args[0]])[1]  # type: ignore[index]
    args[6] = max(1, args[6] * channels // args[4]) if args[6] > 1 else 1
    args[4] = channels
    return args


def _convolution(
    node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits
) -> list[Any]:
    weight = values[node.args[1]]  # type: ignore[index]
    args[8] = args[8] * units.size(weight)[0] // weight.shape[0] if args[8] > 1 else 1
    return args


def _pad(node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits) -> list[Any]:
    out, amounts = values[node], list(args[1])
    for i in range(0, len(amounts), 2):
        mask = units.mask(out, out.rank - 1 - i // 2)
        if not mask.all():
            before, after = amounts[i], amounts[i + 1]
            amounts[i], amounts[i + 1] = (
                int(mask[:before].sum()),
                int(mask[len(mask) - after :].sum()),
            )
    args[1] = amounts
    return args


def _repeat(node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits) -> list[Any]:
    x, out = values[node.args[0]], values[node]  # type: ignore[index]
    old = [1] * (out.rank - x.rank) + units.size(x)
    new = units.size(out)
    args[1] = [n if isinstance(n, Node) else new[d] // old[d] for d, n in enumerate(args[1])]
    return args


def _strided(node: Node, args: list[Any], values: dict[Node, Any], units: KeptUnits) -> list[Any]:
    """Raw strides appear where a layout is restored without moving elements: a reshape says the same."""
    lossless = units.size(values[node.args[0]]) == list(values[node.args[0]].shape)  # type: ignore[index]
    return args if lossless else _sizes(1)(node, args[:2], values, units)


REWRITES: dict[Any, Rewrite] = {
    **dict.fromkeys(
        (
            A.view,
            A._unsafe_view,
            A.reshape,
            A.expand,
            A.new_zeros,
            A.new_full,
            A.new_ones,
            A.new_empty,
        ),
        _sizes(1),
    ),
    **dict.fromkeys((A.full, A.zeros, A.ones, A.empty, A.rand, A.randn), _sizes(0)),
    A.slice: _bounds(1),
    A.slice_scatter: _bounds(2),
    A.select: _select,
    A.split_with_sizes: _split,
    A.native_layer_norm: _layer_norm,
    A._fused_rms_norm: _layer_norm,
    A.rms_norm: _layer_norm,
    A.native_group_norm: _group_norm,
    A.convolution: _convolution,
    A.constant_pad_nd: _pad,
    A.repeat: _repeat,
    A.as_strided: _strided,
}
