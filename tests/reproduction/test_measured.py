"""Scores of the runs of a curve."""

import pytest
from paper_runs import by_width, fake_run, read_curves


def test_seeds_with_other_settings_do_not_mix(tmp_path):
    fake_run(tmp_path, "cifar10", "fjord", 0, by_width(1, 1, 1, 1, 1))
    fake_run(tmp_path, "cifar10", "fjord", 1, by_width(1, 1, 1, 1, 1), lr=3)
    with pytest.raises(ValueError, match="differ in more than their seed"):
        read_curves(tmp_path, "cifar10", "fjord")
