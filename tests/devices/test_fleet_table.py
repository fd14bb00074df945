"""Devices from measured profiles, or from a table compared with one profile."""

import json
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from profiles import made, written

from fjord.devices.budget import Budget
from fjord.devices.fleet_table import read_fleet_table
from fjord.devices.grouping import group_devices


def test_speed_in_multiply_accumulates_needs_no_other_speed(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"name": "chip", "macs_per_second": 50}]))
    (tmp_path / "a.csv").write_text(
        "name,macs_per_second\nchip,0.05k\n", encoding="utf-8-sig"
    )  # as spreadsheets do
    for name in ("a.json", "a.csv"):
        (machine,) = read_fleet_table([tmp_path / name], made(step=1.0, setup=1.0, macs=100))
        cost = machine.profile.find_cost(Fraction(1), False)
        assert (machine.name, cost.step_seconds, cost.setup_seconds, cost.time) == (
            "chip",
            2.0,
            2.0,
            "predicted",
        )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,speed\na,fast\n", "fleet.csv: a: speed='fast' must be a number above 0"),
        ("name,speed\na,0\n", "speed='0' must be a number above 0"),
        ("name,speed,macs_per_second\na,1,2\n", "a: give either speed"),
        ("name,memory\na,1GB\n", "a: give either speed"),
        ("name,colour\na,red\n", "column 'colour' is unknown; the columns are name, count, speed"),
        ("name,speed,memory\na,1,much\n", "a: memory=much is not a number with a unit"),
        ("name,speed,count\na,1,-2\n", "a: count='-2' must be a whole number"),
        ("name,speed\na,1\na,1\n", "device a is listed more than once"),
        ("name,speed\n", "there is no device"),
    ],
)
def test_a_bad_table_is_one_error(tmp_path, text, says):
    (tmp_path / "fleet.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(says)):
        group_devices(read_fleet_table([tmp_path / "fleet.csv"], made()), Budget(), 5)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"model": "other"}, "other at .* in batches of 10"),
        ({"batch_size": 7}, "net at .* in batches of 7"),
    ],
)
def test_profiles_of_different_models_or_batches_are_not_mixed(other, said, tmp_path):
    path = written(tmp_path, [made("a"), replace(made("b"), **other)])
    with pytest.raises(
        ValueError, match=f"device b: was measured with {said}, the first with net at .* of 10"
    ):
        read_fleet_table([path])
