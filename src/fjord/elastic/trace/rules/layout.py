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
    narrow_shape,
    pad_labels,
    pad_shape,
    reshape_labels,
    varying_axes,
)
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule

A = torch.ops.aten


@rule(A.view, A.reshape, A._unsafe_view)
def reshape(call: OperatorCall) -> RuleResult:
    """Reshape the ids."""
    x = call.first
    channels = []
    for channel in x.channels:
        channels.append(reshape_labels(channel, x.shape, call.shape))
    return x.like(call.shape, channels)


@rule(A.clone, A._to_copy, A.alias, A.detach, A.contiguous, A.lift_fresh_copy, A.copy, A.lift_fresh)
def pass_through(call: OperatorCall) -> RuleResult:
    """Pass the ids on (`copy` writes its second argument over its first)."""
    source = call.first
    if call.operation is A.copy:
        source = call.labels[-1]
    return source.like(call.shape, source.channels)


@rule(A.expand)
def expand(call: OperatorCall) -> RuleResult:
    """Keep the ids; a new axis of equal copies is blank, so its size may follow any width."""
    x = call.first
    channels = []
    for channel in x.channels:
        channels.append(pad_labels(channel, len(call.shape)))
    return x.like(call.shape, channels + _new_axes(call))


@rule(A.repeat)
def repeat(call: OperatorCall) -> RuleResult:
    """Tile the ids; an axis of size 1 becomes blank copies, as in `expand`."""
    x = call.first
    channels = []
    for channel in x.channels:
        channel = pad_labels(channel, len(call.shape))
        counts = [1] * channel.dim()
        for dim in varying_axes(channel):
            counts[dim] = int(call.args[1][dim])
        channels.append(channel.repeat(counts))
    return x.like(call.shape, channels + _new_axes(call))


def _new_axes(call: OperatorCall) -> list[Tensor]:
    """Return new ids for every axis of size 1 that grows."""
    rank = len(call.shape)
    sizes = pad_shape(call.first.shape, rank)
    channels = []
    for dim in range(rank):
        if sizes[dim] == 1 and call.shape[dim] > 1:
            ids = call.units.new_ids(call.shape[dim])
            channels.append(labels_along(ids, dim, rank))
    return channels


def run_on_ids(call: OperatorCall, x: UnitLabels, *, compact: bool) -> list[UnitLabels]:
    """Run the operation itself on every channel of its first argument; return all outputs.

    With `compact` axes of equal ids stay narrowed; otherwise the channels are expanded first.
    """
    kwargs = _without_format(call.kwargs)
    results = [x.like(shape, []) for shape in call.shapes]
    for channel in x.channels:
        ids = channel if compact else call.expand_fully(x, channel)
        outputs = call.overload(ids, *call.args[1:], **kwargs)
        if not call.several:
            outputs = [outputs]
        for result, output in zip(results, outputs, strict=True):
            result.channels.append(collapse_labels(output))
    return results


def _without_format(kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs = dict(kwargs)
    kwargs.pop("memory_format", None)
    return kwargs


@rule(A.permute, A.transpose, A.t, A.unsqueeze, A.squeeze, A.movedim, A.flip, A.roll)
def rearrange_axes(call: OperatorCall) -> RuleResult:
    """Move axes without mixing them."""
    if call.operation is A.squeeze:  # a narrowed axis must not be squeezed away
        return reshape(call)
    return call.one_or_all(run_on_ids(call, call.first, compact=True))


@rule(A.pixel_shuffle, A.pixel_unshuffle, A.channel_shuffle, A.unfold)
def shuffle_elements(call: OperatorCall) -> RuleResult:
    """Move single elements."""
    return call.one_or_all(run_on_ids(call, call.first, compact=False))


@rule(A.slice, A.select, A.split_with_sizes, A.split, A.unbind, A.chunk)
def split_axis(call: OperatorCall) -> RuleResult:
    """Take parts; parts of a width are cut each on its own."""
    x = call.first
    dim = _split_dim(call) % x.rank
    expanded = x.like(x.shape, [])
    for channel in x.channels:
        expanded.channels.append(expand_labels(channel, x.shape, {dim}))
    parts = run_on_ids(call, expanded, compact=True)
    if not _takes_all(call, dim):
        _mark_parts(call, x, dim, parts)
    return call.one_or_all(parts)


def _split_dim(call: OperatorCall) -> int:
    position = 2
    if call.operation in (A.slice, A.select, A.unbind):
        position = 1
    return int(call.argument(position, "dim", 0))


def _takes_all(call: OperatorCall, dim: int) -> bool:
    """Return whether a slice takes the whole axis, so that nothing is split."""
    if call.operation is not A.slice:
        return False
    return call.shape[dim] == call.first.shape[dim]


def _mark_parts(call: OperatorCall, x: UnitLabels, dim: int, parts: list[UnitLabels]) -> None:
    """Mark each part as a segment of its own, if a width is split."""
    axes = [varying_axes(channel) for channel in x.channels]
    if {dim} not in axes:
        return
    for index, part in enumerate(parts):
        for channel in part.channels:
            call.units.mark_segment(channel, call.node.name, index)


@rule(A.cat)
def concatenate(call: OperatorCall) -> RuleResult:
    """Lay the ids end to end along the joined axis; all other axes must agree."""
    rank = len(call.shape)
    dim = int(call.argument(1, "dim", 0)) % rank
    # torch allows an empty vector among parts of another rank, and ignores it
    parts = [part for part in call.args[0] if part.rank == rank]
    narrowed = [part.without_axis(dim) for part in parts]
    others = call.pointwise(narrowed, narrow_shape(call.shape, dim))
    joined = _join_channels(parts, dim)
    for index, part in enumerate(parts):
        for channel in part.channels_along(dim):
            call.units.mark_segment(channel, call.node.name, index)
    return others.like(call.shape, others.channels + joined)


def _join_channels(parts: list[UnitLabels], dim: int) -> list[Tensor]:
    """Build the channels that run along the joined axis."""
    channels_of_parts = []
    mixed = {dim}
    for part in parts:
        channels = part.channels_along(dim)
        channels_of_parts.append(channels)
        for channel in channels:
            mixed |= varying_axes(channel)
    joined = []
    most_channels = max(map(len, channels_of_parts), default=0)
    for position in range(most_channels):
        pieces = []
        for part, channels in zip(parts, channels_of_parts, strict=True):
            if position < len(channels):
                channel = channels[position]
            else:
                channel = torch.full((1,) * part.rank, _missing_id(part))
            pieces.append(expand_labels(channel, part.shape, mixed))
        joined.append(collapse_labels(torch.cat(pieces, dim)))
    return joined


def _missing_id(value: UnitLabels) -> int:
    """Return what stands for positions without ids: data must stay whole, blank values need not."""
    if value.blank:
        return NO_ID
    return FROZEN


@rule(A.constant_pad_nd)
def pad_axes(call: OperatorCall) -> RuleResult:
    """Pad an axis; padding a width adds blank units (the zero-padded shortcut of early ResNets)."""
    x = call.first
    amounts = call.args[1]
    channels = list(x.channels)
    for position in range(0, len(amounts), 2):
        dim = x.rank - 1 - position // 2
        before_after = (amounts[position], amounts[position + 1])
        for index, channel in enumerate(channels):
            channels[index] = _pad_channel(call, channel, dim, before_after)
    return x.like(call.shape, channels)


def _pad_channel(call: OperatorCall, channel: Tensor, dim: int, amounts: tuple[int, int]) -> Tensor:
    rank = channel.dim()
    axes = varying_axes(channel)
    if dim not in axes or amounts == (0, 0):
        return channel
    if axes != {dim} or min(amounts) < 0:
        call.freeze_ids(channel, "padding along the width")
        return torch.full((1,) * rank, FROZEN)
    before = labels_along(call.units.new_ids(amounts[0]), dim, rank)
    after = labels_along(call.units.new_ids(amounts[1]), dim, rank)
    pieces = [before, channel, after]
    for index, piece in enumerate(pieces):
        call.units.mark_segment(piece, call.node.name, index)
    return torch.cat(pieces, dim)


@rule(A.slice_scatter, A.select_scatter)
def scatter_part(call: OperatorCall) -> RuleResult:
    """Write one value's ids over a part of another's."""
    x, source, *options = call.args
    options = [option for option in options if not isinstance(option, UnitLabels)]
    channels = []
    num_channels = max(len(x.channels), len(source.channels))
    for position in range(num_channels):
        target = _full_channel(call, x, position, NO_ID)
        patch = _full_channel(call, source, position, _missing_id(source))
        ids = call.overload(target.clone(), patch, *options, **call.kwargs)
        channels.append(collapse_labels(ids))
    return UnitLabels(call.shape, channels, x.blank and source.blank)


def _full_channel(call: OperatorCall, value: UnitLabels, position: int, missing: int) -> Tensor:
    """Return one channel in the value's full shape, or the id of missing ones if there is none."""
    if position < len(value.channels):
        return call.expand_fully(value, value.channels[position])
    return torch.full(value.shape, missing)


@rule(A.as_strided)
def read_strided(call: OperatorCall) -> RuleResult:
    """Read the ids with the strides of the value they label."""
    x = call.first
    source = call.node.args[0].meta["val"]  # type: ignore[union-attr]
    channels = []
    for channel in x.channels:
        strides = [int(stride) for stride in source.stride()]
        ids = torch.empty_strided(x.shape, strides, dtype=torch.long)
        ids.copy_(call.expand_fully(x, channel))
        strided = ids.as_strided(*call.args[1:])
        channels.append(collapse_labels(strided))
    return x.like(call.shape, channels)
