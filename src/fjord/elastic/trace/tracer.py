"""Trace a model: export its graphs and follow the unit ids through them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverloadPacket

from fjord.elastic.module_tensors import named_tensors, tied_names
from fjord.elastic.trace.example_inputs import as_input_tuple, resize_batch
from fjord.elastic.trace.graph import export_graph
from fjord.elastic.trace.model_trace import ModelTrace
from fjord.elastic.trace.probe import probe_forward
from fjord.elastic.trace.propagation import LabelPropagation
from fjord.elastic.trace.rules import RULES, RuleFunction


@dataclass(frozen=True)
class GraphTracer:
    """How to trace a model: its example inputs, whether any batch size fits, and extra rules."""

    model: nn.Module
    inputs: tuple[Any, ...]
    open_batch: bool = False
    rules: Mapping[OpOverloadPacket, RuleFunction] = field(default_factory=dict)

    def trace(self) -> ModelTrace:
        """Follow the unit ids in evaluation and, if other tensors are used there, in training."""
        floats: dict[str, Tensor] = {}
        result = ModelTrace(tied=tied_names(self.model))
        for name, tensor in named_tensors(self.model).items():
            result.owners[name] = []
            if tensor.is_floating_point():
                floats[name] = tensor
                result.owners[name] = [result.units.new_ids(size) for size in tensor.shape]
        result.dtype = _weights_dtype(floats)
        self.add_mode(result, training=False)
        unused = floats.keys() - result.used
        if unused and not _belong_to_norms(self.model, unused):
            self.add_mode(result, training=True)
        return result

    def add_mode(self, result: ModelTrace, *, training: bool) -> None:
        """Trace the model in one mode, with the same unit ids."""
        if training in result.graphs:
            return
        modes = {module: module.training for module in self.model.modules()}
        try:
            self.model.train(training)
            graph = export_graph(self.model, self.inputs, open_batch=self.open_batch)
        finally:
            for module, mode in modes.items():
                module.training = mode
        propagation = LabelPropagation(result, graph, {**RULES, **self.rules})
        result.graphs[training] = graph
        result.values[training] = propagation.run()


def _weights_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    for tensor in tensors.values():
        return tensor.dtype
    return torch.get_default_dtype()


def _belong_to_norms(model: nn.Module, names: Iterable[str]) -> bool:
    """Check whether all these tensors belong to batch norms: their statistics have known axes."""
    for name in names:
        owner = model.get_submodule(name.rpartition(".")[0])
        if not isinstance(owner, nn.modules.batchnorm._NormBase):
            return False
    return True


def trace_any_batch(
    model: nn.Module, example_inputs: Any, rules: Mapping[OpOverloadPacket, RuleFunction]
) -> ModelTrace:
    """Trace a model so that its graphs can be run themselves: on any batch size, in both modes."""
    inputs = as_input_tuple(example_inputs)
    probe = probe_forward(model, inputs)
    if probe.batched:
        inputs = resize_batch(inputs, 2)
    tracer = GraphTracer(model, inputs, open_batch=True, rules=rules)
    trace = tracer.trace()
    if not probe.modes_alike:
        tracer.add_mode(trace, training=True)
    trace.forget_weights()
    return trace
