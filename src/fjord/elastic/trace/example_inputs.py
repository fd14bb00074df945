"""The example inputs of a model: as arguments, in another batch size, in another precision."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fjord.core.errors import UserError


def as_input_tuple(example_inputs: Any) -> tuple[Any, ...]:
    """Return the example as a tuple of the model's arguments; a tensor alone is the only one."""
    if isinstance(example_inputs, Tensor):
        return (example_inputs,)
    if not isinstance(example_inputs, tuple | list) or not example_inputs:
        raise UserError(
            "example_inputs must be a tensor or a tuple of the model's arguments, "
            f"not {example_inputs!r}"
        )
    return tuple(example_inputs)


def resize_batch(inputs: tuple[Any, ...], batch: int, axis: int = 0) -> tuple[Any, ...]:
    """Return inputs with this many examples: the first ones, or all of them over and over.

    >>> resize_batch((torch.tensor([1, 2, 3]),), 5)
    (tensor([1, 2, 3, 1, 2]),)
    """

    def resize(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        positions = torch.arange(batch, device=value.device) % value.shape[axis]
        return value.index_select(axis, positions)

    resized: tuple[Any, ...] = pytree.tree_map(resize, inputs)
    return resized


def cast_floats(inputs: Any, dtype: torch.dtype) -> Any:
    """Return inputs with every floating-point tensor in this precision."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.to(dtype)
        return value

    return pytree.tree_map(cast, inputs)
