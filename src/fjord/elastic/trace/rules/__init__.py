"""How unit ids pass through each operation: one small function per kind of operation."""

from fjord.elastic.trace.rules import contraction, elementwise, layout, recurrent
from fjord.elastic.trace.rules.call import (
    RULES,
    OperatorCall,
    RuleFunction,
    RuleResult,
    describe,
    rule,
    shape_of,
)

__all__ = [
    "RULES",
    "OperatorCall",
    "RuleResult",
    "RuleFunction",
    "describe",
    "rule",
    "shape_of",
    "contraction",
    "elementwise",
    "layout",
    "recurrent",
]
