"""Scores of an elastic model at each width."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fjord.elastic.model import ElasticModel
from fjord.objective import IGNORED, cross_entropy
from fjord.width import Width, WidthLike, parse_width

Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Score:
    """Mean cross-entropy and the share of right answers over a number of targets."""

    loss: float
    accuracy: float
    count: int

    @property
    def perplexity(self) -> float:
        """Return exp(loss)."""
        return math.exp(min(self.loss, 700.0))


class _Tally:
    def __init__(self) -> None:
        self.loss, self.right, self.count = 0.0, 0, 0

    def add(self, logits: Tensor, target: Tensor) -> None:
        counted = target != IGNORED
        valid = int(counted.sum())
        if valid:
            self.loss += float(cross_entropy(logits, target)) * valid
            self.right += int(((logits.argmax(-1) == target) & counted).sum())
            self.count += valid

    def score(self) -> Score:
        if self.count == 0:
            raise ValueError("batches: there is nothing to score, no target counts")
        return Score(self.loss / self.count, self.right / self.count, self.count)


@torch.no_grad()
def score(net: nn.Module | Callable[[Tensor], Tensor], batches: Batches) -> Score:
    """Score one plain network; targets that are padding do not count."""
    tally = _Tally()
    for inputs, target in batches:
        tally.add(net(inputs), target)
    return tally.score()


@torch.no_grad()
def evaluate(model: ElasticModel, batches: Batches, widths: Iterable[WidthLike] | None = None) -> dict[Width, Score]:
    """Score the model at each width (by default all of its own), in evaluation mode and in one pass over the data."""
    mode = model.training
    chosen = model.space.widths if widths is None else [parse_width(w) for w in widths]
    try:
        model.eval()
        nets = {width: model.view(width).net for width in chosen}
        tallies = {width: _Tally() for width in chosen}
        for inputs, target in batches:
            for width, net in nets.items():
                tallies[width].add(net(inputs), target)
        return {width: tally.score() for width, tally in tallies.items()}
    finally:
        model.train(mode)
