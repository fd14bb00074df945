"""One file holds an elastic model, and any width can be cut out of it."""

from functools import cache

import oracles
import pytest
import torch
from motifs import MOTIFS
from safetensors import safe_open
from tiny_models import elastic_motif

import fjord
from fjord.elastic.storage import read_model_info, read_submodel

NAMES = [
    "paper cnn",
    "residual add",
    "concatenation",
    "lstm, both ways",
    "tied weights",
    "multi-head attention",
    "sizes in forward",
]


@cache
def made(name):
    return elastic_motif(name).eval()


def saved(name, tmp_path):
    made(name).save(tmp_path / "model.safetensors")
    return made(name), MOTIFS[name], tmp_path / "model.safetensors"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    elastic, motif, path = saved(name, tmp_path)
    again = fjord.load_model(path, motif.build().double(), motif.inputs()).eval()
    assert again.plan == elastic.plan
    assert again.space == elastic.space
    for width in elastic.space.widths:
        assert oracles.close(
            again.cut(width)(*motif.inputs()), elastic.cut(width)(*motif.inputs()), 1e-12
        )


@pytest.mark.parametrize("name", NAMES)
def test_one_width_is_cut_straight_from_the_file(name, tmp_path):
    elastic, motif, path = saved(name, tmp_path)
    for width in ("1/5", "3/5", "1"):
        expected = elastic.cut_tensors(width)
        found = read_submodel(path, width)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[k], v) for k, v in expected.items())
        net = fjord.load_model(path, motif.build().double(), motif.inputs(), width=width).eval()
        assert oracles.close(net(*motif.inputs()), elastic.cut(width)(*motif.inputs()), 1e-12)


def test_a_cut_reads_only_its_own_bytes(tmp_path, monkeypatch):
    elastic, _, path = saved("concatenation", tmp_path)
    read = []
    original = fjord.elastic.storage._read_slice

    class Counting:
        def __init__(self, source):
            self.source = source

        def get_shape(self):
            return self.source.get_shape()

        def __getitem__(self, key):
            read.append(self.source[key].numel())
            return self.source[key]

    monkeypatch.setattr(
        fjord.elastic.storage,
        "_read_slice",
        lambda source, indices: original(Counting(source), indices),
    )
    found = read_submodel(path, "1/5")
    assert sum(read) == sum(t.numel() for t in found.values())
    assert sum(read) < sum(t.numel() for t in elastic.state_dict().values()) / 8


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_cut_short_is_refused(share, tmp_path):
    _, motif, path = saved("residual add", tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    for use in (
        lambda: fjord.load_model(path, motif.build),
        lambda: read_submodel(path, "1/5"),
        lambda: read_model_info(path),
    ):
        with pytest.raises(
            ValueError,
            match=r"model.safetensors: not a complete safetensors file, it may be truncated",
        ):
            use()


def test_other_files_are_refused(tmp_path):
    _, _, path = saved("residual add", tmp_path)
    with pytest.raises(ValueError, match="there is no such file"):
        read_model_info(tmp_path / "none")
    fjord.elastic.storage.write_tensors(tmp_path / "plain", {"a": torch.zeros(2)}, {})
    with pytest.raises(ValueError, match="holds tensors but no width plan"):
        read_model_info(tmp_path / "plain")
    with pytest.raises(
        ValueError, match="holds a Residual whose tensors differ from the given Dense"
    ):
        fjord.load_model(path, MOTIFS["concatenation"].build)


def test_a_model_cut_from_its_graph_needs_the_example_again(tmp_path):
    _, motif, path = saved("sizes in forward", tmp_path)
    with pytest.raises(ValueError, match="give load_model\\(\\) the example_inputs"):
        fjord.load_model(path, motif.build)


def test_saving_into_a_missing_folder_leaves_nothing_behind(tmp_path):
    elastic, _, path = saved("residual add", tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        elastic.save(tmp_path / "no" / "model.safetensors")
    before = path.read_bytes()
    elastic.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    with safe_open(path, "pt") as file:
        assert "fjord" in file.metadata()
