"""Units and budgets as people write them, and the widest width that fits."""

import json
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import made

from fjord.core.units import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)
from fjord.devices.budget import Budget
from fjord.devices.profile import DeviceProfile, read_profile


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_seconds, "60s", 60),
        (parse_seconds, "2min", 120),
        (parse_seconds, "1.5 H", 5400),
        (parse_seconds, "250ms", 0.25),
        (parse_bytes, "512MB", 512 * 10**6),
        (parse_bytes, "512mb", 512 * 10**6),
        (parse_bytes, "1GiB", 2**30),
        (parse_bytes, "1e3 kB", 10**6),
        (parse_rate, "5Mbit", 625_000),
        (parse_rate, "5mbit/s", 625_000),
        (parse_rate, "5 Mbps", 625_000),
        (parse_rate, "1MB/s", 10**6),
        (parse_rate, "1MiB/s", 2**20),
    ],
)
def test_quantities_are_read_as_people_write_them(read, text, value):
    assert read("x", text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (parse_seconds, "60", "x=60 has no unit; allowed: us, ms, s, min or h"),
        (
            parse_seconds,
            "60 parsec",
            "x=60 parsec has the unknown unit 'parsec'; allowed: us, ms, s, min or h",
        ),
        (parse_seconds, "-3s", "x=-3s must be above 0"),
        (parse_bytes, "0MB", "x=0MB must be above 0"),
        (parse_bytes, "much", "x=much is not a number with a unit; allowed units: B, kB, MB"),
        (parse_bytes, "5Mbit", "has the unknown unit 'Mbit'; allowed: B, kB"),
        (parse_bytes, "infMB", "is not a number"),
        (parse_bytes, "1e999MB", "must be above 0"),
        (parse_rate, "5Mb/s", "has the unknown unit 'Mb/s'; allowed: kbit, Mbit"),
        (parse_rate, "5mb/s", "has the unknown unit 'mb/s'"),
        (parse_rate, "", "is not a number with a unit"),
    ],
)
def test_what_cannot_be_read_is_said_with_what_is_allowed(read, text, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        read("x", text)


@given(st.floats(1e-3, 1e6))
def test_what_is_shown_is_enough_and_at_most_a_tenth_more(value):
    for show, read, least in (
        (format_seconds, parse_seconds, 0),
        (format_bytes, parse_bytes, 1),
        (format_rate, parse_rate, 1),
    ):
        wanted = max(value, least)
        assert (
            wanted * (1 - 1e-9) - 1 * (read is parse_bytes)
            < read("x", show(wanted))
            <= 1.1 * wanted * (1 + 1e-9)
        )


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"deadline": "60s"}, "deadline=60.0 needs examples"),
        ({"examples": "many"}, "examples=many must be a whole number of at least 1"),
        ({"examples": 0}, "examples=0 must be"),
        (
            {"speed": "3s"},
            "speed is not a limit; the limits are deadline, memory, bandwidth, examples",
        ),
    ],
)
def test_a_bad_budget_is_one_error(limits, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Budget.parse(limits)


# ------------------------------------------------------------------------------- widths and budgets


def test_a_round_is_download_training_and_upload():
    profile = made(step=2.0, setup=3.0, size=50_000, batch_size=16, epochs=2)
    budget = Budget.parse({"examples": 500, "bandwidth": "1kB/s", "deadline": "1h"})
    verdict = profile.check_budget(budget)[-1]
    assert verdict.transfer_seconds == 100.0
    assert verdict.train_seconds == 3.0 + 2 * 32 * 2.0
    assert verdict.seconds == 231.0
    cut = replace(profile, max_steps=50)
    assert cut.check_budget(budget)[-1].seconds == 100.0 + 3.0 + 50 * 2.0
    assert DeviceProfile.from_json(cut.to_json()) == cut
    older = {key: value for key, value in profile.to_json().items() if key != "max_steps"}
    assert DeviceProfile.from_json(older) == profile


def test_the_widest_that_fits_all_limits_is_picked():
    profile = made(kinds=(False, True), step=1.0, memory=10_000_000)
    assert profile.widest_fit(Budget(deadline=6.0, examples=100), False) == Fraction(3, 5)
    assert profile.widest_fit(Budget(memory=4_000_000), True) == Fraction(2, 5)
    assert profile.widest_fit(
        Budget(deadline=6.0, examples=100, memory=2_000_000), False
    ) == Fraction(1, 5)
    assert profile.widest_fit(Budget(), False) == 1
    with pytest.raises(ValueError, match=r"kd=None: the profile of net holds kd=False, True"):
        profile.widest_fit(Budget())


@given(
    step=st.floats(1e-4, 10),
    memory=st.integers(10**4, 10**9),
    size=st.integers(10, 10**8),
    examples=st.integers(1, 500),
)
def test_where_nothing_fits_the_error_names_the_smallest_budget_that_would_do(
    step, memory, size, examples
):
    profile = made(step=step, memory=memory, size=size)
    tight = {"deadline": "0.001ms", "memory": "1kB", "bandwidth": "1MB/s", "examples": examples}
    with pytest.raises(ValueError, match="nothing fits") as raised:
        profile.widest_fit(Budget.parse(tight))
    said = dict(re.findall(r"at least (\w+)=([\w.]+)", str(raised.value)))
    assert said.keys() == {"deadline", "memory"}
    assert profile.widest_fit(Budget.parse({**tight, **said})) >= Fraction(1, 5)


def test_where_more_bandwidth_would_do_the_error_says_how_much():
    profile = made(step=1.0, size=100_000)
    tight = {"deadline": "4s", "bandwidth": "8kbit", "examples": 100}
    with pytest.raises(ValueError, match="training 2s, transfer 40s") as raised:
        profile.widest_fit(Budget.parse(tight))
    (enough,) = re.findall(r"bandwidth=(\w+)", str(raised.value))
    assert enough == "160kbit"
    assert profile.widest_fit(Budget.parse({**tight, "bandwidth": enough})) == Fraction(1, 5)
    with pytest.raises(ValueError, match="no bandwidth would be enough"):
        profile.widest_fit(Budget.parse({**tight, "deadline": "1s"}))


def test_a_profile_survives_json(tmp_path):
    profile = made(kinds=(True, False, None), step=1 / 3)
    text = json.dumps(profile.to_json(Budget(memory=500_000)))
    assert DeviceProfile.from_json(json.loads(text)) == profile
    assert json.loads(text)["answers"][0] == {"kd": True, "width": "2/5", "round_seconds": None}
    (tmp_path / "a.json").write_text(text.replace('"fjord_profile": 1', '"fjord_profile": 2'))
    with pytest.raises(ValueError, match=r"a\.json: fjord_profile=2: this version reads 1"):
        read_profile(tmp_path / "a.json")
