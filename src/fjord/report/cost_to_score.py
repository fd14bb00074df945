"""Time-to-accuracy and bytes-to-accuracy: what a run had spent when it first reached a score."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fjord.core.errors import UserError
from fjord.core.width import Width
from fjord.report.groups import ReportRun, RunGroup
from fjord.report.numbers import SeedStat, over_runs, seed_stat

COST_KINDS = ("time", "bytes")
PERCENT = [
    Fraction(number, 100) for number in (1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99)
]
PERPLEXITIES = [Fraction(n * 10**power) for power in range(6) for n in (1, 2, 5)]
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "time": (
        (86400, "d"),
        (3600, "h"),
        (60, "min"),
        (1, "s"),
    ),
    "bytes": (
        (1e15, "PB"),
        (1e12, "TB"),
        (1e9, "GB"),
        (1e6, "MB"),
        (1e3, "kB"),
        (1, "B"),
    ),
}
ALLOWED_LEVELS = {
    "accuracy": "an accuracy such as 70% or 0.7",
    "perplexity": "a perplexity above 1, such as 12",
}


@dataclass(frozen=True)
class ScoredTest:
    """A test of a model: what had been spent by then, and its score."""

    cost: float
    score: float


def spending_by_round(run: ReportRun, kind: str) -> list[float]:
    """Return what had been spent by the end of each round, over all models of a run.

    Of kind "time" these are simulated seconds, of kind "bytes" the bytes to clients and back.
    """
    if kind == "time":
        return _seconds_by_round(run)
    return _bytes_by_round(run)


def _seconds_by_round(run: ReportRun) -> list[float]:
    by_round = []
    total = 0.0
    for row in run.rows:
        total += row.get("simulated_seconds", math.nan)
        by_round.append(total)
    return by_round


def _bytes_by_round(run: ReportRun) -> list[float]:
    by_round: list[float] = []
    total = 0
    for row in run.rows:
        total += _count_bytes(row, "bytes_down")
        total += _count_bytes(row, "bytes_up")
        by_round.append(total)
    return by_round


def _count_bytes(row: Mapping[str, Any], field: str) -> int:
    """Return the bytes of one round, over all tiers."""
    total = 0
    for tier in row["tiers"].values():
        total += tier[field]
    return total


def records_cost(run: ReportRun, kind: str) -> bool:
    """Say whether a run records a cost.

    There is no time without a simulated clock, and centralised training sends no bytes.
    """
    if kind == "bytes":
        return any(row["tiers"] for row in run.rows)
    return _has_clock(run.rows)


def _has_clock(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether there are rounds and each has a simulated time."""
    if not rows:
        return False
    return all("simulated_seconds" in row for row in rows)


def cost_to_score(run: ReportRun, metric: str, level: Fraction, kind: str) -> dict[Width, float]:
    """Return what had been spent when a test first reached the level, at each width that did."""
    costs: dict[Width, float] = {}
    if not records_cost(run, kind):
        return costs
    spending = spending_by_round(run, kind)
    for row, total in zip(run.rows, spending, strict=True):
        for name, score in row["scores"].items():
            if _reaches(score[metric], level, metric):
                width = Width(name)
                costs.setdefault(width, total)
    return costs


def costs_to_score(
    group: RunGroup,
    metric: str,
    level: Fraction,
    kind: str,
) -> dict[Width, SeedStat]:
    """Return the same over the runs of a group."""

    def run_costs(run: ReportRun) -> dict[Width, float]:
        return cost_to_score(run, metric, level, kind)

    return over_runs(group, run_costs)


def score_by_cost(group: RunGroup, metric: str, width: Width, kind: str) -> dict[float, SeedStat]:
    """Return the scores of a width by what was spent: means over the runs at each test, of both."""
    tests_of_runs = []
    for run in group.runs:
        if records_cost(run, kind):
            tests_of_runs.append(_scored_tests(run, metric, width, kind))
    curve: dict[float, SeedStat] = {}
    if not tests_of_runs:
        return curve
    for key in tests_of_runs[0]:
        # Only tests that every run has: a mean over other runs would make the curve jump.
        costs = []
        scores = []
        for tests in tests_of_runs:
            if key in tests:
                test = tests[key]
                costs.append(test.cost)
                scores.append(test.score)
        if len(costs) < len(tests_of_runs):
            continue
        cost = seed_stat(costs)
        score = seed_stat(scores)
        if cost and score:
            curve[cost.mean] = score
    return curve


def _scored_tests(
    run: ReportRun,
    metric: str,
    width: Width,
    kind: str,
) -> dict[tuple[int, int], ScoredTest]:
    """Return the tests of a width by stage and round."""
    tests = {}
    spending = spending_by_round(run, kind)
    for row, total in zip(run.rows, spending, strict=True):
        score = row["scores"].get(str(width))
        if score is not None:
            key = (row["stage"], row["round"])
            tests[key] = ScoredTest(total, score[metric])
    return tests


def usual_levels(runs: Iterable[ReportRun], metric: str) -> list[Fraction]:
    """Return the three hardest round numbers that any run reached at any width."""
    best = _best_score(runs, metric)
    if best is None:
        return []
    reached = []
    for level in _round_levels(metric):
        if _reaches(best, level, metric):
            reached.append(level)
    return reached[-3:]


def _best_score(runs: Iterable[ReportRun], metric: str) -> float | None:
    """Return the best score of any test; None if there is none but NaN."""
    comparable = []
    for run in runs:
        for row in run.rows:
            for scores in row["scores"].values():
                score = scores[metric]
                if not math.isnan(score):
                    comparable.append(score)
    if metric == "accuracy":
        return max(comparable, default=None)
    return min(comparable, default=None)


def common_level(run: ReportRun, metric: str) -> Fraction | None:
    """Return the hardest round number that a run reached at every width it scored.

    If there is none: the hardest that it reached at any width; or None.
    """
    widths: set[str] = set()
    for row in run.rows:
        widths.update(row["scores"])
    if not widths:
        return None
    levels = _round_levels(metric)
    for level in reversed(levels):
        costs = cost_to_score(run, metric, level, "bytes")
        if len(costs) == len(widths):
            return level
    reached = usual_levels([run], metric)
    if reached:
        return reached[-1]
    return None


def _round_levels(metric: str) -> list[Fraction]:
    """Return round numbers, from easy to hard."""
    if metric == "accuracy":
        return PERCENT
    return PERPLEXITIES[::-1]


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
    if not _is_possible(level, metric):
        allowed = ALLOWED_LEVELS[metric]
        raise UserError(f"is not {allowed}", field="reach", value=text)
    return level


def _is_possible(level: Fraction, metric: str) -> bool:
    if metric == "accuracy":
        return 0 < level <= 1
    return level > 1


def format_level(level: Fraction, metric: str) -> str:
    """Return a level as people read it."""
    if metric == "accuracy":
        percent = float(100 * level)
        return f"{percent:.4g}%"
    number = float(level)
    return f"{number:.4g}"


def format_cost(value: float, kind: str) -> str:
    """Return seconds or bytes as people read them.

    >>> format_cost(150, "time"), format_cost(7200, "time"), format_cost(2.5e8, "bytes")
    ('2.5 min', '2 h', '250 MB')
    """
    scale, unit = cost_unit(value, kind)
    scaled = value / scale
    return f"{scaled:.3g} {unit}"


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
    mean = value.mean / scale
    text = f"{mean:.3g}"
    if value.sd is not None:
        deviation = value.sd / scale
        text += f" ± {deviation:.2g}"
    text += f" {unit}"
    if value.count < runs:
        text += f" ({value.count} of {runs} runs)"
    return text


def format_totals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what a run spent in all."""
    bytes_down = 0
    bytes_up = 0
    for row in rows:
        bytes_down += _count_bytes(row, "bytes_down")
        bytes_up += _count_bytes(row, "bytes_up")
    down = format_cost(bytes_down, "bytes")
    up = format_cost(bytes_up, "bytes")
    sent = f"{down} to clients, {up} back"
    if not _has_clock(rows):
        return sent
    seconds = sum(row["simulated_seconds"] for row in rows)
    time = format_cost(seconds, "time")
    return f"{time} of simulated time, {sent}"
