"""Runs that went wrong once: each is a case someone could meet."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import commands
import pytest
import torch
from torch import nn

import fjord
from fjord.cli.display import run_warnings
from fjord.core.seeding import derive_seed
from fjord.devices.tiers import VaryingDevices, uniform_tiers
from fjord.experiments.runs import RunExistsError
from fjord.report import page
from fjord.training.evaluate import score_network

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)
CLIENTS = torch.arange(60) % 6


def net():
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))


def data(seed, y=Y, owners=CLIENTS[40:], options=None):
    return fjord.partition_tensors((X[:40], y[:40]), CLIENTS[:40], (X[40:], y[40:]), owners)


def experiment(**changes):
    small = {"num_rounds": 2, "cohort_size": 3, "eval_every": 1, "workers": 1}
    return fjord.Experiment(**{"name": "hard", "model": net, "data": data, **small, **changes})


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()
        self.register_buffer(
            "mask", torch.full((3,), -torch.inf).where(torch.tensor([False, False, True]), 0.0)
        )

    def forward(self, x):
        return self.body(x) + self.mask.clamp(min=-9)


def test_a_mask_of_minus_infinity_does_not_keep_updates_out(tmp_path):
    rows = fjord.run_experiment(experiment(model=Masked), tmp_path / "run").metrics()
    assert all(row["dropped"] == {} and row["examples"] > 0 for row in rows)
    model = fjord.load_model(tmp_path / "run" / "model.safetensors", Masked)
    assert torch.equal(model.state_dict()["mask"], Masked().mask)


def test_labels_in_a_column_are_scored_one_by_one(tmp_path):
    flat = fjord.run_experiment(experiment(), tmp_path / "flat").metrics()[-1]["scores"]
    column = fjord.run_experiment(
        experiment(data=partial(data, y=Y[:, None])), tmp_path / "column"
    ).metrics()[-1]["scores"]
    assert column == flat
    assert score_network(net(), [(X, Y[:, None])]).accuracy <= 1


def test_small_labels_work_and_labels_that_are_no_classes_are_named(tmp_path):
    wanted = fjord.run_experiment(experiment(), tmp_path / "a").metrics()[-1]["scores"]
    assert (
        fjord.run_experiment(experiment(data=partial(data, y=Y.int())), tmp_path / "b").metrics()[
            -1
        ]["scores"]
        == wanted
    )
    with pytest.raises(ValueError, match=r"targets are torch.float32; class numbers must be whole"):
        fjord.run_experiment(experiment(data=partial(data, y=Y.float())), tmp_path / "c")


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mean = net(), torch.full((6,), 0.1)

    def forward(self, x):
        return self.body(x - self.mean)


def test_a_model_with_a_constant_that_is_no_buffer_trains(tmp_path):
    rows = fjord.run_experiment(experiment(model=Constant), tmp_path / "run").metrics()
    assert (
        rows[0]["macs"]
        == fjord.run_experiment(experiment(), tmp_path / "plain").metrics()[0]["macs"]
    )


def test_a_tested_client_without_targets_and_a_load_table_of_the_rounds_lose_nothing(tmp_path):
    padded = Y.clone()
    padded[40:][CLIENTS[40:] == 2] = fjord.data.federated.IGNORED_TARGET
    loads = ["1", "1/5"]

    def devices(num_clients, seed):
        return VaryingDevices(uniform_tiers(2, num_clients), lambda client, t, usual: loads[t])

    run = fjord.run_experiment(
        experiment(data=partial(data, y=padded), devices=devices), tmp_path / "run"
    )
    clients = json.loads((run.path / "clients.json").read_text())
    assert clients["2"]["width"] is None
    usual = [uniform_tiers(2, 6).ceiling(c, 0) for c in range(6)]
    assert [clients[str(c)]["ceiling"] for c in range(6)] == [
        "2/5" if u < 1 else "1" for u in usual
    ]
    assert (run.path / "model.safetensors").exists()


def test_a_batch_of_padding_alone_costs_nothing(tmp_path):
    padded = Y.clone()
    padded[:40][CLIENTS[:40] == 1] = fjord.data.federated.IGNORED_TARGET
    rows = fjord.run_experiment(
        experiment(data=partial(data, y=padded), cohort_size=6), tmp_path / "run"
    ).metrics()
    assert all(row["dropped"] == {} for row in rows)


def test_a_finished_run_whose_test_set_has_no_owners_is_finished_on_the_page(tmp_path):
    run = fjord.run_experiment(experiment(data=partial(data, owners=None)), tmp_path / "run")
    assert "Unfinished" not in page.write_page([run], tmp_path / "page.html").read_text()


def test_fedrolex_rolls_within_the_model_it_trains(tmp_path):
    few = experiment(method="fedrolex", widths=["1/5", "2/5"], tiers="1/5:1", num_rounds=12)
    assert all(row["shells"] for row in fjord.run_experiment(few, tmp_path / "run").metrics())


def test_rounds_that_train_nothing_are_pointed_out(tmp_path):
    idle = fjord.run_experiment(experiment(availability=1e-9), tmp_path / "idle")
    assert run_warnings(idle) == ["Warning: in 2 of 2 rounds no client trained anything."]
    blown = fjord.run_experiment(experiment(lr=1e30), tmp_path / "blown")
    assert "6 updates were dropped" in run_warnings(blown)[0]
    assert run_warnings(fjord.run_experiment(experiment(), tmp_path / "fine")) == []
    with pytest.raises(
        ValueError, match="no client can take part in training width 1, the largest ceiling is 2/5"
    ):
        fjord.run_experiment(experiment(method="drop-low-tier", tiers="2/5:1"), tmp_path / "none")


def test_settings_in_lists_and_dictionaries_are_written_down():
    made = experiment(data=partial(data, options={"alpha": [0.1, Path("x")]}), milestones=[0.5])
    assert made.config()["data"]["function"] == "data"
    assert made.config()["data"]["options"] == {"alpha": [0.1, "x"]}
    assert made.config()["milestones"] == ["1/2"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nova": "false"}, "nova=false must be true or false"),
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        (
            {"max_local_steps": 1.5},
            "max_local_steps=1.5 must be a whole number of at least 1, or none",
        ),
        ({"drop_scale": "half"}, "drop_scale=half must be a number above 0"),
        (
            {"devices": lambda n, s: None, "tiers": "uniform-10"},
            "the recipe makes its devices itself",
        ),
    ],
)
def test_wrong_types_are_named(changes, says):
    with pytest.raises(ValueError, match=says):
        experiment(**changes)


def test_lists_texts_and_numbers_are_taken_where_their_meaning_is_plain():
    made = experiment(widths=["1/3", "1"], drop_scale=0.5, busy=0.25, log="tensorboard")
    assert made.widths == fjord.WidthSpace.of(["1/3", "1"])
    assert (str(made.drop_scale), str(made.busy), made.log) == ("1/2", "1/4", ("tensorboard",))


def test_set_takes_the_declared_type_whatever_the_recipe_gave():
    from fjord.experiments.recipes.find import apply_settings

    made = apply_settings(experiment(lr=1, prox=0), ["lr=0.5", "prox=0.01"])
    assert (made.lr, made.prox) == (0.5, 0.01)


def test_of_two_runs_that_claim_one_folder_one_is_refused(tmp_path):
    fjord.RunFolder.create(tmp_path / "run", {"a": 1})
    with pytest.raises(RunExistsError):
        fjord.RunFolder.create(tmp_path / "run", {"a": 2})
    assert fjord.RunFolder(tmp_path / "run").config == {"a": 1}
    assert not list((tmp_path / "run").glob(".*.tmp"))


BROKEN = """
import torch
import fjord
from fjord.data.federated import TestSet
from torch import nn


def make(client):
    if client == 1:
        raise KeyError("image")
    print("noise")
    return torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)


def recipe():
    test = TestSet(torch.randn(4, 6), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    return fjord.Experiment(
        name="broken", model=lambda: nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 3)),
        data=lambda seed: fjord.GeneratedData(3, make, test), cohort_size=3, num_rounds=2,
    )


def careless():
    a, b = [1]
"""


def test_an_error_in_a_worker_names_the_client_and_shows_the_line(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    done = commands.fjord("run", "broken.py", "--no-page", cwd=tmp_path)
    assert done.returncode == 2
    assert "client 1, round 0: KeyError: 'image'" in done.stderr
    assert 'raise KeyError("image")' in done.stderr


def test_a_mistake_in_the_user_s_own_recipe_keeps_its_traceback(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    done = commands.fjord("run", "broken.py:careless", cwd=tmp_path)
    assert done.returncode == 1
    assert "a, b = [1]" in done.stderr


def test_a_file_of_ceilings_is_found_again_from_another_folder(tmp_path, monkeypatch):
    from fjord.experiments.recipes.find import absolute_setting, apply_settings

    monkeypatch.chdir(tmp_path)
    Path("fleet.json").write_text(json.dumps(["1"] * 6))
    setting = absolute_setting("tiers=fleet.json")
    assert setting == f"tiers={tmp_path}/fleet.json"
    made = apply_settings(experiment(), [setting])
    run = fjord.run_experiment(made, tmp_path / "run")
    Path("fleet.json").write_text(json.dumps(["1/5"] * 6))
    with pytest.raises(ValueError, match="was begun with ceilings="):
        fjord.run_experiment(made, run.path, resume=True)


def test_dashboards_go_on_from_the_round_a_run_resumes_at(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logged = experiment(log="tensorboard", num_rounds=4, checkpoint_seconds=0.0)

    class Stop(Exception):
        pass

    def on_round(record, done, total):
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        fjord.run_experiment(logged, tmp_path / "run", on_round=on_round)
    fjord.run_experiment(replace(logged, checkpoint_seconds=5.0), tmp_path / "run", resume=True)
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [0, 1, 2, 3]


@pytest.mark.parametrize("server", ["mean", "fedavgm"])
def test_a_mean_over_all_is_eq1_where_all_hold_everything_and_a_smaller_step_where_not(
    server, tmp_path
):
    def trained(name, **changes):
        small = experiment(
            method="efd", widths=["1/5", "1"], num_rounds=1, server=server, **changes
        )
        folder = fjord.run_experiment(small, tmp_path / name)
        return fjord.load_model(folder.path / "model-1.safetensors", net).state_dict()["0.weight"]

    same = [trained(f"same-{a}", tiers="uniform-1", average=a) for a in ("holders", "all")]
    assert torch.allclose(*same, rtol=0, atol=1e-7)
    unequal = [
        trained(f"unequal-{a}", tiers="1/5:0.5,1:0.5", average=a) for a in ("holders", "all")
    ]
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(0, "weights"))
        start = net().state_dict()["0.weight"]
    moved = [(weights - start).norm() for weights in unequal]
    assert 0 < moved[1] < moved[0]


def test_a_run_from_before_a_setting_goes_on_as_with_its_default(tmp_path):
    folder = fjord.run_experiment(experiment(num_rounds=2), tmp_path / "run")
    old = {key: value for key, value in folder.config.items() if key not in ("average", "clock")}
    folder.write_json("config.json", old)
    assert (
        fjord.run_experiment(experiment(num_rounds=2), tmp_path / "run", resume=True).metrics()
        == folder.metrics()
    )
    with pytest.raises(ValueError, match="was begun with average=holders, the recipe now says all"):
        fjord.run_experiment(experiment(num_rounds=2, average="all"), tmp_path / "run", resume=True)
