"""`fjord inspect`, `footprint` and `cut` as a user types them, and mistakes in one line each."""

import subprocess
import sys

import commands
import pytest
import torch
from motifs import MOTIFS

import fjord
from fjord.cli import main
from fjord.elastic.storage import read_submodel


def test_footprint_prints_table_1b_and_its_convention():
    done = commands.fjord("footprint", "cnn")
    assert done.returncode == 0, done.stderr
    for words in ("46,976", "490,880", "25,182", "without norm layers and embeddings"):
        assert words in done.stdout


OWN = """
import torch
from torch import nn

def tiny():
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)), torch.randn(2, 6)

def alone():
    return tiny()[0]

def number():
    return 3
"""


def test_inspect_takes_a_user_s_own_function(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    done = commands.fjord("inspect", "mine:tiny", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0.weight[0]" in done.stdout
    assert "model output" in done.stdout
    done = commands.fjord(
        "footprint", "mine:alone", "--input", "4x6", "--widths", "1/2,1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "1/2" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["inspect", "nothing"],
            "model 'nothing' is neither one of resnet18, cnn, rnn nor of the form module:function",
        ),
        (
            ["inspect", "mine:missing"],
            "model 'mine:missing': module 'mine' has no attribute 'missing'",
        ),
        (["inspect", "mine:alone"], "--input: is needed for the model 'mine:alone'"),
        (["inspect", "mine:number"], "the function returned int, not a torch module"),
        (
            ["footprint", "cnn", "--widths", "1/5,abc"],
            "width 'abc' is not a fraction above 0 and at most 1",
        ),
        (["footprint", "cnn", "--input", "2xy"], "input '2xy' is not a shape such as 2x3x32x32"),
        (["run", "theorem9"], "recipe theorem9: is unknown"),
        (["cut", "none.safetensors", "--width", "2/5", "--output", "x"], "there is no such file"),
    ],
)
def test_mistakes_are_one_line_each(arguments, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fjord", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_cut_writes_the_weights_of_one_width(tmp_path):
    motif = MOTIFS["residual add"]
    elastic = fjord.elasticize(motif.build().double(), motif.inputs())
    elastic.save(tmp_path / "model.safetensors")
    done = commands.fjord(
        "cut", "model.safetensors", "--width", "40%", "--output", "small.safetensors", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    net = fjord.load_model(tmp_path / "small.safetensors", motif.build().double())
    with pytest.raises(ValueError, match="holds the submodel of width 2/5 alone"):
        read_submodel(tmp_path / "small.safetensors", "1/5")
    done = commands.fjord("inspect", "model.safetensors", cwd=tmp_path)
    assert "stem.weight[0]" in done.stdout, done.stderr
    assert torch.equal(net.stem.weight, elastic.cut("2/5").stem.weight)


def test_list_names_the_recipes():
    command = [sys.executable, "-m", "fjord.cli", "list"]  # a start of Python from nothing
    assert (
        "emnist-central"
        in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
