"""`fjord run`, `list` and `show` as a user types them, with a recipe of one's own."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from commands import call
from own_recipe import write_own_recipe
from torch import nn

import fjord
from fjord.core.seeding import derive_seed
from fjord.core.width import parse_width
from fjord.experiments.recipes.find import RECIPES, find_recipe
from fjord.federated.methods import METHODS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return write_own_recipe(tmp_path, monkeypatch)


def test_a_recipe_of_one_s_own_runs_into_a_folder_with_all_that_is_promised(
    folder, monkeypatch, capsys
):
    assert call(monkeypatch, "run", "mine.py", "--set", "lr=0.2", "--no-page") == 0
    run = fjord.RunFolder(Path("runs/mine/0"))
    assert run.config["lr"] == 0.2
    assert run.config["recipe"] == {"name": str(folder / "mine.py"), "set": ["lr=0.2"]}
    assert {"commit", "torch", "python", "fjord"} <= run.env.keys()
    rows = run.metrics()
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert [list(row["scores"]) for row in rows] == [
        [],
        ["1/5", "2/5", "3/5", "4/5", "1"],
        ["1/5", "2/5", "3/5", "4/5", "1"],
    ]
    for row in rows:
        assert row["examples"] == 30
        assert row["seconds"] > 0
        assert row["macs"] == sum(tier["macs"] for tier in row["tiers"].values()) > 0
        for ceiling, tier in row["tiers"].items():
            units = 10 * Fraction(ceiling)
            assert (
                tier["bytes_down"]
                == tier["bytes_up"]
                == tier["clients"] * 4 * (6 * units + units + 3 * units + 3)
            )
    final = rows[-1]["scores"]["1"]["accuracy"]
    assert f"{final:.1%}" in capsys.readouterr().out
    model = fjord.load_model(
        run.path / "model.safetensors",
        lambda: nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)),
    )
    data = find_recipe("mine.py")().data
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(0, "data"))
        test = data(0).test
    again = fjord.evaluate(model, [(test.inputs, test.targets)])
    assert again[parse_width("1")].accuracy == pytest.approx(final)


def test_the_clients_file_scores_each_client_at_the_widest_width_it_can_carry(folder, monkeypatch):
    assert call(monkeypatch, "run", "mine.py", "--set", "tiers=2/5:0.5,1:0.5", "--no-page") == 0
    clients = json.loads(Path("runs/mine/0/clients.json").read_text())
    assert sorted(map(int, clients)) == list(range(8))
    assert sorted(row["width"] for row in clients.values()) == ["1"] * 4 + ["2/5"] * 4
    scores = fjord.RunFolder(Path("runs/mine/0")).metrics()[-1]["scores"]
    assert set(scores) == {"1/5", "2/5", "3/5", "4/5", "1"}
    assert sum(row["count"] for row in clients.values()) == 40


def test_a_second_run_goes_to_a_folder_of_its_own(folder, monkeypatch):
    assert call(monkeypatch, "run", "mine.py", "--no-page") == 0
    assert call(monkeypatch, "run", "mine.py", "--no-page") == 0
    assert (
        Path("runs/mine/0-2/model.safetensors").read_bytes()
        == Path("runs/mine/0/model.safetensors").read_bytes()
    )
    assert call(monkeypatch, "run", "mine.py", "--no-page", "--seed", "1") == 0
    assert (
        Path("runs/mine/1/model.safetensors").read_bytes()
        != Path("runs/mine/0/model.safetensors").read_bytes()
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "mine.py:missing"], "mine.py has no function missing()"),
        (["run", "mine.py:wrong"], "returned a int, not a fjord.Experiment"),
        (
            ["run", "unknown"],
            f"known: {', '.join(RECIPES)}, or a file",
        ),
        (["run", "mine.py", "--set", "method=fjrod"], f"{list(METHODS)[-1]} (did you mean fjord?)"),
        (["run", "mine.py", "--set", "lrr=1"], "--set lrr=1: is not a setting (did you mean lr?)"),
        (["run", "demmo"], "recipe demmo: is unknown (did you mean demo?); known: demo, "),
        (["run", "mine.py", "--set", "lr"], "--set lr: must have the form key=value"),
        (["run", "mine.py", "--set", "lr=fast"], "--set lr=fast: must be a number above 0"),
        (
            ["run", "mine.py", "--set", "model=x"],
            "--set model=x: is not a setting; known: method, widths",
        ),
        (["run", "mine.py", "--set", "nova=maybe"], "--set nova=maybe: must be true or false"),
        (
            ["run", "mine.py", "--set", "num_rounds=0"],
            "--set num_rounds=0: must be a whole number of at least 1",
        ),
        (["run", "mine.py", "--set", "lr=nan"], "--set lr=nan: must be a number above 0"),
        (["run", "mine.py", "--set", "widths=0.3,2"], "width '2' is not a fraction"),
        (["run", "mine.py", "--set", "tiers=some"], "--set tiers=some: is not uniform-k, shares"),
        (
            ["run", "mine.py", "--set", "tiers=1/2:0.4,1:0.4"],
            "shares 2/5, 2/5 must not be negative and must add up to 1",
        ),
        (
            ["run", "mine.py", "--set", "tiers=none.json"],
            "none.json: names a file that does not exist",
        ),
        (
            ["run", "mine.py", "--set", "tiers=1/100:0.5,1:0.5"],
            "ceiling 1/100 is below the smallest width 1/5",
        ),
        (
            ["run", "mine.py", "--set", "tiers=1/2:0.5,1:0.5", "--set", "drop_scale=0.5"],
            "needs tiers=uniform-k",
        ),
        (
            ["run", "mine.py", "--set", "server_lr=1"],
            "--set server_lr=1.0: needs server=fedavgm or server=fedadam",
        ),
        (["run", "mine.py", "--set", "average=some"], "--set average=some: must be holders or all"),
        (
            ["run", "mine.py", "--set", "average=all", "--set", "nova=true"],
            "--set average=all: cannot go with nova",
        ),
        (
            ["run", "mine.py", "--set", "scaffold=true", "--set", "momentum=0.9"],
            "cannot go with scaffold",
        ),
        (
            ["run", "mine.py", "--set", "log=paper"],
            "--set log=paper: must be tensorboard, wandb or both",
        ),
        (["run", "mine.py", "--resume", "x"], "give no recipe and no --output"),
        (
            ["run", "theorem1"],
            "in a clone of the repository, run `python -m reproduction theorem1`",
        ),
        (["show", "theorem1.paper"], "run `python -m reproduction theorem1.paper`"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_named_in_one_line_and_leave_nothing_behind(
    folder, monkeypatch, capsys, arguments, says
):
    assert call(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert not Path("runs").exists()


def test_list_names_recipes_methods_and_what_composes_with_them(monkeypatch, capsys):
    assert call(monkeypatch, "list") == 0
    out = capsys.readouterr().out
    for word in (
        "demo",
        "emnist-central",
        *METHODS,
        "prox",
        "nova",
        "scaffold",
        "fedavgm",
        "fedadam",
    ):
        assert word in out


def test_show_prints_every_setting_as_it_would_be_run(folder, monkeypatch, capsys):
    assert call(monkeypatch, "show", "mine.py", "--set", "drop_scale=0.5") == 0
    out = capsys.readouterr().out
    for key in find_recipe("mine.py")().config():
        assert key in out
    assert "1/2" in out
