"""ExecuTorch files agree with their source."""

import pytest
import torch
from exported import EXECUTORCH, ONNX, in_a_hurry, model_of, run  # noqa: F401

import fjord


def fresh(like: torch.Tensor, batch: int) -> torch.Tensor:
    shape = (batch, *like.shape[1:])
    return torch.randn(shape) if like.is_floating_point() else torch.randint(0, 90, shape)


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
