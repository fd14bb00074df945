"""Quantities as people write them: 60s, 512MB, 5Mbit; read with clear errors, and written rounded to few digits."""

import math
import re
from decimal import Decimal
from typing import Any

from fjord.core.errors import UserError

TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
BITS = {
    f"{prefix}{word}": scale / 8
    for word in ("bit", "bps")
    for prefix, scale in {"k": 1e3, "M": 1e6, "G": 1e9}.items()
}
RATES: dict[str, float] = {
    "bit": 1 / 8,
    "bps": 1 / 8,
    **BITS,
    **{f"{unit}/s": size for unit, size in SIZES.items()},
}
"""Bytes a second. Of these, only kB/s, MB/s and the like mind their case: Mb/s could mean either."""
COUNTS: dict[str, float] = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


def parse_seconds(name: str, text: str) -> float:
    """Return a time in seconds.

    >>> parse_seconds("--deadline", "2min"), parse_seconds("--deadline", "0.5 s")
    (120.0, 0.5)
    """
    return _parsed(
        name,
        text,
        {unit.lower(): value for unit, value in TIMES.items()},
        "us, ms, s, min or h, such as 60s",
    )


def parse_duration(name: str, value: Any) -> float:
    """Return a time, which may be 0, and is in seconds where it has no unit.

    >>> parse_seconds_column("deadline", "2min"), parse_seconds_column("latency", "50 ms"), parse_seconds_column("deadline", 60)
    (120.0, 0.05, 60.0)
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        return parse_seconds(name, str(value))
    return parse_seconds(name, f"{number}s") if number else 0.0


def parse_bytes(name: str, text: str) -> int:
    """Return a size in bytes; MB is 10^6 and MiB is 2^20.

    >>> parse_bytes("--memory", "512MB"), parse_bytes("--memory", "1gib")
    (512000000, 1073741824)
    """
    allowed = "B, kB, MB, GB, KiB, MiB or GiB, such as 512MB"
    return math.floor(
        _parsed(name, text, {unit.lower(): value for unit, value in SIZES.items()}, allowed)
    )


def parse_rate(name: str, text: str) -> float:
    """Return bytes a second.

    >>> parse_rate("--bandwidth", "5Mbit"), parse_rate("--bandwidth", "5 Mbit/s"), parse_rate("--bandwidth", "1MB/s")
    (625000.0, 625000.0, 1000000.0)
    """
    folded = {
        unit.lower(): value for unit, value in RATES.items() if "/" not in unit or "i" in unit
    }
    units = {
        **folded,
        **{f"{unit}/s": value for unit, value in folded.items() if "bit" in unit},
        **RATES,
    }
    return _parsed(
        name, text, units, "kbit, Mbit, Gbit, kB/s, MB/s, GB/s, KiB/s or MiB/s, such as 5Mbit"
    )


def parse_count(name: str, text: str) -> float:
    """Return a number of operations.

    >>> parse_count("--macs", "2.5G"), parse_count("macs_per_second", "1e6")
    (2500000000.0, 1000000.0)
    """
    return _parsed(name, text, {**COUNTS, "K": 1e3}, "none, k, M, G or T, such as 200M")


def _parsed(name: str, text: str, units: dict[str, float], allowed: str) -> float:
    found = NUMBER.fullmatch(str(text))
    if not found:
        raise UserError(f"{name} {text}: is not a number with a unit; allowed units: {allowed}")
    number, unit = float(found[1]), found[2]
    if not unit and "" not in units:
        raise UserError(f"{name} {text}: has no unit; allowed: {allowed}")
    value = units.get(unit, units.get(unit.lower()) if not unit.lower().endswith("b/s") else None)
    if value is None:
        raise UserError(f"{name} {text}: unit {unit!r} is unknown; allowed: {allowed}")
    if not 0 < number < math.inf:
        raise UserError(f"{name} {text}: must be above 0")
    return float(
        Decimal(found[1]) * Decimal(str(value))
    )  # 2.5us is 2.5e-6, which the product of floats is not


def format_seconds(seconds: float, digits: int = 2) -> str:
    """Return a time in its unit, rounded up, so that what is shown is enough.

    >>> format_seconds(3.21), format_seconds(0.0123), format_seconds(254), format_seconds(0.00002)
    ('3.3s', '13ms', '260s', '20us')
    """
    return _shown(seconds, {"us": 1e-6, "ms": 1e-3, "s": 1.0}, digits)


def format_duration(seconds: float) -> str:
    """Return a time as people read it.

    >>> [format_deadline(s) for s in (0.25, 71.2, 132, 5400, 200000)]
    ['0.25 s', '71.2 s', '132 s', '90 min', '55.6 h']
    """
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 36000 else f"{seconds / 3600:,.1f} h"


def format_bytes(size: float, digits: int = 2) -> str:
    """Return a size in its unit, rounded up.

    >>> format_bytes(30_600_000), format_bytes(999), format_bytes(1_234_567_890)
    ('31MB', '1kB', '1.3GB')
    """
    return _shown(size, {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}, digits)


def format_count(count: float, digits: int = 2) -> str:
    """Return a number of operations, rounded up.

    >>> format_count(23_110_000)
    '24M'
    """
    return _shown(count, COUNTS, digits)


def format_rate(rate: float, digits: int = 2) -> str:
    """Return bytes a second as bits, rounded up.

    >>> format_rate(625_000)
    '5Mbit'
    """
    return _shown(8 * rate, {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9}, digits)


def _shown(value: float, units: dict[str, float], digits: int) -> str:
    rounded = _up(value, digits)
    unit, scale = next(
        ((u, s) for u, s in reversed(units.items()) if rounded >= s), next(iter(units.items()))
    )
    return f"{rounded / scale:.10g}{unit}"


def _up(value: float, digits: int) -> float:
    """Return a value rounded up to some digits; what is there already, but for the error of floats, stays."""
    if value <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.{digits + 1}g}")
