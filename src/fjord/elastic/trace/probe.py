"""Observe how a model behaves on shapes alone, to skip the slow steps that are not needed."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fjord.elastic.errors import FORWARD_ERRORS
from fjord.elastic.module_tensors import without_weights
from fjord.elastic.trace.example_inputs import resize_batch

OperationLog = list[tuple[str, str]]
"""The operations that ran, each with its arguments; shapes stand for tensors."""


@dataclass(frozen=True)
class ForwardProbe:
    """What the probe saw; all false where the model cannot run on shapes alone."""

    batched: bool = False
    """The first axis of every output has the size of the batch; the proof checks independence."""
    modes_alike: bool = False
    """The same operations run in training and in evaluation."""
    attends: bool = False
    """Heads must be kept whole, so that submodels are rarely built from the user's modules."""


class _OperationRecorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log: OperationLog = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        shapes = pytree.tree_map(_shape_or_value, (args, kwargs))
        self.log.append((str(func), repr(shapes)))
        return result


def _shape_or_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return value


def probe_forward(model: nn.Module, inputs: tuple[Any, ...]) -> ForwardProbe:
    """Run the model on the meta device, in both modes and with one or two examples."""
    try:
        one_example = resize_batch(inputs, 1)
        two_examples = resize_batch(inputs, 2)
        twin = without_weights(model)
        one_log, one_output = _run_on_meta(twin.eval(), one_example)
        two_log, two_output = _run_on_meta(twin.eval(), two_examples)
        train_log, _ = _run_on_meta(twin.train(), two_examples)
    except FORWARD_ERRORS:
        return ForwardProbe()
    return ForwardProbe(
        batched=_first_sizes(one_output) == {1} and _first_sizes(two_output) == {2},
        modes_alike=two_log == train_log,
        attends=any(_is_attention(name) for name, _ in one_log),
    )


def _is_attention(operation: str) -> bool:
    return "softmax" in operation or "scaled_dot" in operation


def _run_on_meta(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[OperationLog, Any]:
    shapes_only = pytree.tree_map(_move_to_meta, inputs)
    with torch.device("meta"), torch.no_grad(), _OperationRecorder() as recorder:
        output = model(*shapes_only)
    return recorder.log, output


def _move_to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("meta")
    return value


def _first_sizes(output: Any) -> set[int]:
    """Return the sizes of the first axis of all output tensors; a scalar counts as 0."""
    sizes = set()
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor):
            sizes.add(leaf.shape[0] if leaf.dim() else 0)
    return sizes
