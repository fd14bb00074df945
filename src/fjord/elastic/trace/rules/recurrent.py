"""Recurrent layers: one unit is one hidden unit with its row in every gate."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from fjord.elastic.trace.labels import FROZEN, UnitLabels, labels_along
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule

A = torch.ops.aten
GATES = {A.lstm: 4, A.gru: 3, A.rnn_tanh: 1, A.rnn_relu: 1}


@dataclass
class Cell:
    """The tensors of one layer and direction."""

    input: UnitLabels
    hidden: UnitLabels
    biases: list[UnitLabels]
    projection: UnitLabels | None


@rule(*GATES)
def recurrent(call: OperatorCall) -> RuleResult:
    """Run all layers; they share one initial state, and so one set of hidden units."""
    x, states, tensors = call.args[0], call.args[1], call.args[2]
    if not isinstance(call.args[2], list | tuple):
        return call.freeze_all(f"a packed sequence ({call.where})")
    states = states if isinstance(states, list | tuple) else [states]
    hidden = [_state(call, state) for state in states]
    feed, blank = call.vector(x, x.rank - 1), x.blank
    directions = 2 if call.args[7] else 1
    projected = states[0].shape[-1] != states[-1].shape[-1]
    cells = _cells(tensors, biased=bool(call.args[3]), projected=projected)
    for _ in range(int(call.args[4])):
        for cell in islice(cells, directions):
            _tie_cell(call, cell, feed, hidden, blank=blank)
        feed, blank = torch.cat([hidden[0]] * directions), False
    return [_labels(shape, ids) for shape, ids in zip(call.shapes, [feed, *hidden], strict=True)]


def _labels(shape: tuple[int, ...], ids: Tensor | None) -> UnitLabels:
    rank = len(shape)
    return UnitLabels(shape, [] if ids is None else [labels_along(ids, rank - 1, rank)])


def _state(call: OperatorCall, state: UnitLabels) -> Tensor:
    """Return the ids of an initial state: its own, new ones if blank, frozen if it is data."""
    ids, size = call.vector(state, state.rank - 1), state.shape[-1]
    if ids is not None:
        return ids
    return call.units.fresh(size) if state.blank else torch.full((size,), FROZEN)


def _cells(tensors: list[UnitLabels], *, biased: bool, projected: bool) -> Iterator[Cell]:
    parts = iter(tensors)
    for first in parts:
        yield Cell(
            first,
            next(parts),
            list(islice(parts, 2 if biased else 0)),
            next(parts) if projected else None,
        )


def _tie_cell(
    call: OperatorCall, cell: Cell, feed: Tensor | None, hidden: list[Tensor], *, blank: bool
) -> None:
    out, inner = hidden[0], hidden[-1]
    for tensor in [cell.input, cell.hidden, *cell.biases]:
        rows = call.vector(tensor, 0)
        if rows is not None:
            call.units.equate(rows.reshape(GATES[call.operation], -1), inner[None])
    if cell.input.shape[1] > 1:
        call.tie(feed, call.vector(cell.input, 1), blank=blank)
    call.tie(out, call.vector(cell.hidden, 1))
    if cell.projection is None:
        call.units.equate(out, inner)
    else:
        call.tie(out, call.vector(cell.projection, 0))
        call.tie(inner, call.vector(cell.projection, 1))
