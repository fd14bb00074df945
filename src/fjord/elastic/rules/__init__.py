"""How unit ids pass through each operation: one small function per kind of operation."""

from fjord.elastic.rules import contraction, elementwise, layout, recurrent
from fjord.elastic.rules.call import RULES, Call, Result, Rule, describe, rule, shape_of

__all__ = [
    "RULES",
    "Call",
    "Result",
    "Rule",
    "describe",
    "rule",
    "shape_of",
    "contraction",
    "elementwise",
    "layout",
    "recurrent",
]
