"""Any torch optimizer, stepping on slices: a step at width p moves F_p only, and so does its memory."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fjord.elastic.model import ElasticModel, Part, View, within
from fjord.elastic.plan import leading, put, take

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class SlicedOptimizer:
    """Steps the submodels of an elastic model; momentum and the like are full-size and sliced the same way.

    `full` is an ordinary torch optimizer over the full-size weights: attach learning-rate schedulers to it.
    """

    def __init__(self, model: ElasticModel, make: MakeOptimizer) -> None:
        self.model, self.make = model, make
        self.params = dict(model.named_parameters())
        self.full = make(self.params.values())
        if len(self.full.param_groups) != 1:
            raise ValueError("the optimizer must hold all parameters in one group")
        self._start_memory()
        self._slices: dict[int, tuple[View, torch.optim.Optimizer]] = {}

    def _start_memory(self) -> None:
        """Give every weight its full-size optimizer state now: the first steps may reach only a part of it."""
        scratch = {key: nn.Parameter(torch.zeros_like(p)) for key, p in self.params.items()}  # zeros decay to zeros
        trial = self.make(scratch.values())
        for parameter in scratch.values():
            parameter.grad = torch.zeros_like(parameter)
        trial.step()
        for key, parameter in scratch.items():
            state = dict(trial.state[parameter])
            if "step" in state:
                state["step"] = state["step"] * 0
            odd = [k for k, v in state.items() if isinstance(v, Tensor) and v.dim() and v.shape != parameter.shape]
            if odd:
                raise ValueError(
                    f"{type(trial).__name__} keeps {', '.join(odd)} in a shape of its own, which cannot be sliced"
                )
            self.full.state[self.params[key]] = state

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for view, _ in self._slices.values():
            view.net.zero_grad(set_to_none=True)

    def view(self, width: Any) -> View:
        """Return the shared submodel of a width, known to this optimizer from now on."""
        view = self.model.view(width)
        if id(view) not in self._slices:
            trained = [p.tensor for p in view.parts.values() if p.key in self.params]
            self._slices[id(view)] = (view, self.make(trained))  # type: ignore[arg-type]
        return view

    def step(self) -> None:
        """Step on every submodel that has gradients; what submodels share is summed and moved once, in the widest."""
        touched = [
            (view, opt) for view, opt in self._slices.values() if any(p.grad is not None for p in view.net.parameters())
        ]
        touched.sort(key=lambda pair: sum(p.tensor.numel() for p in pair[0].parts.values()), reverse=True)
        for view, _ in touched[1:]:
            _add_gradients(touched[0][0], view)
        for view, opt in touched:
            self._step_one(view, opt)
        self.full._opt_called = True  # type: ignore[attr-defined]  # schedulers warn of an optimizer that never steps

    def _step_one(self, view: View, opt: torch.optim.Optimizer) -> None:
        settings = {k: v for k, v in self.full.param_groups[0].items() if k != "params"}
        opt.param_groups[0].update(settings)
        parts = [p for p in view.parts.values() if p.key in self.params and p.tensor.grad is not None]
        for part in parts:
            memory = self.full.state[self.params[part.key]]
            opt.state[part.tensor] = {k: _sliced(v, part) for k, v in memory.items()}
        opt.step()
        for part in parts:
            self._keep_memory(part, opt.state[part.tensor])

    def _keep_memory(self, part: Part, state: dict[str, Any]) -> None:
        memory = self.full.state[self.params[part.key]]
        for key, value in state.items():
            full = memory.get(key)
            if not (isinstance(value, Tensor) and isinstance(full, Tensor)):
                memory[key] = value
            elif value.untyped_storage().data_ptr() != full.untyped_storage().data_ptr():
                put(full, part.indices if full.dim() else [], value)


def _sliced(value: Any, part: Part) -> Any:
    return take(value, part.indices) if isinstance(value, Tensor) and value.dim() else value


def _add_gradients(wide: View, narrow: View) -> None:
    """Move the gradients of shared weights from a submodel to a wider one that contains it."""
    for name, part in narrow.parts.items():
        target, grad = wide.parts[name], part.tensor.grad
        if target.key != part.key or grad is None:
            continue
        if target.tensor.grad is None:
            target.tensor.grad = torch.zeros_like(target.tensor)
        _add(target.tensor.grad, [within(n, w) for n, w in zip(part.indices, target.indices, strict=True)], grad, name)
        part.tensor.grad = None


def _add(total: Tensor, indices: list[Tensor | None], grad: Tensor, name: str) -> None:
    sizes = [n if i is None else len(i) for n, i in zip(total.shape, indices, strict=True)]
    if sizes != list(grad.shape) or any(
        i is not None and int(i[-1]) >= n for i, n in zip(indices, total.shape, strict=True)
    ):
        raise ValueError(f"{name}: two submodels of one step must lie one inside the other; step them one at a time")
    if all(i is None or leading(i) for i in indices):
        take(total, indices).add_(grad)
    else:
        put(total, indices, take(total, indices) + grad)
