"""The plan proves itself: on a copy with random weights, on the example inputs.

In double precision; large models in single precision first, and in double before they are refused.

1. Permuting the units inside every family leaves the output unchanged.
2. A cut submodel equals the full model with the dropped units masked, where operations that
   average over units count the kept ones only.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.func import functional_call
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from fjord.elastic.blueprint import Blueprint
from fjord.elastic.errors import ADVICE, ElasticityError
from fjord.elastic.graph_cut import KeptUnits
from fjord.elastic.labels import Labels, along
from fjord.elastic.plan import Axis, Kept, WidthPlan, own, take
from fjord.elastic.rules.elementwise import reduced_dims
from fjord.elastic.trace import Trace, fresh_copy, named_tensors
from fjord.seeding import derive
from fjord.width import Width

A = torch.ops.aten


def randomised(model: nn.Module, dtype: torch.dtype, seed: int = 0) -> nn.Module:
    """Return a copy in this precision, in evaluation mode, whose weights make every slice matter."""
    twin = copy.deepcopy(model).to(dtype).eval()
    generator = torch.Generator().manual_seed(derive(seed, "proof"))
    with torch.no_grad():
        for name, tensor in named_tensors(twin).items():
            if tensor.is_floating_point():
                _randomise(name, tensor, generator)
    return twin


def _randomise(name: str, tensor: Tensor, generator: torch.Generator) -> None:
    """Draw vectors anew (biases, norms, scales start at 0, 1 or 1e-6) and matrices that start out constant."""
    if tensor.dim() > 1 and float(tensor[0].std()) > 1e-6:
        return
    noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
    if name.endswith("running_var"):
        tensor.copy_(noise.abs() + 0.5)
    elif tensor.dim() <= 1:
        tensor.copy_(0.3 * noise + name.endswith("weight"))
    else:
        tensor.copy_(0.1 * noise)


@contextlib.contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """Make tensors created inside `forward` of this precision as well, and keep attention on its plain path."""
    before, fast = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    torch.set_default_dtype(dtype)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)
        torch.backends.mha.set_fastpath_enabled(fast)


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Return inputs with every floating tensor in this precision."""
    return pytree.tree_map(lambda v: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v, inputs)


def distance(a: Any, b: Any) -> float:
    """Return the largest difference between two outputs, relative to the size of the second."""
    worst = 0.0
    for x, y in zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True):
        if isinstance(x, Tensor) and x.is_floating_point():
            if x.shape != y.shape:
                return float("inf")
            if x.numel():
                worst = max(worst, float(((x - y).abs().max() / (y.abs().max() + 1e-12)).nan_to_num(nan=float("inf"))))
    return worst


def permuted(model: nn.Module, plan: WidthPlan, seed: int = 0) -> dict[str, Tensor]:
    """Return the tensors with the units of every family in a random order."""
    generator = torch.Generator().manual_seed(derive(seed, "permutation"))
    orders: dict[Axis, Tensor] = {}
    for family in plan.families:
        order = torch.randperm(family.units, generator=generator)
        for (name, dim), indices in family.members.items():
            axis = orders.setdefault((name, dim), torch.arange(plan.shapes[name][dim]))
            axis[indices.reshape(-1)] = indices[order].reshape(-1)
    tensors = {name: t.detach() for name, t in named_tensors(model).items()}
    for (name, dim), order in orders.items():
        tensors[name] = tensors[name][(slice(None),) * dim + (order.to(tensors[name].device),)]
    return tensors


def masked_tensors(model: nn.Module, plan: WidthPlan, kept: Kept) -> dict[str, Tensor]:
    """Return full-size tensors with every dropped unit set to zero."""
    indices, result = plan.kept_indices(kept), {}
    for name, tensor in named_tensors(model).items():
        masked = tensor.detach()
        for dim, index in enumerate(indices[name]):
            if index is not None:
                mask = torch.zeros(tensor.shape[dim], dtype=tensor.dtype, device=tensor.device)
                mask[index] = 1
                masked = masked * along(mask, dim, tensor.dim())
        result[name] = masked
    return result


class Masked(Interpreter):
    """Runs the full graph on masked tensors; averages over units count the kept ones only."""

    def __init__(self, trace: Trace, plan: WidthPlan, kept: Kept, tensors: dict[str, Tensor]) -> None:
        super().__init__(trace.graphs[False])
        self.values, self.units, self.tensors = trace.values[False], KeptUnits(trace, plan, kept), tensors
        self.tied, self.dtype = trace.tied, torch.get_default_dtype()

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Read a masked tensor in place of the full one."""
        if target in self.tied:
            return self.tensors[self.tied[target]]
        value = super().get_attr(target, args, kwargs)
        return cast(value, self.dtype)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Skip the guards torch.export leaves in the graph."""

    def run_node(self, n: Node) -> Any:
        """Run one operation, on the kept units alone where it averages over them."""
        if n.op != "call_function":
            return super().run_node(n)
        if n.target is A._assert_tensor_metadata.default:  # it would insist on the traced precision
            return None
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if kwargs.get("dtype") == torch.float32:
            kwargs = {**kwargs, "dtype": self.dtype}
        gather = AVERAGES.get(getattr(n.target, "overloadpacket", None))
        x = self.values.get(n.args[0]) if gather and isinstance(n.args[0], Node) else None
        if gather is not None and isinstance(x, Labels):
            return gather(self, n, x, list(args), kwargs)
        return self.call_function(n.target, args, kwargs)

    def kept(self, x: Labels, dims: Any) -> dict[int, Tensor]:
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


def _reduce(run: Masked, node: Node, x: Labels, args: list[Any], kwargs: dict[str, Any]) -> Any:
    def get(position: int, name: str) -> Any:
        return args[position] if len(args) > position else kwargs.get(name)

    if len(args) > 1 and isinstance(args[1], Tensor):  # max(a, b) is element by element
        return run.call_function(node.target, tuple(args), kwargs)
    assert isinstance(node.target, OpOverload)
    args[0] = _pick(args[0], run.kept(x, reduced_dims(node.target.overloadpacket, get, x.rank)))
    return run.call_function(node.target, tuple(args), kwargs)


def _layer_norm(run: Masked, node: Node, x: Labels, args: list[Any], kwargs: dict[str, Any]) -> Any:
    first = x.rank - len(args[1])
    kept = run.kept(x, range(first, x.rank))
    inner = {dim - first: index for dim, index in kept.items()}
    picked = _pick(args[0], kept)
    new = [picked, list(picked.shape[first:]), *(_pick(a, inner) for a in args[2:4]), *args[4:]]
    result = run.call_function(node.target, tuple(new), kwargs)
    if isinstance(result, Tensor):
        return _spread(result, args[0], kept)
    return (_spread(result[0], args[0], kept), *result[1:])


def _group_norm(run: Masked, node: Node, x: Labels, args: list[Any], kwargs: dict[str, Any]) -> Any:
    kept = run.kept(x, [1])
    if args[6] > 1 or not kept:  # whole groups are dropped: the others do not notice
        return run.call_function(node.target, tuple(args), kwargs)
    affine = {0: kept[1]}
    new = [_pick(args[0], kept), _pick(args[1], affine), _pick(args[2], affine), args[3], len(kept[1]), *args[5:]]
    result = run.call_function(node.target, tuple(new), kwargs)
    return (_spread(result[0], args[0], kept), *result[1:])


def _batch_norm(run: Masked, node: Node, x: Labels, args: list[Any], kwargs: dict[str, Any]) -> Any:
    kept = run.kept(x, [d for d in range(x.rank) if d != 1])
    result = run.call_function(node.target, (_pick(args[0], kept), *args[1:]), kwargs)
    return (_spread(result[0], args[0], kept), *result[1:])


AVERAGES: dict[Any, Callable[[Masked, Node, Labels, list[Any], dict[str, Any]], Any]] = {
    **dict.fromkeys(
        (
            A.mean,
            A.sum,
            A.amax,
            A.amin,
            A.any,
            A.all,
            A.var,
            A.var_mean,
            A.std,
            A.max,
            A.min,
            A.prod,
            A.linalg_vector_norm,
            A.logsumexp,
        ),
        _reduce,
    ),
    **dict.fromkeys((A.native_layer_norm, A.layer_norm, A.rms_norm, A._fused_rms_norm), _layer_norm),
    A.native_group_norm: _group_norm,
    A._native_batch_norm_legit: _batch_norm,
}


class Proof:
    """The randomised model and what it answers with units masked, against which plans and cuts are judged."""

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        trace: Trace,
        plan: WidthPlan,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.model, self.inputs, self.trace, self.plan = randomised(model, dtype), cast(inputs, dtype), trace, plan
        self.dtype = dtype
        self.tolerance = 1e-9 if dtype is torch.float64 and not _casts_down(trace) else 1e-4
        self.name = type(model).__name__
        self._masked: dict[Width, Any] = {}

    def again(self, trace: Trace, plan: WidthPlan) -> "Proof":
        """Return the same proof on another trace of the same model."""
        twin = copy.copy(self)
        twin.trace, twin.plan = trace, plan
        if plan != self.plan:
            twin._masked = {}
            twin.demand_permutation()
        return twin

    def permutation_error(self) -> float:
        """Return how much the output changes when units are permuted inside their families."""
        with precision(self.dtype):
            before = fresh_copy(self.model)(*self.inputs)
            after = functional_call(fresh_copy(self.model), permuted(self.model, self.plan), self.inputs)
            return distance(after, before)

    def masked(self, width: Width) -> Any:
        """Return what the full model answers with all units outside the width masked."""
        if width not in self._masked:
            kept = self.plan.ordered(width)
            run = Masked(self.trace, self.plan, kept, masked_tensors(self.model, self.plan, kept))
            self._masked[width] = run.run(*pytree.tree_leaves(self.inputs))
        return self._masked[width]

    def cut_error(self, blueprint: Blueprint, width: Width) -> float:
        """Return how far a submodel lies from the masked model."""
        kept = self.plan.ordered(width)
        indices = self.plan.kept_indices(kept)
        with precision(self.dtype):
            tensors = {name: own(take(t, indices[name]), t) for name, t in named_tensors(self.model).items()}
            net = blueprint.on(self.model).build(tensors, self.plan, kept).eval()
            return distance(net(*self.inputs), self.masked(width))

    def demand_permutation(self) -> None:
        """Raise unless the plan survives the permutation."""
        error = self.permutation_error()
        if not error <= self.tolerance:
            raise ElasticityError(
                f"{self.name}: permuting the units of a family changes the output by {error:.1e}, so the plan is "
                f"wrong; this is a fault in a rule, please report the model. {ADVICE}"
            )


def _casts_down(trace: Trace) -> bool:
    """Say whether the model itself computes in single precision at places, so that no proof can be sharper."""
    down = (torch.float32, torch.float16, torch.bfloat16)
    nodes = [node for graph in trace.graphs.values() for node in graph.graph.nodes]
    casts = [node for node in nodes if getattr(node.target, "overloadpacket", None) is A._to_copy]
    return any(n.kwargs.get("dtype") in down and n.args[0].meta["val"].is_floating_point() for n in casts)
