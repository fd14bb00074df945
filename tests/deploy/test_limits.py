"""Limits of what a submodel may cost, read and written."""

import pytest
import torch

from fjord.deploy.limits import CostLimits, format_cost, parse_limit


def test_a_cost_that_is_shown_is_enough():
    for name, value in (
        ("macs", 23_110_001),
        ("macs", 7),
        ("bytes", 999_999),
        ("latency", 0.0023401),
    ):
        assert parse_limit(name, format_cost(name, value), 0.0) >= value


def test_a_share_above_the_full_model_is_refused():
    with pytest.raises(ValueError, match="macs=5000% is more than the full model costs"):
        CostLimits((torch.zeros(1, 4),), macs="5000%")
