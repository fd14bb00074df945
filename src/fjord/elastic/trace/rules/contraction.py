"""Contractions: the contracted ids are equated, the others are handed on."""

import torch
from torch import Tensor

from fjord.elastic.trace.labels import FROZEN, UnitLabels, labels_along, varying_axes
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule

A = torch.ops.aten


def contract(call: OperatorCall, a: UnitLabels, b: UnitLabels) -> tuple[UnitLabels, UnitLabels]:
    """Contract the last axis of `a` (.., n, k) with the last but one of `b` (.., k, m); k is narrowed to 1."""
    a_ids = [c for c in a.channels if a.rank - 1 in varying_axes(c)]
    b_ids = [c for c in b.channels if b.rank - 2 in varying_axes(c)]
    for x in a_ids:
        for y in b_ids:  # (.., n, 1, k) against (.., 1, m, k): every n and m meet over the same k
            call.units.equate(x.unsqueeze(-2), y.transpose(-1, -2).unsqueeze(-3))
    blank = b.blank if a_ids else a.blank
    if not (a_ids and b_ids) and not blank:
        for lone in a_ids + b_ids:
            call.units.freeze(lone, f"meets data of fixed size ({call.where})")
    return _rest(call, a, a.rank - 1), _rest(call, b, b.rank - 2)


def _rest(call: OperatorCall, value: UnitLabels, dim: int) -> UnitLabels:
    """Return what the contracted axis leaves; ids that span it and another axis become one unit each."""
    call.units.refresh(value)
    channels = []
    for channel in value.channels:
        if varying_axes(channel) == {dim}:
            continue
        if dim in varying_axes(channel):
            call.units.fuse(channel, [dim])
        channels.append(channel.narrow(dim, 0, 1))
    shape = [1 if d == dim else n for d, n in enumerate(value.shape)]
    return UnitLabels(tuple(shape), channels, value.blank)


def product(call: OperatorCall, a: UnitLabels, b: UnitLabels, shape: tuple[int, ...]) -> UnitLabels:
    """Return the labels of a (batched) matrix product."""
    left, right = contract(call, a, b)
    return call.pointwise([left, right], shape)


@rule(A.mm, A.bmm, A.matmul)
def matmul(call: OperatorCall) -> RuleResult:
    """Multiply matrices."""
    a, b = call.labels[:2]
    if min(a.rank, b.rank) < 2:
        return call.freeze_all(f"a product with a vector ({call.where})")
    return product(call, a, b, call.shape)


@rule(A.addmm, A.baddbmm)
def add_matmul(call: OperatorCall) -> RuleResult:
    """Multiply matrices and add."""
    bias, a, b = call.labels[:3]
    return call.pointwise([product(call, a, b, call.shape), bias], call.shape)


@rule(A.linear)
def linear(call: OperatorCall) -> RuleResult:
    """Apply weight (out, in) and bias to the last axis."""
    x, weight, *bias = call.labels
    transposed = weight.like(weight.shape[::-1], [c.t() for c in weight.channels])
    if x.rank == 1:
        return call.freeze_all(f"a linear layer on a single vector ({call.where})")
    return call.pointwise([product(call, x, transposed, call.shape), *bias], call.shape)


@rule(A.convolution)
def convolution(call: OperatorCall) -> RuleResult:
    """Convolve: channels are contracted, kernel and image axes stay whole."""
    x, weight, *bias = call.labels
    for channel in weight.channels:
        if any(d > 1 for d in varying_axes(channel)):
            call.units.freeze(channel, "kernel positions")
    for dim in range(2, x.rank):
        freeze_along(call, x, dim, "a convolution runs along the width")
    if call.get(8, "groups", 1) == 1:
        out = _dense(call, x, weight, transposed=bool(call.get(6, "transposed", False)))
    else:
        out = _grouped(call, x, weight, int(call.get(8, "groups")))
    rank = len(call.shape)
    labels = UnitLabels(call.shape, [] if out is None else [labels_along(out, 1, rank)])
    return call.pointwise([labels, *(as_channel(b, rank) for b in bias)], call.shape)


def as_channel(vector: UnitLabels, rank: int) -> UnitLabels:
    """Lay a vector along axis 1 of a value with the given rank."""
    shape = (vector.shape[0],) + (1,) * (rank - 2)
    return vector.like(shape, [c.reshape(shape) for c in vector.channels])


def _dense(
    call: OperatorCall, x: UnitLabels, weight: UnitLabels, *, transposed: bool
) -> Tensor | None:
    out_dim, in_dim = (1, 0) if transposed else (0, 1)
    if weight.shape[in_dim] > 1:
        call.tie(call.vector(x, 1), call.vector(weight, in_dim), blank=x.blank)
    return call.vector(weight, out_dim)


def _grouped(call: OperatorCall, x: UnitLabels, weight: UnitLabels, groups: int) -> Tensor | None:
    """One group is one unit; in a depthwise convolution that is one channel."""
    if call.get(6, "transposed", False):
        call.freeze_all(f"a transposed convolution with groups ({call.where})")
        return None
    inner = call.vector(weight, 1)
    if inner is not None:
        call.units.freeze(inner, f"channels inside a group ({call.where})")
    x_ids, out_ids = call.vector(x, 1), call.vector(weight, 0)
    blocks = [ids.reshape(groups, -1) for ids in (x_ids, out_ids) if ids is not None]
    for block in blocks:
        call.units.fuse(block, [1])
    call.tie(
        *(None if ids is None else ids.reshape(groups, -1)[:, 0] for ids in (x_ids, out_ids)),
        blank=x.blank,
    )
    return torch.full((call.shape[1],), FROZEN) if out_ids is None else out_ids


@rule(A.scaled_dot_product_attention)
def attention(call: OperatorCall) -> RuleResult:
    """Attend by whole heads: the axis inside a head stays whole, as its size sets the scale."""
    q, k, v, *mask = call.labels
    if call.kwargs.get("enable_gqa"):
        return call.freeze_all(f"grouped-query attention ({call.where})")
    for value in (q, k):
        for channel in value.channels:
            if varying_axes(channel) == {value.rank - 1}:
                call.units.freeze(channel, f"the width inside a head sets the scale ({call.where})")
    keys = k.like(
        (*k.shape[:-2], k.shape[-1], k.shape[-2]), [c.transpose(-1, -2) for c in k.channels]
    )
    scores_shape = (*call.shape[:-1], k.shape[-2])
    scores = call.pointwise([product(call, q, keys, scores_shape), *mask], scores_shape)
    freeze_along(call, scores, len(scores_shape) - 1, "a softmax runs along the width")
    return product(call, scores, v, call.shape)


def freeze_along(call: OperatorCall, value: UnitLabels, dim: int, reason: str) -> None:
    """Keep an axis whole; where units span it and another axis, each becomes one unit."""
    for channel in value.channels:
        if varying_axes(channel) == {dim}:
            call.units.freeze(channel, f"{reason} ({call.where})")
        elif dim in varying_axes(channel):
            call.units.fuse(channel, [dim])
    call.units.refresh(value)
