"""The paper's claims: what each says, and the rule by which our runs decide it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from fjord.core.width import Width
from reproduction.compare import (
    MARGIN,
    UNDECIDED,
    ClaimVerdict,
    ScoreDifference,
    decide_verdict,
    score_difference,
)
from reproduction.measured import MeasuredCurve

Curves = Mapping[str, MeasuredCurve]
"""The curves of one task that have runs, by name."""
Rule = Callable[[Curves], ClaimVerdict]
WidthFilter = Callable[[Width], bool]
FULL = Width(1)
FAR_BEHIND = 10.0
"""Points of accuracy."""


@dataclass(frozen=True)
class PaperClaim:
    """A statement that can be true of a task or not."""

    figure: str
    name: str
    text: str
    curves: tuple[str, ...]
    rule: Rule
    paper: Mapping[str, str] = field(default_factory=dict)
    """What the paper states, by its task."""


def all_widths(width: Width) -> bool:
    """Select every width."""
    return True


def _differences(
    first: MeasuredCurve, second: MeasuredCurve, selects: WidthFilter
) -> list[ScoreDifference | None]:
    """Compare two curves at the selected widths that both have."""
    differences = []
    others = second.points
    for width, scores in first.points.items():
        if width in others and selects(width):
            differences.append(score_difference(str(width), scores, others[width]))
    return differences


def require_above(first: str, second: str, selects: WidthFilter = all_widths) -> Rule:
    """Require that one curve is above another at each selected width."""

    def rule(curves: Curves) -> ClaimVerdict:
        differences = _differences(curves[first], curves[second], selects)
        return decide_verdict(differences, ScoreDifference.is_above)

    return rule


def require_no_worse(first: str, second: str, selects: WidthFilter = all_widths) -> Rule:
    """Require that one curve is close to another, or above it, at each selected width."""

    def rule(curves: Curves) -> ClaimVerdict:
        margin = MARGIN[curves[second].metric]
        differences = _differences(curves[first], curves[second], selects)
        return decide_verdict(differences, lambda one: one.is_above(-margin))

    return rule


def require_above_best(first: str, second: str, selects: WidthFilter = all_widths) -> Rule:
    """Require that the full model of one curve is above the best selected model of another."""

    def rule(curves: Curves) -> ClaimVerdict:
        other = curves[second]
        means = {width: stat.mean for width, stat in other.stats.items() if selects(width)}
        best = max(means, key=lambda width: means[width])
        full = curves[first].points[FULL]
        difference = score_difference(f"1 against {best}", full, other.points[best])
        return decide_verdict([difference], ScoreDifference.is_above)

    return rule


def require_growth(curve: str) -> Rule:
    """Require that every width is above the next smaller one."""

    def rule(curves: Curves) -> ClaimVerdict:
        points = curves[curve].points
        differences = []
        for smaller, larger in pairwise(points):
            place = f"{smaller} to {larger}"
            differences.append(score_difference(place, points[larger], points[smaller]))
        return decide_verdict(differences, ScoreDifference.is_above)

    return rule


def require_collapse(first: str, second: str) -> Rule:
    """Require less than half of another's accuracy, or twice its perplexity, below full width."""

    def rule(curves: Curves) -> ClaimVerdict:
        reference = {str(width): stat.mean for width, stat in curves[second].stats.items()}

        def collapses(one: ScoreDifference) -> bool:
            level = reference[one.place]
            if level > 0:  # accuracy
                return one.mean < -level / 2
            return one.mean < level  # negative perplexity

        differences = _differences(curves[first], curves[second], lambda width: width < 1)
        return decide_verdict(differences, collapses)

    return rule


def require_smoother(better: tuple[str, ...], worse: str) -> Rule:
    """Require a lower last test loss, and less jitter of it, at full width."""

    def rule(curves: Curves) -> ClaimVerdict:
        differences = []
        for name in better:
            for word, measure in (("loss", _last_loss), ("jitter", _loss_jitter)):
                place = f"lower {word} of {curves[name].curve.label}"
                # Lower is better: the worse curve minus the better one is above 0.
                high = measure(curves[worse])
                low = measure(curves[name])
                differences.append(score_difference(place, high, low))
        return decide_verdict(differences, ScoreDifference.is_above, with_mean=False)

    return rule


def _last_loss(measured: MeasuredCurve) -> dict[int, float]:
    """Return the test loss after the last round, by seed."""
    curve = measured.curve_at(FULL)
    return curve[max(curve)]


def _loss_jitter(measured: MeasuredCurve) -> dict[int, float]:
    """Return the mean change of the test loss between tests in the second half, by seed."""
    late = []
    for rounds_done, by_seed in measured.curve_at(FULL).items():
        if 2 * rounds_done > measured.rounds:
            late.append(by_seed)
    jitter = dict.fromkeys(measured.runs, 0.0)
    if len(late) > 1:
        for seed in jitter:
            jitter[seed] = fmean(
                abs(after[seed] - before[seed]) for before, after in pairwise(late)
            )
    return jitter


def ask_far_behind(first: str, others: tuple[str, ...]) -> Rule:
    """Ask whether the full model of one curve is far behind the best of others."""

    def rule(curves: Curves) -> ClaimVerdict:
        best = curves[max(others, key=lambda name: curves[name].stats[FULL].mean)]
        place = f"1, behind {best.curve.label}"
        difference = score_difference(place, best.points[FULL], curves[first].points[FULL])
        return decide_verdict([difference], lambda one: one.is_above(FAR_BEHIND))

    return rule


def decide_claim(claim: PaperClaim, curves: Curves) -> ClaimVerdict:
    """Return what the runs of a task say about a claim."""
    missing = [name for name in claim.curves if name not in curves]
    if missing:
        return ClaimVerdict(UNDECIDED, f"there is no finished run of {', '.join(missing)}")
    finished = {name: curves[name].finished for name in claim.curves}
    incomplete = []
    for name, curve in finished.items():
        if not curve.runs:
            incomplete.append(f"{name}, {curves[name].missing_models}")
    if incomplete:
        return ClaimVerdict(UNDECIDED, f"models are missing: {'; '.join(incomplete)}")
    return claim.rule(finished)
