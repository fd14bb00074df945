"""Norms: their scales and biases are tied to the units they normalise."""

import torch
from torch import Tensor

from fjord.elastic.trace.labels import UnitLabels, varying_axes
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule
from fjord.elastic.trace.rules.contraction import as_image_channels

A = torch.ops.aten


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
    affine = as_image_channels(vectors, x.rank)
    out = call.pointwise([x, *affine], x.shape)
    if not call.several:
        return out
    results = [out]
    for shape in call.shapes[1:]:
        statistic = UnitLabels(shape, blank=True)
        if shape == (x.shape[1],):
            statistic.channels = _channel_vectors(out)
        results.append(statistic)
    return results


def _channel_vectors(value: UnitLabels) -> list[Tensor]:
    """Return the channels that run along axis 1 alone, as vectors."""
    vectors = []
    for channel in value.channels:
        if varying_axes(channel) == {1}:
            vectors.append(channel.reshape(-1))
    return vectors


@rule(A.native_group_norm, A.group_norm)
def group_norm(call: OperatorCall) -> RuleResult:
    """Normalise groups of channels: a group is one unit, unless one group holds all."""
    x, *vectors = call.labels
    position = 1
    if call.operation is A.native_group_norm:
        position = 6
    groups = int(call.args[position])
    affine = as_image_channels(vectors, x.rank)
    out = call.pointwise([x, *affine], x.shape)
    ids = call.axis_ids(out, 1)
    if ids is not None and 1 < groups < x.shape[1]:
        call.units.fuse(ids.reshape(groups, -1), [1])
    return call.same_for_all(out)


@rule(A.native_layer_norm, A.layer_norm, A.rms_norm, A._fused_rms_norm)
def layer_norm(call: OperatorCall) -> RuleResult:
    """Normalise over the last axes; inside larger units (a norm per head) those axes stay whole."""
    x, *affine = call.labels
    num_normalized = len(call.args[1])
    normalized = set(range(x.rank - num_normalized, x.rank))
    for channel in x.channels:
        axes = varying_axes(channel)
        if axes & normalized and axes - normalized:
            call.units.fuse(channel, axes & normalized)
            _freeze_shared_norm(call, affine)
            affine = []
    return call.same_for_all(call.pointwise([x, *affine], x.shape))


def _freeze_shared_norm(call: OperatorCall, affine: list[UnitLabels]) -> None:
    for weight in affine:
        for channel in weight.channels:
            call.freeze_ids(channel, "a norm is shared by all blocks")


@rule(A._weight_norm_interface)
def weight_norm(call: OperatorCall) -> RuleResult:
    """Scale each slice of a direction to a norm of its own."""
    out = call.pointwise(call.labels, call.shape)
    return [out, UnitLabels(call.shapes[1], blank=True)]
