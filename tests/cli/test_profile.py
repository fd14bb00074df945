"""`fjord profile` as a user types it, and nodes that measure what their budget lets them train."""

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from profiles import quick  # noqa: F401

import fjord
from fjord.cli import main
from fjord.devices.budget import Budget
from fjord.devices.profile import read_profile

MINE = """
import torch
from torch import nn
import fjord

def net():
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)), torch.randn(4, 12)

def two():
    return nn.Bilinear(4, 4, 2), (torch.randn(2, 4), torch.randn(2, 4))

def data(seed):
    x, y = torch.randn(40, 12), torch.randint(3, (40,))
    return fjord.partition_tensors((x, y), torch.arange(40) % 4, (x, y))

def recipe():
    return fjord.Experiment(name="mine", model=lambda: net()[0], data=data, method="fjord", widths=["1/2", "1"],
        tiers="uniform-2")
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with a file of one's own; return its exit code and what it said."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fjord", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize("name", ["mine:net", "mine.py:net"])
def test_a_model_of_ones_own_is_profiled_with_a_table_and_json(command, tmp_path, name):
    limits = ["--deadline", "1h", "--examples", "100", "--memory", "1GB", "--bandwidth", "5Mbit"]
    code, out, err = command("profile", name, "--widths", "1/2,1", *limits, "--json", "a.json")
    assert (code, err) == (0, "")
    assert "with distillation: width 1" in out
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["budget"] == {
        "deadline": 3600.0,
        "memory": 10**9,
        "bandwidth": 625_000.0,
        "examples": 100,
    }
    assert [(a["kd"], a["width"]) for a in found["answers"]] == [(True, "1"), (False, "1")]
    assert read_profile("a.json").model == name


def test_a_recipe_brings_its_own_settings_and_json_can_be_printed(command):
    code, out, _ = command(
        "profile", "mine.py", "--set", "batch_size=7", "--measure", "1", "--no-kd", "--json", "-"
    )
    found = json.loads(out)
    assert code == 0
    assert (found["batch_size"], found["method"], len(found["costs"])) == (7, "fjord", 2)
    assert [c["time"] for c in found["costs"]] == ["predicted", "measured"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["mine:net", "--memory", "1kB", "--widths", "1/5,1", "--kd"],
            "nothing fits: memory=1kB: the smallest width 1/5 needs",
        ),
        (
            ["mine.py", "--deadline", "1ms", "--examples", "9000"],
            "nothing fits: deadline=1ms: the smallest width 1/2",
        ),
        (["mine:net", "--memory", "-1GB"], "--memory -1GB: must be above 0"),
        (
            ["mine:net", "--deadline", "3 weeks", "--examples", "3"],
            "--deadline 3 weeks: has the unknown unit 'weeks'",
        ),
        (["mine:net", "--deadline", "3s"], "--deadline 3.0: needs examples"),
        (["mine:two"], "model 'mine:two' takes 2 inputs; clients train on one tensor of examples"),
        (
            ["mine:net", "--set", "lr=3"],
            "--set lr=3: is only for recipes: mine:net is a model",
        ),
        (["mine.py", "--input", "3x3"], "--input 3x3: is only for models: recipe mine.py brings its own data"),
        (["nothing"], "model 'nothing' is neither one of resnet18, cnn, rnn, demo"),
        (["mine:net", "--measure", "1/3"], "width 1/3 is not one of"),
    ],
)
def test_mistakes_are_one_line_each(command, words, says):
    code, _, err = command("profile", *words)
    assert code == 2
    assert says in err.replace("\n", " ")
    assert "Traceback" not in err


PAGE = Path(__file__).parents[2] / "docs" / "devices.md"


def test_what_the_page_on_devices_says_is_run_as_it_stands(command, tmp_path):
    pytest.importorskip("matplotlib")
    page = PAGE.read_text()
    (table,) = re.findall(r"```csv\n(.*?)```", page, re.S)
    (tmp_path / "fleet.csv").write_text(table)
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()
    ]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("fjord ")]
    assert {words[1] for words in commands} >= {"profile", "tiers", "run"}
    for words in commands:
        short = ["--set", "num_rounds=1", "--no-page"] if words[1] == "run" else []
        code, _, err = command(*words[1:], *short)
        assert code == 0, (words, err)
    found = json.loads((tmp_path / "here.json").read_text())
    keys = set(
        re.findall(
            r"^\| `([a-z_.]+)` \|", page.partition("### The JSON")[2].partition("\n## ")[0], re.M
        )
    )
    assert {*found, *(f"costs.{key}" for key in found["costs"][0])} == keys
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["width"] in fjord.uniform_widths(5).widths


# ---------------------------------------------------------------------------------------------- on Flower nodes


@pytest.fixture
def grid(tmp_path):
    """A grid of nodes, each client 0, 1, ... with a budget of its own; counts how often a node measures."""
    pytest.importorskip("flwr")
    from local_grid import LocalGrid

    from fjord.engines.flower.client import client_app
    from fjord.engines.flower.codec import unpack_content
    from fjord.engines.flower.engine import ReplyPolicy, RunSpec
    from fjord.experiments.flower_app import device, serve

    (tmp_path / "mine.py").write_text(MINE)
    measured, sent = [], []

    def make(order):
        real = device(order)
        return replace(
            real, profile=lambda examples: measured.append(examples) or real.profile(examples)
        )

    def run(*budgets):
        def note(message, reply):
            if message.metadata.message_type == "train":
                head, _ = unpack_content(message.content)
                sent.append((head["client"], head["widths"]))
            return reply

        nodes = [{"client-id": client, **budget} for client, budget in enumerate(budgets)]
        local = LocalGrid(client_app(make), nodes, note)
        order = RunSpec(
            str(tmp_path / "mine.py"), ("tiers=1:1", "num_rounds=2", "cohort_size=4", "workers=1")
        )
        run_once = lambda name: serve(local, order, ReplyPolicy(30.0), tmp_path / name)  # noqa: E731
        return run_once, measured, sent

    return run


def test_a_node_measures_its_budget_once_and_is_sent_no_more_than_fits(grid):
    run, measured, sent = grid({"memory": "1GB"}, {"deadline": "1h", "ceiling": "1/2"}, {})
    run("first")
    assert measured == [10, 10]  # a node that is one client knows how many examples it has
    assert set(sent) == {(0, "1/2:1/2,1:1/2"), (1, "1/2:1"), (2, "1/2:1/2,1:1/2")}
    run("second")
    assert len(measured) == 2


def test_a_node_whose_budget_is_too_small_or_wrong_is_named_with_the_reason(grid):
    run, _, sent = grid({"memory": "1kB"}, {"deadline": "soon", "examples": 5}, {})
    dropped = run("run").metrics()[0]["dropped"]
    assert {client for client, _ in sent} == {2}
    assert "node 100: nothing fits: memory=1kB: the smallest width 1/2 needs" in dropped["0"]
    assert "node 101: deadline=soon is not a number with a unit" in dropped["1"]


def test_a_fleet_passes_its_budget_on():
    pytest.importorskip("flwr")
    from fjord.cli.fleet import node_configs

    (config,) = node_configs(1, bind=True, budget=Budget.split_limits("deadline=60s examples=500"))
    assert config == 'partition-id=0 num-partitions=1 client-id=0 deadline="60s" examples="500"'
    with pytest.raises(ValueError, match="deadline=soon is not a number"):
        Budget.split_limits("deadline=soon")
    with pytest.raises(ValueError, match="budget=60s is not of the form limit=value"):
        Budget.split_limits("60s")
