"""Quantities as people write them, such as 60s, 512MB and 5Mbit: parsed here, and formatted here.

The parsers take the name of the argument first, so that an error can say what it speaks of.
"""

import math
import re
from decimal import Decimal
from typing import Any

from fjord.core.errors import UserError

UnitScales = dict[str, float]
"""How much of the base unit each unit stands for."""

TIME_UNITS: UnitScales = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "h": 3600.0,
}
SIZE_UNITS: UnitScales = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
BIT_UNITS: UnitScales = {
    "bit": 1 / 8,
    "kbit": 1e3 / 8,
    "Mbit": 1e6 / 8,
    "Gbit": 1e9 / 8,
    "bps": 1 / 8,
    "kbps": 1e3 / 8,
    "Mbps": 1e6 / 8,
    "Gbps": 1e9 / 8,
}
"""In bytes."""
COUNT_UNITS: UnitScales = {
    "": 1,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}

SHOWN_TIMES: UnitScales = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
}
SHOWN_SIZES: UnitScales = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
SHOWN_RATES: UnitScales = {
    "bit": 1,
    "kbit": 10**3,
    "Mbit": 10**6,
    "Gbit": 10**9,
}

NUMBER_AND_UNIT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


def parse_seconds(name: str, text: str) -> float:
    """Return a time in seconds.

    >>> parse_seconds("deadline", "2min"), parse_seconds("deadline", "0.5 s")
    (120.0, 0.5)
    """
    allowed = "us, ms, s, min or h, such as 60s"
    return _parse_quantity(name, text, _lower_case(TIME_UNITS), allowed)


def parse_duration(name: str, value: Any) -> float:
    """Return a time, which may be 0, and is in seconds where it has no unit.

    >>> parse_duration("deadline", "2min"), parse_duration("latency", "50 ms")
    (120.0, 0.05)
    >>> parse_duration("deadline", 60)
    60.0
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        return parse_seconds(name, str(value))
    if number == 0:
        return 0.0
    return parse_seconds(name, f"{number}s")


def parse_bytes(name: str, text: str) -> int:
    """Return a size in bytes; MB is 10^6 and MiB is 2^20.

    >>> parse_bytes("memory", "512MB"), parse_bytes("memory", "1gib")
    (512000000, 1073741824)
    """
    allowed = "B, kB, MB, GB, KiB, MiB or GiB, such as 512MB"
    size = _parse_quantity(name, text, _lower_case(SIZE_UNITS), allowed)
    return math.floor(size)


def parse_rate(name: str, text: str) -> float:
    """Return bytes a second.

    >>> parse_rate("bandwidth", "5Mbit"), parse_rate("bandwidth", "5 Mbit/s")
    (625000.0, 625000.0)
    >>> parse_rate("bandwidth", "1MB/s")
    1000000.0
    """
    allowed = "kbit, Mbit, Gbit, kB/s, MB/s, GB/s, KiB/s or MiB/s, such as 5Mbit"
    return _parse_quantity(name, text, _rate_units(), allowed)


def _rate_units() -> UnitScales:
    """Return what a rate may be written in.

    Only kB/s, MB/s and GB/s are in upper and lower case as written: Mb/s could mean bits or bytes.
    """
    units = dict(BIT_UNITS)
    for unit, scale in BIT_UNITS.items():
        units[unit.lower()] = scale
        if "bit" in unit:
            units[f"{unit.lower()}/s"] = scale
    for unit, scale in SIZE_UNITS.items():
        units[f"{unit}/s"] = scale
        if "i" in unit:
            units[f"{unit.lower()}/s"] = scale
    return units


def parse_count(name: str, text: str) -> float:
    """Return a number of operations.

    >>> parse_count("macs", "2.5G"), parse_count("macs_per_second", "1e6")
    (2500000000.0, 1000000.0)
    """
    units = {**COUNT_UNITS, "K": 1e3}
    return _parse_quantity(
        name,
        text,
        units,
        "none, k, M, G or T, such as 200M",
    )


def _lower_case(units: UnitScales) -> UnitScales:
    return {unit.lower(): scale for unit, scale in units.items()}


def _parse_quantity(
    name: str,
    text: str,
    units: UnitScales,
    allowed: str,
) -> float:
    match = NUMBER_AND_UNIT.fullmatch(str(text))
    if not match:
        fault = f"is not a number with a unit; allowed units: {allowed}"
        raise UserError(fault, field=name, value=text)
    number = match[1]
    unit = match[2]
    if not unit and "" not in units:
        raise UserError(f"has no unit; allowed: {allowed}", field=name, value=text)
    scale = _unit_scale(unit, units)
    if scale is None:
        fault = f"has the unknown unit {unit!r}; allowed: {allowed}"
        raise UserError(fault, field=name, value=text)
    if not 0 < float(number) < math.inf:
        raise UserError("must be above 0", field=name, value=text)
    # 2.5us is 2.5e-6, which the product of two floats is not.
    return float(Decimal(number) * Decimal(str(scale)))


def _unit_scale(unit: str, units: UnitScales) -> float | None:
    """Return what a unit stands for, as it is written or else in lower case; None if unknown."""
    if unit in units:
        return units[unit]
    if unit.lower().endswith("b/s"):  # Mb/s could mean bits or bytes
        return None
    return units.get(unit.lower())


def format_seconds(seconds: float, digits: int = 2) -> str:
    """Return a time in its unit, rounded up, so that what is shown is enough.

    >>> format_seconds(3.21), format_seconds(0.0123), format_seconds(254), format_seconds(0.00002)
    ('3.3s', '13ms', '260s', '20us')
    """
    return _format_quantity(seconds, SHOWN_TIMES, digits)


def format_duration(seconds: float) -> str:
    """Return a time to the nearest of three digits, in seconds, minutes or hours.

    >>> [format_duration(s) for s in (0.25, 71.2, 132, 5400, 200000)]
    ['0.25 s', '71.2 s', '132 s', '90 min', '55.6 h']
    """
    if seconds < 600:
        return f"{seconds:.3g} s"
    if seconds < 36000:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:,.1f} h"


def format_bytes(size: float, digits: int = 2) -> str:
    """Return a size in its unit, rounded up.

    >>> format_bytes(30_600_000), format_bytes(999), format_bytes(1_234_567_890)
    ('31MB', '1kB', '1.3GB')
    """
    return _format_quantity(size, SHOWN_SIZES, digits)


def format_count(count: float, digits: int = 2) -> str:
    """Return a number of operations, rounded up.

    >>> format_count(23_110_000)
    '24M'
    """
    return _format_quantity(count, COUNT_UNITS, digits)


def format_rate(rate: float, digits: int = 2) -> str:
    """Return bytes a second as bits, rounded up.

    >>> format_rate(625_000)
    '5Mbit'
    """
    return _format_quantity(8 * rate, SHOWN_RATES, digits)


def _format_quantity(value: float, units: UnitScales, digits: int) -> str:
    """Return a value in the largest unit of which there is at least one, else in the smallest."""
    rounded = _round_up(value, digits)
    shown_unit = next(iter(units))
    for unit, scale in units.items():
        if rounded >= scale:
            shown_unit = unit
    return f"{rounded / units[shown_unit]:.10g}{shown_unit}"


def _round_up(value: float, digits: int) -> float:
    """Return a value rounded up to some digits, but not for the error of a float alone."""
    if value <= 0:
        return 0.0
    magnitude = math.floor(math.log10(value))
    step = 10.0 ** (magnitude - digits + 1)
    num_steps = math.ceil(value / step - 1e-9)
    return float(f"{num_steps * step:.{digits + 1}g}")
