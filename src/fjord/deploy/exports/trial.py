"""Tries a written file: how far it is from its source, and how long it takes."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fjord.core.errors import UserError
from fjord.deploy.exports.plain import PlainNetwork, RunFile, whole_network
from fjord.deploy.exports.step import SteppedNetwork, lengthen_sequence, step_network, time_axis
from fjord.elastic.trace.example_inputs import resize_batch
from fjord.elastic.trace.probe import probe_forward

TOLERANCE = 1e-4
LEAST_CALLS, MOST_CALLS, SECONDS = 10, 300, 0.3


def random_inputs(
    model: nn.Module, inputs: tuple[Any, ...], batch: int | None, seed: int, axis: int = 0
) -> tuple[Any, ...]:
    """Return random inputs of the example's kind: normal numbers, whole ones that the model has a row for."""
    generator = torch.Generator().manual_seed(seed)
    rows = min(
        (m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=None
    )

    def draw(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype == torch.bool or not value.numel():
            return value  # a random mask may leave nothing
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator, dtype=value.dtype)
        if rows is not None:
            return torch.randint(0, rows, value.shape, generator=generator, dtype=value.dtype)
        return value.reshape(-1)[torch.randint(0, value.numel(), value.shape, generator=generator)]

    drawn: tuple[Any, ...] = pytree.tree_map(
        draw, inputs if batch is None else resize_batch(inputs, batch, axis)
    )
    return drawn


def largest_difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the largest difference, over the largest number wanted where that is above 1."""
    if [t.shape for t in found] != [t.shape for t in wanted]:
        return math.inf
    pairs = [(f.double(), w.double()) for f, w in zip(found, wanted, strict=True) if w.numel()]
    worst = [float((f - w).abs().max()) / max(1.0, float(w.abs().max())) for f, w in pairs]
    return max(worst, default=0.0) if not any(map(math.isnan, worst)) else math.nan


def accepts_batches(net: nn.Module, template: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Say whether the first axis is one of examples that do not see each other, and not one of time, say."""
    if not probe_forward(template, inputs).batched:
        return False
    two = random_inputs(template, inputs, 2, seed=0)
    second = pytree.tree_map_only(Tensor, lambda t: t[1:] if t.dim() else t, two)
    together, alone = (whole_network(net, given, False) for given in (two, second))
    return (
        largest_difference(alone(alone.example), [t[1:] for t in together(together.example)]) <= TOLERANCE
    )


def measure_latency(run: RunFile, inputs: Sequence[Tensor]) -> float:
    """Return the median seconds of a call, after some that do not count."""
    spans: list[float] = []
    for _ in range(3):
        run(inputs)
    end = time.perf_counter() + SECONDS
    while len(spans) < LEAST_CALLS or (time.perf_counter() < end and len(spans) < MOST_CALLS):
        start = time.perf_counter()
        run(inputs)
        spans.append(time.perf_counter() - start)
    return median(spans)


@dataclass(frozen=True)
class ExportTrial:
    """A network to be written, and the random inputs on which its file has to agree with it."""

    net: nn.Module
    template: nn.Module
    inputs: tuple[Any, ...]
    batched: bool
    step: bool

    @property
    def axis(self) -> int:
        """Where inputs have their examples."""
        return 1 - time_axis(self.net) if self.step else 0

    def plain(self) -> PlainNetwork:
        """Return what is to be written; its example inputs are random, so that none of the user's data is kept."""
        inputs = self._inputs(2, seed=0)
        return (step_network if self.step else whole_network)(self.net, inputs, self.batched)

    def worst(self, run: RunFile, written: PlainNetwork) -> float:
        """Return the largest difference between a written file and its source."""
        found = [
            self._difference(run, written, batch)
            for batch in ((1, 3) if written.open_batch else (1,))
        ]
        return math.nan if any(map(math.isnan, found)) else max(found)

    def _difference(self, run: RunFile, written: PlainNetwork, batch: int) -> float:
        inputs = self._inputs(batch, seed=batch)
        source = whole_network(self.net, inputs, False)
        wanted = source(source.example)
        if not all(bool(t.isfinite().all()) for t in wanted):
            raise UserError(
                "the source model gives numbers that are not finite; nothing can be checked against it"
            )
        runner = SteppedNetwork.of(run, written, self.net) if self.step else run
        return largest_difference(runner(source.example), wanted)

    def _inputs(self, batch: int, seed: int) -> tuple[Any, ...]:
        inputs = lengthen_sequence(self.net, self.inputs) if self.step else self.inputs
        return random_inputs(
            self.template, inputs, batch if self.batched else None, seed, self.axis
        )
