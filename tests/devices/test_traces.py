"""Traces of load: files that lower ceilings in their rounds; bad ones are named by line."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shortages import tiny_recipe  # noqa: F401

from fjord.core.width import Width
from fjord.devices.speed_table import SpeedTable
from fjord.devices.tiers import ListedDevices
from fjord.devices.traces import read_drops, traced_devices
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runner import run_experiment


def test_a_trace_lowers_ceilings_in_its_rounds_only(tmp_path: Path) -> None:
    rows = (
        "client, round, from-round, to-round, ceiling\n"
        "0,2,,,2/5\n1,,1,3,0.6\n1,,3,,1/5\n*,5,,,80%\n2,0,,,1\n"
    )
    as_json = [
        {"client": 0, "round": 2, "ceiling": "2/5"},
        {"client": 1, "from-round": 1, "to-round": 3, "ceiling": 0.6},
        {"client": "1", "from-round": 3, "to-round": None, "ceiling": "1/5"},
        {"client": "*", "round": 5, "ceiling": "80%"},
        {"client": 2, "round": 0, "ceiling": 1},
    ]
    (tmp_path / "load.csv").write_text(rows)
    (tmp_path / "load.json").write_text(json.dumps(as_json, indent=1))
    usual = ListedDevices([Width(1), Width(4, 5), Width(2, 5)])
    for name in ("load.csv", "load.json"):
        devices = traced_devices(usual, tmp_path / name, 3, Width(1, 5))
        found = [[str(devices.ceiling(client, t)) for t in range(7)] for client in range(3)]
        assert found[0] == ["1", "1", "2/5", "1", "1", "4/5", "1"]
        assert found[1] == ["4/5", "3/5", "3/5", "1/5", "1/5", "1/5", "1/5"]
        assert found[2] == ["2/5"] * 7
        assert devices.tiers == usual.tiers


HEAD = "client,round,ceiling\n"
BAD_TRACES = {
    "a.csv": [
        (HEAD + "0,1,1/5\n7,1,1/5\n", r"a\.csv, line 3: there is no client 7; they are 0 to 2"),
        (HEAD + "0,1,7/5\n", r"line 2: width '7/5' is not"),
        (HEAD + "0,1,1/10\n", r"line 2: ceiling 1/10 is below the smallest width 1/5"),
        (HEAD + "0,-1,1/5\n", r"line 2: round '-1' is not a whole number"),
        (HEAD + "0,1.5,1/5\n", r"line 2: round '1.5'"),
        (HEAD + "x,1,1/5\n", r"line 2: client 'x'"),
        (HEAD + "0,1\n", r"line 2: ceiling is missing; needed are client, ceiling, and round"),
        (HEAD + "0,,1/5\n", r"line 2: from-round is missing"),
        ("client,ceiling\n0,1/5\n", r"line 2: from-round is missing"),
        (
            "client,from-round,to-round,ceiling\n0,3,2,1/5\n",
            r"line 2: to-round 2 is before from-round 3",
        ),
        (
            "client,round,from-round,ceiling\n0,3,2,1/5\n",
            r"line 2: round and from-round are both given",
        ),
        (
            "client,from-round,to_round,ceiling\n0,3,5,1/5\n",
            r"line 2: 'to_round' is not one of client, ceiling, round",
        ),
        ("", "holds no rows"),
        (HEAD, "holds no rows"),
    ],
    "a.json": [
        (
            '[\n{"client": 0, "round": 1, "ceiling": "1"},\n'
            '{"client": 3, "round": 1, "ceiling": "1"}\n]',
            r"line 3: there",
        ),
        ('[{"client": 0, "round": 1.0, "ceiling": "1"}]', r"line 1: round 1.0"),
        ('[{"client": true, "round": 1, "ceiling": "1"}]', r"line 1: client True"),
        ('[{"client": 0, "round": 1, "ceiling": [1]}]', r"line 1: width"),
        ("[\n3]", r"line 2: 3 is not an object"),
        ('{"0": "1/5"}', "is not a list of objects"),
        ("[\n{", r"line 2: is not JSON"),
        ("[]", "holds no rows"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "words"), [(n, *case) for n, cases in BAD_TRACES.items() for case in cases]
)
def test_a_bad_trace_is_one_error_that_names_file_and_line(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words) as raised:
        read_drops(tmp_path / name, 3, Width(1, 5))
    assert str(tmp_path / name) in str(raised.value)


def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x81")
    for name in ("gone.csv", "gone.json", "bytes.csv"):
        with pytest.raises(ValueError, match=rf"load .*{name}: cannot be read"):
            read_drops(tmp_path / name, 3, Width(1, 5))


def test_load_may_be_a_function_or_a_file_and_is_checked_at_the_door(
    recipe: str, tmp_path: Path
) -> None:
    calm = find_recipe(f"{recipe}:calm")()
    trace = tmp_path / "load.csv"
    trace.write_text("client,from-round,ceiling\n*,1,1/5\n")
    lowered = apply_settings(calm, [f"load={trace}"])
    assert {str(lowered.find_devices(6).ceiling(client, 1)) for client in range(6)} == {"1/5"}
    assert lowered.config()["load_digest"]
    assert "load_digest" not in calm.config()
    assert apply_settings(lowered, ["load=none"]).load is None
    by_function = replace(calm, load=lambda client, t, usual: "1/5" if t else usual)
    assert {str(by_function.find_devices(6).ceiling(client, 1)) for client in range(6)} == {"1/5"}
    for bad in ("heavy", "load.txt"):
        with pytest.raises(ValueError, match=r"load=.* must be a \.csv or \.json file"):
            apply_settings(calm, [f"load={bad}"])
    trace.write_text("client,round,ceiling\n6,1,1/5\n")
    with pytest.raises(ValueError, match=r"load\.csv, line 2: there is no client 6"):
        run_experiment(lowered, tmp_path / "never")
    trace.write_text("client,round,ceiling\n0,9,1/5\n")
    row = {"ceiling": "2/5", "macs_per_second": "1M", "down": "1MB/s", "up": "1MB/s"}
    with pytest.raises(ValueError, match=r"clock: no tier for ceiling 1/5; the lowest is 2/5"):
        run_experiment(
            replace(lowered, tiers="2/5:1/2,1:1/2", clock=SpeedTable.from_rows([row])),
            tmp_path / "never",
        )
    assert not (tmp_path / "never").exists()


def test_the_page_on_load_says_what_is_so(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "load.md").read_text()
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page, re.S))
    for kind in ("csv", "json"):
        (tmp_path / f"load.{kind}").write_text(blocks[kind])
    assert "fjord run demo --set load=load.csv" in blocks["sh"]
    devices = apply_settings(find_recipe("demo")(), [f"load={tmp_path / 'load.csv'}"]).find_devices(
        200
    )
    lowered = [t for t in range(80) if devices.ceiling(0, t) < devices.usual.ceiling(0, t)]
    assert set(lowered) <= {*range(10, 20), *range(30, 80)}
    assert max(devices.ceiling(client, 55) for client in range(200)) == Width(3, 5)
    assert read_drops(tmp_path / "load.json", 200, Width(1, 5))[0][0].last == 19
    names: dict[str, Any] = {}
    exec(blocks["python"], names)
    assert {
        str(names["recipe"]().find_devices(200).ceiling(client, 9)) for client in range(200)
    } == {"1/5"}
