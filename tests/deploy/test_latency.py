"""How requests are timed."""

import pytest
import torch
from served import WIDTHS, Stage

from fjord.deploy.latency import time_networks


def test_networks_are_timed_in_turn_and_slow_ones_not_for_long():
    stage = Stage()
    nets = {width: stage.net(width, lambda x: x) for width in WIDTHS[:2]}
    times = time_networks(nets, (torch.zeros(1),), rounds=5, clock=stage.clock)
    assert stage.used == [*WIDTHS[:2]] * 6
    assert [len(t) for t in times.values()] == [5, 5]
    assert [min(t) for t in times.values()] == pytest.approx([0.002, 0.005])
    assert (
        len(time_networks(nets, (torch.zeros(1),), seconds=0.0, clock=stage.clock)[WIDTHS[0]]) == 3
    )
