"""Whether one thing is above another, and what that says of a claim: the rules are stated here and nowhere else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

HOLDS, PARTLY, FAILS, OPEN = "holds", "holds in part", "does not hold", "not decided"
MARGIN = {"accuracy": 1.0, "perplexity": 0.1}
"""How many points below another still counts as close to it."""
RULES = (
    "Differences are taken seed by seed (a seed fixes data, clients, devices and first weights of both sides) and "
    "averaged; ± is the standard error of that mean. **Above**: by more than two standard errors, or by any amount "
    "where there is one seed. **Close**, or **no worse**: lower by at most "
    f"{MARGIN['accuracy']:g} percentage point, or {MARGIN['perplexity']:g} of perplexity. **Collapses**: less than "
    "half the accuracy, or more than twice the perplexity. A claim *holds* if it does at every place it speaks of, "
    "*in part* if at some, and is *not decided* while runs are missing."
)


@dataclass(frozen=True)
class Difference:
    """How far one thing is above another at one place, over the seeds that both have."""

    place: str
    mean: float
    error: float | None
    """The standard error, if there are two seeds or more."""
    seeds: tuple[int, ...]

    @property
    def above(self) -> bool:
        """Whether it is above by more than chance explains."""
        return self.mean > 2 * (self.error or 0.0)

    def within(self, margin: float) -> bool:
        """Say whether it is above, or lower by no more than the margin."""
        return self.mean >= -margin

    def __str__(self) -> str:
        """Write it as people read it."""
        spread = "" if self.error is None else f" ± {round(self.error, 4):.2g}"
        return f"{self.place}: {round(self.mean, 4):+.3g}{spread}"


def difference(place: str, one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Compare two things by seed.

    >>> difference("1", {0: 3.0, 1: 5.0, 2: 9.0}, {0: 2.0, 1: 2.0})
    Difference(place='1', mean=2.0, error=1.0, seeds=(0, 1))
    """
    seeds = tuple(sorted(one.keys() & other.keys()))
    if not seeds:
        return None
    each = [one[seed] - other[seed] for seed in seeds]
    error = stdev(each) / len(each) ** 0.5 if len(each) > 1 else None
    return Difference(place, fmean(each), error, seeds)


@dataclass(frozen=True)
class Found:
    """What the runs say of a claim."""

    verdict: str
    details: str


def judged(places: Sequence[Difference | None], fine: Callable[[Difference], bool]) -> Found:
    """Return the verdict over all places.

    >>> judged([Difference("1/5", 1.0, None, (0,)), Difference("1", -2.0, None, (0,))], lambda d: d.above)
    Found(verdict='holds in part', details='at 1/5, not at 1: 1/5: +1; 1: -2; mean -0.5; 1 seed')
    """
    known = [place for place in places if place is not None]
    if not known or len(known) < len(places):
        return Found(OPEN, "runs are missing")
    good, bad = ([d.place for d in known if fine(d) is flag] for flag in (True, False))
    verdict = HOLDS if not bad else PARTLY if good else FAILS
    where = f"at {', '.join(good)}, not at {', '.join(bad)}: " if good and bad else ""
    return Found(verdict, where + _listed(known))


def _listed(known: Sequence[Difference]) -> str:
    seeds = min(len(d.seeds) for d in known)
    mean = [f"mean {fmean(d.mean for d in known):+.3g}"] if len(known) > 1 else []
    return "; ".join([*map(str, known), *mean, f"{seeds} seed{'' if seeds == 1 else 's'}"])
