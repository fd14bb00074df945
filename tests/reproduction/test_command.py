"""The commands of the reproduction: what they print, and the mistakes they name."""

import json
import re
from pathlib import Path

import pytest
from paper_tasks import add_toy_task

import fjord
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runs import RunFolder
from reproduction import scales
from reproduction.command import reproduce_figures, write_results
from reproduction.curves import CURVES, run_job
from reproduction.folders import run_state

ROOT = Path(__file__).parents[2]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    return add_toy_task(tmp_path, monkeypatch)


def test_a_folder_that_is_not_there_is_said_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"runs=.*none is not a folder"):
        reproduce_figures("fig5", runs=tmp_path / "none", only_report=True)
    with pytest.raises(ValueError, match=r"runs=.*none is not a folder"):
        write_results(tmp_path / "none", tmp_path / "RESULTS.md")
    assert not list(tmp_path.iterdir())


def without_time(folder):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in RunFolder(folder).metrics()]


def test_a_figure_runs_what_is_missing_resumes_what_is_unfinished_and_uses_what_is_there(
    toy, tmp_path, capsys
):
    runs, laptop = tmp_path / "runs", scales.SCALES["laptop"]
    begun, fresh = (run_job(toy, CURVES[name], laptop, 0) for name in ("fjord", "fedavg"))
    whole = apply_settings(find_recipe(begun.recipe)(), begun.all_settings)
    fjord.run_experiment(whole, tmp_path / "whole")

    def stop(record, done, total):
        if done == 3:
            raise KeyboardInterrupt

    known = {"name": begun.recipe, "set": begun.all_settings}
    with pytest.raises(KeyboardInterrupt):
        fjord.run_experiment(
            fjord.Experiment(**{**vars(whole), "checkpoint_seconds": 0}),
            runs / begun.name,
            recipe=known,
            on_round=stop,
        )
    assert [run_state(one, runs) for one in (begun, fresh)] == ["unfinished", "missing"]
    reproduce_figures("toy", runs=runs, seeds="0", workers=2)
    said = capsys.readouterr().out
    assert "2 runs in" in said
    assert "0 finished, 1 unfinished, 1 missing" in said
    assert f"{begun.name}: resumed" in said
    assert f"{fresh.name}: started" in said
    assert without_time(runs / begun.name) == without_time(tmp_path / "whole")
    told = json.loads((runs / "figures" / "toy.json").read_text())
    assert [curve["runs"] for curve in told["curves"]] == ["toy/fjord/0", "toy/fedavg/0"]
    last = RunFolder(runs / begun.name).metrics()[-1]["scores"]
    assert {w: 100 * s["accuracy"] for w, s in last.items()} == {
        w: values["0"] for w, values in told["curves"][0]["points"].items()
    }
    assert (runs / "figures" / "toy.png").stat().st_size > 5000
    reproduce_figures("toy", runs=runs, seeds="0", workers=2)
    said = capsys.readouterr().out
    assert "2 finished, 0 unfinished, 0 missing" in said
    assert "started" not in said


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"name": "fig9"}, "'fig9' is not one of: table1b, fig3"),
        ({"name": "fig4", "tasks": "mnist"}, "tasks=mnist must be one of: cifar10, femnist"),
        ({"name": "fig4", "scale": "phone"}, "scale=phone must be one of: paper, laptop"),
        ({"name": "fig4", "seeds": "0,x"}, "seeds=0,x must be whole numbers"),
    ],
)
def test_mistakes_are_named(call, says, tmp_path):
    with pytest.raises(ValueError, match=re.escape(says)):
        reproduce_figures(**call, runs=tmp_path)
