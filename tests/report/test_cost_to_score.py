"""Simulated time and bytes to reach a score: as reckoned, in reports, and as a user types."""

import re
import shlex
from pathlib import Path

import pytest
from clocks import run
from commands import call

from fjord.core.width import Width
from fjord.report.cost_to_score import (
    common_level,
    cost_to_score,
    format_cost,
    parse_level,
    spending_by_round,
    usual_levels,
)
from fjord.report.groups import ReportRun

ROOT = Path(__file__).parents[2]


# -------------------------------------------------------------------------------- what is reported


def scored(scores, seconds=2.0, **other):
    tiers = {"1/2": {"clients": 1, "bytes_down": 300, "bytes_up": 200, "macs": 1, "examples": 1}}
    numbers = {w: {"accuracy": s, "perplexity": 1 / s, "loss": 1.0} for w, s in scores.items()}
    row = {
        "stage": 0,
        "target": "1",
        "tiers": tiers,
        "scores": numbers,
        "shells": {},
        "dropped": {},
        "loss": 1.0,
    }
    return row | ({} if seconds is None else {"simulated_seconds": seconds}) | other


CURVE = [{"1/2": 0.3, "1": 0.2}, {}, {"1/2": 0.55, "1": 0.5}, {"1/2": 0.45, "1": 0.72}]


def toy_run(path=Path("run"), seconds=2.0, stages=1):
    rows = [
        scored(s, seconds, round=i, stage=stage)
        for stage in range(stages)
        for i, s in enumerate(CURVE)
    ]
    return ReportRun(path, {"num_rounds": 4, "metric": "accuracy"}, {}, rows, {}, 1)


def test_time_and_bytes_to_reach_a_score_count_up_to_the_first_test_that_has_it():
    run = toy_run()
    assert spending_by_round(run, "time") == [2, 4, 6, 8]
    assert spending_by_round(run, "bytes") == [500, 1000, 1500, 2000]
    half = parse_level("50%", "accuracy")
    assert cost_to_score(run, "accuracy", half, "time") == {Width(1, 2): 6, Width(1): 6}
    assert cost_to_score(run, "accuracy", parse_level("0.6", "accuracy"), "bytes") == {
        Width(1): 2000
    }
    assert cost_to_score(run, "perplexity", parse_level("2", "perplexity"), "bytes") == {
        Width(1, 2): 1500,
        Width(1): 1500,
    }
    assert cost_to_score(toy_run(seconds=None), "accuracy", half, "time") == {}
    assert [str(level) for level in usual_levels([run], "accuracy")] == ["1/2", "3/5", "7/10"]
    assert [str(level) for level in usual_levels([run], "perplexity")] == ["10", "5", "2"]
    assert (common_level(run, "accuracy"), common_level(run, "perplexity")) == (half, 2)
    assert common_level(ReportRun(Path("x"), {}, {}, [], {}, 0), "accuracy") is None


def test_models_that_are_trained_one_after_the_other_add_up(tmp_path):
    made = run(tmp_path / "run", method="efd", num_rounds=2)
    rows, read = made.metrics(), ReportRun.read(made)
    assert [row["stage"] for row in rows] == [0, 0, 1, 1]
    assert spending_by_round(read, "time")[-1] == pytest.approx(
        sum(row["simulated_seconds"] for row in rows)
    )
    found = cost_to_score(read, "accuracy", parse_level("1%", "accuracy"), "time")
    for stage, width in enumerate(read.config["targets"]):
        before = sum(row["simulated_seconds"] for row in rows if row["stage"] < stage)
        first = next(row for row in rows if row["stage"] == stage)
        assert found[Width(width)] == pytest.approx(before + first["simulated_seconds"])


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("0", "accuracy"),
        ("70", "accuracy"),
        ("-1%", "accuracy"),
        ("x", "accuracy"),
        ("1", "perplexity"),
    ],
)
def test_levels_that_cannot_be_are_refused(text, metric):
    with pytest.raises(ValueError, match=f"reach={text} is not an? {metric}"):
        parse_level(text, metric)


def test_quantities_are_written_short():
    assert [format_cost(s, "time") for s in (0.5, 59, 90, 3600, 200_000)] == [
        "0.5 s",
        "59 s",
        "1.5 min",
        "1 h",
        "2.31 d",
    ]
    assert [format_cost(b, "bytes") for b in (12, 1500, 2.5e7, 3e12)] == [
        "12 B",
        "1.5 kB",
        "25 MB",
        "3 TB",
    ]


# --------------------------------------------------------------------------------- as a user types


SMALL = [
    "num_rounds=4",
    "eval_every=1",
    "data.num_clients=12",
    "data.examples=20",
    "cohort_size=4",
    "workers=1",
]


def test_the_commands_of_the_page_run_and_show_time_and_bytes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    page = (ROOT / "docs" / "clock.md").read_text()
    (table,) = re.findall(r"```csv\n(.*?)```", page, re.S)
    (tmp_path / "paces.csv").write_text(table)
    commands = [
        shlex.split(line.split("#")[0])
        for line in "".join(re.findall(r"```sh\n(.*?)```", page, re.S)).splitlines()
    ]
    assert len(commands) >= 4
    for command in commands:
        short = (
            [*(part for s in SMALL for part in ("--set", s)), "--no-page"]
            if command[1] == "run"
            else []
        )
        assert call(monkeypatch, *command[1:], *short) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert re.search(r"time to \d+%.*bytes to \d+%", said)
    assert re.search(
        r"Spent in 4 rounds: [\d.]+ s of simulated time, [\d.]+ kB to clients, [\d.]+ kB back\.",
        said,
    )
    text = (tmp_path / "compare.html").read_text()
    assert 'id="over-time"' in text
    assert 'id="over-bytes"' in text
    assert "Simulated time to reach a test accuracy" in text


def test_the_python_of_the_page_runs():
    page = (ROOT / "docs" / "clock.md").read_text()
    names = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["recipe"]().find_clock().deadline == 60


def test_a_mistake_is_one_line(monkeypatch, capsys):
    assert call(monkeypatch, "run", "demo", "--set", "clock=fones") == 2
    assert "fjord: --set clock=fones: is not phones" in capsys.readouterr().err
