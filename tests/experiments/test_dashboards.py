"""Metrics reach TensorBoard and Weights & Biases."""

import sys
import time
from dataclasses import replace

import pytest
from own_recipe import write_own_recipe

import fjord
from fjord.experiments.recipes.find import find_recipe


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return write_own_recipe(tmp_path, monkeypatch)


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
