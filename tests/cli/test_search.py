"""`fjord search` of runs and files."""

import json
from functools import partial

from typer.testing import CliRunner

import fjord
from fjord.cli import app
from fjord.core.width import kept_units, parse_width

RECIPE = """
import torch
from torch import nn
import fjord

def net():
    first = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4))

def data(seed):
    x = torch.randn(800, 6)
    y = x[:, :4].argmax(1)
    return fjord.partition_tensors((x[:600], y[:600]), torch.arange(600) % 6, (x[600:], y[600:]))

def recipe():
    return fjord.Experiment(
        name="mine",
        model=net,
        data=data,
        method="fjord",
        num_rounds=30,
        cohort_size=6,
        eval_every=30,
        workers=1,
    )
"""


def test_the_command_searches_a_run_and_writes_what_it_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPE)
    invoke = partial(CliRunner().invoke, app)
    assert invoke(["run", "mine.py", "--output", "run", "--no-page"]).exit_code == 0
    done = invoke(["search", "run", "--macs", "50%", "--output", "small.safetensors"])
    assert done.exit_code == 0, done.output
    assert "25 submodels tried" not in done.output
    assert "all that there are" in done.output
    space: dict = {}
    exec(RECIPE, space)
    widths = json.loads(
        done.output[done.output.index("{") : done.output.index("}") + 1].replace("\n", "")
    )
    small = fjord.load_model("small.safetensors", space["net"])
    assert small[0].out_features == kept_units(parse_width(widths["0.weight[0]"]), 12)
    saved = invoke(["search", "run/model.safetensors", "--bytes", "60%", "--data", "mine.py"])
    assert saved.exit_code == 0, saved.output
    nothing = invoke(["search", "run", "--macs", "1"])
    assert isinstance(nothing.exception, ValueError)
    assert "the smallest submodel needs" in str(nothing.exception)
    nowhere = invoke(["search", "run", "--macs", "50%", "--output", "no/small.safetensors"])
    assert "output=no/small.safetensors cannot be written: the folder no does not exist" in str(
        nowhere.exception
    )
    unknown = invoke(["search", "run/model.safetensors", "--macs", "50%"])
    assert "give --data RECIPE" in str(unknown.exception)
    assert "no such run folder or file" in str(
        invoke(["search", "none", "--macs", "50%"]).exception
    )
    timed = invoke(["latency", "run", "--widths", "1/2,1"])
    assert timed.exit_code == 0
    assert "1/2" in timed.output
    assert "3/5" not in timed.output
    settled = invoke(["latency", "run", "--round-to", "4"])
    assert "--freeze and --round-to: run is trained" in str(settled.exception)
    assert "there is none called cnn" in str(
        invoke(["latency", "cnn", "--data", "mine.py"]).exception
    )
