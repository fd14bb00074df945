"""The model's own graph, and the unit ids of every value in it."""

import copy
import operator
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fjord.core.errors import UserError
from fjord.elastic.errors import ADVICE, FORWARD_ERRORS, ElasticityError
from fjord.elastic.trace.labels import UnitLabels, UnitTable
from fjord.elastic.trace.rules import RULES, OperatorCall, RuleFunction, describe, shape_of
from fjord.elastic.trace.rules.elementwise import elementwise

A = torch.ops.aten
WHOLE = (
    *(A.linear.default, A.scaled_dot_product_attention.default, A.detach.default),
    *(A.lstm.input, A.gru.input, A.rnn_tanh.input, A.rnn_relu.input),
)
"""Operations kept in one piece: their parts would hide what they are, and cost time."""


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, a tied tensor under its first name only."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def tied_names(model: nn.Module) -> dict[str, str]:
    """Map every name of every tensor to the first name of the same tensor."""
    first: dict[int, str] = {}
    names = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return {name: first.setdefault(id(tensor), name) for name, tensor in names}


def copy_module(model: nn.Module, replacements: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a model around other tensors; what modules cached of earlier passes is detached."""
    memo: dict[int, Any] = {id(t): replacements[name] for name, t in named_tensors(model).items()}
    for module in model.modules():
        for value in pytree.tree_leaves(
            {k: v for k, v in vars(module).items() if not k.startswith("_")}
        ):
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach()
    return copy.deepcopy(model, memo)


def fresh_copy(model: nn.Module) -> nn.Module:
    """Return a copy that shares all tensors: a forward may fill caches, which must not outlive it."""
    return copy_module(model, named_tensors(model))


def export_graph(model: nn.Module, inputs: tuple[Any, ...], *, open_batch: bool) -> GraphModule:
    """Return the graph of core ATen operations; with `open_batch` its batch size is free where the model allows it."""
    twin = fresh_copy(model)
    dynamic = pytree.tree_map(_open_first, inputs) if open_batch else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(twin, inputs, dynamic_shapes=dynamic)
            stops = any("set_grad_enabled" in str(node.target) for node in program.graph.nodes)
            graph = program.run_decompositions(_decompositions(tuple(torch.ops._dir))).module(
                check_guards=False
            )
    except Exception as error:  # torch.export raises many kinds; all mean that there is no graph
        _demand_run(model, inputs)
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        raise ElasticityError(
            f"{type(model).__name__} has no graph: torch.export says {type(error).__name__}: "
            f"{' '.join(lines[:3])[:600]}. A forward whose path depends on the data cannot be followed. {ADVICE}"
        ) from error
    assert isinstance(graph, GraphModule)
    graph.meta["stops_gradients"] = (
        stops  # torch.no_grad inside forward is lost with the decomposition
    )
    return graph


@cache
def _decompositions(namespaces: tuple[str, ...]) -> dict[OpOverload, Any]:
    """Return what becomes of each operation; torch looks at all there are, so once for the libraries loaded."""
    table = dict(torch.export.default_decompositions())
    return {operation: parts for operation, parts in table.items() if operation not in WHOLE}


def _demand_run(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise if the model does not even run on the example."""
    try:
        with torch.no_grad():
            fresh_copy(model)(*inputs)
    except FORWARD_ERRORS as error:
        shapes = [
            f"{tuple(v.shape)} of {v.dtype}" if isinstance(v, Tensor) else repr(v) for v in inputs
        ]
        raise UserError(
            f"example_inputs: {type(model).__name__} does not run on them ({'; '.join(shapes)}): {error}"
        ) from error


def _open_first(value: Any) -> Any:
    open_first = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] > 1
    return {0: torch.export.Dim.AUTO} if open_first else None


@dataclass
class ModelTrace:
    """A graph with the labels of every value, and the ids of every tensor of the model."""

    units: UnitTable = field(default_factory=UnitTable)
    owners: dict[str, list[Tensor]] = field(default_factory=dict)
    graphs: dict[bool, GraphModule] = field(default_factory=dict)
    values: dict[bool, dict[Node, Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    tied: dict[str, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    """The precision of the traced weights."""

    def forget_weights(self) -> None:
        """Let go of the model's weights: a graph that is run gets its own."""
        for graph in self.graphs.values():
            for path, module in graph.named_modules():
                for tensors in (module._parameters, module._buffers):
                    for leaf, tensor in tensors.items():
                        if tensor is not None and (f"{path}.{leaf}" if path else leaf) in self.tied:
                            tensors[leaf] = empty_like(tensor)


def empty_like(tensor: Tensor) -> Tensor:
    """Return a tensor of the same kind that takes no memory."""
    meta = torch.empty_like(tensor, device="meta")
    return nn.Parameter(meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else meta


@dataclass(frozen=True)
class GraphTracer:
    """How to trace a model: its example inputs, whether the batch stays open, and the user's own rules."""

    model: nn.Module
    inputs: tuple[Any, ...]
    open_batch: bool = False
    rules: Mapping[OpOverloadPacket, RuleFunction] = field(default_factory=dict)

    def trace(self) -> ModelTrace:
        """Follow the unit ids in evaluation and, where other tensors are used there, in training."""
        floats = {name: t for name, t in named_tensors(self.model).items() if t.is_floating_point()}
        dtype = next((t.dtype for t in floats.values()), torch.get_default_dtype())
        result = ModelTrace(tied=tied_names(self.model), dtype=dtype)
        for name, tensor in named_tensors(self.model).items():
            result.owners[name] = (
                [result.units.fresh(n) for n in tensor.shape] if name in floats else []
            )
        self.add_mode(result, training=False)
        if unused := floats.keys() - result.used:
            if not _only_norms(self.model, unused):
                self.add_mode(result, training=True)
        return result

    def add_mode(self, result: ModelTrace, *, training: bool) -> None:
        """Trace the model in one mode, into the same unit ids."""
        if training in result.graphs:
            return
        modes = {module: module.training for module in self.model.modules()}
        try:
            graph = export_graph(
                self.model.train(training), self.inputs, open_batch=self.open_batch
            )
        finally:
            for module, mode in modes.items():
                module.training = mode
        result.graphs[training] = graph
        result.values[training] = _Follower(result, graph, {**RULES, **self.rules}).run()


def _only_norms(model: nn.Module, names: Iterable[str]) -> bool:
    modules = dict(model.named_modules())
    return all(
        isinstance(modules[name.rpartition(".")[0]], nn.modules.batchnorm._NormBase)
        for name in names
    )


class _Follower:
    """Runs the ids through one graph, node by node."""

    def __init__(
        self, result: ModelTrace, graph: GraphModule, rules: Mapping[OpOverloadPacket, RuleFunction]
    ) -> None:
        self.result, self.graph, self.rules = result, graph, rules
        self.units = result.units
        self.env: dict[Node, Any] = {}
        self.constants: dict[Node, Tensor] = {}

    def run(self) -> dict[Node, Any]:
        for node in self.graph.graph.nodes:
            if node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "placeholder":
                self.env[node] = self._unlabelled(node.meta.get("val"))
            elif node.op == "output":
                self._freeze_output(node)
            elif node.op == "call_function":
                self.env[node] = self._call(node)
        return self.env

    def _attribute(self, node: Node) -> UnitLabels:
        name = self.result.tied.get(str(node.target))
        tensor = operator.attrgetter(str(node.target))(self.graph)
        if name is None or not tensor.is_floating_point():
            self.constants[node] = tensor
            return UnitLabels(tuple(tensor.shape), blank=tensor.numel() == 1)
        if node.users:
            self.result.used.add(name)
        rank = tensor.dim()
        channels = [
            ids.reshape([-1 if i == d else 1 for i in range(rank)])
            for d, ids in enumerate(self.result.owners[name])
        ]
        table = not isinstance(tensor, nn.Parameter)
        return UnitLabels(
            tuple(tensor.shape), [c for c in channels if c.numel() > 1], tensor.dim() == 0, table
        )

    def _unlabelled(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return UnitLabels(shape_of(value))
        if isinstance(value, list | tuple):
            return [self._unlabelled(v) for v in value]
        return (
            value.node.hint
            if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
            else value
        )

    def _freeze_output(self, node: Node) -> None:
        for value in pytree.tree_leaves(
            pytree.tree_map(lambda a: self.env.get(a, a) if isinstance(a, Node) else a, node.args)
        ):
            if isinstance(value, UnitLabels):
                for channel in value.channels:
                    self.units.freeze(channel, "model output")

    def _call(self, node: Node) -> Any:
        args, kwargs = pytree.tree_map(
            lambda a: self.env[a] if isinstance(a, Node) else a, (node.args, node.kwargs)
        )
        if node.target is operator.getitem:
            return args[0][args[1]]
        value = node.meta.get("val")
        outs = value if isinstance(value, list | tuple) else [value]
        if not isinstance(node.target, OpOverload) or not any(
            isinstance(out, Tensor) for out in outs
        ):
            return self._unlabelled(value)
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, UnitLabels):
                self.units.refresh(leaf)
        shapes = [shape_of(out) if isinstance(out, Tensor) else () for out in outs]
        call = OperatorCall(
            self.units, node, args, kwargs, shapes, isinstance(value, list | tuple), self.constants
        )
        self._fold(node)
        result = self._rule(call)(call)
        for labels in result if isinstance(result, list) else [result]:
            self.units.refresh(labels)
        return result

    def _rule(self, call: OperatorCall) -> RuleFunction:
        found = self.rules.get(call.operation)
        if found is None and torch.Tag.pointwise in call.overload.tags:
            return elementwise
        return found or (lambda c: c.freeze_all(f"there is no rule for {describe(c.node)}"))

    def _fold(self, node: Node) -> None:
        """Compute integer constants (index tables) in advance."""
        value = node.meta.get("val")
        small = (
            isinstance(value, Tensor) and not value.is_floating_point() and value.numel() <= 1 << 22
        )
        if small and all(n in self.constants for n in node.all_input_nodes):
            assert callable(node.target)
            args, kwargs = pytree.tree_map(
                lambda a: self.constants[a] if isinstance(a, Node) else a, (node.args, node.kwargs)
            )
            self.constants[node] = node.target(*args, **kwargs)
