"""The paper's claims, each with what the paper states and the rule by which our runs decide it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from fjord.core.width import Width
from reproduction.compare import (
    MARGIN,
    OPEN,
    ClaimVerdict,
    ScoreDifference,
    decide_verdict,
    score_difference,
)
from reproduction.measured import MeasuredCurve

Curves = Mapping[str, MeasuredCurve]
"""What there is of one task, by curve."""
Rule = Callable[[Curves], ClaimVerdict]
ONE = Width(1)


@dataclass(frozen=True)
class PaperClaim:
    """Something that can be true of a task or not."""

    figure: str
    name: str
    text: str
    curves: tuple[str, ...]
    rule: Rule
    paper: Mapping[str, str] = field(default_factory=dict)
    """What the paper states, by its task."""


def _at_widths(
    one: str, other: str, chosen: Callable[[Width], bool], found: Curves
) -> list[ScoreDifference | None]:
    """Compare two curves at the widths that both have."""
    first, second = found[one].points, found[other].points
    return [
        score_difference(str(w), first[w], second[w]) for w in first if w in second and chosen(w)
    ]


def require_above(one: str, other: str, chosen: Callable[[Width], bool]) -> Rule:
    """Demand that one curve is above another at each chosen width."""
    return lambda found: decide_verdict(
        _at_widths(one, other, chosen, found), ScoreDifference.above
    )


def require_no_worse(one: str, other: str, chosen: Callable[[Width], bool]) -> Rule:
    """Demand that one curve is close to another, or above it, at each chosen width."""
    return lambda found: decide_verdict(
        _at_widths(one, other, chosen, found), lambda d: d.above(-MARGIN[found[other].metric])
    )


def require_above_best(
    one: str, other: str, chosen: Callable[[Width], bool] = lambda width: True
) -> Rule:
    """Demand that the full model of one curve is above the best of another's chosen models."""

    def rule(found: Curves) -> ClaimVerdict:
        stats = {width: stat for width, stat in found[other].stats.items() if chosen(width)}
        best = max(stats, key=lambda width: stats[width].mean)
        points = found[one].points
        place = f"1 against {best}"
        return decide_verdict(
            [score_difference(place, points[ONE], found[other].points[best])], ScoreDifference.above
        )

    return rule


def require_growth(curve: str) -> Rule:
    """Demand that every width is above the next smaller one."""

    def rule(found: Curves) -> ClaimVerdict:
        pairs = pairwise(found[curve].points.items())
        places = [
            score_difference(f"{a} to {b}", after, before) for (a, before), (b, after) in pairs
        ]
        return decide_verdict(places, ScoreDifference.above)

    return rule


def require_collapse(one: str, other: str) -> Rule:
    """Demand less than half of another's accuracy, or more than twice its perplexity, below full width."""

    def rule(found: Curves) -> ClaimVerdict:
        places = _at_widths(one, other, lambda w: w < 1, found)
        reference = {str(w): stat.mean for w, stat in found[other].stats.items()}

        def fine(d: ScoreDifference) -> bool:
            level = reference[d.place]
            return d.mean < -abs(level) / 2 if level > 0 else d.mean < -abs(level)

        return decide_verdict(places, fine)

    return rule


def require_smoother(curves: tuple[str, ...], other: str) -> Rule:
    """Demand a lower last test loss, and smaller steps of it over the second half, at full width."""

    def rule(found: Curves) -> ClaimVerdict:
        places = []
        for name in curves:
            for what, of in (("loss", _last), ("jitter", _jitter)):
                label = f"lower {what} of {found[name].curve.label}"
                places.append(
                    score_difference(label, of(found[other]), of(found[name]))
                )  # less of it is better
        return decide_verdict(places, ScoreDifference.above, mean=False)

    return rule


def _last(measured: MeasuredCurve) -> dict[int, float]:
    curve = measured.curve_at(ONE)
    return curve[max(curve)]


def _jitter(measured: MeasuredCurve) -> dict[int, float]:
    """Return the mean step of the test loss from one test to the next, over the second half of the rounds."""
    curve = [
        values for done, values in measured.curve_at(ONE).items() if 2 * done > measured.rounds
    ]
    return {
        seed: fmean(abs(b[seed] - a[seed]) for a, b in pairwise(curve)) if len(curve) > 1 else 0.0
        for seed in measured.runs
    }


def ask_far_behind(one: str, others: tuple[str, ...], gap: float = 10.0) -> Rule:
    """Ask whether the full model of one curve is behind the best of others by more than a gap."""

    def rule(found: Curves) -> ClaimVerdict:
        best = max(others, key=lambda name: found[name].stats[ONE].mean)
        d = score_difference(
            f"1, behind {found[best].curve.label}", found[best].points[ONE], found[one].points[ONE]
        )
        return decide_verdict([d], lambda d: d.above(gap))

    return rule


def decide_claim(claim: PaperClaim, found: Curves) -> ClaimVerdict:
    """Return what the runs of a task say of a claim."""
    missing = [name for name in claim.curves if name not in found]
    if missing:
        return ClaimVerdict(OPEN, f"there is no finished run of {', '.join(missing)}")
    finished = {name: found[name].finished for name in claim.curves}
    lacking = [f"{name}, {found[name].lacking}" for name, one in finished.items() if not one.runs]
    return (
        ClaimVerdict(OPEN, f"models are missing: {'; '.join(lacking)}")
        if lacking
        else claim.rule(finished)
    )
