"""Element by element operations, and those that create values."""

import torch

from fjord.elastic.trace.labels import UnitLabels
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule

A = torch.ops.aten


@rule(A.where, A.masked_fill, A.native_dropout, A.clamp, A.lerp, A.addcmul, A.addcdiv)
def elementwise(call: OperatorCall) -> RuleResult:
    """Equate what labels the same element; also serves every operation torch tags as pointwise."""
    return call.same_for_all(call.pointwise(call.labels, call.shape))


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
def fill_shape(call: OperatorCall) -> RuleResult:
    """Give a constant ids of its own: a size written in `forward` can then follow the width."""
    return call.units.new_labels(call.shape, blank=True)


@rule(A.full_like, A.zeros_like, A.ones_like, A.empty_like, A.rand_like, A.randn_like)
def fill_like(call: OperatorCall) -> RuleResult:
    """Follow the size of another value."""
    return UnitLabels(call.shape, list(call.first.channels), blank=True)


@rule(A.arange, A.linspace)
def number_positions(call: OperatorCall) -> RuleResult:
    """Create numbers that tell positions apart."""
    return UnitLabels(call.shape)
