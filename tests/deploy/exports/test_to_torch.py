"""Files of torch.export run without this package."""

import subprocess
import sys

import torch
from exported import EXECUTORCH, ONNX, in_a_hurry, model_of, run  # noqa: F401

import fjord


def fresh(like: torch.Tensor, batch: int) -> torch.Tensor:
    shape = (batch, *like.shape[1:])
    return torch.randn(shape) if like.is_floating_point() else torch.randint(0, 90, shape)


def test_a_torch_file_is_loaded_without_this_package(tmp_path):
    model, inputs = model_of("rnn")
    done = fjord.export_model(model, "2/5", tmp_path / "net.pt2", inputs, to="torch")
    x = fresh(inputs[0], 4)
    torch.save({"x": x, "y": model.cut("2/5").eval()(x)}, tmp_path / "pair.pt")
    code = (
        "import sys, torch; d = torch.load('pair.pt');"
        "y = torch.export.load('net.pt2').module()(d['x']);"
        "torch.testing.assert_close(y, d['y']); assert 'fjord' not in sys.modules"
    )
    subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True)
    assert done.difference <= 1e-6
    assert b".py" not in done.path.read_bytes()
