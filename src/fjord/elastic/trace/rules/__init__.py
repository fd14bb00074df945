"""How unit ids pass through each operation: one small function per kind of operation."""

from fjord.elastic.trace.rules import (
    contraction,
    elementwise,
    indexing,
    layout,
    norms,
    pooling,
    recurrent,
    reduction,
)
from fjord.elastic.trace.rules.call import (
    RULES,
    OperatorCall,
    RuleFunction,
    RuleResult,
    describe_node,
    rule,
    traced_shape,
)

__all__ = [
    "RULES",
    "OperatorCall",
    "RuleFunction",
    "RuleResult",
    "contraction",
    "describe_node",
    "elementwise",
    "indexing",
    "layout",
    "norms",
    "pooling",
    "recurrent",
    "reduction",
    "rule",
    "traced_shape",
]
