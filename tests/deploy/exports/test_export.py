"""Exports from Python: files that are off, and models cut from their graph."""

import math
from dataclasses import replace

import pytest
import torch
from exported import ONNX, in_a_hurry, model_of  # noqa: F401
from motifs import MOTIFS

import fjord
from fjord.deploy.exports import formats


def lying(by: float) -> formats.ExportFormat:
    """A format whose files are off by a number."""
    honest = formats.FORMATS["torch"]

    def open_file(path):
        runner, facts = honest.open_file(path)
        return lambda tensors: [t + by for t in runner(tensors)], facts

    return replace(honest, open_file=open_file)


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


def test_a_source_that_gives_no_numbers_is_refused(tmp_path):
    model, inputs = model_of("cnn")
    with torch.no_grad():
        model.tensors["0.weight"].fill_(math.nan)
    with pytest.raises(ValueError, match="gives numbers that are not finite"):
        fjord.export_model(model, "2/5", tmp_path / "net.pt2", inputs, to="torch")
    assert list(tmp_path.iterdir()) == []
