"""Quantities as people write them: seconds, bytes per second, operations per second."""

import math
import re
from collections.abc import Mapping
from typing import Any

SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
RATES = {
    "kbit": 1e3 / 8, "Mbit": 1e6 / 8, "Gbit": 1e9 / 8,
    "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "KiB/s": 2.0**10, "MiB/s": 2.0**20,
}  # fmt: skip
RATES |= {f"{unit}/s": value for unit, value in RATES.items() if unit.endswith("bit")}
COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parse_seconds(name: str, value: Any) -> float:
    """Return a time in seconds.

    >>> parse_seconds("deadline", "2min"), parse_seconds("latency", "50 ms"), parse_seconds("deadline", 60)
    (120.0, 0.05, 60.0)
    >>> parse_seconds("deadline", "2 weeks")
    Traceback (most recent call last):
    ValueError: deadline='2 weeks' is not a time of 0 or more, such as 60s, 2min, 50ms or 1h
    """
    return _quantity(name, value, SECONDS, "a time of 0 or more, such as 60s, 2min, 50ms or 1h")


def parse_rate(name: str, value: Any) -> float:
    """Return a bandwidth in bytes per second.

    >>> parse_rate("down", "8Mbit"), parse_rate("up", "1 MB/s")
    (1000000.0, 1000000.0)
    """
    found = _quantity(name, value, RATES, allowed := "a bandwidth above 0 with its unit, such as 5Mbit or 1MB/s")
    return _above_zero(name, value, found, allowed)


def parse_speed(name: str, value: Any) -> float:
    """Return operations per second.

    >>> parse_speed("macs_per_second", "2.5G"), parse_speed("macs_per_second", 1e6)
    (2500000000.0, 1000000.0)
    """
    found = _quantity(name, value, COUNTS, allowed := "a number above 0, such as 2e9 or 2G")
    return _above_zero(name, value, found, allowed)


def _quantity(name: str, value: Any, units: Mapping[str, float], allowed: str) -> float:
    found = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)", str(value).strip())
    try:
        number = float(found[1]) * units[found[2]] if found else math.nan
    except (KeyError, ValueError):
        number = math.nan
    if not number < math.inf:
        raise ValueError(f"{name}={value!r} is not {allowed}")
    return number


def _above_zero(name: str, value: Any, number: float, allowed: str) -> float:
    if not number:
        raise ValueError(f"{name}={value!r} is not {allowed}")
    return number


def shown_seconds(seconds: float) -> str:
    """Return a time as people read it.

    >>> [shown_seconds(s) for s in (0.25, 71.2, 132, 5400, 200000)]
    ['0.25 s', '71.2 s', '132 s', '90 min', '55.6 h']
    """
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 36000 else f"{seconds / 3600:,.1f} h"
