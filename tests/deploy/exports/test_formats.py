"""Formats that cannot be written, by name."""

import importlib.util

import pytest
from exported import EXECUTORCH, MINE, ONNX, in_a_hurry, model_of  # noqa: F401

import fjord
from fjord.deploy.exports import formats


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else object()
    )
    with pytest.raises(
        ValueError,
        match=r"to=onnx needs onnxruntime, not installed: pip install 'fjord-fl\[export\]'",
    ):
        formats.find_format("onnx")


@pytest.mark.parametrize(
    "to", [pytest.param("onnx", marks=ONNX), pytest.param("executorch", marks=EXECUTORCH)]
)
def test_an_operation_that_a_format_lacks_is_named(to, tmp_path):
    names: dict = {}
    exec(MINE, names)
    net, x = names["odd"]()
    model = fjord.elasticize(net, x)
    with pytest.raises(ValueError, match=f"to={to} cannot express the model: .*bessel_j0"):
        fjord.export_model(model, "2/5", tmp_path / "net", x, to=to)
    assert list(tmp_path.iterdir()) == []
