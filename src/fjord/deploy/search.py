"""Widths by layer: the best submodel of a trained model under a budget, with no retraining.

Every family of units may have its own width, and all combinations can be cut without training.
Where there are few combinations, all are evaluated; otherwise widths are evolved, starting from
the widths that all layers share.
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

WidthChoice = tuple[int, ...]
"""For each family, the index of its width."""
ScoreFunction = Callable[[nn.Module], float]
"""Scores a submodel in evaluation mode; more is better, and NaN is worst."""
NUM_PARENTS = 8


@dataclass(frozen=True)
class SearchResult:
    """The best submodel under the limits: `model.at(result.widths)`, or `cut`."""

    widths: dict[str, Width]
    """The width of each family of units; under "" that of tensors that belong to none."""
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
    score: ScoreFunction,
    limits: CostLimits,
    *,
    batches: Iterable[Any] | None = None,
    widths: Iterable[WidthLike] | None = None,
    evaluations: int = 200,
    seed: int = 0,
) -> SearchResult:
    """Return the best widths by layer under the limits.

    They never score less than the best width that all layers share. Submodels that were not
    trained as such get BatchNorm statistics from `batches` (unlabelled, as in `recalibrate`)
    before they are scored; the statistics of the best one are kept in the model.
    """
    if type(evaluations) is not int or evaluations < 1:
        message = "must be a whole number of at least 1"
        raise UserError(message, field="evaluations", value=repr(evaluations))
    if batches is None and has_statistics(model):
        raise UserError(
            "batches: a model with BatchNorm needs some unlabelled batches to measure its "
            "statistics on"
        )
    selected = model.space.widths
    if widths is not None:
        selected = tuple(sorted({parse_width(width) for width in widths}))
    meter = CostMeter(model, limits)
    search = _WidthSearch(model, score, meter, selected, list(batches or []), evaluations)
    search.score_uniform()
    best = search.find_best(random.Random(derive_seed(seed, "search")))
    best_widths = search.widths_of(best)
    if not is_trained(model, best_widths):
        recalibrate(model, best_widths, search.batches)
    return search.result(best)


@dataclass
class _WidthSearch:
    """One search, with the scores so far."""

    model: ElasticModel
    score_function: ScoreFunction
    meter: CostMeter
    widths: tuple[Width, ...]
    batches: list[Any]
    evaluations: int
    scores: dict[WidthChoice, float] = field(default_factory=dict)

    @property
    def num_families(self) -> int:
        """The number of families of units."""
        return len(self.model.plan.families)

    @property
    def exhaustive(self) -> bool:
        """Whether all submodels can be tried."""
        return len(self.widths) ** self.num_families <= self.evaluations

    def score_uniform(self) -> None:
        """Score the widths that all layers share, as many as fit."""
        smallest = (0,) * self.num_families
        if not self.fits(smallest):
            costs = self.meter.costs(self.widths_of(smallest))
            raise UserError(self._limits_too_low(costs))
        for index in range(len(self.widths)):
            choice = (index,) * self.num_families
            if self.fits(choice):
                self.score(choice)

    def _limits_too_low(self, needed: dict[str, float]) -> str:
        """Name each limit that even the smallest submodel breaks, and what would be enough."""
        messages = []
        for name, text in self.meter.limits.active.items():
            if needed[name] > self.meter.most[name]:
                enough = format_cost(name, needed[name])
                messages.append(
                    f"{name}={text}: the smallest submodel needs {enough}, give at least that"
                )
        return "; ".join(messages)

    def find_best(self, rng: random.Random) -> WidthChoice:
        """Score other choices and return the best of all."""
        candidates = self._evolve(rng)
        if self.exhaustive:
            candidates = self._all_fitting()
        for choice in candidates:
            self.score(choice)
        return self._ranked()[0]

    def widths_of(self, choice: WidthChoice) -> dict[str, Width]:
        """Return a choice as widths by family."""
        widths = {"": self.widths[max(choice)]}
        for family, index in zip(self.model.plan.families, choice, strict=True):
            widths[family.name] = self.widths[index]
        return widths

    def fits(self, choice: WidthChoice) -> bool:
        """Return whether a choice keeps to the limits."""
        return self.meter.fits(self.widths_of(choice))

    def score(self, choice: WidthChoice) -> None:
        """Score a choice, once."""
        if choice in self.scores:
            return
        widths = self.widths_of(choice)
        net = uncalibrated_submodel(self.model, widths)
        if has_statistics(self.model) and not is_trained(self.model, widths):
            measure_statistics(self.model, net, self.batches)
        score = float(self.score_function(net.eval()))
        if math.isnan(score):
            score = -math.inf  # NaN cannot be ranked
        self.scores[choice] = score

    def _all_fitting(self) -> Iterator[WidthChoice]:
        for choice in product(range(len(self.widths)), repeat=self.num_families):
            if self.fits(choice):
                yield choice

    def _evolve(self, rng: random.Random) -> Iterator[WidthChoice]:
        """Yield new children of the best so far, until the evaluations are used up."""
        repeats = 0  # in a row; after many there is hardly anything new left
        while len(self.scores) < self.evaluations and repeats < 20 * self.num_families:
            parents = self._ranked()[:NUM_PARENTS]
            child = self._make_child(rng.choice(parents), rng.choice(parents), rng)
            if child in self.scores:
                repeats += 1
            else:
                repeats = 0
                yield child

    def _make_child(
        self, first: WidthChoice, second: WidthChoice, rng: random.Random
    ) -> WidthChoice:
        """Mix two parents and change one or two families; then use the limits up.

        A child that is too large shrinks at random, and then grows wherever there is room.
        """
        child = [rng.choice(pair) for pair in zip(first, second, strict=True)]
        largest = len(self.widths) - 1
        num_changes = min(self.num_families, rng.choice((1, 2)))
        for family in rng.sample(range(self.num_families), num_changes):
            changed = child[family] + rng.choice((-1, 1))
            child[family] = min(largest, max(0, changed))
        while not self.fits(tuple(child)):
            shrinkable = [family for family, index in enumerate(child) if index]
            child[rng.choice(shrinkable)] -= 1
        for family in rng.sample(range(self.num_families), self.num_families):
            child[family] += 1
            if child[family] > largest or not self.fits(tuple(child)):
                child[family] -= 1
        return tuple(child)

    def _ranked(self) -> list[WidthChoice]:
        """Return all choices, best first; of equals the cheaper first."""

        def rank(choice: WidthChoice) -> tuple[float, float, WidthChoice]:
            share = self.meter.share(self.widths_of(choice))
            return -self.scores[choice], share, choice

        return sorted(self.scores, key=rank)

    def _best_uniform(self) -> WidthChoice:
        for choice in self._ranked():
            if len(set(choice)) == 1:
                return choice
        raise AssertionError("the widths that all layers share are scored first")

    def result(self, best: WidthChoice) -> SearchResult:
        """Return the best choice beside the best width that all layers share."""
        widths = self.widths_of(best)
        uniform = self._best_uniform()
        return SearchResult(
            widths=widths,
            score=self.scores[best],
            costs=self.meter.costs(widths),
            uniform=self.widths[uniform[0]],
            uniform_score=self.scores[uniform],
            uniform_costs=self.meter.costs(self.widths_of(uniform)),
            evaluated=len(self.scores),
            exhaustive=self.exhaustive,
        )
