"""Quantities as people write them, and what cannot be read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fjord.core.units import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)


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
