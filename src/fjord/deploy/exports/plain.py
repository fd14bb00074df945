"""What is written to a file: a network from tensors to tensors, for a whole call or one step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fjord.core.errors import UserError

Tensors = list[Tensor]
RunFile = Callable[[Sequence[Tensor]], Tensors]
"""Runs a written file, or the network it was made from."""


@dataclass(frozen=True)
class PlainNetwork:
    """A network that takes and returns only tensors, with an example of its inputs."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch_axes: tuple[int | None, ...]
    """The axis of the examples in each input; None where the input has a fixed size."""
    note: str = ""

    @property
    def open_batch(self) -> bool:
        """Whether it takes any number of examples."""
        return any(axis is not None for axis in self.batch_axes)

    @property
    def is_step(self) -> bool:
        """Whether a call is one time step: only then there is something to note."""
        return self.note != ""

    def describe_inputs(self) -> list[dict[str, Any]]:
        """Return name, shape and type of each input, with 'batch' for a size that is open."""
        rows = []
        for name, tensor, axis in zip(self.inputs, self.example, self.batch_axes, strict=True):
            shape: list[int | str] = list(tensor.shape)
            if axis is not None:
                shape[axis] = "batch"
            dtype = str(tensor.dtype).removeprefix("torch.")
            rows.append({"name": name, "shape": shape, "dtype": dtype})
        return rows

    def __call__(self, tensors: Sequence[Tensor]) -> Tensors:
        """Run the network."""
        with torch.no_grad():
            return as_tensors(self.module(*tensors))


def as_tensors(output: Any) -> Tensors:
    """Return the output of a flat network, one tensor or several, as a list."""
    if isinstance(output, Tensor):
        return [output]
    return list(output)


class FlatNetwork(nn.Module):
    """A network whose arguments other than tensors are fixed, and whose outputs are flat.

    A single output stays a tensor; several are a tuple.
    """

    def __init__(self, net: nn.Module, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.net = net
        leaves, self._spec = pytree.tree_flatten(inputs)
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self._constants = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]

    def forward(self, *tensors: Tensor) -> Any:
        """Run the network on the tensors among its arguments."""
        next_tensor = iter(tensors)
        next_constant = iter(self._constants)
        leaves = []
        for is_tensor in self._is_tensor:
            if is_tensor:
                leaves.append(next(next_tensor))
            else:
                leaves.append(next(next_constant))
        inputs = pytree.tree_unflatten(leaves, self._spec)
        return _flatten_output(self.net(*inputs))


def _flatten_output(output: Any) -> Any:
    tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    if not tensors:
        raise UserError("the model returns no tensor, so there is nothing to export")
    if len(tensors) == 1:
        return tensors[0]
    return tuple(tensors)


def flat_tensors(inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Return the tensors among a model's arguments, in order; each is a separate object."""
    tensors = []
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, Tensor):
            tensors.append(leaf.clone())  # one object given twice would be traced as one input
    return tuple(tensors)


def whole_network(net: nn.Module, inputs: tuple[Any, ...], open_batch: bool) -> PlainNetwork:
    """Return a network that takes all of its inputs at once."""
    module = FlatNetwork(net, inputs).eval()
    example = flat_tensors(inputs)
    with torch.no_grad():
        outputs = as_tensors(module(*example))
    axes: list[int | None] = []
    for tensor in example:
        if open_batch and tensor.dim():
            axes.append(0)
        else:
            axes.append(None)
    return PlainNetwork(
        module=module,
        example=example,
        inputs=numbered_names("input", len(example)),
        outputs=numbered_names("output", len(outputs)),
        batch_axes=tuple(axes),
    )


def numbered_names(name: str, count: int) -> tuple[str, ...]:
    """Return a name for each of several tensors; a single one has the bare name.

    >>> numbered_names("input", 1), numbered_names("input", 2)
    (('input',), ('input_0', 'input_1'))
    """
    if count == 1:
        return (name,)
    return tuple(f"{name}_{i}" for i in range(count))


def fixed_inputs(plain: PlainNetwork) -> PlainNetwork:
    """Return the same network for one example a call.

    Formats and models that need a fixed size get this one.
    """
    example = []
    for tensor, axis in zip(plain.example, plain.batch_axes, strict=True):
        if axis is None:
            example.append(tensor)
        else:
            example.append(tensor.narrow(axis, 0, 1).clone())
    return replace(plain, example=tuple(example), batch_axes=(None,) * len(example))
