"""Any torch optimizer, stepping on slices: a step at width p changes F_p only, and so its state."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.elastic.indexing import (
    AxisIndices,
    put_slice,
    relative_indices,
    sliced_shape,
    strided_view,
    take_slice,
)
from fjord.elastic.model import ElasticModel
from fjord.elastic.submodel.shared import SharedSubmodel, TensorSlice

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
CorrectGradient = Callable[[TensorSlice], None]
COUNTERS = {"step": 0, "mu_product": 1}
"""Optimizer state that a step changes even where the gradient is zero, with its initial value."""


class SlicedOptimizer:
    """Steps the submodels of an elastic model with full-size optimizer state, sliced alike.

    `full` is an ordinary torch optimizer over the full-size weights: attach learning-rate
    schedulers to it.
    """

    def __init__(self, model: ElasticModel, make: MakeOptimizer) -> None:
        if not callable(make):
            raise UserError(
                "optimizer must be a function of parameters, such as "
                f"functools.partial(torch.optim.SGD, lr=0.1), not a {type(make).__name__}"
            )
        self.model = model
        self.make = make
        self.params = dict(model.named_parameters())
        self.full = make(self.params.values())
        if len(self.full.param_groups) != 1:
            raise UserError("the optimizer must hold all parameters in one group")
        self._init_state()
        # The optimizer of each submodel, by the id of the submodel.
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        # Views of the full-size state, by the id of the tensor that an optimizer steps.
        self._state_views: dict[int, dict[str, Tensor | None]] = {}
        # The tensors that two submodels share, by the ids of the submodels.
        self._overlaps: dict[tuple[int, int], list[_GradientOverlap]] = {}

    def _init_state(self) -> None:
        """Give every weight its full-size state now: the first steps may reach only a part of it.

        The state comes from a step of another optimizer on zeros with zero gradients: then weight
        decay leaves no trace in it.
        """
        scratch = {}
        for key, parameter in self.params.items():
            scratch[key] = nn.Parameter(torch.zeros_like(parameter))
        trial = self.make(scratch.values())
        for parameter in scratch.values():
            parameter.grad = torch.zeros_like(parameter)
        kind = type(trial).__name__
        try:
            trial.step()
        except TypeError as error:
            raise UserError(
                f"{kind} needs a closure, which a step on slices does not have"
            ) from error
        for key, parameter in scratch.items():
            state = dict(trial.state[parameter])
            for counter, start in COUNTERS.items():
                if counter in state:
                    state[counter] = state[counter] * 0 + start
            unsliceable = _unsliceable_state(state, parameter.shape)
            if unsliceable:
                raise UserError(
                    f"{kind} keeps {', '.join(unsliceable)} in a shape of its own, "
                    "which cannot be sliced"
                )
            self.full.state[self.params[key]] = state

    def reset_state(self) -> None:
        """Reset momentum and the like, as in a new optimizer."""
        if any(self.full.state.values()):
            self._init_state()
            self._state_views.clear()

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for submodel in self.model.shared_submodels():
            submodel.clear_gradients()

    def step(self, correct: CorrectGradient | None = None) -> None:
        """Step every submodel that has gradients.

        The gradients of weights that submodels share are summed, and stepped once, in the widest.
        `correct` may change the summed gradient of each slice, once, before the step.
        """
        submodels = self._submodels_with_gradients()
        for narrow in submodels[1:]:
            self._add_gradients(submodels[0], narrow)
        for submodel in submodels:
            self._step_submodel(submodel, correct)
        for submodel in self.model.shared_submodels():
            if submodel.exposed:
                submodel.pull()
        # Schedulers warn of an optimizer that never steps.
        self.full._opt_called = True  # type: ignore[attr-defined]

    def _submodels_with_gradients(self) -> list[SharedSubmodel]:
        """Return the submodels to step, the widest first."""
        submodels = []
        for submodel in self.model.shared_submodels():
            if any(part.tensor.grad is not None for part in submodel.trainable):
                submodels.append(submodel)
        if not submodels:
            raise UserError(
                "no submodel of the model has gradients: "
                "call backward() on the loss of model.at(width)"
            )
        submodels.sort(key=lambda submodel: submodel.size, reverse=True)
        return submodels

    def _step_submodel(self, submodel: SharedSubmodel, correct: CorrectGradient | None) -> None:
        """Step the slices of one submodel that have gradients."""
        slices = [part for part in submodel.trainable if part.tensor.grad is not None]
        if correct is not None:
            for part in slices:
                correct(part)
        optimizer = self._slice_optimizer(submodel)
        if _is_plain_sgd(self.full):
            self._descend(slices)
        else:
            self._step_slices(slices, optimizer)
        submodel.push_statistics()

    def _slice_optimizer(self, submodel: SharedSubmodel) -> torch.optim.Optimizer:
        """Return the optimizer of a submodel; it gets its state at each step."""
        optimizer = self._optimizers.get(id(submodel))
        if optimizer is None:
            optimizer = self._make_optimizer(submodel)
            self._optimizers[id(submodel)] = optimizer
        return optimizer

    def _make_optimizer(self, submodel: SharedSubmodel) -> torch.optim.Optimizer:
        tensors = []
        for part in submodel.slices.values():
            if part.key not in self.params:
                continue
            if part.source is not self.params[part.key]:
                raise UserError("the model was moved after its optimizer was made: make a new one")
            tensors.append(_stepped_tensor(part))
        return self.make(tensors)

    def _step_slices(self, slices: list[TensorSlice], optimizer: torch.optim.Optimizer) -> None:
        """Step slices with the settings and the state of the full-size optimizer."""
        group = optimizer.param_groups[0]
        for name, value in self.full.param_groups[0].items():
            if name != "params":
                group[name] = value
        if group.get("fused"):
            # Fused kernels on the CPU ignore strides and would write elsewhere.
            group["fused"] = False
        for part in slices:
            self._load_state(part, optimizer)
        optimizer.step()
        for part in slices:
            self._store_state(part, optimizer)

    @torch.no_grad()
    def _descend(self, slices: list[TensorSlice]) -> None:
        """Take a step of plain SGD, which has no state: as torch's, without its overhead."""
        if not slices:  # all were stepped in a wider submodel
            return
        group = self.full.param_groups[0]
        tensors = [_stepped_tensor(part) for part in slices]
        grads = []
        for part, tensor in zip(slices, tensors, strict=True):
            grads.append(_slice_gradient(part).view(tensor.shape))
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, tensors, alpha=group["weight_decay"]))
        torch._foreach_add_(tensors, grads, alpha=-group["lr"])
        for part in slices:
            if part.source_view is None:
                part.push()

    def _add_gradients(self, wide: SharedSubmodel, narrow: SharedSubmodel) -> None:
        """Move the gradients of shared weights from a submodel to a wider one that contains it."""
        key = (id(wide), id(narrow))
        if key not in self._overlaps:
            self._overlaps[key] = _find_overlaps(wide, narrow)
        for overlap in self._overlaps[key]:
            overlap.move_gradient()

    def _load_state(self, part: TensorSlice, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer the state of a slice, and its gradient where it steps a view."""
        target = _stepped_tensor(part)
        if target is not part.tensor:
            target.grad = _slice_gradient(part).view(target.shape)
        full_state = self.full.state[self.params[part.key]]
        state = optimizer.state[target]
        if id(target) not in self._state_views:
            self._state_views[id(target)] = _view_state(full_state, part)
        for name, view in self._state_views[id(target)].items():
            if view is None:
                state[name] = take_slice(full_state[name], part.indices)
            else:
                state[name] = view
        if len(state) < len(full_state):
            for name, value in full_state.items():
                if not isinstance(value, Tensor):
                    state[name] = value

    def _store_state(self, part: TensorSlice, optimizer: torch.optim.Optimizer) -> None:
        """Write back the state of a slice, wherever it was not written in place."""
        target = _stepped_tensor(part)
        if target is not part.tensor:
            target.grad = None
        elif part.is_copy:
            part.push()
        full_state = self.full.state[self.params[part.key]]
        views = self._state_views[id(target)]
        for name, value in optimizer.state[target].items():
            view = views.get(name)
            if value is view:
                continue
            if view is not None:
                view.copy_(value)
            elif isinstance(value, Tensor):
                put_slice(full_state[name], part.indices, value)
            else:
                full_state[name] = value


def _unsliceable_state(state: dict[str, Any], shape: torch.Size) -> list[str]:
    """Return the names of state tensors that have neither the weight's shape nor are scalars."""
    names = []
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.shape != shape:
            names.append(name)
    return names


def _stepped_tensor(part: TensorSlice) -> Any:
    """Return the tensor an optimizer steps: the view of the full-size weights if there is one."""
    return part.tensor if part.source_view is None else part.source_view


def _view_state(full_state: dict[str, Any], part: TensorSlice) -> dict[str, Tensor | None]:
    """Return the slice of each full-size state tensor as a view, or None where none exists.

    A scalar is shared as it is: it counts the steps of the whole tensor.
    """
    views: dict[str, Tensor | None] = {}
    for name, value in full_state.items():
        if not isinstance(value, Tensor):
            continue
        if value.dim():
            views[name] = strided_view(value, part.indices)
        else:
            views[name] = value
    return views


def _slice_gradient(part: TensorSlice) -> Tensor:
    assert part.tensor.grad is not None
    return part.tensor.grad


def _is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer is gradient descent without momentum or other options."""
    if type(optimizer) is not torch.optim.SGD:
        return False
    group = optimizer.param_groups[0]
    if group["momentum"] or group["maximize"] or group["differentiable"]:
        return False
    return isinstance(group["lr"], float)


@dataclass
class _GradientOverlap:
    """A tensor of a narrow submodel inside the same tensor of a wider one."""

    narrow: TensorSlice
    wide: TensorSlice
    indices: AxisIndices
    """The indices of the narrow tensor in the wide one."""
    layouts: dict[tuple[int, ...], Tensor | None] = field(default_factory=dict)
    """For each layout of the wide gradient, a view that expresses the indices, if strides can.

    It is computed once, on a tensor without data.
    """

    def move_gradient(self) -> None:
        """Add the narrow gradient, if there is one, to the wide one, and clear it."""
        grad = self.narrow.tensor.grad
        if grad is None:
            return
        if self.wide.tensor.grad is None:
            self.wide.tensor.grad = torch.zeros_like(self.wide.tensor)
        self._add_to(self.wide.tensor.grad, grad)
        self.narrow.tensor.grad = None

    def _add_to(self, total: Tensor, grad: Tensor) -> None:
        layout = total.stride()
        if layout not in self.layouts:
            empty = torch.empty_strided(total.shape, layout, device="meta")
            self.layouts[layout] = strided_view(empty, self.indices)
        view = self.layouts[layout]
        if view is None:
            before = take_slice(total, self.indices)
            put_slice(total, self.indices, before + grad)
        else:
            target = total.as_strided(view.shape, view.stride(), view.storage_offset())
            target.add_(grad.reshape(target.shape))


def _find_overlaps(wide: SharedSubmodel, narrow: SharedSubmodel) -> list[_GradientOverlap]:
    """Return what two submodels of one step share; one must lie inside the other."""
    overlaps = []
    for name, part in narrow.slices.items():
        target = wide.slices[name]
        if target.key != part.key or not part.tensor.requires_grad:
            continue
        indices = relative_indices(part.indices, target.indices)
        if not _lies_inside(part.tensor, target.tensor, indices):
            raise UserError(
                f"{name}: two submodels of one step must lie one inside the other; "
                "step them one at a time"
            )
        overlaps.append(_GradientOverlap(part, target, indices))
    return overlaps


def _lies_inside(
    narrow: Tensor,
    wide: Tensor,
    indices: AxisIndices,
) -> bool:
    """Return whether these indices of the wide tensor exist and give the narrow one's shape."""
    for size, index in zip(wide.shape, indices, strict=True):
        if index is not None and int(index[-1]) >= size:
            return False
    return sliced_shape(wide.shape, indices) == list(narrow.shape)
