"""Compare scores seed by seed and decide claims: the rules are stated here and nowhere else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

HOLDS = "holds"
PARTLY = "holds in part"
FAILS = "does not hold"
UNDECIDED = "undecided"
ANSWERS = {"yes": True, "open": None, "no": False}
UNANIMOUS = {"yes": HOLDS, "open": UNDECIDED, "no": FAILS}
"""The verdict where the answer is the same at every place."""
MARGIN = {"accuracy": 1.0, "perplexity": 0.1}
"""How many points below another still counts as close to it."""
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""How many standard errors chance exceeds once in twenty, on one side, with 2, 3, ... seeds."""
RULES = (
    "Differences are computed seed by seed (a seed fixes data, clients and initial weights of both "
    "sides, and the devices where the tiers are the same) and averaged; ± is the standard error of "
    "that mean. **Above**: higher by more than chance gives once in twenty (Student's t, "
    f"one-sided: {STUDENT[1]:g} standard errors with three seeds). **Close**, or **no worse**: by "
    f"the same test not lower by {MARGIN['accuracy']:g} percentage point, or "
    f"{MARGIN['perplexity']:g} of perplexity. A difference that chance may explain is *open*. With "
    "one seed there is no estimate of chance: the difference itself decides, and the verdict says "
    "so. **Collapses**: less than half the accuracy, or more than twice the perplexity. "
    "**Jitter**: the mean absolute change of the test loss from one test to the next, over the "
    "second half of the rounds. A claim *holds* if it is true at every place it covers, *holds in "
    "part* if at some, *does not hold* if it is true at none and false at some, and is *undecided* "
    "if all places are open or runs are missing."
)


@dataclass(frozen=True)
class ScoreDifference:
    """How far one score is above another at one place, over the seeds that both have."""

    place: str
    mean: float
    error: float | None
    """The standard error, if there are two seeds or more."""
    seeds: tuple[int, ...]

    @property
    def chance(self) -> float:
        """How much of it chance may explain."""
        if self.error is None:
            return 0.0
        degree = min(len(self.seeds) - 2, len(STUDENT) - 1)
        return STUDENT[degree] * self.error

    def is_above(self, level: float = 0.0) -> bool | None:
        """Say whether it is above a level; None where chance may explain it."""
        if self.mean - self.chance > level:
            return True
        if self.mean + self.chance > level:
            return None
        return False

    def __str__(self) -> str:
        """Write it as people read it."""
        text = f"{self.place}: {round(self.mean, 4):+.3g}"
        if self.error is not None:
            text += f" ± {self.error:.2g}"
        return text


Answer = Callable[[ScoreDifference], bool | None]
"""Says whether a claim is true at a place; None where that is open."""


def score_difference(
    place: str, first: Mapping[int, float], second: Mapping[int, float]
) -> ScoreDifference | None:
    """Compare two scores by seed; None if they have no seed in common.

    >>> score_difference("1", {0: 3.0, 1: 5.0, 2: 9.0}, {0: 2.0, 1: 2.0})
    ScoreDifference(place='1', mean=2.0, error=1.0, seeds=(0, 1))
    """
    seeds = tuple(sorted(first.keys() & second.keys()))
    if not seeds:
        return None
    each = [first[seed] - second[seed] for seed in seeds]
    error = None
    if len(each) > 1:
        error = stdev(each) / len(each) ** 0.5
    return ScoreDifference(place, fmean(each), error, seeds)


@dataclass(frozen=True)
class ClaimVerdict:
    """What the runs say about a claim."""

    verdict: str
    details: str


def decide_verdict(
    differences: Sequence[ScoreDifference | None], is_true: Answer, *, with_mean: bool = True
) -> ClaimVerdict:
    """Return the verdict over all places, and the differences it rests on.

    >>> narrow = ScoreDifference("1/5", 1.0, None, (0,))
    >>> full = ScoreDifference("1", -2.0, None, (0,))
    >>> decided = decide_verdict([narrow, full], ScoreDifference.is_above)
    >>> decided.verdict
    'holds in part (one seed)'
    >>> decided.details
    'yes at 1/5; no at 1. 1/5: +1; 1: -2; mean -0.5; 1 seed'
    """
    known = [one for one in differences if one is not None]
    if not known or len(known) < len(differences):
        return ClaimVerdict(UNDECIDED, "runs are missing")
    places = _places_by_answer(known, is_true)
    verdict = _overall_verdict(list(places))
    details = format_differences(known, with_mean=with_mean)
    if len(places) > 1:
        answers = [f"{answer} at {', '.join(at)}" for answer, at in places.items()]
        details = f"{'; '.join(answers)}. {details}"
    if verdict != UNDECIDED and any(one.error is None for one in known):
        verdict += " (one seed)"
    return ClaimVerdict(verdict, details)


def _places_by_answer(
    differences: Sequence[ScoreDifference], is_true: Answer
) -> dict[str, list[str]]:
    """Return the places at which the answer is yes, open and no, in this order, if any."""
    places: dict[str, list[str]] = {}
    for word, answer in ANSWERS.items():
        at = [one.place for one in differences if is_true(one) is answer]
        if at:
            places[word] = at
    return places


def _overall_verdict(answers: Sequence[str]) -> str:
    if len(answers) == 1:
        return UNANIMOUS[answers[0]]
    return PARTLY if "yes" in answers else FAILS


def share_verdict(answers: Sequence[bool]) -> str:
    """Return the verdict where each place is either true or false.

    >>> share_verdict([True, True]), share_verdict([True, False]), share_verdict([False])
    ('holds', 'holds in part', 'does not hold')
    """
    if all(answers):
        return HOLDS
    return PARTLY if any(answers) else FAILS


def format_differences(differences: Sequence[ScoreDifference], *, with_mean: bool) -> str:
    """Write differences, their mean, and the number of their seeds."""
    parts = [str(one) for one in differences]
    if with_mean and len(differences) > 1:
        mean = fmean(one.mean for one in differences)
        parts.append(f"mean {mean:+.3g}")
    seeds = min(len(one.seeds) for one in differences)
    parts.append("1 seed" if seeds == 1 else f"{seeds} seeds")
    return "; ".join(parts)
