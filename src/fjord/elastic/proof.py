"""The plan proves itself: on a copy with random weights, on the example inputs.

1. Permuting the units inside every family leaves the output unchanged.
2. A submodel equals the full model with the dropped units masked (see `masked`), and it trains.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from fjord.core.seeding import derive_seed
from fjord.core.width import Width
from fjord.elastic.errors import ADVICE, FORWARD_ERRORS, ElasticityError
from fjord.elastic.indexing import owned_copy, take_slice
from fjord.elastic.masked import MaskedModel, masked_tensors
from fjord.elastic.module_tensors import fresh_copy, named_tensors
from fjord.elastic.plan import Axis, WidthPlan
from fjord.elastic.random_weights import with_random_weights
from fjord.elastic.submodel.blueprint import Blueprint
from fjord.elastic.trace.example_inputs import cast_floats
from fjord.elastic.trace.model_trace import ModelTrace

A = torch.ops.aten

DOUBLE_TOLERANCE = 1e-9
SINGLE_TOLERANCE = 1e-4


@contextlib.contextmanager
def proof_setting(dtype: torch.dtype) -> Iterator[None]:
    """Compute in this precision, draw the same noise each time, and keep attention on its path.

    The fast path of `nn.MultiheadAttention` differs from what was traced.
    """
    dtype_before = torch.get_default_dtype()
    fastpath_before = torch.backends.mha.get_fastpath_enabled()
    torch.set_default_dtype(dtype)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(dtype_before)
        torch.backends.mha.set_fastpath_enabled(fastpath_before)


def relative_difference(output: Any, expected: Any) -> float:
    """Return the largest difference between two outputs, relative to the size of the second.

    >>> relative_difference(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    0.25
    """
    largest = 0.0
    leaves = zip(pytree.tree_leaves(output), pytree.tree_leaves(expected), strict=True)
    for x, y in leaves:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            continue
        if x.shape != y.shape:
            return float("inf")
        if x.numel():
            size = y.abs().max() + 1e-12
            difference = (x - y).abs().max() / size
            difference = difference.nan_to_num(nan=float("inf"))
            largest = max(largest, float(difference))
    return largest


def permuted_tensors(model: nn.Module, plan: WidthPlan, seed: int = 0) -> dict[str, Tensor]:
    """Return the tensors with the units of every family in a random order."""
    tensors = named_tensors(model)
    for name, tensor in tensors.items():
        tensors[name] = tensor.detach()
    for (name, dim), order in _random_orders(plan, seed).items():
        tensor = tensors[name]
        tensors[name] = tensor.index_select(dim, order.to(tensor.device))
    return tensors


def _random_orders(plan: WidthPlan, seed: int) -> dict[Axis, Tensor]:
    """Return a random order of the indices along each axis; all axes of a family agree."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "permutation"))
    orders: dict[Axis, Tensor] = {}
    for family in plan.families:
        unit_order = torch.randperm(family.num_units, generator=generator)
        for axis, indices in family.members.items():
            name, dim = axis
            if axis not in orders:
                orders[axis] = torch.arange(plan.shapes[name][dim])
            permuted = indices[unit_order]
            orders[axis][indices.reshape(-1)] = permuted.reshape(-1)
    return orders


class PlanProof:
    """Compares submodels with the masked model, on a copy of the model with random weights."""

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        trace: ModelTrace,
        plan: WidthPlan,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.model = with_random_weights(model, dtype)
        self.inputs = cast_floats(inputs, dtype)
        self.trace = trace
        self.plan = plan
        self.dtype = dtype
        self.tolerance = SINGLE_TOLERANCE
        if dtype is torch.float64 and not _casts_down(trace):
            self.tolerance = DOUBLE_TOLERANCE
        self.name = type(model).__name__
        self._full_output: Any = None
        self._masked_outputs: dict[Width, Any] = {}

    def with_trace(self, trace: ModelTrace, plan: WidthPlan) -> "PlanProof":
        """Return the same proof on another trace of the same model."""
        twin = copy.copy(self)
        twin.trace = trace
        twin.plan = plan
        if plan != self.plan:
            twin._masked_outputs = {}
            twin.check_permutation()
        return twin

    def full_output(self) -> Any:
        """Return the output of the model with random weights."""
        if self._full_output is None:
            with proof_setting(self.dtype):
                self._full_output = fresh_copy(self.model)(*self.inputs)
        return self._full_output

    def examples_are_independent(self) -> bool:
        """Check that an example has the same output alone and beside another: the axis is a batch.

        The inputs must hold one example.
        """
        two_examples = pytree.tree_map(_add_example, self.inputs)
        with proof_setting(self.dtype):
            outputs = fresh_copy(self.model)(*two_examples)
        first_outputs = pytree.tree_map(_first_example, outputs)
        return relative_difference(first_outputs, self.full_output()) <= SINGLE_TOLERANCE

    def permutation_error(self) -> float:
        """Return how much the output changes when units are permuted inside their families."""
        expected = self.full_output()
        with proof_setting(self.dtype):
            tensors = permuted_tensors(self.model, self.plan)
            output = functional_call(fresh_copy(self.model), tensors, self.inputs)
            return relative_difference(output, expected)

    def masked_output(self, width: Width) -> Any:
        """Return the output of the full model with all units outside the width masked."""
        if width not in self._masked_outputs:
            units = self.plan.leading_units(width)
            with proof_setting(self.dtype):
                tensors = masked_tensors(self.model, self.plan, units)
                masked = MaskedModel(self.trace, self.plan, units, tensors)
                leaves = pytree.tree_leaves(self.inputs)
                self._masked_outputs[width] = masked.run(*leaves)
        return self._masked_outputs[width]

    def cut_error(self, blueprint: Blueprint, width: Width) -> float:
        """Return how far the output of a submodel is from that of the masked model."""
        expected = self.masked_output(width)
        with proof_setting(self.dtype):
            submodel = self._build_submodel(blueprint, width).eval()
            return relative_difference(submodel(*self.inputs), expected)

    def check_runs(self, blueprint: Blueprint, width: Width, inputs: tuple[Any, ...]) -> None:
        """Run a submodel forward and backward, in both modes, on other inputs than the traced.

        Raise the error of the submodel, unless the full model fails on these inputs too.
        """
        inputs = cast_floats(inputs, self.dtype)
        with proof_setting(self.dtype), torch.enable_grad():
            for training in (True, False):
                try:
                    submodel = self._build_submodel(blueprint, width).train(training)
                    _run_backward(submodel(*inputs))
                except FORWARD_ERRORS:
                    if self._full_model_runs(inputs, training=training):
                        raise

    def _full_model_runs(self, inputs: tuple[Any, ...], *, training: bool) -> bool:
        try:
            model = copy.deepcopy(self.model).train(training)
            _run_backward(model(*inputs))
        except FORWARD_ERRORS:
            return False
        return True

    def _build_submodel(self, blueprint: Blueprint, width: Width) -> nn.Module:
        units = self.plan.leading_units(width)
        indices = self.plan.kept_indices(units)
        tensors = {}
        for name, tensor in named_tensors(self.model).items():
            sliced = take_slice(tensor, indices[name])
            tensors[name] = owned_copy(sliced, tensor)
        return blueprint.on(self.model).build(tensors, self.plan, units)

    def check_permutation(self) -> None:
        """Raise an error unless the output stays the same when units are permuted."""
        try:
            error = self.permutation_error()
        except FORWARD_ERRORS as raised:
            raise self.forward_failure(raised) from raised
        if not error <= self.tolerance:  # NaN is a failure too
            raise ElasticityError(
                f"{self.name}: permuting the units of a family changes the output by {error:.1e}, "
                f"so the plan is wrong or the output is not repeatable. {ADVICE}"
            )

    def forward_failure(self, raised: BaseException) -> ElasticityError:
        """Return the error that says that the model itself fails in this precision."""
        return ElasticityError(f"{self.name} does not run in {self.dtype}: {raised}. {ADVICE}")


def _run_backward(output: Any) -> None:
    sums = []
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            sums.append(leaf.sum())
    if sums:
        torch.stack(sums).sum().backward()


def _add_example(value: Any) -> Any:
    """Add a second, different example to the first."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    first = value[:1]
    second = first
    if value.dim() > 1:
        second = first.roll(1, -1)
    return torch.cat([first, second])


def _first_example(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dim():
        return value[:1]
    return value


def _casts_down(trace: ModelTrace) -> bool:
    """Return whether forward itself casts to a lower precision, which no proof can exceed."""
    lower_dtypes = (torch.float32, torch.float16, torch.bfloat16)
    for graph in trace.graphs.values():
        for node in graph.graph.nodes:
            is_cast = getattr(node.target, "overloadpacket", None) is A._to_copy
            if is_cast and node.kwargs.get("dtype") in lower_dtypes:
                if node.args[0].meta["val"].is_floating_point():
                    return True
    return False
