"""Centralised training: against `fit`, after a kill, and with random units left out."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import fjord
from fjord.cli.central import run_central_recipe
from fjord.core.width import Width, WidthSpace
from fjord.experiments.central import CentralExperiment, score_random_units
from fjord.experiments.central_runner import run_central
from fjord.experiments.recipes import central
from fjord.experiments.runs import RunFolder
from fjord.report import page


def net():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 3)
    )


def data(seed):
    x = torch.randn(90, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    y, clients = x.flatten(1)[:, :3].argmax(1), torch.arange(90) % 5
    return fjord.partition_tensors((x[:65], y[:65]), clients[:65], (x[65:], y[65:]))


TOY = CentralExperiment(
    name="toy-central", model=net, data=data, widths=["1/2", "1"], epochs=3, batch_size=16, draws=2
)


def without_time(folder):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in RunFolder(folder).metrics()]


@pytest.mark.parametrize("method", ["od", "od-kd"])
def test_it_is_what_fit_does(method, tmp_path):
    setting = replace(TOY, method=method)
    run_central(setting, tmp_path / "run")
    with torch.random.fork_rng():
        model = setting.build_model(data(0), Width(1))
        objective = fjord.self_distillation() if method == "od-kd" else None
        sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        history = fjord.fit(
            model, setting.training_batches(data(0)), sgd, epochs=3, objective=objective
        )
    assert [row["loss"] for row in without_time(tmp_path / "run")] == [
        epoch.loss for epoch in history
    ]
    trained = fjord.load_model(tmp_path / "run" / "model-1.safetensors", net)
    assert all(torch.equal(t, trained.state_dict()[k]) for k, t in model.state_dict().items())


@pytest.mark.parametrize("stopped_after", [1, 4])
def test_a_killed_run_goes_on_bit_for_bit(stopped_after, tmp_path):
    setting = replace(TOY, method="single", epochs=2)
    run_central(setting, tmp_path / "whole")

    def stop(row, done, total):
        if done == stopped_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_central(setting, tmp_path / "cut", on_epoch=stop)
    run_central(setting, tmp_path / "cut", resume=True)
    assert without_time(tmp_path / "cut") == without_time(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"was begun with lr=0.1, the recipe now says 0.2"):
        run_central(replace(setting, lr=0.2), tmp_path / "cut", resume=True)


def test_single_models_are_trained_in_turn_and_the_full_one_scored_with_random_units(tmp_path):
    run_central(replace(TOY, method="single", epochs=1), tmp_path / "run")
    rows = without_time(tmp_path / "run")
    assert [(row["stage"], row["target"], list(row["scores"])) for row in rows] == [
        (0, "1/2", ["1/2"]),
        (1, "1", ["1"]),
    ]
    found = rows[-1]["random"]
    assert {w: len(draws["loss"]) for w, draws in found.items()} == {"1/2": 2, "1": 2}
    assert (
        found["1"]["accuracy"] == [rows[-1]["scores"]["1"]["accuracy"]] * 2
    )  # nothing is left out
    assert found["1/2"]["loss"][0] != found["1/2"]["loss"][1]
    text = page.write_page([RunFolder(tmp_path / "run")], tmp_path / "report.html").read_text()
    assert "toy-central" in text


def test_random_units_are_those_that_are_drawn():
    """Draws depend on the seed, and give a finite loss."""
    model = TOY.build_model(data(0), Width(1)).eval()
    test = data(0).test
    found = score_random_units(model, test, WidthSpace.of(["1/2"]), 3, seed=0)
    again = score_random_units(model, test, WidthSpace.of(["1/2"]), 3, seed=0)
    assert found == again != score_random_units(model, test, WidthSpace.of(["1/2"]), 3, seed=1)
    assert all(math.isfinite(loss) for loss in found["1/2"]["loss"])


def test_parts_of_the_data_are_chosen_by_name():
    few = replace(TOY, max_examples=10, max_test=7)
    assert len(few.training_batches(data(0)).inputs) == 10
    assert len(few.test_set(data(0)).inputs) == 7
    assert torch.equal(few.test_set(data(0)).inputs, replace(few, seed=1).test_set(data(0)).inputs)
    assert not torch.equal(
        few.training_batches(data(0)).inputs, replace(few, seed=1).training_batches(data(0)).inputs
    )
    assert [len(x) for x, _ in replace(TOY, batch_size=64).training_batches(data(0))] == [
        65
    ]  # no batch of one example


def test_the_step_falls_as_the_appendix_says():
    cifar10 = central.cifar10()
    assert [cifar10.lr_at(epoch) for epoch in (0, 149)] == [0.1, 0.1]
    assert [round(cifar10.lr_at(epoch), 6) for epoch in (150, 224, 225)] == [0.01, 0.01, 0.001]
    assert central.shakespeare().lr_at(49) == 0.1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"method": "sm"}, "method=sm must be od, od-kd or single"),
        ({"epochs": 0}, "epochs=0"),
        ({"lr": 0}, "lr=0"),
    ],
)
def test_mistakes_are_named(wrong, says):
    with pytest.raises(ValueError, match=says):
        replace(TOY, **wrong)


def test_the_command_shows_the_metric_of_the_task_and_no_bytes(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(central.RECIPES, "toy-central", lambda: replace(TOY, metric="perplexity"))
    run_central_recipe("toy-central", [], output=tmp_path / "run", page=False)
    said, last = capsys.readouterr().out, RunFolder(tmp_path / "run").metrics()[-1]["scores"]["1/2"]
    assert f"1/2: {math.exp(last['loss']):.3f}" in said
    assert "%" not in said
    assert "perplexity" in said
    assert "bytes" not in said
