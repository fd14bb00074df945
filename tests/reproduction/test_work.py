"""The reproduction: runs are shared, resumed and named when they fail."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

import fjord
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runs import RunFolder
from reproduction import compare, figures, scales
from reproduction.command import reproduce_figures, write_results
from reproduction.curves import CURVES, TASKS, PaperTask, RunJob, run_job
from reproduction.figures import FIGURES, PaperFigure, all_jobs
from reproduction.folders import run_state
from reproduction.results import make_result
from reproduction.work import RunQueue, job_command

ROOT = Path(__file__).parents[2]
MINE = """
import torch
from torch import nn

import fjord


def net():
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))


def data(seed, broken=0):
    if broken:
        raise ValueError(f"the data is broken by {broken}")
    x = torch.randn(120, 4)
    y, clients = x[:, :3].argmax(1), torch.arange(120) % 6
    return fjord.partition_tensors((x[:96], y[:96]), clients[:96], (x[96:], y[96:]), clients[96:])


def recipe():
    rounds = {"num_rounds": 4, "cohort_size": 3, "eval_every": 2}
    return fjord.Experiment(name="toy", model=net, data=data, workers=1, **rounds)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A task over a recipe of a file, with a figure of two curves and one that cannot run."""
    (tmp_path / "mine.py").write_text(MINE)
    task = PaperTask("toy", "Toy", f"{tmp_path / 'mine.py'}:recipe", column="cifar10")
    monkeypatch.setitem(TASKS, "toy", task)
    monkeypatch.setitem(
        FIGURES,
        "toy",
        PaperFigure("toy", "Toy", ("fjord", "fedavg"), tasks=("toy",), default=("toy",)),
    )
    return task


def test_a_folder_that_is_not_there_is_said_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"runs=.*none is not a folder"):
        reproduce_figures("fig5", runs=tmp_path / "none", only_report=True)
    with pytest.raises(ValueError, match=r"runs=.*none is not a folder"):
        write_results(tmp_path / "none", tmp_path / "RESULTS.md")
    assert not list(tmp_path.iterdir())


class Listener:
    def __init__(self):
        self.heard = []

    def on_start(self, job, how):
        self.heard.append((job.name, how))

    def on_poll(self, job):
        pass

    def on_end(self, job, failure):
        self.heard.append((job.name, failure))


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


def test_a_failed_run_is_named_and_the_others_go_on(toy, tmp_path):
    laptop, listener = scales.SCALES["laptop"], Listener()
    good = run_job(toy, CURVES["fjord"], laptop, 0)
    bad = RunJob("toy/broken", good.recipe, (*good.settings, "data.broken=7"), 0)
    work = RunQueue(tmp_path / "runs", [bad, good], 1, listener)
    work.run()
    assert list(work.failed) == ["toy/broken/0"]
    assert (
        "the data is broken by 7" in (tmp_path / "runs" / "logs" / "toy-broken-0.log").read_text()
    )
    assert listener.heard[-2:] == [("toy/fjord/0", "started"), ("toy/fjord/0", None)]
    assert run_state(good, tmp_path / "runs") == "finished"


def test_a_folder_with_other_settings_is_refused_by_name(toy, tmp_path):
    one = run_job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    config = apply_settings(find_recipe(one.recipe)(), one.all_settings).config()
    RunFolder.create(tmp_path / one.name, {**config, "lr": 0.3})
    with pytest.raises(
        ValueError, match=r"toy/fjord/0: was run with lr=0.3, here it is 0.1; choose another folder"
    ):
        run_state(one, tmp_path)


def test_a_setting_that_is_younger_than_a_run_had_its_default(toy, tmp_path):
    one = run_job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    config = apply_settings(find_recipe(one.recipe)(), one.all_settings).config()
    del config["prox"], config["data"]
    RunFolder.create(tmp_path / one.name, {**config, "data": "data"})
    assert run_state(one, tmp_path) == "unfinished"
    with pytest.raises(ValueError, match=r"prox=0\.0, here it is 0\.5"):
        run_state(RunJob(one.place, one.recipe, (*one.settings, "prox=0.5"), 0), tmp_path)


def test_two_processes_do_not_work_on_one_run(toy, tmp_path):
    from reproduction.work import run_lock

    one = run_job(toy, CURVES["fjord"], scales.SCALES["laptop"], 0)
    with run_lock(tmp_path, one):
        work = RunQueue(tmp_path, [one], 1, Listener())
        work.run()
    assert work.failed == {"toy/fjord/0": "another process is at work on it"}


def test_figures_share_their_runs_and_the_first_seed_comes_first():
    laptop = scales.SCALES["laptop"]
    federated = [
        FIGURES[name] for name in ("fig4", "fig5", "fig6", "fig7", "convergence", "fd-efd")
    ]
    jobs = all_jobs(federated, ("emnist-skewed",), laptop, None)
    names = [one.name for one in jobs]
    assert len(names) == len(set(names)) == 7 * 3
    assert [one.seed for one in jobs] == [0] * 7 + [1] * 7 + [2] * 7
    assert {one.place.split("/")[1] for one in jobs} == {
        "fjord-kd", "fjord", "efd", "fjord-efd", "fd", "fjord-kd-u10", "fjord-kd-ds05"
    }  # fmt: skip
    (cifar,) = [
        one
        for one in all_jobs([FIGURES["fig5"]], None, laptop, None)
        if one.name == "cifar10/fjord/0"
    ]
    assert cifar.settings == ("num_rounds=100", "eval_every=20", "method=fjord", "workers=1")
    assert job_command(cifar, Path("runs"))[3:8] == [
        "run",
        "cifar10",
        "--output",
        "runs/cifar10/fjord/0",
        "--seed",
    ]


def test_every_curve_at_every_scale_is_a_setting_that_can_be_made():
    for scale in scales.SCALES.values():
        wanted = tuple(TASKS)
        for one in all_jobs(list(FIGURES.values()), wanted, scale, (0,)):
            from reproduction.folders import expected_config as config

            assert config(one)["seed"] == 0
    paper = {
        one.name: one for one in all_jobs([FIGURES["fig3"]], None, scales.SCALES["paper"], (0,))
    }
    numbers = {
        name: config(paper[f"{name}-central/od/0"])
        for name in ("cifar10", "femnist", "shakespeare")
    }
    assert [(n["epochs"], n["batch_size"], n["lr"], n["momentum"]) for n in numbers.values()] == [
        (300, 128, 0.1, 0.9), (20, 128, 0.1, 0.9), (50, 32, 0.1, 0.9)
    ]  # fmt: skip
    assert [Fraction(m) * 300 for m in numbers["cifar10"]["milestones"]] == [150, 225]


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


def test_the_page_on_reproduction_prints_the_table_of_the_code():
    assert (
        scales.scale_table(scales.SCALES["laptop"]) in (ROOT / "docs" / "reproduce.md").read_text()
    )
    assert compare.RULES in (ROOT / "docs" / "reproduce.md").read_text().replace("\n", " ")


def test_table_1b_is_counted_into_a_run_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    reproduce_figures("table1b", runs=tmp_path)
    shown = capsys.readouterr().out
    assert "555,422,720 │" in shown  # whole, in a narrow terminal
    assert "Runs: table1b/0; the paper's Table 1b" in shown
    section = make_result(figures.FIGURES["table1b"], tmp_path)
    verdicts = {v.claim: v.verdict for v in section.verdicts}
    assert verdicts.pop("cnn-weights") == "does not hold"  # see the README
    assert set(verdicts.values()) == {"holds"}
    assert len(RunFolder(tmp_path / "table1b" / "0").metrics()) == 15


def test_theorem1_is_run_by_the_command_of_the_reproduction():
    """From any folder: it is not part of the installed package."""
    job = RunJob("theorem1/paper", "theorem1.paper", (), 4)
    words = ["-m", "reproduction", "theorem1.paper"]
    assert job_command(job, Path("runs"))[1:] == [
        *words, "--output", "runs/theorem1/paper/4", "--seed", "4"
    ]  # fmt: skip
    assert job_command(job, Path("runs"), resume=True)[1:] == [
        *words, "--resume", "runs/theorem1/paper/4"
    ]  # fmt: skip


def test_the_queue_runs_theorem1_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = RunJob("theorem1/paper", "theorem1.paper", (), 0)
    work = RunQueue(tmp_path / "runs", [job], 1, Listener())
    work.run()
    assert work.failed == {}
    assert run_state(job, tmp_path / "runs") == "finished"
