"""Methods at equal cost: what each scores once it has spent as much as the cheapest spends in all.

The exclusive small model spends far less than the others and does not set the budget. A method that is cut short by the
budget is scored in the middle of its schedule, where its step size may not have fallen yet.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from fjord.core.width import Width
from fjord.report.groups import ReportRun
from fjord.report.numbers import SeedStat, seed_stat
from reproduction.measured import MeasuredCurve, as_points

Spent = list[tuple[float, float]]
"""What was spent up to each test of a model, and its score then, in points."""
UNCOUNTED = "exclusive-small"
KINDS = {"MACs": ("macs",), "bytes": ("bytes_down", "bytes_up")}


@dataclass(frozen=True)
class MatchedCost:
    """A method's widest model, after all its rounds and at equal cost."""

    measured: MeasuredCurve
    width: Width
    final: SeedStat | None
    total: dict[str, float]
    """What all clients together spent, by kind: mean over seeds."""
    at_equal: dict[str, SeedStat | None]


def spending_curve(run: ReportRun, fields: tuple[str, ...], width: Width) -> Spent:
    """Return how a run's score at a width grows with what all clients together have spent."""
    each = [
        sum(tier[name] for tier in row["tiers"].values() for name in fields) for row in run.rows
    ]
    metric = run.config["metric"]
    return [
        (spent, as_points(row["scores"][str(width)][metric], metric))
        for row, spent in zip(run.rows, accumulate(each), strict=True)
        if str(width) in row["scores"]
    ]


def score_at_budget(budget: float, curve: Spent) -> float | None:
    """Return the score at a budget, on the straight line between the tests around it; None before the first test.

    >>> at(15.0, [(10.0, 50.0), (20.0, 60.0)]), at(5.0, [(10.0, 50.0)]), at(30.0, [(10.0, 50.0)])
    (55.0, None, 50.0)
    """
    if not curve or budget < curve[0][0]:
        return None
    for (low, before), (high, after) in pairwise(curve):
        if low <= budget <= high:
            return (
                before + (after - before) * (budget - low) / (high - low) if high > low else after
            )
    return curve[-1][1]


def match_costs(found: list[MeasuredCurve]) -> list[MatchedCost]:
    """Match methods of one task: for each seed and kind of cost the budget is the total of the cheapest."""
    widths = {one.curve.name: max(one.points) for one in found}
    curves = {
        (one.curve.name, kind, seed): spending_curve(run, fields, widths[one.curve.name])
        for one in found
        for kind, fields in KINDS.items()
        for seed, run in one.runs.items()
    }
    return [_matched(one, widths[one.curve.name], curves) for one in found]


def _matched(
    one: MeasuredCurve, width: Width, curves: dict[tuple[str, str, int], Spent]
) -> MatchedCost:
    totals: dict[str, float] = {}
    equal: dict[str, SeedStat | None] = {}
    for kind in KINDS:
        own = {seed: curves[one.curve.name, kind, seed] for seed in one.runs}
        spent = seed_stat(curve[-1][0] for curve in own.values())
        totals[kind] = spent.mean if spent else 0.0
        equal[kind] = seed_stat(
            score_at_budget(_budget(curves, kind, seed), curve) for seed, curve in own.items()
        )
    return MatchedCost(one, width, one.stats.get(width), totals, equal)


def _budget(curves: dict[tuple[str, str, int], Spent], kind: str, seed: int) -> float:
    """Return what the cheapest method spends in all."""
    totals = {
        name: curve[-1][0] for (name, k, s), curve in curves.items() if (k, s) == (kind, seed)
    }
    return min(total for name, total in totals.items() if name != UNCOUNTED or len(totals) == 1)
