"""Recurrent networks one time step a call."""

from dataclasses import replace

import pytest
import torch
from exported import EXECUTORCH, ONNX, in_a_hurry, model_of, run  # noqa: F401
from torch import nn

import fjord
from fjord.deploy.exports import formats
from fjord.deploy.exports.plain import fixed_inputs


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 10), nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.cells(x)[0])


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=ONNX)])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_step_carries_its_states(kind, to, tmp_path):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = kind(4, 10, num_layers=2, batch_first=True)
            self.head = nn.Linear(10, 3)

        def forward(self, x):
            return self.head(self.cells(x)[0][:, -1])

    torch.manual_seed(1)
    inputs = (torch.randn(2, 5, 4),)
    model = fjord.elasticize(Last(), inputs)
    done = fjord.export_model(model, "3/5", tmp_path / "net", inputs, to=to, step=True)
    assert "states in, states out" in done.note
    assert done.difference <= 1e-5


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=ONNX)])
def test_an_axis_of_time_is_not_taken_for_one_of_examples(to, tmp_path):
    x = torch.randn(5, 2, 4)
    model = fjord.elasticize(TimeFirst(), x)
    done = fjord.export_model(model, "2/5", tmp_path / "net", x, to=to)
    assert not done.open_batch
    assert [i["shape"] for i in done.inputs] == [[5, 2, 4]]
    assert done.macs == 10 * (4 * 4 * (4 + 4) + 3 * 4 + 16 * 4)
    runner, _ = formats.FORMATS[to].open_file(done.path)
    torch.testing.assert_close(runner([x])[0], model.cut("2/5").eval()(x))


def test_steps_of_a_model_with_time_first_take_one_example_where_a_format_fixes_them(
    tmp_path, monkeypatch
):
    honest = formats.FORMATS["torch"]
    alone = replace(
        honest, write=lambda plain, *rest: honest.write(fixed_inputs(plain), *rest), unrolls=True
    )
    monkeypatch.setitem(formats.FORMATS, "torch", alone)
    x = torch.randn(5, 2, 4)
    done = fjord.export_model(
        fjord.elasticize(TimeFirst(), x), "2/5", tmp_path / "net", x, to="torch"
    )
    assert [i["shape"] for i in done.inputs] == [[1, 1, 4], [1, 1, 4], [1, 1, 4]]
