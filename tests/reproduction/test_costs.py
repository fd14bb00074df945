"""Methods at equal cost."""

import pytest
from paper_runs import fake_run, read_curves

from fjord.core.width import Width
from reproduction import costs


def test_methods_are_matched_in_what_they_spend(tmp_path):
    """The cheap method spends 4 x 10, the dear one as much at its second test.

    The small one is not counted.
    """
    fake_run(tmp_path, "emnist-iid", "fjord", 0, {"1": 60.0}, macs=10)
    fake_run(tmp_path, "emnist-iid", "fjord-kd", 0, {"1": 80.0}, macs=15)
    fake_run(tmp_path, "emnist-iid", "exclusive-small", 0, {"1/5": 30.0}, macs=1)
    names = ("fjord", "fjord-kd", "exclusive-small")
    cheap, dear, small = costs.match_costs(
        list(read_curves(tmp_path, "emnist-iid", *names).values())
    )
    assert cheap.at_equal["MACs"].mean == cheap.final.mean == 60
    assert dear.at_equal["MACs"].mean == pytest.approx(40 + 40 * (40 - 30) / 30)
    assert dear.at_equal["bytes"].mean == 80
    assert (small.width, small.at_equal["MACs"].mean) == (Width(1, 5), 30)
    assert dear.total == {"MACs": 60.0, "bytes": 20.0}
