"""Exported files: they agree with their source, in every format, and say what they are."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from exported import EXECUTORCH, ONNX, in_a_hurry, model_of, run  # noqa: F401
from motifs import MOTIFS
from torch import nn

import fjord
from fjord.deploy.exports import formats
from fjord.deploy.exports.plain import fixed_inputs


def fresh(like: torch.Tensor, batch: int) -> torch.Tensor:
    shape = (batch, *like.shape[1:])
    return torch.randn(shape) if like.is_floating_point() else torch.randint(0, 90, shape)


def in_onnx_runtime(path, *tensors: torch.Tensor) -> list[torch.Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return [
        torch.from_numpy(a)
        for a in session.run(None, {n: t.numpy() for n, t in zip(names, tensors, strict=True)})
    ]


@ONNX
@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("cnn", fjord.uniform_widths(5).widths),
        ("rnn", ("1/5", "3/5", "1")),
        ("resnet18", ("1/5", "3/5")),
    ],
)
def test_every_width_agrees_with_its_source_in_onnx_runtime(name, widths, tmp_path):
    model, inputs = model_of(name)
    sizes = []
    for i, width in enumerate(widths):
        done = fjord.export_model(model, width, tmp_path / f"{i}.onnx", inputs)
        assert done.difference <= 1e-4
        assert done.open_batch
        for batch in (1, 5):
            x = fresh(inputs[0], batch)
            (found,) = in_onnx_runtime(done.path, x)
            torch.testing.assert_close(found, model.cut(width).eval()(x), atol=1e-4, rtol=0)
        sizes.append(done.bytes)
    assert sizes == sorted(sizes)
    assert list(tmp_path.glob(".*")) == []


@ONNX
def test_the_file_says_its_width_source_and_inputs_and_nothing_of_this_machine(tmp_path):
    import onnx

    model, _ = model_of("cnn")
    model.save(tmp_path / "net.safetensors")
    run(tmp_path, "export", "net.safetensors", "--model", "cnn", "--width", "40%", "--to", "onnx")
    path = tmp_path / "net-2of5.onnx"
    loaded = onnx.load(path)
    facts = json.loads({p.key: p.value for p in loaded.metadata_props}["fjord"])
    assert facts["width"] == "2/5"
    assert (
        facts["source_sha256"]
        == hashlib.sha256((tmp_path / "net.safetensors").read_bytes()).hexdigest()
    )
    assert facts["inputs"] == [{"name": "input", "shape": ["batch", 1, 28, 28], "dtype": "float32"}]
    assert [d.dim_param for d in loaded.graph.input[0].type.tensor_type.shape.dim][:1] == ["batch"]
    assert b"site-packages" not in path.read_bytes()
    assert b".py" not in path.read_bytes()


def test_a_torch_file_is_loaded_without_this_package(tmp_path):
    model, inputs = model_of("rnn")
    done = fjord.export_model(model, "2/5", tmp_path / "net.pt2", inputs, to="torch")
    x = fresh(inputs[0], 4)
    torch.save({"x": x, "y": model.cut("2/5").eval()(x)}, tmp_path / "pair.pt")
    code = (
        "import sys, torch; d = torch.load('pair.pt'); y = torch.export.load('net.pt2').module()(d['x']);"
        "torch.testing.assert_close(y, d['y']); assert 'fjord' not in sys.modules"
    )
    subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True)
    assert done.difference <= 1e-6
    assert b".py" not in done.path.read_bytes()


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=ONNX)])
def test_a_model_cut_from_its_graph_is_exported(to, tmp_path):
    motif = MOTIFS["sizes in forward"]
    torch.manual_seed(0)
    inputs = tuple(t.float() for t in motif.inputs())
    model = fjord.elasticize(motif.build(), inputs)
    assert model.blueprint.route == "graph"
    done = fjord.export_model(model, "2/5", tmp_path / "net", inputs, to=to)
    assert done.open_batch
    assert done.difference <= 1e-5


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


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 10), nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.cells(x)[0])


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


@EXECUTORCH
@pytest.mark.parametrize("name", ["cnn", "rnn"])
def test_executorch_agrees_with_its_source(name, tmp_path):
    from executorch.runtime import Runtime

    model, inputs = model_of(name)
    done = fjord.export_model(model, "2/5", tmp_path / "net.pte", inputs, to="executorch")
    assert done.difference <= 1e-4
    method = Runtime.get().load_program(done.path).load_method("forward")
    net, x = model.cut("2/5").eval(), fresh(inputs[0], 1)
    if name == "cnn":
        found = method.execute([x])[0]
    else:
        states, outputs = [torch.zeros(2, 1, 52), torch.zeros(2, 1, 52)], []
        for i in range(x.shape[1]):
            output, *states = (t.clone() for t in method.execute([x[:, i : i + 1], *states]))
            outputs.append(output)
        found = torch.cat(outputs, 1)
    torch.testing.assert_close(found, net(x), atol=1e-4, rtol=0)
