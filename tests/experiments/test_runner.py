"""Runs from Python: every method, the step size, devices and methods of one's own."""

from dataclasses import replace
from fractions import Fraction

import pytest
from own_recipe import write_own_recipe

import fjord
from fjord.devices.tiers import VaryingDevices, uniform_tiers
from fjord.experiments.recipes.find import find_recipe
from fjord.federated.methods import METHODS, find_method


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return write_own_recipe(tmp_path, monkeypatch)


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
