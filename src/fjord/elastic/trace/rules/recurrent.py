"""Recurrent layers: one unit is one hidden unit with its row in every gate."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from fjord.elastic.trace.labels import FROZEN, UnitLabels, labels_along
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule

A = torch.ops.aten

GATES = {
    A.lstm: 4,
    A.gru: 3,
    A.rnn_tanh: 1,
    A.rnn_relu: 1,
}
"""The number of gates of each operation: a hidden unit has a row in each."""


@dataclass
class RecurrentCell:
    """The tensors of one layer and direction."""

    input: UnitLabels
    hidden: UnitLabels
    biases: list[UnitLabels]
    projection: UnitLabels | None


@rule(*GATES)
def recurrent(call: OperatorCall) -> RuleResult:
    """Run all layers; they share one initial state, and so one set of hidden units."""
    x, states, tensors, biased, layers, _, _, bidirectional = call.args[:8]
    if not isinstance(tensors, list | tuple):
        return call.freeze_all(f"a packed sequence ({call.where})")
    if not isinstance(states, list | tuple):
        states = [states]
    hidden = [_state_ids(call, state) for state in states]
    output_size = states[0].shape[-1]
    inner_size = states[-1].shape[-1]
    projected = output_size != inner_size
    cells = _split_cells(tensors, biased=bool(biased), projected=projected)
    directions = 1
    if bidirectional:
        directions = 2
    input_ids = call.axis_ids(x, x.rank - 1)
    blank = x.blank
    for _ in range(int(layers)):
        for cell in islice(cells, directions):
            _tie_cell(call, cell, input_ids, hidden, blank=blank)
        input_ids = torch.cat([hidden[0]] * directions)
        blank = False
    results = []
    for shape, ids in zip(call.shapes, [input_ids, *hidden], strict=True):
        results.append(_label_last_axis(shape, ids))
    return results


def _label_last_axis(shape: tuple[int, ...], ids: Tensor | None) -> UnitLabels:
    labels = UnitLabels(shape)
    if ids is not None:
        rank = len(shape)
        labels.channels.append(labels_along(ids, rank - 1, rank))
    return labels


def _state_ids(call: OperatorCall, state: UnitLabels) -> Tensor:
    """Return the ids of an initial state: its own, new ones if blank, frozen if it is data."""
    ids = call.axis_ids(state, state.rank - 1)
    if ids is not None:
        return ids
    size = state.shape[-1]
    if state.blank:
        return call.units.new_ids(size)
    return torch.full((size,), FROZEN)


def _split_cells(
    tensors: Iterable[UnitLabels], *, biased: bool, projected: bool
) -> Iterator[RecurrentCell]:
    """Split the flat list of weights into one cell for each layer and direction."""
    num_biases = 2 if biased else 0
    remaining = iter(tensors)
    for input_weight in remaining:
        hidden_weight = next(remaining)
        biases = list(islice(remaining, num_biases))
        projection = None
        if projected:
            projection = next(remaining)
        yield RecurrentCell(input_weight, hidden_weight, biases, projection)


def _tie_cell(
    call: OperatorCall,
    cell: RecurrentCell,
    input_ids: Tensor | None,
    hidden: list[Tensor],
    *,
    blank: bool,
) -> None:
    """Tie the rows of all gates to the hidden units, and the columns to input and output."""
    output_ids = hidden[0]
    inner_ids = hidden[-1]  # differs from the output only with a projection
    for tensor in [cell.input, cell.hidden, *cell.biases]:
        rows = call.axis_ids(tensor, 0)
        if rows is not None:
            gates = rows.reshape(GATES[call.operation], -1)
            call.units.equate(gates, inner_ids[None])
    if cell.input.shape[1] > 1:
        call.tie_axes(input_ids, call.axis_ids(cell.input, 1), blank=blank)
    call.tie_axes(output_ids, call.axis_ids(cell.hidden, 1))
    if cell.projection is None:
        call.units.equate(output_ids, inner_ids)
    else:
        call.tie_axes(output_ids, call.axis_ids(cell.projection, 0))
        call.tie_axes(inner_ids, call.axis_ids(cell.projection, 1))
