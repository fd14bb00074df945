"""Propagate unit ids through a graph: rules turn the labels of inputs into those of outputs."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fjord.elastic.trace.labels import UnitLabels, labels_along
from fjord.elastic.trace.model_trace import ModelTrace
from fjord.elastic.trace.rules import (
    OperatorCall,
    RuleFunction,
    RuleResult,
    describe_node,
    traced_shape,
)
from fjord.elastic.trace.rules.elementwise import elementwise

MAX_CONSTANT_SIZE = 1 << 22
"""Integer constants with more elements are not computed in advance."""


class LabelPropagation:
    """One pass through a graph that labels every value with unit ids, node by node."""

    def __init__(
        self,
        trace: ModelTrace,
        graph: GraphModule,
        rules: Mapping[OpOverloadPacket, RuleFunction],
    ) -> None:
        self.trace = trace
        self.units = trace.units
        self.graph = graph
        self.rules = rules
        self.values: dict[Node, Any] = {}
        self.constants: dict[Node, Tensor] = {}

    def run(self) -> dict[Node, Any]:
        """Return the labels of every value of the graph."""
        for node in self.graph.graph.nodes:
            if node.op == "get_attr":
                self.values[node] = self._label_attribute(node)
            elif node.op == "placeholder":
                self.values[node] = _unlabelled(node.meta.get("val"))
            elif node.op == "output":
                self._freeze_output(node)
            elif node.op == "call_function":
                self.values[node] = self._label_call(node)
        return self.values

    def _label_attribute(self, node: Node) -> UnitLabels:
        """Return the labels of a tensor of the model, or of a constant of the graph."""
        path = str(node.target)
        name = self.trace.tied.get(path)
        tensor = operator.attrgetter(path)(self.graph)
        shape = tuple(tensor.shape)
        if name is None or not tensor.is_floating_point():
            self.constants[node] = tensor
            return UnitLabels(shape, blank=tensor.numel() == 1)
        if node.users:
            self.trace.used.add(name)
        channels = []
        for dim, ids in enumerate(self.trace.owners[name]):
            if len(ids) > 1:
                channels.append(labels_along(ids, dim, len(shape)))
        is_table = not isinstance(tensor, nn.Parameter)
        return UnitLabels(shape, channels, blank=not shape, table=is_table)

    def _freeze_output(self, node: Node) -> None:
        """Keep the model's outputs whole: their size is part of what the model promises."""
        for source in node.all_input_nodes:
            for value in pytree.tree_leaves(self.values.get(source)):
                if isinstance(value, UnitLabels):
                    for channel in value.channels:
                        self.units.freeze(channel, "model output")

    def _labels_of(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self.values[argument]
        return argument

    def _label_call(self, node: Node) -> Any:
        """Apply the rule of an operation to the labels of its arguments."""
        args, kwargs = pytree.tree_map(self._labels_of, (node.args, node.kwargs))
        if node.target is operator.getitem:
            return args[0][args[1]]
        value = node.meta.get("val")
        several = isinstance(value, list | tuple)
        outputs: Sequence[Any] = value if several else [value]  # type: ignore[assignment]
        has_tensors = any(isinstance(output, Tensor) for output in outputs)
        if not has_tensors or not isinstance(node.target, OpOverload):
            return _unlabelled(value)
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, UnitLabels):
                self.units.refresh(leaf)
        shapes = [_output_shape(output) for output in outputs]
        call = OperatorCall(self.units, node, args, kwargs, shapes, several, self.constants)
        self._compute_constant(node)
        result = self._apply_rule(call)
        for labels in result if isinstance(result, list) else [result]:
            self.units.refresh(labels)
        return result

    def _apply_rule(self, call: OperatorCall) -> RuleResult:
        rule = self.rules.get(call.operation)
        if rule is not None:
            return rule(call)
        if torch.Tag.pointwise in call.overload.tags:
            return elementwise(call)
        return call.freeze_all(f"there is no rule for {describe_node(call.node)}")

    def _compute_constant(self, node: Node) -> None:
        """Compute integer constants (index tables) in advance: the rule of `index` follows them."""
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.is_floating_point():
            return
        if value.numel() > MAX_CONSTANT_SIZE:
            return
        if any(source not in self.constants for source in node.all_input_nodes):
            return
        assert callable(node.target)
        args, kwargs = pytree.tree_map(self._constant_of, (node.args, node.kwargs))
        self.constants[node] = node.target(*args, **kwargs)

    def _constant_of(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self.constants[argument]
        return argument


def _output_shape(output: Any) -> tuple[int, ...]:
    if isinstance(output, Tensor):
        return traced_shape(output)
    return ()


def _unlabelled(value: Any) -> Any:
    """Return labels without ids for tensors, and plain numbers for symbolic ones."""
    if isinstance(value, Tensor):
        return UnitLabels(traced_shape(value))
    if isinstance(value, list | tuple):
        return [_unlabelled(item) for item in value]
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint
    return value
