"""Figures share runs, and every curve can be made."""

from fractions import Fraction
from pathlib import Path

from reproduction import scales
from reproduction.curves import TASKS
from reproduction.figures import FIGURES, all_jobs
from reproduction.work import job_command


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
