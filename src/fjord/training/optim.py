"""Any torch optimizer, stepping on slices: a step at width p moves F_p only, and so does its memory."""

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
    strided_view,
    take_slice,
)
from fjord.elastic.model import ElasticModel
from fjord.elastic.submodel.shared import SharedSubmodel, TensorSlice

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
CorrectGradient = Callable[[TensorSlice], None]


class SlicedOptimizer:
    """Steps the submodels of an elastic model; momentum and the like are full-size and sliced the same way.

    `full` is an ordinary torch optimizer over the full-size weights: attach learning-rate schedulers to it.
    """

    def __init__(self, model: ElasticModel, make: MakeOptimizer) -> None:
        if not callable(make):
            raise UserError(
                f"optimizer must be a function of parameters, such as functools.partial(torch.optim.SGD, lr=0.1), "
                f"not a {type(make).__name__}"
            )
        self.model, self.make = model, make
        self.params = dict(model.named_parameters())
        self.full = make(self.params.values())
        if len(self.full.param_groups) != 1:
            raise UserError("the optimizer must hold all parameters in one group")
        self._start_memory()
        self._slices: dict[int, torch.optim.Optimizer] = {}
        self._lent: dict[int, dict[str, Tensor | None]] = {}
        self._overlaps: dict[tuple[int, int], list[_Overlap]] = {}

    def _start_memory(self) -> None:
        """Give every weight its full-size optimizer state now: the first steps may reach only a part of it."""
        scratch = {
            key: nn.Parameter(torch.zeros_like(p)) for key, p in self.params.items()
        }  # zeros decay to zeros
        trial = self.make(scratch.values())
        for parameter in scratch.values():
            parameter.grad = torch.zeros_like(parameter)
        try:
            trial.step()
        except TypeError as error:
            raise UserError(
                f"{type(trial).__name__} needs a closure, which a step on slices does not have"
            ) from error
        for key, parameter in scratch.items():
            state = dict(trial.state[parameter])
            for counter, start in (("step", 0), ("mu_product", 1)):  # as before the trial step
                if counter in state:
                    state[counter] = state[counter] * 0 + start
            odd = [
                k
                for k, v in state.items()
                if isinstance(v, Tensor) and v.dim() and v.shape != parameter.shape
            ]
            if odd:
                raise UserError(
                    f"{type(trial).__name__} keeps {', '.join(odd)} in a shape of its own, which cannot be sliced"
                )
            self.full.state[self.params[key]] = state

    def restart(self) -> None:
        """Forget momentum and the like, as a new optimizer would."""
        if any(self.full.state.values()):
            self._start_memory()
            self._lent.clear()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for view in self.model.shared_submodels():
            view.clear_gradients()

    def _slice(self, view: SharedSubmodel) -> torch.optim.Optimizer:
        """Return the optimizer of a submodel; its memory is lent to it at each step."""
        if id(view) not in self._slices:
            parts = [part for part in view.slices.values() if part.key in self.params]
            if any(part.source is not self.params[part.key] for part in parts):
                raise UserError("the model was moved after its optimizer was made: make a new one")
            self._slices[id(view)] = self.make([_moved(part) for part in parts])
        return self._slices[id(view)]

    def step(self, correct: CorrectGradient | None = None) -> None:
        """Step on every submodel that has gradients; what submodels share is summed and moved once, in the widest.

        `correct` may change the summed gradient of each part, once, before the step.
        """
        touched = [
            view
            for view in self.model.shared_submodels()
            if any(p.tensor.grad is not None for p in view.trainable)
        ]
        if not touched:
            raise UserError(
                "no submodel of the model has gradients: call backward() on the loss of model.at(width)"
            )
        touched.sort(key=lambda view: view.size, reverse=True)
        for view in touched[1:]:
            self._add_gradients(touched[0], view)
        for view in touched:
            if correct is not None:
                for part in view.trainable:
                    if part.tensor.grad is not None:
                        correct(part)
            opt = self._slice(view)
            if _descends(self.full):
                self._descend(view)
            else:
                self._step_one(view, opt)
            view.push_statistics()
        for view in self.model.shared_submodels():
            if view.exposed:
                view.pull()
        self.full._opt_called = True  # type: ignore[attr-defined]  # schedulers warn of an optimizer that never steps

    def _step_one(self, view: SharedSubmodel, opt: torch.optim.Optimizer) -> None:
        opt.param_groups[0].update(
            {k: v for k, v in self.full.param_groups[0].items() if k != "params"}
        )
        if opt.param_groups[0].get("fused"):
            opt.param_groups[0]["fused"] = (
                False  # fused kernels on the CPU ignore strides and would write elsewhere
            )
        parts = [part for part in view.trainable if part.tensor.grad is not None]
        for part in parts:
            self._lend(part, opt)
        opt.step()
        for part in parts:
            self._take_back(part, opt)

    @torch.no_grad()
    def _descend(self, view: SharedSubmodel) -> None:
        """Take a step of plain SGD, which remembers nothing: the same sums as torch's, without its overhead."""
        group = self.full.param_groups[0]
        parts = [part for part in view.trainable if part.tensor.grad is not None]
        if not parts:  # all was moved in a wider submodel
            return
        moved = [_moved(part) for part in parts]
        grads = [
            _gradient(part).view(target.shape) for part, target in zip(parts, moved, strict=True)
        ]
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, moved, alpha=group["weight_decay"]))
        torch._foreach_add_(moved, grads, alpha=-group["lr"])
        for part in parts:
            if part.source_view is None:
                part.push()

    def _add_gradients(self, wide: SharedSubmodel, narrow: SharedSubmodel) -> None:
        """Move the gradients of shared weights from a submodel to a wider one that contains it."""
        key = id(wide), id(narrow)
        if key not in self._overlaps:
            self._overlaps[key] = _overlaps(wide, narrow)
        for overlap in self._overlaps[key]:
            part, target = overlap.part, overlap.target
            if part.tensor.grad is not None:
                if target.tensor.grad is None:
                    target.tensor.grad = torch.zeros_like(target.tensor)
                overlap.add(_gradient(target), part.tensor.grad)
                part.tensor.grad = None

    def _lend(self, part: TensorSlice, opt: torch.optim.Optimizer) -> None:
        """Give the optimizer this slice's memory, and the gradient where it moves the weights."""
        target = _moved(part)
        if target is not part.tensor:
            assert part.tensor.grad is not None
            target.grad = part.tensor.grad.view(target.shape)
        memory, state = self.full.state[self.params[part.key]], opt.state[target]
        if id(target) not in self._lent:
            self._lent[id(target)] = {
                k: _window(v, part) for k, v in memory.items() if isinstance(v, Tensor)
            }
        for key, lent in self._lent[id(target)].items():
            state[key] = take_slice(memory[key], part.indices) if lent is None else lent
        if len(state) < len(memory):
            state.update({k: v for k, v in memory.items() if not isinstance(v, Tensor)})

    def _take_back(self, part: TensorSlice, opt: torch.optim.Optimizer) -> None:
        """Keep what the optimizer remembers, wherever it was not written in place."""
        target = _moved(part)
        if target is not part.tensor:
            target.grad = None
        elif part.is_copy:
            part.push()
        memory, lents = self.full.state[self.params[part.key]], self._lent[id(target)]
        for key, value in opt.state[target].items():
            lent = lents.get(key)
            if value is lent:
                continue
            if lent is None and isinstance(value, Tensor):
                put_slice(memory[key], part.indices, value)
            elif lent is None:
                memory[key] = value
            else:
                lent.copy_(value)


def _moved(part: TensorSlice) -> Any:
    """Return the tensor an optimizer moves: the window on the full-size weights where there is one."""
    return part.tensor if part.source_view is None else part.source_view


def _window(value: Tensor, part: TensorSlice) -> Tensor | None:
    """Return the slice of a full-size memory as a view; a counter is shared as it is: it counts steps of the tensor."""
    return strided_view(value, part.indices) if value.dim() else value


def _gradient(part: TensorSlice) -> Tensor:
    assert part.tensor.grad is not None
    return part.tensor.grad


def _descends(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether an optimizer is plain gradient descent."""
    group = optimizer.param_groups[0]
    odd = ("momentum", "maximize", "differentiable")
    return (
        type(optimizer) is torch.optim.SGD
        and not any(group[k] for k in odd)
        and isinstance(group["lr"], float)
    )


@dataclass
class _Overlap:
    """A tensor of a narrow submodel inside the same tensor of a wider one."""

    part: TensorSlice
    target: TensorSlice
    indices: AxisIndices
    views: dict[tuple[int, ...], Tensor | None] = field(default_factory=dict)
    """How a view of the wide tensor says it, if it can; worked out once for each layout, on the shape alone."""

    def add(self, total: Tensor, grad: Tensor) -> None:
        """Add the narrow gradient to the wide one."""
        layout = total.stride()
        if layout not in self.views:
            self.views[layout] = strided_view(
                torch.empty_strided(total.shape, layout, device="meta"), self.indices
            )
        view = self.views[layout]
        if view is None:
            put_slice(total, self.indices, take_slice(total, self.indices) + grad)
        else:
            place = total.as_strided(view.shape, view.stride(), view.storage_offset())
            place.add_(grad.reshape(place.shape))


def _overlaps(wide: SharedSubmodel, narrow: SharedSubmodel) -> list[_Overlap]:
    """Return what two submodels of one step share; one must lie inside the other."""
    found = []
    for name, part in narrow.slices.items():
        target = wide.slices[name]
        if target.key != part.key or not part.tensor.requires_grad:
            continue
        indices = relative_indices(part.indices, target.indices)
        shape = target.tensor.shape
        sizes = [n if i is None else len(i) for n, i in zip(shape, indices, strict=True)]
        beyond = any(i is not None and int(i[-1]) >= n for i, n in zip(indices, shape, strict=True))
        if sizes != list(part.tensor.shape) or beyond:
            raise UserError(
                f"{name}: two submodels of one step must lie one inside the other; step them one at a time"
            )
        found.append(_Overlap(part, target, indices))
    return found
