"""Table 1b of the paper, and the counters against closed forms."""

from fractions import Fraction

import pytest
import torch
from torch import nn

import fjord
from fjord.elastic.footprint import count_macs, measure_footprint, on_meta, saved_bytes
from fjord.models.catalog import find_model

MILLION, THOUSAND = 10**6, 10**3
PAPER_MACS = {
    "resnet18": [n * MILLION for n in (23, 91, 203, 360, 555)],
    "cnn": [n * THOUSAND for n in (47, 120, 218, 342, 491)],
    "rnn": [n * THOUSAND for n in (12, 40, 83, 143, 216)],
}
WEIGHTS = {
    "resnet18": [
        455_638,
        1_799_454,
        4_043_572,
        7_167_886,
        11_164_362,
    ],  # the paper: 456K, 2M, 4M, 7M, 11M
    "cnn": [4_286, 8_910, 13_934, 19_358, 25_182],  # the paper prints 5K, 10K, 15K, 20K, 26K
    "rnn": [11_790, 39_714, 81_864, 141_612, 214_362],  # the paper: 12K, 40K, 82K, 142K, 214K
}


@pytest.mark.parametrize("name", PAPER_MACS)
def test_table_1b(name):
    entry = find_model(name)
    rows = fjord.measure_footprints(
        fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze), entry.inputs
    )
    unit = MILLION if name == "resnet18" else THOUSAND
    assert [round(row.macs / unit) * unit for row in rows] == PAPER_MACS[name]
    assert [row.weights for row in rows] == WEIGHTS[name]
    assert [row.width for row in rows] == list(fjord.uniform_widths(5).widths)


def test_macs_are_those_of_the_closed_forms():
    assert count_macs(nn.Linear(7, 5).to("meta"), on_meta((torch.randn(2, 7),), 1)) == 35
    convolution = nn.Conv2d(6, 4, 3, groups=2, bias=False).to("meta")
    assert count_macs(convolution, on_meta((torch.randn(1, 6, 8, 8),), 1)) == 4 * 36 * 3 * 9
    lstm = nn.LSTM(3, 5, batch_first=True).to("meta")
    assert count_macs(lstm, on_meta((torch.randn(2, 7, 3),), 1)) == 7 * (4 * 5 * (3 + 5) + 16 * 5)
    attention = nn.MultiheadAttention(8, 2, batch_first=True, bias=False).to("meta")
    x = on_meta((torch.randn(1, 6, 8),), 1)[0]
    assert count_macs(attention, (x, x, x)) == 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8


def test_memory_counts_weights_gradients_and_what_backward_needs():
    net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
    row = measure_footprint(net, Fraction(1), (torch.randn(1, 8),), batch=10)
    weights = 4 * (8 * 16 + 16 * 4)
    assert row.bytes == weights
    assert row.training_bytes == 2 * weights + 4 * 10 * (8 + 16)  # the input and tanh's output
    assert saved_bytes(net.to("meta"), on_meta((torch.randn(1, 8),), 3)) == 4 * 3 * (8 + 16)


def test_a_network_with_batchnorm_over_single_numbers_is_measured_at_batch_one():
    model = fjord.elasticize(
        nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Linear(10, 3)), torch.randn(2, 6)
    )
    rows = fjord.measure_footprints(model, (torch.randn(2, 6),))
    assert rows[-1].macs == 6 * 10 + 10 * 3
    kept = [
        fjord.measure_footprints(model, (torch.randn(2, 6),), batch=n)[-1].training_bytes
        for n in (2, 3)
    ]
    assert rows[-1].training_bytes == 2 * kept[0] - kept[1]
