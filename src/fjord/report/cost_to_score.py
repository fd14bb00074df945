"""Time-to-accuracy and bytes-to-accuracy: what a run had spent when it first reached a score."""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.report.groups import ReportRun, RunGroup
from fjord.report.numbers import SeedStat, over_runs, seed_stat

COST_KINDS = ("time", "bytes")
PERCENT = [Fraction(n, 100) for n in (1, 2, 5, *range(10, 100, 10), 95, 98, 99)]
PERPLEXITIES = [Fraction(n * 10**power) for power in range(6) for n in (1, 2, 5)]
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "time": ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")),
    "bytes": ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
}
ALLOWED_LEVELS = {
    "accuracy": "an accuracy such as 70% or 0.7",
    "perplexity": "a perplexity above 1, such as 12",
}


def spending_by_round(run: ReportRun, kind: str) -> list[float]:
    """Return what had been spent by the end of each round, over all models of a run.

    Of kind "time" these are simulated seconds, of kind "bytes" the bytes to clients and back.
    """
    by_round: list[float] = []
    total = 0.0 if kind == "time" else 0
    for row in run.rows:
        if kind == "time":
            total += row.get("simulated_seconds", math.nan)
        else:
            total += _sent(row, "bytes_down", "bytes_up")
        by_round.append(total)
    return by_round


def _sent(row: Mapping[str, Any], *fields: str) -> int:
    """Return the bytes of one round."""
    total = 0
    for tier in row["tiers"].values():
        total += sum(tier[field] for field in fields)
    return total


def records_cost(run: ReportRun, kind: str) -> bool:
    """Say whether a run records a cost.

    There is no time without a simulated clock, and centralised training sends no bytes.
    """
    if kind == "bytes":
        return any(row["tiers"] for row in run.rows)
    return bool(run.rows) and all("simulated_seconds" in row for row in run.rows)


def cost_to_score(run: ReportRun, metric: str, level: Fraction, kind: str) -> dict[Width, float]:
    """Return what had been spent when a test first reached the level, at each width that did."""
    costs: dict[Width, float] = {}
    if not records_cost(run, kind):
        return costs
    for row, total in zip(run.rows, spending_by_round(run, kind), strict=True):
        for width, score in row["scores"].items():
            if _reaches(score[metric], level, metric):
                costs.setdefault(Width(width), total)
    return costs


def costs_to_score(
    group: RunGroup, metric: str, level: Fraction, kind: str
) -> dict[Width, SeedStat]:
    """Return the same over the runs of a group."""
    return over_runs(group, lambda run: cost_to_score(run, metric, level, kind))


def score_by_cost(group: RunGroup, metric: str, width: Width, kind: str) -> dict[float, SeedStat]:
    """Return the scores of a width by what was spent: means over the runs at each test, of both."""
    parts = [_tests(run, metric, width, kind) for run in group.runs if records_cost(run, kind)]
    curve: dict[float, SeedStat] = {}
    if not parts:
        return curve
    for key in parts[0]:
        if all(key in part for part in parts):
            tests = [part[key] for part in parts]
            cost = seed_stat(cost for cost, _ in tests)
            score = seed_stat(score for _, score in tests)
            if cost and score:
                curve[cost.mean] = score
    return curve


def _tests(
    run: ReportRun, metric: str, width: Width, kind: str
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return what was spent, and the score, at each test of a width, by stage and round."""
    tests: dict[tuple[int, int], tuple[float, float]] = {}
    for row, total in zip(run.rows, spending_by_round(run, kind), strict=True):
        score = row["scores"].get(str(width))
        if score is not None:
            tests[row["stage"], row["round"]] = (total, score[metric])
    return tests


def usual_levels(runs: Iterable[ReportRun], metric: str) -> list[Fraction]:
    """Return the three hardest round numbers that any run reached at any width."""
    best: float | None = None
    for run in runs:
        for row in run.rows:
            for score in row["scores"].values():
                best = _better(best, score[metric], metric)
    if best is None:
        return []
    reached = [level for level in _ladder(metric) if _reaches(best, level, metric)]
    return reached[-3:]


def _better(best: float | None, score: float, metric: str) -> float | None:
    """Return the better of two scores; NaN is none."""
    if math.isnan(score):
        return best
    if best is None:
        return score
    return max(best, score) if metric == "accuracy" else min(best, score)


def common_level(run: ReportRun, metric: str) -> Fraction | None:
    """Return the hardest round number that a run reached at every width it scored.

    If there is none: the hardest that it reached at any width; or None.
    """
    widths = {width for row in run.rows for width in row["scores"]}
    if not widths:
        return None
    for level in reversed(_ladder(metric)):
        if len(cost_to_score(run, metric, level, "bytes")) == len(widths):
            return level
    levels = usual_levels([run], metric)
    return levels[-1] if levels else None


def _ladder(metric: str) -> list[Fraction]:
    """Return round numbers, from easy to hard."""
    return PERCENT if metric == "accuracy" else PERPLEXITIES[::-1]


def _reaches(score: float, level: Fraction, metric: str) -> bool:
    # As floats: 700 of 1,000 is the float nearest to 70%, which may lie below it.
    if metric == "accuracy":
        return score >= float(level)
    return score <= float(level)


def parse_level(text: str, metric: str) -> Fraction:
    """Return the level meant by 70%, 0.7, or a perplexity.

    >>> parse_level("70%", "accuracy") == parse_level("0.7", "accuracy")
    True
    >>> parse_level("12", "perplexity")
    Fraction(12, 1)
    """
    number = text.strip()
    scale = 1
    if metric == "accuracy" and number.endswith("%"):
        number = number.removesuffix("%")
        scale = 100
    try:
        level = Fraction(number) / scale
    except (ValueError, ZeroDivisionError):
        level = Fraction(0)
    fine = 0 < level <= 1 if metric == "accuracy" else level > 1
    if not fine:
        raise UserError(f"is not {ALLOWED_LEVELS[metric]}", field="reach", value=text)
    return level


def format_level(level: Fraction, metric: str) -> str:
    """Return a level as people read it."""
    if metric == "accuracy":
        return f"{float(100 * level):.4g}%"
    return f"{float(level):.4g}"


def format_cost(value: float, kind: str) -> str:
    """Return seconds or bytes as people read them.

    >>> format_cost(150, "time"), format_cost(7200, "time"), format_cost(2.5e8, "bytes")
    ('2.5 min', '2 h', '250 MB')
    """
    scale, unit = cost_unit(value, kind)
    return f"{value / scale:.3g} {unit}"


def cost_unit(value: float, kind: str) -> tuple[float, str]:
    """Return the unit in which a value is short to write, and its size.

    >>> cost_unit(150, "time")
    (60, 'min')
    """
    for scale, unit in UNITS[kind]:
        if value >= scale:
            return scale, unit
    return UNITS[kind][-1]


def format_cost_stat(value: SeedStat | None, kind: str, runs: int, missing: str) -> str:
    """Return mean and deviation in one unit, and of how many runs if not of all."""
    if value is None:
        return missing
    scale, unit = cost_unit(value.mean, kind)
    text = f"{value.mean / scale:.3g}"
    if value.sd is not None:
        text += f" ± {value.sd / scale:.2g}"
    text += f" {unit}"
    if value.count < runs:
        text += f" ({value.count} of {runs} runs)"
    return text


def format_totals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what a run spent in all."""
    down = sum(_sent(row, "bytes_down") for row in rows)
    up = sum(_sent(row, "bytes_up") for row in rows)
    sent = f"{format_cost(down, 'bytes')} to clients, {format_cost(up, 'bytes')} back"
    if not rows or any("simulated_seconds" not in row for row in rows):
        return sent
    seconds = sum(row["simulated_seconds"] for row in rows)
    return f"{format_cost(seconds, 'time')} of simulated time, {sent}"
