"""A recurrent network one time step at a time: its states go in and come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.deploy.exports.plain import (
    FlatNetwork,
    PlainNetwork,
    RunFile,
    Tensors,
    flat_tensors,
    numbered_names,
)

NOTE = "one time step a call: states in, states out; begin with zeros"
LEAST_STEPS = 4


def recurrent_layers(net: nn.Module) -> list[nn.RNNBase]:
    """Return the recurrent layers of a network."""
    return [module for module in net.modules() if isinstance(module, nn.RNNBase)]


class SingleStep(nn.Module):
    """A network whose recurrent layers begin in given states and hand on their last ones."""

    def __init__(self, flat: FlatNetwork) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Return the output of one step and the states after it."""
        given, after = iter(states), list[Tensor]()
        hooks = [hook for layer in recurrent_layers(self) for hook in _threaded(layer, given, after)]
        try:
            output = self.flat(x)
        finally:
            for hook in hooks:
                hook.remove()
        if not isinstance(output, Tensor) or len(after) != len(states):
            raise UserError(
                "a step needs one output, and every recurrent layer run once from states of zero"
            )
        return (output, *after)


def _threaded(layer: nn.RNNBase, given: Any, after: list[Tensor]) -> list[Any]:
    """Make a layer begin in the next of the given states, and note its last ones."""
    paired = isinstance(layer, nn.LSTM)

    def begin(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(args) != 1:
            raise UserError(
                "a step needs recurrent layers that begin from states of zero; the model gives its own"
            )
        return (args[0], (next(given), next(given)) if paired else next(given))

    def end(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        after.extend(output[1] if paired else (output[1],))

    return [layer.register_forward_pre_hook(begin), layer.register_forward_hook(end)]


@dataclass(frozen=True)
class SteppedNetwork:
    """Runs a file of single steps over a whole sequence."""

    run: RunFile
    states: tuple[Tensor, ...]
    axis: int

    @classmethod
    def of(cls, run: RunFile, written: PlainNetwork, net: nn.Module) -> Self:
        """Return the runner of a file that was written from a network."""
        return cls(run, written.example[1:], time_axis(net))

    def __call__(self, tensors: Sequence[Tensor]) -> Tensors:
        """Return the outputs of all steps side by side, or of the last if it stands for the sequence."""
        x = tensors[0]
        states: Sequence[Tensor] = [_sized(state, x.shape[1 - self.axis]) for state in self.states]
        outputs = []
        for i in range(x.shape[self.axis]):
            output, *states = self.run([x.narrow(self.axis, i, 1).contiguous(), *states])
            outputs.append(output)
        last = outputs[-1]
        along = last.dim() > 2 and last.shape[self.axis] == 1
        return [torch.cat(outputs, self.axis) if along else last]


def _sized(state: Tensor, batch: int) -> Tensor:
    return torch.zeros(state.shape[0], batch, state.shape[2], dtype=state.dtype)


def time_axis(net: nn.Module) -> int:
    """Return the axis of time of a recurrent network's input."""
    return 1 if recurrent_layers(net)[0].batch_first else 0


def lengthen_sequence(net: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs of some steps at least: over a single one, states would never be used."""
    axis = time_axis(net)
    length = inputs[0].shape[axis]
    steps = torch.arange(max(length, LEAST_STEPS)) % length
    return (inputs[0].index_select(axis, steps), *inputs[1:])


def check_steps(net: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Refuse a network that cannot be run step by step."""
    layers, tensors = recurrent_layers(net), flat_tensors(inputs)
    if not layers or len(tensors) != 1 or tensors[0].dim() < 2:
        raise UserError(
            "a step needs recurrent layers (nn.LSTM, nn.GRU, nn.RNN) and one input with an axis of time"
        )
    if (
        any(layer.bidirectional for layer in layers)
        or len({layer.batch_first for layer in layers}) > 1
    ):
        raise UserError(
            "a step needs recurrent layers that go one way, all with the same batch_first"
        )


def step_network(net: nn.Module, inputs: tuple[Any, ...], open_batch: bool) -> PlainNetwork:
    """Return a network of one time step."""
    layers, axis = recurrent_layers(net), time_axis(net)
    x = flat_tensors(inputs)[0].narrow(axis, 0, 1).contiguous()
    states = tuple(state for layer in layers for state in _zeros(layer, x.shape[1 - axis]))
    axes = (1 - axis, *(1 for _ in states)) if open_batch else (None,) * (1 + len(states))
    names = numbered_names("state", len(states))
    module = SingleStep(FlatNetwork(net, inputs)).eval()
    return PlainNetwork(
        module,
        (x, *states),
        ("input", *names),
        ("output", *(f"next_{name}" for name in names)),
        axes,
        NOTE,
    )


def _zeros(layer: nn.RNNBase, batch: int) -> list[Tensor]:
    weight = layer.weight_hh_l0
    assert isinstance(weight, Tensor)
    sizes = [
        layer.proj_size or layer.hidden_size,
        *([layer.hidden_size] if isinstance(layer, nn.LSTM) else []),
    ]
    return [torch.zeros(layer.num_layers, batch, size, dtype=weight.dtype) for size in sizes]
