"""What the page warns of."""

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


@pytest.mark.parametrize(
    ("counts", "starving"),
    [([1, 1, 1, 1], False), ([0, 0, 2, 2], False), ([0, 0, 0, 9], True), ([0, 1, 1, 1], True)],
)
def test_a_shell_starves_below_one_client_a_round_or_in_under_half_the_rounds(
    tmp_path, counts, starving
):
    metrics = [round_row(i, SCORES, shells={"1/2": 3, "1": n}) for i, n in enumerate(counts)]
    text = page_text(make_run(tmp_path / "a", metrics))
    assert ("Warning: starving shells" in text) == ("shell 1 is starving" in text) == starving
    assert "shell 1/2 is starving" not in text
    assert ("Hatched" in text) == starving


def test_late_updates_are_counted_together_whatever_their_time(tmp_path):
    late = [
        round_row(i, SCORES, dropped={"7": f"later than the deadline: {i + 70.5} s"})
        for i in range(4)
    ]
    assert "fjord: 4 updates: later than the deadline<" in page_text(make_run(tmp_path / "a", late))


def test_nothing_is_said_of_drops_where_there_are_none(tmp_path):
    assert "Dropped updates" not in page_text(make_run(tmp_path / "a"))


def test_clients_that_can_carry_no_model_are_counted(tmp_path):
    stranded = {
        "20": {"ceiling": "1/4", "width": None},
        "21": {"ceiling": "1/4", "width": None},
        "22": {},
    }
    text = page_text(make_run(tmp_path / "a", served=rising_clients() | stranded))
    assert "3 of 23 clients have no model they can carry (2 of tier 1/4, 1 of tier unknown)" in text
    assert "A cross: a tier whose clients have no model they can carry" in text
    assert "(2 of 20)" in text, "the worst decile is of those that have a model"


def test_an_unfinished_run_is_drawn_and_said_to_be_one(tmp_path):
    text = page_text(make_run(tmp_path / "a", four_rounds(SCORES)[:2], served=False))
    assert "Unfinished runs" in text
    assert "2 of 4 rounds are done; its numbers are those so far" in text
    assert headline_cells(text)["fjord"]["width 1"] == "37.5%"
    assert 'id="convergence"' in text
    assert 'id="by-tier"' not in text


def test_an_unfinished_seed_does_not_blur_the_mean_of_finished_ones(tmp_path):
    text = page_text(
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", four_rounds(SCORES)[:2], served=False, seed=1),
    )
    assert "left out, as other seeds are finished" in text
    assert headline_cells(text)["fjord"] == {
        "seeds": "0",
        "rounds": "4",
        "width 1/2": "50.0%",
        "width 1": "75.0%",
    }


def test_a_seed_that_occurs_twice_is_pointed_out(tmp_path):
    assert "seed 0 occurs more than once" in page_text(
        make_run(tmp_path / "a"), make_run(tmp_path / "b")
    )
