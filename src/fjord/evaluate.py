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


@torch.no_grad()
def score(net: nn.Module | Callable[[Tensor], Tensor], batches: Batches) -> Score:
    """Score one plain network; targets that are padding do not count."""
    loss, right, count = 0.0, 0, 0
    for inputs, target in batches:
        logits = net(inputs)
        valid = int((target != IGNORED).sum())
        loss += float(cross_entropy(logits, target)) * valid
        right += int(((logits.argmax(-1) == target) & (target != IGNORED)).sum())
        count += valid
    if count == 0:
        raise ValueError("batches: there is nothing to score, no target counts")
    return Score(loss / count, right / count, count)


def evaluate(model: ElasticModel, batches: Batches, widths: Iterable[WidthLike] | None = None) -> dict[Width, Score]:
    """Score the model at each width (by default all of its own), in evaluation mode."""
    mode = model.training
    chosen = model.space.widths if widths is None else [parse_width(w) for w in widths]
    batches = list(batches)
    try:
        model.eval()
        return {width: score(model.view(width).net, batches) for width in chosen}
    finally:
        model.train(mode)
