"""Methods at equal cost: the score of each once it has spent as much as the cheapest does in all.

The exclusive small model spends far less than the others and does not set the budget. A method that
the budget stops early is scored in the middle of its schedule, where its learning rate may not have
dropped yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fjord.core.width import Width
from fjord.report.groups import ReportRun
from fjord.report.numbers import SeedStat, seed_stat
from reproduction.measured import MeasuredCurve, as_points

SpendingCurve = list[tuple[float, float]]
"""What was spent up to each test of a model, and its score then, in points."""
UNCOUNTED = "exclusive-small"
COST_FIELDS = {"MACs": ("macs",), "bytes": ("bytes_down", "bytes_up")}


@dataclass(frozen=True)
class MatchedCost:
    """A method's widest model, after all its rounds and at equal cost."""

    measured: MeasuredCurve
    width: Width
    final: SeedStat | None
    total: dict[str, float]
    """What all clients together spent, by kind: mean over seeds."""
    at_equal: dict[str, SeedStat | None]


def spending_curve(run: ReportRun, fields: tuple[str, ...], width: Width) -> SpendingCurve:
    """Return how a run's score at a width grows with what all clients together have spent."""
    metric = run.config["metric"]
    curve: SpendingCurve = []
    spent = 0
    for row in run.rows:
        for tier in row["tiers"].values():
            spent += sum(tier[name] for name in fields)
        score = row["scores"].get(str(width))
        if score is not None:
            curve.append((spent, as_points(score[metric], metric)))
    return curve


def score_at_budget(budget: float, curve: SpendingCurve) -> float | None:
    """Return the score at a budget, on the straight line between the tests around it.

    Before the first test there is none; after the last it stays.

    >>> score_at_budget(15.0, [(10.0, 50.0), (20.0, 60.0)])
    55.0
    >>> score_at_budget(5.0, [(10.0, 50.0)]), score_at_budget(30.0, [(10.0, 50.0)])
    (None, 50.0)
    """
    if not curve or budget < curve[0][0]:
        return None
    for (low, before), (high, after) in pairwise(curve):
        if low <= budget <= high:
            if high == low:
                return after
            return before + (after - before) * (budget - low) / (high - low)
    return curve[-1][1]


def match_costs(measured: Sequence[MeasuredCurve]) -> list[MatchedCost]:
    """Match methods of one task; the budget, by seed and kind, is the cheapest method's total."""
    curves: dict[str, dict[str, dict[int, SpendingCurve]]] = {}
    for kind, fields in COST_FIELDS.items():
        curves[kind] = {}
        for one in measured:
            width = max(one.points)
            by_seed = {seed: spending_curve(run, fields, width) for seed, run in one.runs.items()}
            curves[kind][one.curve.name] = by_seed
    return [_match_method(one, curves) for one in measured]


def _match_method(
    one: MeasuredCurve, curves: dict[str, dict[str, dict[int, SpendingCurve]]]
) -> MatchedCost:
    width = max(one.points)
    totals: dict[str, float] = {}
    at_equal: dict[str, SeedStat | None] = {}
    for kind, by_method in curves.items():
        own = by_method[one.curve.name]
        spent = seed_stat(curve[-1][0] for curve in own.values())
        totals[kind] = spent.mean if spent else 0.0
        scores = []
        for seed, curve in own.items():
            scores.append(score_at_budget(_cheapest_total(by_method, seed), curve))
        at_equal[kind] = seed_stat(scores)
    return MatchedCost(one, width, one.stats.get(width), totals, at_equal)


def _cheapest_total(by_method: dict[str, dict[int, SpendingCurve]], seed: int) -> float:
    """Return what the cheapest method spends in all."""
    totals = {name: curves[seed][-1][0] for name, curves in by_method.items() if seed in curves}
    if len(totals) > 1:
        totals.pop(UNCOUNTED, None)
    return min(totals.values())
