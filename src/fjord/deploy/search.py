"""Widths layer by layer: the best submodel of a trained model under a budget, with no retraining.

Every family of units may have a width of its own, and all combinations are there to be cut already. What fits in few
evaluations is tried out whole; else widths are evolved, from the best that all layers share.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from torch import nn

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.core.width import Width, WidthLike, parse_width
from fjord.deploy.limits import CostLimits, CostMeter, format_cost
from fjord.elastic.model import ElasticModel
from fjord.elastic.recalibrate import (
    has_statistics,
    is_trained,
    measure_statistics,
    recalibrate,
    uncalibrated_submodel,
)

Choice = tuple[int, ...]
"""For each family, which of the widths."""
Judge = Callable[[nn.Module], float]
"""Scores a submodel in evaluation mode; more is better, and what is not a number is worst."""
PARENTS = 8


@dataclass(frozen=True)
class SearchResult:
    """The best submodel under the limits: `model.at(found.widths)`, or `cut`."""

    widths: dict[str, Width]
    """The width of each family of units; under "" that of what belongs to none."""
    score: float
    costs: dict[str, float]
    uniform: Width
    """The best width under the limits that all layers share."""
    uniform_score: float
    uniform_costs: dict[str, float]
    evaluated: int
    exhaustive: bool
    """Whether every submodel that fits was tried."""


def search_widths(
    model: ElasticModel,
    score: Judge,
    limits: CostLimits,
    *,
    batches: Iterable[Any] | None = None,
    widths: Iterable[WidthLike] | None = None,
    evaluations: int = 200,
    seed: int = 0,
) -> SearchResult:
    """Return the best widths by layer under the limits, never worse by this score than one width for all layers.

    Submodels that were not trained as such get BatchNorm statistics from `batches` (unlabelled, as in `recalibrate`)
    before they are scored; those of the best one are kept in the model.
    """
    if type(evaluations) is not int or evaluations < 1:
        raise UserError(f"evaluations={evaluations!r} must be a whole number of at least 1")
    if batches is None and has_statistics(model):
        raise UserError(
            "batches: a model with BatchNorm needs some unlabelled batches to measure its statistics on"
        )
    chosen = (
        model.space.widths if widths is None else tuple(sorted({parse_width(w) for w in widths}))
    )
    hunt = _Hunt(model, score, CostMeter(model, limits), chosen, list(batches or []), evaluations)
    hunt.begin()
    best = hunt.run(random.Random(derive_seed(seed, "search")))
    if not is_trained(model, hunt.widths_of(best)):
        recalibrate(model, hunt.widths_of(best), hunt.batches)
    return hunt.found(best)


@dataclass
class _Hunt:
    """One search: what was scored so far."""

    model: ElasticModel
    judge: Judge
    meter: CostMeter
    widths: tuple[Width, ...]
    batches: list[Any]
    evaluations: int
    scores: dict[Choice, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of families."""
        return len(self.model.plan.families)

    @property
    def exhaustive(self) -> bool:
        """Whether all submodels can be tried."""
        return len(self.widths) ** self.size <= self.evaluations

    def begin(self) -> None:
        """Score the widths that all layers share, as many as fit."""
        smallest = (0,) * self.size
        if not self.fits(smallest):
            needed = self.meter.costs(self.widths_of(smallest))
            raise UserError(self._too_little(needed))
        for index in range(len(self.widths)):
            if self.fits(choice := (index,) * self.size):
                self.score(choice)

    def _too_little(self, needed: dict[str, float]) -> str:
        """Say for each limit that nothing keeps to what would be enough."""
        short = {
            n: text for n, text in self.meter.limits.given.items() if needed[n] > self.meter.most[n]
        }
        return "; ".join(
            f"{n}={text}: the smallest submodel needs {format_cost(n, needed[n])}, give at least that"
            for n, text in short.items()
        )

    def run(self, rng: random.Random) -> Choice:
        """Score others and return the best."""
        candidates = self._all() if self.exhaustive else self._evolved(rng)
        for choice in candidates:
            self.score(choice)
        return self._ranked()[0]

    def widths_of(self, choice: Choice) -> dict[str, Width]:
        """Return a choice as widths by family."""
        names = [family.name for family in self.model.plan.families]
        return {
            "": self.widths[max(choice)],
            **{n: self.widths[i] for n, i in zip(names, choice, strict=True)},
        }

    def fits(self, choice: Choice) -> bool:
        """Say whether a choice keeps to the limits."""
        return self.meter.fits(self.widths_of(choice))

    def score(self, choice: Choice) -> None:
        """Score a choice, once."""
        if choice in self.scores:
            return
        widths = self.widths_of(choice)
        net = uncalibrated_submodel(self.model, widths)
        if has_statistics(self.model) and not is_trained(self.model, widths):
            measure_statistics(self.model, net, self.batches)
        found = float(self.judge(net.eval()))
        self.scores[choice] = (
            -math.inf if math.isnan(found) else found
        )  # what is no number has no place in an order

    def _all(self) -> Iterator[Choice]:
        return (
            choice
            for choice in product(range(len(self.widths)), repeat=self.size)
            if self.fits(choice)
        )

    def _evolved(self, rng: random.Random) -> Iterator[Choice]:
        """Yield children of the best so far that were not there yet, until the evaluations are used up."""
        vain = 0
        while len(self.scores) < self.evaluations and vain < 20 * self.size:
            parents = self._ranked()[:PARENTS]
            child = self._child(rng.choice(parents), rng.choice(parents), rng)
            vain = vain + 1 if child in self.scores else 0
            if not vain:
                yield child

    def _child(self, one: Choice, other: Choice, rng: random.Random) -> Choice:
        """Mix two parents, change a family or two, shrink what is too large and let the rest grow."""
        mixed = [rng.choice(pair) for pair in zip(one, other, strict=True)]
        for place in rng.sample(range(self.size), min(self.size, rng.choice((1, 2)))):
            mixed[place] = min(len(self.widths) - 1, max(0, mixed[place] + rng.choice((-1, 1))))
        while not self.fits(tuple(mixed)):
            mixed[rng.choice([place for place, index in enumerate(mixed) if index])] -= 1
        for place in rng.sample(range(self.size), self.size):
            mixed[place] += 1
            if mixed[place] == len(self.widths) or not self.fits(tuple(mixed)):
                mixed[place] -= 1
        return tuple(mixed)

    def _ranked(self) -> list[Choice]:
        """Return all choices, best first; of equals the cheaper."""

        def rank(choice: Choice) -> tuple[Any, ...]:
            return -self.scores[choice], self.meter.share(self.widths_of(choice)), choice

        return sorted(self.scores, key=rank)

    def found(self, best: Choice) -> SearchResult:
        """Return what came of it."""
        shared = next(choice for choice in self._ranked() if len(set(choice)) == 1)
        widths = self.widths_of(best)
        costs = self.meter.costs(widths)
        beside = self.meter.costs(self.widths_of(shared))
        found = self.scores[best], costs, self.widths[shared[0]], self.scores[shared], beside
        return SearchResult(widths, *found, len(self.scores), self.exhaustive)
