"""Look-ups: rows chosen by data stay whole, an index known in advance is followed."""

from typing import Any

import torch
from torch import Tensor

from fjord.elastic.trace.labels import (
    UnitLabels,
    collapse_labels,
    expand_labels,
    labels_along,
    varying_axes,
)
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule, traced_shape

A = torch.ops.aten


@rule(A.embedding)
def embedding(call: OperatorCall) -> RuleResult:
    """Look rows up: rows are chosen by data, columns are units."""
    weight = call.first
    column_channels = []
    for channel in weight.channels:
        if varying_axes(channel) == {1}:
            column_channels.append(channel)
    columns = call.axis_ids(UnitLabels(weight.shape, column_channels), 1)
    for channel in weight.channels_along(0):
        call.freeze_ids(channel, "embedding rows are chosen by data")
    result = UnitLabels(call.shape)
    if columns is not None:
        rank = len(call.shape)
        result.channels.append(labels_along(columns, rank - 1, rank))
    return result


@rule(A.index_select, A.index)
def look_up(call: OperatorCall) -> RuleResult:
    """Follow an index known in advance (relative positions); freeze an axis indexed by data."""
    x = call.first
    nodes = _index_nodes(call)
    unknown = _axes_indexed_by_data(call, nodes)
    indexed = [dim for dim, node in enumerate(nodes) if node is not None]
    channels = []
    for channel in x.channels:
        if varying_axes(channel) & unknown:
            call.freeze_ids(channel, "indexed by data")
        else:
            indices = [_index_values(call, node) for node in nodes]
            ids = A.index(expand_labels(channel, x.shape, indexed), indices)
            channels.append(collapse_labels(ids))
    return UnitLabels(call.shape, channels)


def _index_nodes(call: OperatorCall) -> list[Any]:
    """Return the index of each axis, as a node of the graph; None where an axis is not indexed."""
    if call.operation is A.index:
        return list(call.node.args[1])  # type: ignore[arg-type]
    dim = int(call.args[1]) % call.first.rank
    return [None] * dim + [call.node.args[2]]


def _axes_indexed_by_data(call: OperatorCall, nodes: list[Any]) -> set[int]:
    axes = set()
    for dim, node in enumerate(nodes):
        if node is not None and node not in call.constants:
            axes.add(dim)
    return axes


def _index_values(call: OperatorCall, node: Any) -> Tensor | None:
    """Return an index as a tensor; zeros stand for unknown data, where all ids are equal anyway."""
    if node is None:
        return None
    if node in call.constants:
        return call.constants[node]
    return torch.zeros(traced_shape(node.meta["val"]), dtype=torch.long)
