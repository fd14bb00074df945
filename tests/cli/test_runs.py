"""`fjord run`, `list` and `show` as a user types them; settings, recipes of one's own, dashboards."""

import json
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from commands import call
from torch import nn

import fjord
from fjord.core.seeding import derive_seed
from fjord.core.width import parse_width
from fjord.data.writers import writers
from fjord.devices.tiers import VaryingDevices, uniform_tiers
from fjord.experiments.recipes.demo import demo
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.federated.methods import METHODS, find_method

MINE = """
import torch
from torch import nn
import fjord
from beside import HIDDEN


def net():
    return nn.Sequential(nn.Linear(6, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3))


def data(seed):
    x = torch.randn(120, 6)
    y, clients = x[:, :3].argmax(1), torch.arange(120) % 8
    return fjord.partition_tensors((x[:80], y[:80]), clients[:80], (x[80:], y[80:]), clients[80:])


def recipe():
    return fjord.Experiment(name="mine", model=net, data=data, num_rounds=3, cohort_size=3, eval_every=2, workers=1)


def wrong():
    return 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text("HIDDEN = 10\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


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


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_runs_with_every_strategy(folder, method):
    experiment = replace(
        find_recipe("mine.py")(), method=method, widths=fjord.uniform_widths(2), tiers="uniform-2"
    )
    mixed = replace(
        experiment,
        prox=0.1,
        nova=True,
        scaffold=True,
        server="fedadam",
        num_rounds=2,
        busy=Fraction(1, 2),
    )
    run = fjord.run_experiment(mixed, folder / "run")
    rows = run.metrics()
    stages = 2 if method in ("single", "efd", "fd") else 1
    assert len(rows) == 2 * stages
    assert len(list(run.path.glob("model*.safetensors"))) == stages
    assert all(row["dropped"] == {} for row in rows)
    plain = fjord.run_experiment(replace(experiment, num_rounds=2), folder / "plain")
    assert plain.metrics()[-1]["scores"] != rows[-1]["scores"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "mine.py:missing"], "mine.py has no function missing()"),
        (["run", "mine.py:wrong"], "returned a int, not a fjord.Experiment"),
        (
            ["run", "unknown"],
            "known: demo, cifar10, femnist, femnist-digits, emnist-skewed, shakespeare, or a file such",
        ),
        (["run", "mine.py", "--set", "method=fjrod"], "fedrolex (did you mean fjord?)"),
        (["run", "mine.py", "--set", "lrr=1"], "--set lrr=1: is not a setting (did you mean lr?)"),
        (["run", "demmo"], "recipe demmo: is unknown (did you mean demo?); known: demo, cifar10"),
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
        (["run", "mine.py", "--set", "tiers=some"], "tiers='some' is not uniform-k, shares"),
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


def test_settings_take_the_type_of_their_field(folder):
    texts = [
        "num_rounds=7",
        "lr=1e-2",
        "availability=1/3",
        "nova=true",
        "milestones=0.25,1/2",
        "freeze=0,2.bias",
    ]
    made = apply_settings(
        find_recipe("mine.py")(), [*texts, "max_local_steps=4", "widths=1/3,1", "server_lr=none"]
    )
    assert (made.num_rounds, made.lr, made.availability, made.nova) == (
        7,
        0.01,
        Fraction(1, 3),
        True,
    )
    assert made.milestones == (Fraction(1, 4), Fraction(1, 2))
    assert (made.freeze, made.max_local_steps, made.server_lr) == (("0", "2.bias"), 4, None)
    assert made.widths == fjord.WidthSpace.of(["1/3", "1"])


def test_the_step_size_falls_tenfold_at_half_and_three_quarters(folder):
    run = fjord.run_experiment(
        replace(find_recipe("mine.py")(), num_rounds=8, lr=1.0, eval_every=8), folder / "run"
    )
    assert [row["lr"] for row in run.metrics()] == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_a_model_that_blows_up_is_kept_out_and_named(folder):
    run = fjord.run_experiment(replace(find_recipe("mine.py")(), lr=1e30), folder / "run")
    rows = run.metrics()
    assert all(row["loss"] is None and row["examples"] == 0 for row in rows)
    assert all(len(row["dropped"]) == 3 and "finite" in str(row["dropped"]) for row in rows)


def test_metrics_reach_tensorboard(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = fjord.run_experiment(
        replace(find_recipe("mine.py")(), log=("tensorboard",)), folder / "run"
    )
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("accuracy/width 2/5")}
    rows = {
        row["round"]: row["scores"]["2/5"]["accuracy"] for row in run.metrics() if row["scores"]
    }
    assert found == pytest.approx(rows)
    assert len(events.Scalars("train/loss")) == 3


def test_metrics_reach_weights_and_biases_offline(folder, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = fjord.run_experiment(replace(find_recipe("mine.py")(), log=("wandb",)), folder / "run")
    files = list((run.path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 1
    end = (
        time.monotonic() + 30
    )  # a process of its own writes the file, and may be slower than finish()
    while b"accuracy/width 2/5" not in files[0].read_bytes():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_missing_dashboards_are_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"log=wandb needs the package wandb"):
        fjord.run_experiment(replace(find_recipe("mine.py")(), log=("wandb",)), folder / "run")


def test_a_custom_method_and_devices_of_the_round_take_effect(folder):
    def devices(num_clients, seed):
        usual = uniform_tiers(5, num_clients, seed=seed)
        return VaryingDevices(
            usual, lambda client, round_index, ceiling: "1/5" if round_index == 1 else "1"
        )

    sole = replace(
        find_method("fjord"),
        name="sole",
        sample=lambda grant: fjord.WidthSpace.of([grant.ceiling]),
    )
    run = fjord.run_experiment(
        replace(find_recipe("mine.py")(), devices=devices, method=sole), folder / "run"
    )
    assert [list(row["tiers"]) for row in run.metrics()] == [["1"], ["1/5"], ["1"]]
    assert [row["shells"]["1"] for row in run.metrics()] == [3, 0, 3]
    assert run.config["method"] == "sole"


@pytest.mark.parametrize("name", ["load", "tiers"])
def test_a_file_that_is_not_there_is_said_before_data_is_made(name):
    made = fjord.Experiment(
        name="x", model=nn.Identity, data=lambda seed: pytest.fail("made"), **{name: "none.csv"}
    )
    with pytest.raises(ValueError, match=f"{name}=none.csv names a file that does not exist"):
        next(made.federations())


def test_data_is_made_with_one_thread_and_the_others_come_back():
    seen = []

    def data(seed):
        seen.append(torch.get_num_threads())
        return writers(seed, 5, examples=4, held_out=2)

    torch.set_num_threads(2)
    try:
        replace(demo(), data=data).federation(0)
        seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(1)
    assert seen == [1, 2]
