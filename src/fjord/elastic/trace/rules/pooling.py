"""Operations on the image axes: pooling, padding, resampling."""

from typing import Any

import torch

from fjord.elastic.trace.labels import UnitLabels, varying_axes
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule

A = torch.ops.aten

ONE_AXIS: tuple[Any, ...] = (
    A.avg_pool1d,
    A.adaptive_avg_pool1d,
    A.upsample_nearest1d,
    A.upsample_linear1d,
    A.reflection_pad1d,
)
TWO_AXES: tuple[Any, ...] = (
    A.avg_pool2d,
    A.max_pool2d_with_indices,
    A._adaptive_avg_pool2d,
    A.adaptive_max_pool2d,
    A.upsample_nearest2d,
    A._upsample_nearest_exact2d,
    A.upsample_bilinear2d,
    A._upsample_bilinear2d_aa,
    A.upsample_bicubic2d,
    A._upsample_bicubic2d_aa,
    A.reflection_pad2d,
    A.replication_pad2d,
    A.grid_sampler_2d,
)
THREE_AXES: tuple[Any, ...] = (
    A.avg_pool3d,
    A.max_pool3d_with_indices,
    A._adaptive_avg_pool3d,
    A.adaptive_max_pool3d,
    A.upsample_nearest3d,
    A.upsample_trilinear3d,
)


@rule(*ONE_AXIS)
def pool_one_axis(call: OperatorCall) -> RuleResult:
    """Pool, pad or resample sequences."""
    return _keep_other_axes(call, image_axes=1)


@rule(*TWO_AXES)
def pool_two_axes(call: OperatorCall) -> RuleResult:
    """Pool, pad or resample images."""
    return _keep_other_axes(call, image_axes=2)


@rule(*THREE_AXES)
def pool_three_axes(call: OperatorCall) -> RuleResult:
    """Pool, pad or resample volumes."""
    return _keep_other_axes(call, image_axes=3)


def _keep_other_axes(call: OperatorCall, *, image_axes: int) -> RuleResult:
    """Freeze units along the last axes, which change their size; every other axis keeps its ids."""
    x = call.first
    image = set(range(x.rank - image_axes, x.rank))
    channels = []
    for channel in x.channels:
        if varying_axes(channel) & image:
            call.freeze_ids(channel, f"{call.operation} runs along the width")
        else:
            channels.append(channel)
    return call.same_for_all(UnitLabels(call.shape, channels))
