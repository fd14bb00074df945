"""Tables of the simulated clock: from files and presets, and refused where they are wrong."""

import json
import math
import re

import pytest
from clocks import ROWS, run

from fjord.devices.speed_table import PRESETS, SpeedTable, find_speed_table


def test_a_table_reads_the_same_from_csv_json_and_python(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "a.csv").write_text(
        "ceiling,macs_per_second,seconds_per_step,down,up,latency\n"
        "1/5,1e4,,1kB/s,500B/s,100ms\n3/5,30k,,4kB/s,2kB/s,50ms\n"
    )
    assert (
        find_speed_table(str(tmp_path / "a.json"))
        == find_speed_table(str(tmp_path / "a.csv"))
        == SpeedTable.from_rows(ROWS)
    )
    (tmp_path / "mark.csv").write_text(
        (tmp_path / "a.csv").read_text(), encoding="utf-8-sig"
    )  # as spreadsheets do
    assert find_speed_table(str(tmp_path / "mark.csv")) == SpeedTable.from_rows(ROWS)
    phones = find_speed_table("phones")
    assert [str(p.ceiling) for p in phones.tier_speeds] == ["1/5", "2/5", "3/5", "4/5", "1"]
    assert list(PRESETS) == ["phones"]
    assert (
        phones.tier_speeds[0].down,
        phones.tier_speeds[0].up,
        phones.tier_speeds[0].macs_per_second,
    ) == (
        625_000,
        125_000,
        2e9,
    )


WRONG = [
    ([{"ceiling": "1"}], "tier 1: has no 'down'"),
    ([ROWS[0] | {"speed": 3}], "tier 1/5: 'speed' is not one of ceiling, macs_per_second"),
    (
        [ROWS[0] | {"seconds_per_step": 3}],
        "tier 1/5: give one of macs_per_second, seconds_per_step, profile",
    ),
    (
        [ROWS[0] | {"macs_per_second": None}],
        "tier 1/5: give one of macs_per_second, seconds_per_step, profile",
    ),
    ([ROWS[0] | {"macs_per_second": "0"}], "macs_per_second=0 must be above 0"),
    ([ROWS[0] | {"macs_per_second": "fast"}], "macs_per_second=fast is not a number"),
    ([ROWS[0] | {"down": "5"}], "down=5 has no unit"),
    ([ROWS[0] | {"up": "5 parsec"}], "has the unknown unit 'parsec'"),
    ([ROWS[0] | {"latency": "-1s"}], "latency=-1s must be above 0"),
    ([ROWS[0] | {"jitter": -0.1}], "jitter=-0.1 must be a number from 0 to 5"),
    ([ROWS[0] | {"ceiling": "7/5"}], "width '7/5' is not a fraction above 0"),
    ([ROWS[0], ROWS[0]], "ceiling 1/5 is there more than once"),
    ([], "there is no tier in the table"),
    ({"1/5": 3}, "a list of tiers is needed"),
]


@pytest.mark.parametrize(("table", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_a_bad_table_is_refused_with_its_file_in_words(tmp_path, table, said):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=f"clock {re.escape(str(path))}: .*{re.escape(said)}"):
        find_speed_table(str(path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"clock": "fones"}, "clock=fones is not phones, nor a .csv or .json file"),
        ({"clock": "gone.csv"}, "clock gone.csv: cannot be read"),
        (
            {"clock": None, "deadline": 60},
            "deadline=60s is on the simulated clock, and needs clock=",
        ),
        ({"deadline": "soon"}, "deadline=soon is not a number with a unit"),
        ({"deadline": 0}, "deadline=0 must be above 0"),
        ({"deadline": "-1min"}, "deadline=-1min must be above 0"),
        ({"deadline": math.nan}, "deadline"),
        ({"clock": SpeedTable.from_rows([ROWS[1]])}, "no tier for ceiling 1/2; the lowest is 3/5"),
        (
            {
                "clock": SpeedTable.from_rows(
                    [{"ceiling": "1/5", "seconds_per_step": "1s", "down": "1MB/s", "up": "1MB/s"}]
                )
            },
            "tier 1/5 has the seconds of a step at width 1/5, "
            "and its clients train the units of width 1/2",
        ),
    ],
)
def test_what_the_clock_lacks_shows_before_a_run_begins(tmp_path, changed, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        run(tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()
