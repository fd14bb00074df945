"""What is written to a file: a network from tensors to tensors, whole or one time step at a time."""

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
    """A network that takes and returns tensors alone, with an example of its inputs."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch_axes: tuple[int | None, ...]
    """Where each input has its examples; None where it has a fixed size."""
    note: str = ""

    @property
    def open_batch(self) -> bool:
        """Whether it takes any number of examples."""
        return any(axis is not None for axis in self.batch_axes)

    def described(self) -> list[dict[str, Any]]:
        """Return name, shape and type of each input, with 'batch' for a size that is open."""
        return [
            {
                "name": name,
                "shape": ["batch" if d == axis else n for d, n in enumerate(t.shape)],
                "dtype": str(t.dtype).removeprefix("torch."),
            }
            for name, t, axis in zip(self.inputs, self.example, self.batch_axes, strict=True)
        ]

    def __call__(self, tensors: Sequence[Tensor]) -> Tensors:
        """Run the network."""
        with torch.no_grad():
            result = self.module(*tensors)
        return [result] if isinstance(result, Tensor) else list(result)


class FlatNetwork(nn.Module):
    """A network whose arguments other than tensors are fixed, and whose outputs are a flat list."""

    def __init__(self, net: nn.Module, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.net = net
        leaves, self._spec = pytree.tree_flatten(inputs)
        self._fixed = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]

    def forward(self, *tensors: Tensor) -> Any:
        """Run the network on the tensors among its arguments."""
        given = iter(tensors)
        leaves = [next(given) if fixed is None else fixed[0] for fixed in self._fixed]
        return _flat(self.net(*pytree.tree_unflatten(leaves, self._spec)))


def _flat(output: Any) -> Any:
    found = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    if not found:
        raise UserError("the model returns no tensor, so there is nothing to export")
    return found[0] if len(found) == 1 else tuple(found)


def flat_tensors(inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Return the tensors among a model's arguments, in order; each an object of its own."""
    # One object given twice would be traced as one input.
    return tuple(leaf.clone() for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))


def whole_network(net: nn.Module, inputs: tuple[Any, ...], open_batch: bool) -> PlainNetwork:
    """Return a network that takes all of its inputs at once."""
    module, example = FlatNetwork(net, inputs).eval(), flat_tensors(inputs)
    with torch.no_grad():
        result = module(*example)
    axes = tuple(0 if open_batch and t.dim() else None for t in example)
    count = 1 if isinstance(result, Tensor) else len(result)
    return PlainNetwork(
        module,
        example,
        numbered_names("input", len(example)),
        numbered_names("output", count),
        axes,
    )


def numbered_names(name: str, count: int) -> tuple[str, ...]:
    """Return names for a number of things: the bare name where there is one."""
    return (name,) if count == 1 else tuple(f"{name}_{i}" for i in range(count))


def fixed_inputs(plain: PlainNetwork) -> PlainNetwork:
    """Return the same network for one example a call, for formats and models that need a fixed size."""
    example = tuple(
        t if axis is None else t.narrow(axis, 0, 1).clone()
        for t, axis in zip(plain.example, plain.batch_axes, strict=True)
    )
    return replace(plain, example=example, batch_axes=(None,) * len(example))
