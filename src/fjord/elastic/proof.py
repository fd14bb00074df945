"""The plan proves itself: on a copy with random weights, on the example inputs.

1. Permuting the units inside every family leaves the output unchanged.
2. A cut submodel equals the full model with the dropped units masked (see `masked`), and runs in training.
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
from fjord.elastic.module_tensors import copy_module, fresh_copy, named_tensors
from fjord.elastic.plan import Axis, WidthPlan
from fjord.elastic.submodel.blueprint import Blueprint
from fjord.elastic.trace.example_inputs import cast_floats
from fjord.elastic.trace.model_trace import ModelTrace

A = torch.ops.aten


def randomised(model: nn.Module, dtype: torch.dtype, seed: int = 0) -> nn.Module:
    """Return a copy in this precision, in evaluation mode, whose weights make every slice matter."""
    tensors = named_tensors(model)
    twin = (
        copy_module(model, {name: owned_copy(t, t) for name, t in tensors.items()}).to(dtype).eval()
    )
    generator = torch.Generator().manual_seed(derive_seed(seed, "proof"))
    with torch.no_grad():
        for tensor in named_tensors(twin).values():
            if tensor.is_floating_point():
                _randomise(tensor, generator)
    return twin


def _randomise(tensor: Tensor, generator: torch.Generator) -> None:
    """Draw vectors anew (biases, norms, scales start at 0, 1 or 1e-6) and matrices that start out constant."""
    if tensor.dim() > 1 and tensor[0].numel() > 1 and float(tensor[0].std()) > 1e-6:
        return
    noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
    if not isinstance(tensor, nn.Parameter) and bool((tensor >= 0).all()):
        tensor.copy_(noise.abs() + 0.5)  # a variance must stay one
    else:
        tensor.copy_(
            0.3 * noise + 1
            if bool((tensor == 1).all())
            else (0.3 if tensor.dim() <= 1 else 0.1) * noise
        )


@contextlib.contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """Compute in this precision, draw the same noise each time, and keep attention on its plain path."""
    before, fast = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    torch.set_default_dtype(dtype)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(before)
        torch.backends.mha.set_fastpath_enabled(fast)


def distance(a: Any, b: Any) -> float:
    """Return the largest difference between two outputs, relative to the size of the second."""
    worst = 0.0
    for x, y in zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True):
        if isinstance(x, Tensor) and x.is_floating_point():
            if x.shape != y.shape:
                return float("inf")
            if x.numel():
                worst = max(
                    worst,
                    float(
                        ((x - y).abs().max() / (y.abs().max() + 1e-12)).nan_to_num(nan=float("inf"))
                    ),
                )
    return worst


def permuted(model: nn.Module, plan: WidthPlan, seed: int = 0) -> dict[str, Tensor]:
    """Return the tensors with the units of every family in a random order."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "permutation"))
    orders: dict[Axis, Tensor] = {}
    for family in plan.families:
        order = torch.randperm(family.num_units, generator=generator)
        for (name, dim), indices in family.members.items():
            axis = orders.setdefault((name, dim), torch.arange(plan.shapes[name][dim]))
            axis[indices.reshape(-1)] = indices[order].reshape(-1)
    tensors = {name: t.detach() for name, t in named_tensors(model).items()}
    for (name, dim), order in orders.items():
        tensors[name] = tensors[name][(slice(None),) * dim + (order.to(tensors[name].device),)]
    return tensors


class PlanProof:
    """The randomised model and what it answers with units masked, against which plans and cuts are judged."""

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        trace: ModelTrace,
        plan: WidthPlan,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.model, self.inputs, self.trace, self.plan = (
            randomised(model, dtype),
            cast_floats(inputs, dtype),
            trace,
            plan,
        )
        self.dtype = dtype
        self.tolerance = 1e-9 if dtype is torch.float64 and not _casts_down(trace) else 1e-4
        self.name = type(model).__name__
        self._masked: dict[Width, Any] = {}
        self._answer: Any = None

    def again(self, trace: ModelTrace, plan: WidthPlan) -> "PlanProof":
        """Return the same proof on another trace of the same model."""
        twin = copy.copy(self)
        twin.trace, twin.plan = trace, plan
        if plan != self.plan:
            twin._masked = {}
            twin.demand_permutation()
        return twin

    def answer(self) -> Any:
        """Return what the randomised model answers."""
        if self._answer is None:
            with precision(self.dtype):
                self._answer = fresh_copy(self.model)(*self.inputs)
        return self._answer

    def examples_are_independent(self) -> bool:
        """Say whether an example is answered alike alone and in other company, so that the first axis is a batch."""
        with precision(self.dtype):
            two = fresh_copy(self.model)(*pytree.tree_map(_with_another, self.inputs))
        firsts = pytree.tree_map(lambda v: v[:1] if isinstance(v, Tensor) and v.dim() else v, two)
        return distance(firsts, self.answer()) <= 1e-4

    def permutation_error(self) -> float:
        """Return how much the output changes when units are permuted inside their families."""
        answer = self.answer()
        with precision(self.dtype):
            return distance(
                functional_call(
                    fresh_copy(self.model), permuted(self.model, self.plan), self.inputs
                ),
                answer,
            )

    def masked(self, width: Width) -> Any:
        """Return what the full model answers with all units outside the width masked."""
        if width not in self._masked:
            kept = self.plan.leading_units(width)
            with precision(self.dtype):
                run = MaskedModel(
                    self.trace, self.plan, kept, masked_tensors(self.model, self.plan, kept)
                )
                self._masked[width] = run.run(*pytree.tree_leaves(self.inputs))
        return self._masked[width]

    def cut_error(self, blueprint: Blueprint, width: Width) -> float:
        """Return how far a submodel lies from the masked model."""
        masked = self.masked(width)
        with precision(self.dtype):
            return distance(self._built(blueprint, width).eval()(*self.inputs), masked)

    def run_for_real(self, blueprint: Blueprint, width: Width, inputs: tuple[Any, ...]) -> None:
        """Run a submodel forward and backward, in both modes, on other inputs than it was traced with."""
        inputs = cast_floats(inputs, self.dtype)
        with precision(self.dtype), torch.enable_grad():
            for mode in (True, False):
                try:
                    _backward(self._built(blueprint, width).train(mode)(*inputs))
                except FORWARD_ERRORS:
                    try:
                        _backward(copy.deepcopy(self.model).train(mode)(*inputs))
                    except FORWARD_ERRORS:
                        continue  # the full model does not take these inputs either
                    raise

    def _built(self, blueprint: Blueprint, width: Width) -> nn.Module:
        kept = self.plan.leading_units(width)
        indices = self.plan.kept_indices(kept)
        tensors = {
            name: owned_copy(take_slice(t, indices[name]), t)
            for name, t in named_tensors(self.model).items()
        }
        return blueprint.on(self.model).build(tensors, self.plan, kept)

    def demand_permutation(self) -> None:
        """Raise unless the plan survives the permutation."""
        try:
            error = self.permutation_error()
        except FORWARD_ERRORS as raised:
            raise ElasticityError(
                f"{self.name} does not run in {self.dtype}: {raised}. {ADVICE}"
            ) from raised
        if not error <= self.tolerance:
            raise ElasticityError(
                f"{self.name}: permuting the units of a family changes the output by {error:.1e}, so the plan is "
                f"wrong or the output is not repeatable. {ADVICE}"
            )


def _backward(output: Any) -> None:
    sums = [
        o.sum() for o in pytree.tree_leaves(output) if isinstance(o, Tensor) and o.requires_grad
    ]
    if sums:
        torch.stack(sums).sum().backward()


def _with_another(value: Any) -> Any:
    """Add a second, different example to the first."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return torch.cat([value[:1], value[:1].roll(1, -1) if value.dim() > 1 else value[:1]])


def _casts_down(trace: ModelTrace) -> bool:
    """Say whether the model itself computes in single precision at places, so that no proof can be sharper."""
    down = (torch.float32, torch.float16, torch.bfloat16)
    nodes = [node for graph in trace.graphs.values() for node in graph.graph.nodes]
    casts = [node for node in nodes if getattr(node.target, "overloadpacket", None) is A._to_copy]
    return any(
        n.kwargs.get("dtype") in down and n.args[0].meta["val"].is_floating_point() for n in casts
    )
