"""Scores of an elastic model at each width."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fjord.core.errors import UserError
from fjord.core.width import Width, WidthLike, parse_width
from fjord.data.federated import IGNORED_TARGET, TestSet
from fjord.elastic.model import ElasticModel
from fjord.training.objective import class_numbers, cross_entropy

Batches = Iterable[tuple[Tensor, Tensor]]
LARGEST_EXPONENT = 700.0
"""exp() of more is beyond a float."""


@dataclass(frozen=True)
class Score:
    """Mean cross-entropy and the share of right answers over a number of targets."""

    loss: float
    accuracy: float
    count: int

    @property
    def perplexity(self) -> float:
        """Return exp(loss)."""
        return math.exp(min(self.loss, LARGEST_EXPONENT))


class ScoreTotals:
    """Adds up the losses and right answers of batches."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.right = 0
        self.count = 0

    def add(self, logits: Tensor, target: Tensor) -> None:
        """Add one batch."""
        count = int((target != IGNORED_TARGET).sum())
        if count:
            self.loss += float(cross_entropy(logits, target)) * count
            self.right += int(_right_answers(logits, target).sum())
            self.count += count

    def score(self) -> Score:
        """Return the score over all batches."""
        if self.count == 0:
            raise UserError("batches: there is nothing to score, no target counts")
        return Score(self.loss / self.count, self.right / self.count, self.count)


def _right_answers(logits: Tensor, target: Tensor) -> Tensor:
    """Say of each answer whether it counts and is right.

    The result is flat, as labels of shape (N, 1) would broadcast.
    """
    labels = target.reshape(-1)
    answers = logits.reshape(-1, logits.shape[-1]).argmax(-1)
    return (answers == labels) & (labels != IGNORED_TARGET)


@torch.no_grad()
def score_network(net: nn.Module | Callable[[Tensor], Tensor], batches: Batches) -> Score:
    """Score one plain network; targets that are padding do not count."""
    totals = ScoreTotals()
    for inputs, target in batches:
        totals.add(net(inputs), target)
    return totals.score()


@torch.no_grad()
def evaluate(
    model: ElasticModel, batches: Batches, widths: Iterable[WidthLike] | None = None
) -> dict[Width, Score]:
    """Score the model at each width (by default all of its own), in evaluation mode.

    The batches are iterated once.
    """
    was_training = model.training
    if widths is None:
        chosen = list(model.space.widths)
    else:
        chosen = [parse_width(width) for width in widths]
    try:
        model.eval()
        nets = {width: model.shared_submodel(width).net for width in chosen}
        totals = {width: ScoreTotals() for width in chosen}
        for inputs, target in batches:
            for width, net in nets.items():
                totals[width].add(net(inputs), target)
        return {width: each.score() for width, each in totals.items()}
    finally:
        model.train(was_training)


@dataclass(frozen=True)
class ExampleScores:
    """How each example of a test set did."""

    loss: NDArray[np.float64]
    """The sum over its targets."""
    right: NDArray[np.int64]
    """Its right answers."""
    count: NDArray[np.int64]
    """Its targets that count."""

    @classmethod
    def join(cls, parts: "Iterable[ExampleScores]") -> "ExampleScores":
        """Put parts of a test set together, in order."""
        parts = list(parts)
        return cls(
            loss=np.concatenate([part.loss for part in parts]),
            right=np.concatenate([part.right for part in parts]),
            count=np.concatenate([part.count for part in parts]),
        )

    def score(self, chosen: NDArray[np.bool_] | None = None) -> Score:
        """Return the score over all examples, or over some."""
        mask = slice(None) if chosen is None else chosen
        count = int(self.count[mask].sum())
        if count == 0:
            raise UserError("test: there is nothing to score, no target counts")
        loss = float(self.loss[mask].sum())
        right = int(self.right[mask].sum())
        return Score(loss / count, right / count, count)


@torch.no_grad()
def score_examples(
    model: ElasticModel,
    test: TestSet,
    widths: Iterable[Width],
    batch_size: int,
    *,
    first: int = 0,
    step: int = 1,
) -> dict[Width, list[ExampleScores]]:
    """Test the model in evaluation mode on each `step`-th batch, from the `first` on."""
    widths = list(widths)
    scores = {width: list[ExampleScores]() for width in widths}
    nets = {width: to_channels_last(model.cut(width).eval()) for width in widths}
    for start in range(first * batch_size, len(test.inputs), step * batch_size):
        inputs, target = test.batch(start, start + batch_size)
        for width, net in nets.items():
            scores[width].append(_score_batch(net(inputs), target))
    return scores


def to_channels_last(net: nn.Module) -> nn.Module:
    """Lay the weights of convolutions out as they are fastest on a CPU."""
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # typed without this form


def _score_batch(logits: Tensor, target: Tensor) -> ExampleScores:
    num_examples = len(target)
    flat_logits = logits.reshape(-1, logits.shape[-1])
    losses = F.cross_entropy(
        flat_logits, class_numbers(target), ignore_index=IGNORED_TARGET, reduction="none"
    )
    losses = losses.reshape(num_examples, -1)
    counted = (target != IGNORED_TARGET).reshape(num_examples, -1)
    right = _right_answers(logits, target).reshape(num_examples, -1)
    return ExampleScores(
        loss=losses.double().sum(1).numpy(),
        right=right.sum(1).numpy(),
        count=counted.sum(1).numpy(),
    )
