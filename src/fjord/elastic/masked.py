"""The full model with units masked: what a cut submodel must equal.

Dropped units have zero weights; operations that average over units count the kept ones only.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Interpreter, Node

from fjord.elastic.masked_averages import AVERAGES, MaskedCall
from fjord.elastic.module_tensors import named_tensors
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.submodel.kept_units import KeptUnits
from fjord.elastic.trace.example_inputs import cast_floats
from fjord.elastic.trace.labels import UnitLabels, labels_along
from fjord.elastic.trace.model_trace import ModelTrace

A = torch.ops.aten

DIVISIONS = (A.div, A.reciprocal, A.rsqrt, A._weight_norm_interface)
"""Operations that may divide a dropped unit by its own zero norm."""


def masked_tensors(
    model: nn.Module, plan: WidthPlan, selection: UnitSelection
) -> dict[str, Tensor]:
    """Return full-size tensors with every dropped unit set to zero."""
    indices = plan.kept_indices(selection)
    result = {}
    for name, tensor in named_tensors(model).items():
        masked = tensor.detach()
        for dim, index in enumerate(indices[name]):
            if index is not None:
                mask = torch.zeros(tensor.shape[dim], dtype=tensor.dtype, device=tensor.device)
                mask[index] = 1
                masked = masked * labels_along(mask, dim, tensor.dim())
        result[name] = masked
    return result


class MaskedModel(Interpreter):
    """Runs the full graph on masked tensors; averages over units count the kept ones only."""

    def __init__(
        self,
        trace: ModelTrace,
        plan: WidthPlan,
        selection: UnitSelection,
        tensors: dict[str, Tensor],
    ) -> None:
        super().__init__(trace.graphs[False])
        self.values = trace.values[False]
        self.units = KeptUnits(trace, plan, selection)
        self.tensors = tensors
        self.tied = trace.tied
        self.traced_dtype = trace.dtype
        self.dtype = torch.get_default_dtype()

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Read a masked tensor instead of the full one."""
        if target in self.tied:
            return self.tensors[self.tied[target]]
        value = super().get_attr(target, args, kwargs)
        return cast_floats(value, self.dtype)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Skip the guards torch.export leaves in the graph."""

    def run_node(self, n: Node) -> Any:
        """Run one operation, on the kept units alone where it averages over them."""
        if n.op != "call_function":
            return super().run_node(n)
        if n.target is A._assert_tensor_metadata.default:  # it would insist on the traced precision
            return None
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if kwargs.get("dtype") == self.traced_dtype:
            kwargs = {**kwargs, "dtype": self.dtype}
        if n.target is A.view.default:  # masked weights may have other strides than the traced ones
            return self.call_function(A.reshape.default, args, kwargs)
        operation = getattr(n.target, "overloadpacket", None)
        if operation in AVERAGES:
            labels = self._input_labels(n)
            if labels is not None:
                call = MaskedCall(self, self.units, n, labels, list(args), kwargs)
                return AVERAGES[operation](call)
        result = self.call_function(n.target, args, kwargs)
        if operation in DIVISIONS:
            return self._zero_dropped(n, result)
        return result

    def _input_labels(self, node: Node) -> UnitLabels | None:
        """Return the labels of the first argument, if it is a tensor."""
        first = node.args[0]
        if not isinstance(first, Node):
            return None
        labels = self.values.get(first)
        if not isinstance(labels, UnitLabels):
            return None
        return labels

    def _zero_dropped(self, node: Node, result: Any) -> Any:
        """Put zeros where a dropped unit was divided by its own zero norm."""
        if not isinstance(result, Tensor):
            return (self._zero_dropped(node, result[0]), *result[1:])
        labels = self.values.get(node)
        if isinstance(labels, list):
            labels = labels[0]
        if isinstance(labels, UnitLabels) and result.is_floating_point():
            for dim in range(labels.rank):
                dropped = ~self.units.mask(labels, dim)
                if dropped.any():
                    result = result.index_fill(dim, dropped.nonzero()[:, 0], 0.0)
        return result
