"""Tables of the page."""

import re
from statistics import stdev

import pytest
from report_runs import (
    SCORES,
    four_rounds,
    headline_cells,
    make_run,
    page_text,
    table_under,
    with_clock,
)

from fjord.report import page


def test_the_table_shows_mean_and_sample_deviation_over_seeds(tmp_path):
    tops = (0.70, 0.74, 0.81)
    runs = [
        make_run(tmp_path / str(i), four_rounds({"1/2": 0.5, "1": top}), seed=i)
        for i, top in enumerate(tops)
    ]
    shown = headline_cells(page_text(*runs))["fjord"]
    assert shown["seeds"] == "0, 1, 2"
    assert shown["width 1/2"] == "50.0 ± 0.0%"
    assert (
        shown["width 1"] == f"{100 * sum(tops) / 3:.1f} ± {100 * stdev(tops):.1f}%" == "75.0 ± 5.6%"
    )


def test_one_seed_has_no_deviation(tmp_path):
    text = page_text(make_run(tmp_path / "a"))
    assert headline_cells(text)["fjord"]["width 1"] == "75.0%"
    assert "standard deviation" not in text


def test_settings_that_differ_are_listed_and_the_best_mean_is_bold(tmp_path):
    text = page_text(
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", four_rounds({"1/2": 0.6, "1": 0.7}), lr=0.05),
    )
    differ = text.split("Settings that differ")[1].split("</table>")[0]
    assert re.findall(r"<th scope='col'>(.*?)</th>", differ) == ["", "lr"]
    assert re.findall(r"class=best><span.*?>(.*?)</span>", text.split("to reach")[0]) == [
        "75.0%",
        "60.0%",
    ]


def test_time_and_bytes_to_reach_a_score_over_seeds_and_groups(tmp_path):
    fast = [
        make_run(tmp_path / f"a{s}", with_clock(four_rounds(SCORES), 60.0 + 30 * s), seed=s)
        for s in (0, 1)
    ]
    slow = make_run(
        tmp_path / "b", with_clock(four_rounds({"1/2": 0.3, "1": 0.8}), 100.0), method="efd"
    )
    other = make_run(tmp_path / "c", method="fd")
    text = page.write_page([*fast, slow, other], tmp_path / "page.html", ["30%", "60%"]).read_text()
    time, size = (
        table_under(text, f"{what} to reach a test accuracy")
        for what in ("Simulated time", "Bytes")
    )
    # Tested after rounds 2 (half the score) and 4; 750 bytes a round; fd has no clock.
    assert time == [
        ["fjord", "30%", "5 ± 1.4 min", "2.5 ± 0.71 min"],
        ["efd", "30%", "6.67 min", "3.33 min"],
        ["fjord", "60%", "\N{EN DASH}", "5 ± 1.4 min"],
        ["efd", "60%", "\N{EN DASH}", "6.67 min"],
    ]
    assert size[0] == ["fjord", "30%", "3 ± 0 kB", "1.5 ± 0 kB"]
    assert [line[0] for line in size] == ["fjord", "efd", "fd"] * 2
    timed = text.split("Simulated time to reach")[1].split("</table>")[0]
    assert re.findall(r"class=best><span.*?>(.*?)</span>", timed) == [
        "5 ± 1.4 min",
        "2.5 ± 0.71 min",
        "5 ± 1.4 min",
    ]
    assert "Models that are trained one after the other" not in text
    with pytest.raises(ValueError, match="reach=700% is not an accuracy"):
        page.write_page([slow], tmp_path / "page.html", ["700%"])


def test_perplexity_is_no_percentage_and_lower_is_better(tmp_path):
    runs = [
        make_run(tmp_path / str(s), four_rounds({"1": s}), metric="perplexity", lr=s)
        for s in (0.2, 0.3)
    ]
    text = page_text(*runs)
    assert headline_cells(text)["fjord (lr 0.2)"]["width 1"] == "2.000"
    assert re.findall(r"class=best><span.*?>(.*?)</span>", text.split("to reach")[0]) == ["2.000"]
    assert "perplexity (lower is better)" in text
