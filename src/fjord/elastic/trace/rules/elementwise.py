"""Element by element operations, reductions, norms, pooling, look-ups and fills."""

from typing import Any

import torch

from fjord.elastic.trace.labels import UnitLabels, labels_along, varying_axes
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule
from fjord.elastic.trace.rules.contraction import as_channel, freeze_along

A = torch.ops.aten


@rule(A.where, A.masked_fill, A.native_dropout, A.clamp, A.lerp, A.addcmul, A.addcdiv)
def elementwise(call: OperatorCall) -> RuleResult:
    """Equate what labels the same element; also serves every operation torch tags as pointwise."""
    return call.results(call.pointwise(call.labels, call.shape))


@rule(
    A.full,
    A.zeros,
    A.ones,
    A.scalar_tensor,
    A.empty,
    A.rand,
    A.randn,
    A.new_zeros,
    A.new_full,
    A.new_ones,
    A.new_empty,
)
def fill(call: OperatorCall) -> RuleResult:
    """Give a constant of literal size ids of its own: a size written in `forward` can then follow the width."""
    return call.units.fresh_labels(call.shape, blank=True)


@rule(A.full_like, A.zeros_like, A.ones_like, A.empty_like, A.rand_like, A.randn_like)
def fill_like(call: OperatorCall) -> RuleResult:
    """Follow the size of another value."""
    return UnitLabels(call.shape, list(call.first.channels), blank=True)


@rule(A.arange, A.linspace)
def counting(call: OperatorCall) -> RuleResult:
    """Numbers that tell positions apart."""
    return UnitLabels(call.shape)


@rule(A._softmax, A._log_softmax, A.cumsum, A._safe_softmax, A.cumprod, A.logcumsumexp)
def running(call: OperatorCall) -> RuleResult:
    """Operations along one axis."""
    dim = int(call.get(1, "dim", -1)) % max(1, call.first.rank)
    freeze_along(call, call.first, dim, f"{call.operation} runs along the width")
    return call.first


@rule(A.sort, A.topk, A.argsort, A.argmax, A.argmin, A.kthvalue, A.median)
def ordering(call: OperatorCall) -> RuleResult:
    """Positions become data."""
    return call.freeze_all(f"{call.operation} turns positions into data ({call.where})")


REDUCTIONS: tuple[Any, ...] = (
    *(A.mean, A.sum, A.amax, A.amin, A.any, A.all, A.var, A.var_mean, A.std, A.max, A.min, A.prod),
    *(A.linalg_vector_norm, A.logsumexp),
)


@rule(*REDUCTIONS)
def reduction(call: OperatorCall) -> RuleResult:
    """Reduce: units along a reduced axis alone vanish; units that also span another axis stay one each."""
    x, dims = call.first, _dims(call)
    if call.operation in (A.max, A.min) and len(call.labels) == 2:
        return elementwise(call)
    if call.operation in (A.max, A.min) and _positions_used(call):
        return ordering(call)
    channels = []
    for channel in x.channels:
        if varying_axes(channel) <= dims:
            continue
        call.units.fuse(channel, varying_axes(channel) & dims)
        sizes = [1 if d in dims else n for d, n in enumerate(channel.shape)]
        channel = channel[tuple(slice(0, n) for n in sizes)]
        keep = (
            range(x.rank)
            if len(call.shape) == x.rank
            else [d for d in range(x.rank) if d not in dims]
        )
        channels.append(channel.reshape([sizes[d] for d in keep]))
    out = UnitLabels(call.shape, channels, x.blank)
    return [out] * len(call.shapes) if call.several else out


def reduced_dims(operation: Any, get: Any, rank: int) -> set[int]:
    """Return the axes a reduction runs over, given a look-up of its arguments."""
    dims = get(2 if operation is A.linalg_vector_norm else 1, "dim")
    if dims is None or dims == []:
        return set(range(rank))
    return {d % max(1, rank) for d in ([dims] if isinstance(dims, int) else dims)}


def _dims(call: OperatorCall) -> set[int]:
    return reduced_dims(call.operation, call.get, call.first.rank)


def _positions_used(call: OperatorCall) -> bool:
    return call.several and any(user.args[1] == 1 and user.users for user in call.node.users)


@rule(
    A._native_batch_norm_legit_no_training,
    A._native_batch_norm_legit_functional,
    A._native_batch_norm_legit,
    A.native_batch_norm,
    A._batch_norm_with_update_functional,
    A.batch_norm,
)
def batch_norm(call: OperatorCall) -> RuleResult:
    """Normalise every channel on its own."""
    x, *vectors = call.labels
    out = call.pointwise([x, *(as_channel(v, x.rank) for v in vectors)], x.shape)
    stats = [UnitLabels(s, _channel_ids(out), blank=True) for s in call.shapes[1:]]
    stats = [s if s.shape == (x.shape[1],) else UnitLabels(s.shape, blank=True) for s in stats]
    return [out, *stats] if call.several else out


def _channel_ids(value: UnitLabels) -> list[torch.Tensor]:
    return [c.reshape(-1) for c in value.channels if varying_axes(c) == {1}]


@rule(A.native_group_norm, A.group_norm)
def group_norm(call: OperatorCall) -> RuleResult:
    """Normalise groups of channels: a group is one unit, unless one group holds all."""
    x, *affine = call.labels
    groups = int(call.args[6] if call.operation is A.native_group_norm else call.args[1])
    out = call.pointwise([x, *(as_channel(v, x.rank) for v in affine)], x.shape)
    ids = call.vector(out, 1)
    if ids is not None and 1 < groups < x.shape[1]:
        call.units.fuse(ids.reshape(groups, -1), [1])
    return call.results(out)


@rule(A.native_layer_norm, A.layer_norm, A.rms_norm, A._fused_rms_norm)
def layer_norm(call: OperatorCall) -> RuleResult:
    """Normalise over the last axes; inside larger units (a norm per head) those axes stay whole."""
    x, *affine = call.labels
    inner = set(range(x.rank - len(call.args[1]), x.rank))
    for channel in x.channels:
        if varying_axes(channel) & inner and varying_axes(channel) - inner:
            call.units.fuse(channel, varying_axes(channel) & inner)
            for weight in affine:
                for ids in weight.channels:
                    call.units.freeze(ids, f"a norm is shared by all blocks ({call.where})")
            affine = []
    return call.results(call.pointwise([x, *affine], x.shape))


@rule(A._weight_norm_interface)
def weight_norm(call: OperatorCall) -> RuleResult:
    """Scale each slice of a direction to a norm of its own."""
    out = call.pointwise(call.labels, call.shape)
    return [out, UnitLabels(call.shapes[1], blank=True)]


IMAGE_AXES: dict[int, tuple[Any, ...]] = {
    1: (
        A.avg_pool1d,
        A.adaptive_avg_pool1d,
        A.upsample_nearest1d,
        A.upsample_linear1d,
        A.reflection_pad1d,
    ),
    2: (
        *(A.avg_pool2d, A.max_pool2d_with_indices, A._adaptive_avg_pool2d, A.adaptive_max_pool2d),
        *(
            A.upsample_nearest2d,
            A._upsample_nearest_exact2d,
            A.upsample_bilinear2d,
            A._upsample_bilinear2d_aa,
        ),
        *(
            A.upsample_bicubic2d,
            A._upsample_bicubic2d_aa,
            A.reflection_pad2d,
            A.replication_pad2d,
            A.grid_sampler_2d,
        ),
    ),
    3: (
        *(A.avg_pool3d, A.max_pool3d_with_indices, A._adaptive_avg_pool3d, A.adaptive_max_pool3d),
        *(A.upsample_nearest3d, A.upsample_trilinear3d),
    ),
}


@rule(*(operation for operations in IMAGE_AXES.values() for operation in operations))
def pooling(call: OperatorCall) -> RuleResult:
    """Pool, pad or resample the image axes; every other axis keeps its ids."""
    x = call.first
    count = next(n for n, operations in IMAGE_AXES.items() if call.operation in operations)
    image = set(range(x.rank - count, x.rank))
    kept = []
    for channel in x.channels:
        if varying_axes(channel) & image:
            call.units.freeze(channel, f"{call.operation} runs along the width ({call.where})")
        else:
            kept.append(channel)
    return call.results(UnitLabels(call.shape, kept))


@rule(A.embedding)
def embedding(call: OperatorCall) -> RuleResult:
    """Look rows up: rows are chosen by data, columns are units."""
    weight = call.first
    columns = call.vector(
        UnitLabels(weight.shape, [c for c in weight.channels if varying_axes(c) == {1}]), 1
    )
    for channel in weight.channels:
        if 0 in varying_axes(channel):
            call.units.freeze(channel, f"embedding rows are chosen by data ({call.where})")
    rank = len(call.shape)
    return UnitLabels(
        call.shape, [] if columns is None else [labels_along(columns, rank - 1, rank)]
    )
