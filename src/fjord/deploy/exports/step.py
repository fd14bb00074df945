"""A recurrent network one time step at a time: its states go in and come out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fjord.core.errors import UserError
from fjord.deploy.exports.plain import (
    FlatNetwork,
    PlainNetwork,
    RunFile,
    Tensors,
    flat_tensors,
    numbered_names,
)

STEP_NOTE = "one time step a call: states in, states out; begin with zeros"
LEAST_STEPS = 4


def recurrent_layers(net: nn.Module) -> list[nn.RNNBase]:
    """Return the recurrent layers of a network."""
    return [module for module in net.modules() if isinstance(module, nn.RNNBase)]


class SingleStep(nn.Module):
    """A network whose recurrent layers start from states it is given, and return their last."""

    def __init__(self, flat: FlatNetwork) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Return the output of one step and the states after it."""
        before = iter(states)
        after: list[Tensor] = []
        hooks: list[RemovableHandle] = []
        for layer in recurrent_layers(self):
            hooks += _pass_states(layer, before, after)
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


def _pass_states(
    layer: nn.RNNBase, before: Iterator[Tensor], after: list[Tensor]
) -> list[RemovableHandle]:
    """Make a layer start from the next states, and append its last ones to `after`."""
    paired = isinstance(layer, nn.LSTM)

    def start_from(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(args) != 1:
            raise UserError(
                "a step needs recurrent layers that begin from states of zero; "
                "the model gives its own"
            )
        if paired:
            return (args[0], (next(before), next(before)))
        return (args[0], next(before))

    def keep_last(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        if paired:
            after.extend(output[1])
        else:
            after.append(output[1])

    return [layer.register_forward_pre_hook(start_from), layer.register_forward_hook(keep_last)]


@dataclass(frozen=True)
class SteppedNetwork:
    """Runs a file of single steps over a whole sequence."""

    run: RunFile
    states: tuple[Tensor, ...]
    axis: int

    @classmethod
    def from_written(cls, run: RunFile, written: PlainNetwork, net: nn.Module) -> Self:
        """Return the runner of a file that was written from a network."""
        return cls(run, written.example[1:], time_axis(net))

    def __call__(self, tensors: Sequence[Tensor]) -> Tensors:
        """Return the outputs of all steps side by side.

        Where an output has no axis of time, it describes the sequence: only the last is returned.
        """
        x = tensors[0]
        batch = x.shape[1 - self.axis]
        states: Sequence[Tensor] = [_zero_state(state, batch) for state in self.states]
        outputs = []
        for i in range(x.shape[self.axis]):
            step = x.narrow(self.axis, i, 1).contiguous()
            output, *states = self.run([step, *states])
            outputs.append(output)
        last = outputs[-1]
        if last.dim() > 2 and last.shape[self.axis] == 1:
            return [torch.cat(outputs, self.axis)]
        return [last]


def _zero_state(state: Tensor, batch: int) -> Tensor:
    num_layers, _, size = state.shape
    return torch.zeros(num_layers, batch, size, dtype=state.dtype)


def time_axis(net: nn.Module) -> int:
    """Return the axis of time of a recurrent network's input."""
    if recurrent_layers(net)[0].batch_first:
        return 1
    return 0


def lengthen_sequence(net: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs of several steps at least: over a single one, states would never be used."""
    axis = time_axis(net)
    length = inputs[0].shape[axis]
    steps = torch.arange(max(length, LEAST_STEPS)) % length
    return (inputs[0].index_select(axis, steps), *inputs[1:])


def check_steps(net: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise an error if a network cannot be run step by step."""
    layers = recurrent_layers(net)
    tensors = flat_tensors(inputs)
    if not layers or len(tensors) != 1 or tensors[0].dim() < 2:
        raise UserError(
            "a step needs recurrent layers (nn.LSTM, nn.GRU, nn.RNN) and one input with an axis "
            "of time"
        )
    layouts = {layer.batch_first for layer in layers}
    if any(layer.bidirectional for layer in layers) or len(layouts) > 1:
        raise UserError(
            "a step needs recurrent layers that go one way, all with the same batch_first"
        )


def step_network(net: nn.Module, inputs: tuple[Any, ...], open_batch: bool) -> PlainNetwork:
    """Return a network of one time step."""
    axis = time_axis(net)
    x = flat_tensors(inputs)[0].narrow(axis, 0, 1).contiguous()
    states: list[Tensor] = []
    for layer in recurrent_layers(net):
        states += _zero_states(layer, x.shape[1 - axis])
    batch_axes: list[int | None] = [None]
    state_axis: int | None = None
    if open_batch:
        batch_axes = [1 - axis]
        state_axis = 1
    for _ in states:
        batch_axes.append(state_axis)
    names = numbered_names("state", len(states))
    return PlainNetwork(
        module=SingleStep(FlatNetwork(net, inputs)).eval(),
        example=(x, *states),
        inputs=("input", *names),
        outputs=("output", *[f"next_{name}" for name in names]),
        batch_axes=tuple(batch_axes),
        note=STEP_NOTE,
    )


def _zero_states(layer: nn.RNNBase, batch: int) -> list[Tensor]:
    weight = layer.weight_hh_l0
    assert isinstance(weight, Tensor)
    sizes = [layer.proj_size or layer.hidden_size]
    if isinstance(layer, nn.LSTM):
        sizes.append(layer.hidden_size)
    return [torch.zeros(layer.num_layers, batch, size, dtype=weight.dtype) for size in sizes]
