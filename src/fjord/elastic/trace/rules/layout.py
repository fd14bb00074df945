"""Layout operations: the ids are moved exactly as the numbers are."""

from typing import Any

import torch
from torch import Tensor

from fjord.elastic.trace.labels import (
    FROZEN,
    NO_ID,
    UnitLabels,
    collapse_labels,
    expand_labels,
    labels_along,
    reshape_labels,
    varying_axes,
)
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule, shape_of

A = torch.ops.aten


@rule(A.view, A.reshape, A._unsafe_view)
def reshape(call: OperatorCall) -> RuleResult:
    """Reshape the ids."""
    x = call.first
    return x.like(call.shape, [reshape_labels(c, x.shape, call.shape) for c in x.channels])


@rule(A.clone, A._to_copy, A.alias, A.detach, A.contiguous, A.lift_fresh_copy, A.copy, A.lift_fresh)
def same(call: OperatorCall) -> RuleResult:
    """Hand the ids on (`copy` writes its second argument over its first)."""
    source = call.labels[-1] if call.operation is A.copy else call.first
    return UnitLabels(call.shape, list(source.channels), source.blank, source.table)


@rule(A.expand)
def expand(call: OperatorCall) -> RuleResult:
    """Keep the ids; a new axis of equal copies is blank, so its size may follow any width."""
    x = call.first
    rank, lead = len(call.shape), len(call.shape) - x.rank
    channels = [c.reshape((1,) * lead + tuple(c.shape)) for c in x.channels]
    sizes = (1,) * lead + x.shape
    grown = [d for d in range(rank) if sizes[d] == 1 and call.shape[d] > 1]
    return x.like(
        call.shape,
        channels + [labels_along(call.units.fresh(call.shape[d]), d, rank) for d in grown],
    )


def execute(call: OperatorCall, *, compact: bool) -> RuleResult:
    """Run the operation itself on every channel, whole or (`compact`) with its axes of equal ids narrowed."""
    x = call.first
    outs: list[list[Tensor]] = [[] for _ in call.shapes]
    for channel in x.channels:
        ids = channel if compact else call.full(x, channel)
        done = call.overload(ids, *call.args[1:], **_without_format(call.kwargs))
        for out, ids in zip(outs, done if call.several else [done], strict=True):
            out.append(collapse_labels(ids))
    results = [x.like(s, channels) for s, channels in zip(call.shapes, outs, strict=True)]
    return results if call.several else results[0]


def _without_format(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != "memory_format"}


@rule(A.permute, A.transpose, A.t, A.unsqueeze, A.squeeze, A.movedim, A.flip, A.roll)
def rearrange(call: OperatorCall) -> RuleResult:
    """Move axes without mixing them."""
    if call.operation is A.squeeze:  # a narrowed axis must not be squeezed away
        return reshape(call)
    return execute(call, compact=True)


@rule(A.pixel_shuffle, A.pixel_unshuffle, A.channel_shuffle, A.unfold)
def shuffle(call: OperatorCall) -> RuleResult:
    """Move single elements."""
    return execute(call, compact=False)


@rule(A.repeat)
def repeat(call: OperatorCall) -> RuleResult:
    """Tile the ids; an axis of size 1 becomes blank copies, as in `expand`."""
    x, counts = call.first, call.args[1]
    rank, lead = len(call.shape), len(call.shape) - x.rank
    sizes = (1,) * lead + x.shape
    channels = []
    for channel in x.channels:
        channel = channel.reshape((1,) * lead + tuple(channel.shape))
        live = varying_axes(channel)
        channels.append(channel.repeat([int(n) if d in live else 1 for d, n in enumerate(counts)]))
    grown = [d for d in range(rank) if sizes[d] == 1 and call.shape[d] > 1]
    return x.like(
        call.shape,
        channels + [labels_along(call.units.fresh(call.shape[d]), d, rank) for d in grown],
    )


@rule(A.slice, A.select, A.split_with_sizes, A.split, A.unbind, A.chunk)
def split(call: OperatorCall) -> RuleResult:
    """Take parts; parts of a width are cut each on its own."""
    x = call.first
    dim = _dim_of_part(call) % x.rank
    kept = x.like(x.shape, [expand_labels(c, x.shape, {dim}) for c in x.channels])
    call.args = (kept, *call.args[1:])
    done = execute(call, compact=True)
    parts = done if isinstance(done, list) else [done]
    if not (call.operation is A.slice and call.shape[dim] == x.shape[dim]):
        _note_segments(call, x, dim, parts)
    return done


def _dim_of_part(call: OperatorCall) -> int:
    position = {A.slice: 1, A.select: 1, A.unbind: 1}.get(call.operation, 2)
    return int(call.get(position, "dim", 0))


def _note_segments(call: OperatorCall, x: UnitLabels, dim: int, parts: list[UnitLabels]) -> None:
    if any(varying_axes(c) == {dim} for c in x.channels):
        for index, part in enumerate(parts):
            for channel in part.channels:
                call.units.segment(channel, call.node.name, index)


@rule(A.cat)
def concatenate(call: OperatorCall) -> RuleResult:
    """Lay the ids end to end along the joined axis; all other axes must agree."""
    parts: list[UnitLabels] = call.args[0]
    dim = int(call.get(1, "dim", 0)) % len(call.shape)
    parts = [p for p in parts if p.rank == len(call.shape)]
    others = call.pointwise([p.without(dim) for p in parts], _narrow(call.shape, dim))
    joined = _joined(parts, dim)
    for index, part in enumerate(parts):
        for channel in part.channels:
            if dim in varying_axes(channel):
                call.units.segment(channel, call.node.name, index)
    blank = all(p.blank for p in parts)
    return UnitLabels(call.shape, others.channels + joined, blank, all(p.table for p in parts))


def _narrow(shape: tuple[int, ...], dim: int) -> list[int]:
    return [1 if d == dim else n for d, n in enumerate(shape)]


def _joined(parts: list[UnitLabels], dim: int) -> list[Tensor]:
    """Build the channels that run along the joined axis."""
    own = [[c for c in part.channels if dim in varying_axes(c)] for part in parts]
    mixed = set().union(*(varying_axes(c) for channels in own for c in channels)) | {dim}
    joined = []
    for layer in range(max(map(len, own), default=0)):
        pieces = []
        for part, channels in zip(parts, own, strict=True):
            gap = torch.full((1,) * part.rank, NO_ID if part.blank else FROZEN)
            channel = channels[layer] if layer < len(channels) else gap
            pieces.append(expand_labels(channel, part.shape, mixed))
        joined.append(collapse_labels(torch.cat(pieces, dim)))
    return joined


@rule(A.constant_pad_nd)
def pad(call: OperatorCall) -> RuleResult:
    """Pad an axis; padding a width adds blank units (the zero-padded shortcut of early ResNets)."""
    x, amounts = call.first, call.args[1]
    channels = list(x.channels)
    for i in range(0, len(amounts), 2):
        dim = x.rank - 1 - i // 2
        before, after = amounts[i], amounts[i + 1]
        channels = [_pad_channel(call, x, c, dim, (before, after)) for c in channels]
    return x.like(call.shape, channels)


def _pad_channel(
    call: OperatorCall, x: UnitLabels, channel: Tensor, dim: int, amounts: tuple[int, int]
) -> Tensor:
    if dim not in varying_axes(channel) or amounts == (0, 0):
        return channel
    if varying_axes(channel) != {dim} or min(amounts) < 0:
        call.units.freeze(channel, f"padding along the width ({call.where})")
        return torch.full((1,) * x.rank, FROZEN)
    edges = [labels_along(call.units.fresh(n), dim, x.rank) for n in amounts]
    pieces = [edges[0], channel, edges[1]]
    for index, piece in enumerate(pieces):
        call.units.segment(piece, call.node.name, index)
    return torch.cat(pieces, dim)


@rule(A.slice_scatter, A.select_scatter)
def scatter(call: OperatorCall) -> RuleResult:
    """Write one value's ids over a part of another's."""
    x, source, *rest = call.args
    rest = [r for r in rest if not isinstance(r, UnitLabels)]
    channels = []
    for i in range(max(len(x.channels), len(source.channels))):
        base = call.full(x, x.channels[i]) if i < len(x.channels) else torch.full(x.shape, NO_ID)
        gap = torch.full(source.shape, NO_ID if source.blank else FROZEN)
        patch = call.full(source, source.channels[i]) if i < len(source.channels) else gap
        channels.append(collapse_labels(call.overload(base.clone(), patch, *rest, **call.kwargs)))
    return UnitLabels(call.shape, channels, x.blank and source.blank)


@rule(A.as_strided)
def strided(call: OperatorCall) -> RuleResult:
    """Read the ids with the strides of the value they label."""
    x, source = call.first, call.node.args[0].meta["val"]  # type: ignore[union-attr]
    channels = []
    for channel in x.channels:
        ids = torch.empty_strided(x.shape, [int(s) for s in source.stride()], dtype=torch.long)
        ids.copy_(call.full(x, channel))
        channels.append(collapse_labels(ids.as_strided(*call.args[1:])))
    return x.like(call.shape, channels)


@rule(A.index_select, A.index)
def lookup(call: OperatorCall) -> RuleResult:
    """Follow an index known in advance (relative-position tables); freeze an axis indexed by data."""
    x = call.first
    nodes = _index_nodes(call)
    known = [None if n is None else call.constants.get(n) for n in nodes]
    channels = []
    for channel in x.channels:
        live = varying_axes(channel)
        if any(
            n is not None and k is None and d in live
            for d, (n, k) in enumerate(zip(nodes, known, strict=True))
        ):
            call.units.freeze(channel, f"indexed by data ({call.where})")
            continue
        index = [_or_zeros(n, k) for n, k in zip(nodes, known, strict=True)]
        indexed = [d for d, n in enumerate(nodes) if n is not None]
        channels.append(collapse_labels(A.index(expand_labels(channel, x.shape, indexed), index)))
    return UnitLabels(call.shape, channels)


def _index_nodes(call: OperatorCall) -> list[Any]:
    if call.operation is A.index:
        return list(call.node.args[1])  # type: ignore[arg-type]
    dim = int(call.args[1]) % call.first.rank
    return [None] * dim + [call.node.args[2]]


def _or_zeros(node: Any, known: Tensor | None) -> Tensor | None:
    if node is None or known is not None:
        return known
    return torch.zeros(shape_of(node.meta["val"]), dtype=torch.long)
