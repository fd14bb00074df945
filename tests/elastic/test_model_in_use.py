"""Submodels of a trained model: switching width, inference mode and threads."""

import copy
import threading

import pytest
import torch
from stripes import WIDTHS, stripes, train_stripes
from torch import nn

import fjord


@pytest.fixture(scope="module")
def trained():
    return train_stripes()


def test_switching_width_loads_and_copies_nothing(trained):
    full = trained.tensors["two.weight"]
    nets = {width: trained.at(width) for width in WIDTHS}
    for width, net in nets.items():
        assert trained.at(width) is net
        assert net.get_parameter("two.weight").data_ptr() == full.data_ptr()


class Recurrent(nn.Module):
    """An LSTM, whose gates cannot be views of the full-size weights."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.norm, self.head = (
            nn.LSTM(4, 10, batch_first=True),
            nn.BatchNorm1d(10),
            nn.Linear(10, 4),
        )

    def forward(self, x):
        return self.head(self.norm(self.cells(x)[0][:, -1]))


def test_a_width_first_used_in_inference_mode_can_be_used_and_trained_afterwards():
    x = torch.randn(6, 3, 4)
    model = fjord.elasticize(Recurrent(), x).eval()
    with torch.inference_mode():
        answers = {width: model.at(width)(x) for width in ("2/5", "1")}
        fjord.recalibrate(model, "1/2", [x])
        model.at("1/2")(x)
    for width, answer in answers.items():
        torch.testing.assert_close(
            model.at(width)(x), answer
        )  # with gradients, the LSTM has another kernel
    model.train()
    for width in ("2/5", "1/2"):
        model.at(width)(x).sum().backward()
        assert model.at(width).get_parameter("cells.weight_hh_l0").grad is not None


def test_submodels_answer_alike_in_many_threads(trained):
    images = stripes(64, 3)[0]
    with torch.inference_mode():
        expected = {width: trained.at(width)(images) for width in WIDTHS}
    fresh, wrong = (
        copy.deepcopy(trained),
        [],
    )  # whose submodels are built by whichever thread comes first

    def serve(start):
        with torch.inference_mode():
            for i in range(20):
                width = WIDTHS[(start + i) % 5]
                if not torch.equal(fresh.at(width)(images), expected[width]):
                    wrong.append(width)

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
