"""Numbers of the report against numbers made by hand."""

import pytest
from report_runs import (
    SCORES,
    four_rounds,
    headline_cells,
    make_run,
    page_text,
    rising_clients,
    round_row,
)

from fjord.core.width import Width
from fjord.report.groups import group_runs
from fjord.report.numbers import (
    client_costs,
    client_means,
    loss_curve,
    seed_stat,
    shell_rows,
    tier_scores,
)


def test_worst_decile_tiers_and_costs_equal_those_counted_by_hand(tmp_path):
    folder = make_run(tmp_path / "a", served=rising_clients(25))
    run = group_runs([folder])[0].runs[0]
    worst = client_means(run, "accuracy")
    assert worst["worst"] == pytest.approx((0.00 + 0.01 + 0.02) / 3)  # a tenth of 25, rounded up
    assert worst["all"] == pytest.approx(0.12)
    assert client_means(run, "perplexity")["worst"] == pytest.approx((26 * 25 * 24) ** (1 / 3))
    assert tier_scores(run, "accuracy") == pytest.approx({Width("1/2"): 0.12, Width(1): 0.12})
    assert client_costs(run, "bytes_down", "bytes_up") == {Width("1/2"): 75, Width(1): 600}
    assert client_costs(run, "macs") == {Width("1/2"): 500, Width(1): 5000}
    assert "(3 of 25)" in page_text(folder)


def test_training_loss_is_a_running_mean_over_the_rounds_that_have_one(tmp_path):
    metrics = [round_row(i, loss=None if i == 1 else float(i)) for i in range(40)]
    run = group_runs([make_run(tmp_path / "a", metrics, num_rounds=40)])[0].runs[0]
    curve = loss_curve(run, Width(1))
    assert (curve[1], 2 in curve, curve[3], curve[40]) == (0.0, False, 1.0, 38.5)


def test_rounds_without_any_update_count_against_a_shell(tmp_path):
    empty = {"tiers": {}, "shells": {}, "loss": None, "dropped": {"7": "loss is not finite"}}
    folder = make_run(
        tmp_path / "a", [round_row(0, SCORES), *(round_row(i, SCORES, **empty) for i in (1, 2, 3))]
    )
    found = {shell.width: shell for shell in shell_rows(group_runs([folder])[0].runs)}
    assert (found[Width("1/2")].clients, found[Width("1/2")].rounds, found[Width(1)].of_rounds) == (
        0.75,
        1,
        4,
    )
    text = page_text(folder)
    assert "3 updates of clients could not be used" in text
    assert "3 updates: loss is not finite" in text


def test_a_diverged_seed_is_not_passed_over_in_silence(tmp_path):
    runs = [
        make_run(tmp_path / str(i), four_rounds({"1": s}), seed=i)
        for i, s in enumerate((0.5, float("nan")))
    ]
    assert seed_stat([0.5, float("nan"), None]) == seed_stat([0.5])
    assert headline_cells(page_text(*runs))["fjord"]["width 1"] == "50.0% (1 of 2 runs)"
