"""A controller serves requests at a width that follows the load."""

import math
import threading

import pytest
import torch
from served import IDLE, WIDTHS, Stage
from stripes import stripes, train_stripes

import fjord
from fjord.core.width import parse_width


@pytest.fixture(scope="module")
def trained():
    return train_stripes()


def test_a_controller_answers_with_the_submodel_of_its_width(trained, monkeypatch):
    stage, image = Stage(), stripes(1, 4)[0]
    inner = {width: trained.at(width) for width in WIDTHS}
    monkeypatch.setattr(trained, "at", lambda width: stage.net(width, inner[width]))
    controller = fjord.WidthController(trained, image, target=0.022, clock=stage.clock)
    assert controller.policy.idle == pytest.approx(IDLE)
    assert controller.served.requests == 0
    assert math.isnan(controller.served.mean_width)
    for load, width in ((1.0, "1"), (2.0, "3/5"), (5.0, "1/5"), (1.0, "1")):
        stage.load = load
        for _ in range(60):
            answer = controller(image)
        assert controller.width == parse_width(width)
        assert torch.equal(answer, inner[stage.used[-1]](image))
    served = controller.served
    assert served.requests == 240
    assert served.within == pytest.approx(1 - 4 / 240)
    assert 0 < served.mean_width < 1


def test_a_controller_on_a_real_clock_serves_from_many_threads(trained):
    image = stripes(1, 4)[0]
    controller = fjord.WidthController(trained, image, target=1.0)
    threads = [
        threading.Thread(target=lambda: [controller(image) for _ in range(30)]) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert controller.served.requests == 90
    assert set(controller.served.widths) <= set(WIDTHS)
    with pytest.raises(ValueError, match=r"target=1e-09 s: the fastest width takes"):
        fjord.WidthController(trained, image, target=1e-9)
