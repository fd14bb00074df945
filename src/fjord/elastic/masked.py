"""The full model with units masked: what a cut submodel must equal.

Dropped units have zero weights; operations that average over units count the kept ones only.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Interpreter, Node

from fjord.elastic.module_tensors import named_tensors
from fjord.elastic.plan import UnitSelection, WidthPlan
from fjord.elastic.submodel.kept_units import KeptUnits
from fjord.elastic.trace.example_inputs import cast_floats
from fjord.elastic.trace.labels import UnitLabels, labels_along
from fjord.elastic.trace.model_trace import ModelTrace
from fjord.elastic.trace.rules.reduction import REDUCTIONS, reduced_dims

A = torch.ops.aten


DIVISIONS = (A.div, A.reciprocal, A.rsqrt, A._weight_norm_interface)


def masked_tensors(model: nn.Module, plan: WidthPlan, kept: UnitSelection) -> dict[str, Tensor]:
    """Return full-size tensors with every dropped unit set to zero."""
    indices, result = plan.kept_indices(kept), {}
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
        self, trace: ModelTrace, plan: WidthPlan, kept: UnitSelection, tensors: dict[str, Tensor]
    ) -> None:
        super().__init__(trace.graphs[False])
        self.values, self.units, self.tensors = (
            trace.values[False],
            KeptUnits(trace, plan, kept),
            tensors,
        )
        self.tied, self.traced, self.dtype = trace.tied, trace.dtype, torch.get_default_dtype()

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Read a masked tensor in place of the full one."""
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
        if kwargs.get("dtype") == self.traced:
            kwargs = {**kwargs, "dtype": self.dtype}
        if n.target is A.view.default:  # masked weights may have other strides than the traced ones
            return self.call_function(A.reshape.default, args, kwargs)
        gather = AVERAGES.get(getattr(n.target, "overloadpacket", None))
        x = self.values.get(n.args[0]) if gather and isinstance(n.args[0], Node) else None
        if gather is not None and isinstance(x, UnitLabels):
            return gather(self, n, x, list(args), kwargs)
        result = self.call_function(n.target, args, kwargs)
        return (
            self._without_nan(n, result)
            if getattr(n.target, "overloadpacket", None) in DIVISIONS
            else result
        )

    def _without_nan(self, node: Node, result: Any) -> Any:
        """Put zeros where a dropped unit was divided by its own zero norm."""
        labels = self.values.get(node)
        first = labels[0] if isinstance(labels, list) else labels
        value = result if isinstance(result, Tensor) else result[0]
        if isinstance(first, UnitLabels) and value.is_floating_point():
            for dim in range(first.rank):
                mask = self.units.mask(first, dim)
                if not mask.all():
                    value = value.index_fill(dim, (~mask).nonzero()[:, 0], 0.0)
        return value if isinstance(result, Tensor) else (value, *result[1:])

    def kept(self, x: UnitLabels, dims: Any) -> dict[int, Tensor]:
        """Return the kept indices along those axes that lose units."""
        masks = {dim: self.units.mask(x, dim) for dim in dims}
        return {dim: mask.nonzero()[:, 0] for dim, mask in masks.items() if not mask.all()}


def _pick(tensor: Tensor | None, kept: dict[int, Tensor]) -> Any:
    if tensor is not None:
        for dim, index in kept.items():
            tensor = tensor.index_select(dim, index)
    return tensor


def _spread(result: Tensor, like: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """Put the kept positions back into a full-size value of zeros."""
    for dim, index in kept.items():
        shape = [like.shape[d] if d == dim else n for d, n in enumerate(result.shape)]
        result = result.new_zeros(shape).index_copy_(dim, index, result)
    return result


def _reduce(
    run: MaskedModel, node: Node, x: UnitLabels, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    def get(position: int, name: str) -> Any:
        return args[position] if len(args) > position else kwargs.get(name)

    if len(args) > 1 and isinstance(args[1], Tensor):  # max(a, b) is element by element
        return run.call_function(node.target, tuple(args), kwargs)
    assert isinstance(node.target, OpOverload)
    args[0] = _pick(args[0], run.kept(x, reduced_dims(node.target.overloadpacket, get, x.rank)))
    return run.call_function(node.target, tuple(args), kwargs)


def _layer_norm(
    run: MaskedModel, node: Node, x: UnitLabels, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    first = x.rank - len(args[1])
    kept = run.kept(x, range(first, x.rank))
    inner = {dim - first: index for dim, index in kept.items()}
    picked = _pick(args[0], kept)
    new = [picked, list(picked.shape[first:]), *(_pick(a, inner) for a in args[2:4]), *args[4:]]
    result = run.call_function(node.target, tuple(new), kwargs)
    if isinstance(result, Tensor):
        return _spread(result, args[0], kept)
    return (_spread(result[0], args[0], kept), *result[1:])


def _group_norm(
    run: MaskedModel, node: Node, x: UnitLabels, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    kept = run.kept(x, [1])
    if args[6] > 1 or not kept:  # whole groups are dropped: the others do not notice
        return run.call_function(node.target, tuple(args), kwargs)
    affine = {0: kept[1]}
    new = [
        _pick(args[0], kept),
        _pick(args[1], affine),
        _pick(args[2], affine),
        args[3],
        len(kept[1]),
        *args[5:],
    ]
    result = run.call_function(node.target, tuple(new), kwargs)
    return (_spread(result[0], args[0], kept), *result[1:])


def _batch_norm(
    run: MaskedModel, node: Node, x: UnitLabels, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    kept = run.kept(x, [d for d in range(x.rank) if d != 1])
    result = run.call_function(node.target, (_pick(args[0], kept), *args[1:]), kwargs)
    return (_spread(result[0], args[0], kept), *result[1:])


AVERAGES: dict[Any, Callable[[MaskedModel, Node, UnitLabels, list[Any], dict[str, Any]], Any]] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(
        (A.native_layer_norm, A.layer_norm, A.rms_norm, A._fused_rms_norm), _layer_norm
    ),
    A.native_group_norm: _group_norm,
    A._native_batch_norm_legit: _batch_norm,
}
