"""Exports that are refused: files that are off, operations that a format lacks, sources without numbers."""

import importlib.util
import math
from dataclasses import replace

import pytest
import torch
from exported import EXECUTORCH, MINE, ONNX, in_a_hurry, model_of  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

import fjord
from fjord.deploy.exports import formats
from fjord.deploy.exports.trial import largest_difference, random_inputs
from fjord.models.catalog import find_model


def lying(by: float) -> formats.ExportFormat:
    """A format whose files are off by a number."""
    honest = formats.FORMATS["torch"]

    def open_file(path):
        runner, facts = honest.open_file(path)
        return lambda tensors: [t + by for t in runner(tensors)], facts

    return replace(honest, open_file=open_file)


@pytest.mark.parametrize("by", [3e-4, math.nan])
def test_a_file_that_is_off_is_not_kept(by, tmp_path, monkeypatch):
    monkeypatch.setitem(formats.FORMATS, "torch", lying(by))
    model, inputs = model_of("cnn")
    kept = tmp_path / "net.pt2"
    kept.write_text("what was here before")
    with pytest.raises(
        ValueError, match=f"differs from the source model by {by:.1e}, more than 1e-04"
    ):
        fjord.export_model(model, "1/5", kept, inputs, to="torch", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["net.pt2"]
    assert kept.read_text() == "what was here before"


def test_an_error_within_the_tolerance_passes(tmp_path, monkeypatch):
    monkeypatch.setitem(formats.FORMATS, "torch", lying(5e-5))
    model, inputs = model_of("cnn")
    done = fjord.export_model(model, "1/5", tmp_path / "net.pt2", inputs, to="torch")
    assert done.difference == pytest.approx(5e-5, rel=0.1)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6), st.floats(0, 1, width=32))
def test_difference_is_absolute_up_to_one_and_relative_above(values, by):
    wanted = torch.tensor(values, dtype=torch.float64)
    expected = float((wanted + by - wanted).abs().max()) / max(1.0, max(map(abs, values)))
    assert largest_difference([wanted + by], [wanted]) == pytest.approx(expected)
    assert largest_difference([wanted[None]], [wanted]) == math.inf


def test_random_tokens_are_ones_the_model_knows():
    entry = find_model("rnn", "2x50")
    (x,) = random_inputs(entry.model, entry.inputs, 7, seed=1)
    assert x.shape == (7, 50)
    assert 0 <= int(x.min()) < int(x.max()) < 90
    assert torch.equal(x, random_inputs(entry.model, entry.inputs, 7, seed=1)[0])


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else object()
    )
    with pytest.raises(
        ValueError, match=r"to=onnx needs onnxruntime, not installed: pip install 'fjord-fl\[export\]'"
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


def test_a_source_that_gives_no_numbers_is_refused(tmp_path):
    model, inputs = model_of("cnn")
    with torch.no_grad():
        model.tensors["0.weight"].fill_(math.nan)
    with pytest.raises(ValueError, match="gives numbers that are not finite"):
        fjord.export_model(model, "2/5", tmp_path / "net.pt2", inputs, to="torch")
    assert list(tmp_path.iterdir()) == []
