"""A quick look at how a model behaves, on shapes alone: it spares the slow steps that are not needed."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fjord.elastic.errors import FORWARD_ERRORS
from fjord.elastic.submodel.blueprint import without_weights

Log = list[tuple[str, str]]


@dataclass(frozen=True)
class ForwardProbe:
    """What was seen; all false where the model cannot run on shapes alone."""

    batched: bool = False
    """The first axis of every input seems to be one of examples; whether they are independent is for the proof."""
    modes_alike: bool = False
    """The same operations run in training and in evaluation."""
    attends: bool = False
    """Heads have to be kept whole, so that submodels are rarely built from the model's own modules."""


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log: Log = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        plain = pytree.tree_map(
            lambda v: tuple(v.shape) if isinstance(v, Tensor) else v, (args, kwargs)
        )
        self.log.append((str(func), repr(plain)))
        return result


def probe_forward(model: nn.Module, inputs: tuple[Any, ...]) -> ForwardProbe:
    """Run the model on the meta device, in both modes and with one or two examples."""
    try:
        twin = without_weights(model)
        one, first = _run(twin.eval(), resize_batch(inputs, 1))
        two, second = _run(twin.eval(), resize_batch(inputs, 2))
        trained, _ = _run(twin.train(), resize_batch(inputs, 2))
    except FORWARD_ERRORS:
        return ForwardProbe()
    batched = _first_sizes(first) == {1} and _first_sizes(second) == {2}
    return ForwardProbe(
        batched, two == trained, any("softmax" in name or "scaled_dot" in name for name, _ in one)
    )


def _run(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Log, Any]:
    moved = pytree.tree_map(lambda v: v.to("meta") if isinstance(v, Tensor) else v, inputs)
    with torch.device("meta"), torch.no_grad(), _Recorder() as recorder:
        output = model(*moved)
    return recorder.log, output


def _first_sizes(output: Any) -> set[int]:
    return {
        leaf.shape[0] if leaf.dim() else 0
        for leaf in pytree.tree_leaves(output)
        if isinstance(leaf, Tensor)
    }


def resize_batch(inputs: tuple[Any, ...], batch: int, axis: int = 0) -> tuple[Any, ...]:
    """Return inputs with this many examples, taken in turn from those given."""

    def resize(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        return value.index_select(
            axis, torch.arange(batch, device=value.device) % value.shape[axis]
        )

    changed: tuple[Any, ...] = pytree.tree_map(resize, inputs)
    return changed
