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
        counted = target != IGNORED_TARGET
        valid = int(counted.sum())
        if valid:
            self.loss += float(cross_entropy(logits, target)) * valid
            self.right += int(_right(logits, target).sum())
            self.count += valid

    def score(self) -> Score:
        if self.count == 0:
            raise UserError("batches: there is nothing to score, no target counts")
        return Score(self.loss / self.count, self.right / self.count, self.count)


def _right(logits: Tensor, target: Tensor) -> Tensor:
    """Say of each answer that counts whether it is right; flat, as labels of shape (N, 1) would broadcast."""
    wanted = target.reshape(-1)
    return (logits.reshape(-1, logits.shape[-1]).argmax(-1) == wanted) & (wanted != IGNORED_TARGET)


@torch.no_grad()
def score_network(net: nn.Module | Callable[[Tensor], Tensor], batches: Batches) -> Score:
    """Score one plain network; targets that are padding do not count."""
    tally = _Tally()
    for inputs, target in batches:
        tally.add(net(inputs), target)
    return tally.score()


@torch.no_grad()
def evaluate(
    model: ElasticModel, batches: Batches, widths: Iterable[WidthLike] | None = None
) -> dict[Width, Score]:
    """Score the model at each width (by default all of its own), in evaluation mode and in one pass over the data."""
    mode = model.training
    chosen = model.space.widths if widths is None else [parse_width(w) for w in widths]
    try:
        model.eval()
        nets = {width: model.shared_submodel(width).net for width in chosen}
        tallies = {width: _Tally() for width in chosen}
        for inputs, target in batches:
            for width, net in nets.items():
                tallies[width].add(net(inputs), target)
        return {width: tally.score() for width, tally in tallies.items()}
    finally:
        model.train(mode)


@dataclass(frozen=True)
class ExampleScores:
    """How each example of a test set did: its summed loss, its right answers and its answers that count."""

    loss: NDArray[np.float64]
    right: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def joined(cls, parts: "Iterable[ExampleScores]") -> "ExampleScores":
        """Put parts of a test set together, in order."""
        parts = list(parts)
        return cls(
            *(
                np.concatenate([getattr(p, name) for p in parts])
                for name in ("loss", "right", "count")
            )
        )

    def score(self, chosen: NDArray[np.bool_] | None = None) -> Score:
        """Return the score over all examples, or over some."""
        mask = slice(None) if chosen is None else chosen
        count = int(self.count[mask].sum())
        if count == 0:
            raise UserError("test: there is nothing to score, no target counts")
        return Score(
            float(self.loss[mask].sum()) / count, int(self.right[mask].sum()) / count, count
        )


@torch.no_grad()
def score_examples(
    model: ElasticModel,
    test: TestSet,
    widths: Iterable[Width],
    batch: int,
    share: int = 0,
    shares: int = 1,
) -> dict[Width, list[ExampleScores]]:
    """Test the model in evaluation mode on every batch of a set, or on each `shares`-th from the given one on."""
    found = {width: list[ExampleScores]() for width in widths}
    nets = {width: to_channels_last(model.cut(width).eval()) for width in found}
    for start in range(share * batch, len(test.inputs), shares * batch):
        inputs, target = test.batch(start, start + batch)
        for width, net in nets.items():
            found[width].append(_tested(net(inputs), target))
    return found


def to_channels_last(net: nn.Module) -> nn.Module:
    """Lay the weights of convolutions out as they are fastest on a CPU."""
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # typed without this form


def _tested(logits: Tensor, target: Tensor) -> ExampleScores:
    flat, wanted = logits.reshape(-1, logits.shape[-1]), class_numbers(target)
    loss = F.cross_entropy(flat, wanted, ignore_index=IGNORED_TARGET, reduction="none").reshape(
        len(target), -1
    )
    counted = (target != IGNORED_TARGET).reshape(len(target), -1)
    right = _right(logits, target).reshape(len(target), -1)
    return ExampleScores(loss.double().sum(1).numpy(), right.sum(1).numpy(), counted.sum(1).numpy())
