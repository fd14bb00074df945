"""ONNX files agree with their source, and say what they are."""

import hashlib
import json

import pytest
import torch
from exported import EXECUTORCH, ONNX, in_a_hurry, model_of, run  # noqa: F401

import fjord


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
