"""Budgets as people write them."""

import re

import pytest

from fjord.devices.budget import Budget


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"deadline": "60s"}, "deadline=60.0 needs examples"),
        ({"examples": "many"}, "examples=many must be a whole number of at least 1"),
        ({"examples": 0}, "examples=0 must be"),
        (
            {"speed": "3s"},
            "speed is not a limit; the limits are deadline, memory, bandwidth, examples",
        ),
    ],
)
def test_a_bad_budget_is_one_error(limits, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Budget.parse(limits)
