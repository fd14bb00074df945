"""Whether one thing is above another, and what that says of a claim: the rules are stated here and nowhere else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

HOLDS, PARTLY, FAILS, OPEN = "holds", "holds in part", "does not hold", "not decided"
ANSWERS = {"yes": True, "open": None, "no": False}
MARGIN = {"accuracy": 1.0, "perplexity": 0.1}
"""How many points below another still counts as close to it."""
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""How many standard errors chance passes once in twenty, on one side, with 2, 3, ... seeds (Student's t)."""
RULES = (
    "Differences are taken seed by seed (a seed fixes data, clients and first weights of both sides, and the devices "
    "where the tiers are the same) and averaged; ± is the standard error of that mean. **Above**: by more than chance "
    f"gives once in twenty (Student's t, one-sided: {STUDENT[1]:g} standard errors with three seeds). **Close**, or "
    f"**no worse**: by the same measure not lower by {MARGIN['accuracy']:g} percentage point, or "
    f"{MARGIN['perplexity']:g} of perplexity. What chance may explain is *open*. With one seed there is no measure of "
    "chance: the difference itself decides, and the verdict says so. **Collapses**: less than half the accuracy, or "
    "more than twice the perplexity. **Jitter**: the mean step of the test loss from one test to the next, over the "
    "second half of the rounds. A claim *holds* if it does at every place it speaks of, *in part* if at some, and is "
    "*not decided* where all is open or runs are missing."
)


@dataclass(frozen=True)
class ScoreDifference:
    """How far one thing is above another at one place, over the seeds that both have."""

    place: str
    mean: float
    error: float | None
    """The standard error, if there are two seeds or more."""
    seeds: tuple[int, ...]

    @property
    def chance(self) -> float:
        """How much of it chance may explain."""
        return (
            0.0
            if self.error is None
            else STUDENT[min(len(self.seeds) - 2, len(STUDENT) - 1)] * self.error
        )

    def above(self, level: float = 0.0) -> bool | None:
        """Say whether it is above a level; None where chance may explain it."""
        if self.mean - self.chance > level:
            return True
        return None if self.mean + self.chance > level else False

    def __str__(self) -> str:
        """Write it as people read it."""
        spread = "" if self.error is None else f" ± {self.error:.2g}"
        return f"{self.place}: {round(self.mean, 4):+.3g}{spread}"


def score_difference(
    place: str, one: Mapping[int, float], other: Mapping[int, float]
) -> ScoreDifference | None:
    """Compare two things by seed.

    >>> difference("1", {0: 3.0, 1: 5.0, 2: 9.0}, {0: 2.0, 1: 2.0})
    Difference(place='1', mean=2.0, error=1.0, seeds=(0, 1))
    """
    seeds = tuple(sorted(one.keys() & other.keys()))
    if not seeds:
        return None
    each = [one[seed] - other[seed] for seed in seeds]
    error = stdev(each) / len(each) ** 0.5 if len(each) > 1 else None
    return ScoreDifference(place, fmean(each), error, seeds)


@dataclass(frozen=True)
class ClaimVerdict:
    """What the runs say of a claim."""

    verdict: str
    details: str


def decide_verdict(
    places: Sequence[ScoreDifference | None],
    fine: Callable[[ScoreDifference], bool | None],
    mean: bool = True,
) -> ClaimVerdict:
    """Return the verdict over all places: each is fine, not, or open.

    >>> decide_claim([ScoreDifference("1/5", 1.0, None, (0,)), ScoreDifference("1", -2.0, None, (0,))], Difference.above)
    Found(verdict='holds in part (one seed)', details='yes at 1/5; no at 1. 1/5: +1; 1: -2; mean -0.5; 1 seed')
    """
    known = [place for place in places if place is not None]
    if not known or len(known) < len(places):
        return ClaimVerdict(OPEN, "runs are missing")
    by = {word: [d.place for d in known if fine(d) is flag] for word, flag in ANSWERS.items()}
    given = [word for word, at in by.items() if at]
    verdict = (
        {"yes": HOLDS, "no": FAILS, "open": OPEN}[given[0]]
        if len(given) == 1
        else PARTLY
        if by["yes"]
        else FAILS
    )
    where = (
        "; ".join(f"{word} at {', '.join(by[word])}" for word in given) + ". "
        if len(given) > 1
        else ""
    )
    alone = " (one seed)" if verdict != OPEN and any(d.error is None for d in known) else ""
    return ClaimVerdict(verdict + alone, where + _listed(known, mean))


def _listed(known: Sequence[ScoreDifference], mean: bool = True) -> str:
    """Write differences, their mean, and of how many seeds they are."""
    seeds = min(len(d.seeds) for d in known)
    total = [f"mean {fmean(d.mean for d in known):+.3g}"] if mean and len(known) > 1 else []
    return "; ".join([*map(str, known), *total, f"{seeds} seed{'' if seeds == 1 else 's'}"])
