"""Differences of scores and what chance may explain of them."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reproduction.compare import STUDENT, score_difference


@given(
    st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=2, max_size=12),
    st.sampled_from([0.0, -1.0]),
)
def test_above_is_the_t_test_on_one_side(values, level):
    found = score_difference("1", dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    center, count = sum(values) / len(values), len(values)
    spread = (sum((v - center) ** 2 for v in values) / (count - 1) / count) ** 0.5
    limit = STUDENT[min(count - 2, len(STUDENT) - 1)] * spread
    assume(min(abs(center - level - limit), abs(center - level + limit)) > 1e-9)
    assert found.is_above(level) is (
        True if center - level > limit else None if center - level > -limit else False
    )


def test_the_quantiles_are_those_of_student_s_t():
    """P(T > t) = 1/20, by Simpson's rule over the density."""
    for freedom, limit in enumerate(STUDENT, 1):
        scale = (
            math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
        )
        density = [
            scale * (1 + (limit * i / 1000) ** 2 / freedom) ** (-(freedom + 1) / 2)
            for i in range(1001)
        ]
        inner = (
            (density[0] + density[-1] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2]))
            * limit
            / 3000
        )
        assert 0.5 - inner == pytest.approx(0.05, abs=1e-4)
