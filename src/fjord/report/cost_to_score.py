"""Time-to-accuracy and bytes-to-accuracy: what a run had spent when it first scored as well as asked."""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.report.groups import ReportRun, RunGroup
from fjord.report.numbers import SeedStat, over_runs, seed_stat

COST_KINDS = ("time", "bytes")
PERCENT = [Fraction(n, 100) for n in (1, 2, 5, *range(10, 100, 10), 95, 98, 99)]
PERPLEXITIES = [Fraction(n * 10**power) for power in range(6) for n in (1, 2, 5)]


def spending_by_round(run: ReportRun, kind: str) -> list[float]:
    """Return what had been spent by the end of each round: simulated seconds, or bytes both ways; of all models."""
    if kind == "time":
        return list(accumulate(row.get("simulated_seconds", math.nan) for row in run.rows))
    each = (sum(t["bytes_down"] + t["bytes_up"] for t in row["tiers"].values()) for row in run.rows)
    return list(accumulate(each))


def records_cost(run: ReportRun, kind: str) -> bool:
    """Say whether a run can tell: without a clock it has no time, on one place nothing is sent."""
    if kind == "bytes":
        return any(row["tiers"] for row in run.rows)
    return bool(run.rows) and all("simulated_seconds" in row for row in run.rows)


def cost_to_score(run: ReportRun, metric: str, level: Fraction, kind: str) -> dict[Width, float]:
    """Return for each width what had been spent when a test first reached the level; some widths never do."""
    found: dict[Width, float] = {}
    for row, total in zip(
        run.rows, spending_by_round(run, kind) if records_cost(run, kind) else (), strict=False
    ):
        for width, score in row["scores"].items():
            if _good(score[metric], level, metric):
                found.setdefault(Width(width), total)
    return found


def costs_to_score(
    group: RunGroup, metric: str, level: Fraction, kind: str
) -> dict[Width, SeedStat]:
    """Return the same over the runs of a group."""
    return over_runs(group, lambda run: cost_to_score(run, metric, level, kind))


def score_by_cost(group: RunGroup, metric: str, width: Width, kind: str) -> dict[float, SeedStat]:
    """Return the scores of a width against what was spent: means over the runs at each test, of both."""
    parts = [_tests(run, metric, width, kind) for run in group.runs if records_cost(run, kind)]
    shared = [key for key in parts[0] if all(key in part for part in parts)] if parts else []
    found: dict[float, SeedStat] = {}
    for key in shared:
        cost, score = (seed_stat(part[key][i] for part in parts) for i in (0, 1))
        if cost and score:
            found[cost.mean] = score
    return found


def _tests(
    run: ReportRun, metric: str, width: Width, kind: str
) -> dict[tuple[int, int], tuple[float, float]]:
    pairs = zip(run.rows, spending_by_round(run, kind), strict=True)
    text = str(width)
    return {
        (row["stage"], row["round"]): (total, row["scores"][text][metric])
        for row, total in pairs
        if text in row["scores"]
    }


def usual_levels(runs: Iterable[ReportRun], metric: str) -> list[Fraction]:
    """Return the three hardest round numbers that any run reached at any width."""
    scores = [score[metric] for run in runs for row in run.rows for score in row["scores"].values()]
    ladder = PERCENT if metric == "accuracy" else PERPLEXITIES[::-1]
    return [level for level in ladder if any(_good(score, level, metric) for score in scores)][-3:]


def common_level(run: ReportRun, metric: str) -> Fraction | None:
    """Return the hardest round number that a run reached at every width it scored; else at any; None for none."""
    levels = usual_levels([run], metric)
    widths = {width for row in run.rows for width in row["scores"]}
    ladder = PERCENT if metric == "accuracy" else PERPLEXITIES[::-1]
    by_all = [
        level for level in ladder if len(cost_to_score(run, metric, level, "bytes")) == len(widths)
    ]
    return by_all[-1] if widths and by_all else levels[-1] if levels else None


def _good(score: float, level: Fraction, metric: str) -> bool:
    # As floats: 700 of 1,000 is the float nearest to 70%, which may lie below it.
    return score >= float(level) if metric == "accuracy" else score <= float(level)


def parse_level(text: str, metric: str) -> Fraction:
    """Return the level meant by 70%, 0.7, or a perplexity.

    >>> parse_level("70%", "accuracy") == parse_level("0.7", "accuracy"), parse_level("12", "perplexity")
    (True, Fraction(12, 1))
    """
    allowed = (
        "an accuracy such as 70% or 0.7"
        if metric == "accuracy"
        else "a perplexity above 1, such as 12"
    )
    try:
        percent = metric == "accuracy" and text.strip().endswith("%")
        level = (
            Fraction(text.strip().removesuffix("%")) / 100 if percent else Fraction(text.strip())
        )
    except (ValueError, ZeroDivisionError):
        level = Fraction(0)
    if not (0 < level <= 1 if metric == "accuracy" else level > 1):
        raise UserError(f"--reach {text}: is not {allowed}")
    return level


def format_level(level: Fraction, metric: str) -> str:
    """Return a level as people read it."""
    return f"{float(100 * level):.4g}%" if metric == "accuracy" else f"{float(level):.4g}"


def format_cost(value: float, kind: str) -> str:
    """Return seconds or bytes as people read them.

    >>> shown(150, "time"), shown(7200, "time"), shown(2.5e8, "bytes")
    ('2.5 min', '2 h', '250 MB')
    """
    scale, unit = cost_unit(value, kind)
    return f"{value / scale:.3g} {unit}"


def cost_unit(value: float, kind: str) -> tuple[float, str]:
    """Return the unit in which a value is short to write."""
    times: Sequence[tuple[float, str]] = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    sizes: Sequence[tuple[float, str]] = (
        (1e15, "PB"),
        (1e12, "TB"),
        (1e9, "GB"),
        (1e6, "MB"),
        (1e3, "kB"),
        (1, "B"),
    )
    units = times if kind == "time" else sizes
    return next(((scale, unit) for scale, unit in units if value >= scale), units[-1])


def format_cost_stat(value: SeedStat | None, kind: str, runs: int, missing: str) -> str:
    """Return mean and deviation in one unit, and of how many runs if not of all."""
    if value is None:
        return missing
    scale, unit = cost_unit(value.mean, kind)
    spread = "" if value.sd is None else f" ± {value.sd / scale:.2g}"
    part = f" ({value.count} of {runs} runs)" if value.count < runs else ""
    return f"{value.mean / scale:.3g}{spread} {unit}{part}"


def format_totals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what a run spent in all."""
    down, up = (
        sum(t[name] for row in rows for t in row["tiers"].values())
        for name in ("bytes_down", "bytes_up")
    )
    sent = f"{format_cost(down, 'bytes')} to clients, {format_cost(up, 'bytes')} back"
    if not rows or any("simulated_seconds" not in row for row in rows):
        return sent
    return f"{format_cost(sum(row['simulated_seconds'] for row in rows), 'time')} of simulated time, {sent}"
