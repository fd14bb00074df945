"""Tries a written file: how far it is from its source, and how long a call takes."""

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
WARM_UP_CALLS = 3
LEAST_CALLS = 10
MOST_CALLS = 300
SECONDS = 0.3


def random_inputs(
    model: nn.Module, inputs: tuple[Any, ...], batch: int | None, seed: int, axis: int = 0
) -> tuple[Any, ...]:
    """Return random inputs of the same kind as an example.

    Floats are drawn from a normal distribution, and integers below the size of the model's
    smallest embedding; without embeddings, integers are drawn from those of the example.
    """
    if batch is not None:
        inputs = resize_batch(inputs, batch, axis)
    generator = torch.Generator().manual_seed(seed)
    vocabulary = _smallest_embedding(model)

    def draw(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype == torch.bool or not value.numel():
            return value  # a random mask may leave nothing
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator, dtype=value.dtype)
        if vocabulary is not None:
            return torch.randint(0, vocabulary, value.shape, generator=generator, dtype=value.dtype)
        rows = torch.randint(0, value.numel(), value.shape, generator=generator)
        return value.reshape(-1)[rows]

    drawn: tuple[Any, ...] = pytree.tree_map(draw, inputs)
    return drawn


def _smallest_embedding(model: nn.Module) -> int | None:
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return min(sizes, default=None)


def largest_difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference, relative to the largest expected number if that is above 1.

    Shapes that differ are infinitely far apart.

    >>> largest_difference([torch.tensor([9.0, 1.0])], [torch.tensor([10.0, 1.0])])
    0.1
    """
    if [tensor.shape for tensor in outputs] != [tensor.shape for tensor in expected]:
        return math.inf
    differences = [0.0]
    for output, wanted in zip(outputs, expected, strict=True):
        if wanted.numel():
            exact = wanted.double()
            error = (output.double() - exact).abs().max()
            scale = exact.abs().max()
            differences.append(float(error) / max(1.0, float(scale)))
    return _largest(differences)


def _largest(values: Sequence[float]) -> float:
    """Return the maximum; NaN if any value is, which `max` alone would overlook."""
    if any(math.isnan(value) for value in values):
        return math.nan
    return max(values)


def accepts_batches(net: nn.Module, template: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Return whether the first axis is one of examples that are treated independently.

    An axis of time, for example, is not.
    """
    if not probe_forward(template, inputs).batched:
        return False
    two_examples = random_inputs(template, inputs, 2, seed=0)

    def second_example(tensor: Tensor) -> Tensor:
        if tensor.dim():
            return tensor[1:]
        return tensor

    one_example = pytree.tree_map_only(Tensor, second_example, two_examples)
    together = whole_network(net, two_examples, False)
    alone = whole_network(net, one_example, False)
    expected = [tensor[1:] for tensor in together(together.example)]
    return largest_difference(alone(alone.example), expected) <= TOLERANCE


def measure_latency(run: RunFile, inputs: Sequence[Tensor]) -> float:
    """Return the median seconds of a call, after some calls that do not count."""
    for _ in range(WARM_UP_CALLS):
        run(inputs)
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < MOST_CALLS:
        if len(times) >= LEAST_CALLS and time.perf_counter() >= end:
            break
        start = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - start)
    return median(times)


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
        """The axis of examples in the inputs."""
        if self.step:
            return 1 - time_axis(self.net)
        return 0

    def plain_network(self) -> PlainNetwork:
        """Return the network to write.

        Its example inputs are random, so that none of the user's data is kept.
        """
        inputs = self._random_inputs(2, seed=0)
        if self.step:
            return step_network(self.net, inputs, self.batched)
        return whole_network(self.net, inputs, self.batched)

    def worst_difference(self, run: RunFile, written: PlainNetwork) -> float:
        """Return the largest difference between a written file and its source."""
        batches = [1]
        if written.open_batch:
            batches.append(3)
        return _largest([self._difference(run, written, batch) for batch in batches])

    def _difference(self, run: RunFile, written: PlainNetwork, batch: int) -> float:
        inputs = self._random_inputs(batch, seed=batch)
        source = whole_network(self.net, inputs, False)
        expected = source(source.example)
        if not all(bool(tensor.isfinite().all()) for tensor in expected):
            raise UserError(
                "the source model gives numbers that are not finite; nothing can be checked "
                "against it"
            )
        if self.step:
            run = SteppedNetwork.from_written(run, written, self.net)
        return largest_difference(run(source.example), expected)

    def _random_inputs(self, batch: int, seed: int) -> tuple[Any, ...]:
        inputs = self.inputs
        if self.step:
            inputs = lengthen_sequence(self.net, inputs)
        if not self.batched:
            return random_inputs(self.template, inputs, None, seed, self.axis)
        return random_inputs(self.template, inputs, batch, seed, self.axis)
