"""Sections of figures: undecided claims, and the same style on every task."""

import pytest
from paper_runs import by_width, fake_run

from reproduction.figures import FIGURES
from reproduction.results import make_result


def test_a_claim_without_runs_is_undecided(tmp_path):
    fake_run(tmp_path, "cifar10", "fjord", 0, by_width(1, 1, 1, 1, 1))
    verdicts = {v.claim: v for v in make_result(FIGURES["fig5"], tmp_path).verdicts}
    assert verdicts["kd-gains"].verdict == "undecided"
    assert verdicts["kd-gains"].details == "there is no finished run of fjord-kd"
    fake_run(
        tmp_path, "emnist-skewed-850", "fjord-kd", 0, by_width(1, 1, 1, 1, 1)
    )  # one that looks into something
    assert [v.task for v in make_result(FIGURES["fig5"], tmp_path).verdicts] == ["cifar10"]
    fake_run(tmp_path, "emnist-skewed-850", "fjord", 0, by_width(2, 2, 2, 2, 2))
    found = {v.task: v.verdict for v in make_result(FIGURES["fig5"], tmp_path).verdicts}
    assert found == {"cifar10": "undecided", "emnist-skewed-850": "does not hold (one seed)"}


@pytest.mark.parametrize("name", ["fig4", "convergence"])
def test_a_curve_looks_the_same_on_every_task(tmp_path, name):
    """CIFAR10 lacks the first curve; the second must not take its colour there."""
    first, second, _ = FIGURES[name].curves
    fake_run(tmp_path, "cifar10", second, 0, by_width(1, 1, 1, 1, 1))
    fake_run(tmp_path, "femnist", first, 0, by_width(1, 1, 1, 1, 1))
    fake_run(tmp_path, "femnist", second, 0, by_width(1, 1, 1, 1, 1))
    [lone], [other, same] = (panel.series for panel in make_result(FIGURES[name], tmp_path).panels)
    assert lone.style == same.style != other.style
