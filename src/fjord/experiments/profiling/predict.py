"""What can be said of a ceiling without training it.

Some follows from shapes alone, and some from the ceilings that were measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fjord.core.width import Width
from fjord.elastic.client_model import ClientModel
from fjord.elastic.footprint import Footprint, measure_footprint
from fjord.experiments.profiling.measure import StepMeasurement
from fjord.federated.rounds import Federation
from fjord.training.assignment import Assignment, total_bytes
from fjord.training.objective import Objective


@dataclass(frozen=True)
class WorkloadShape:
    """What the shapes of a ceiling's tensors show."""

    task: Assignment
    passes: dict[Width, tuple[Width, ...]]
    """For each width that the client samples, the submodels that such a step runs."""
    costs: dict[Width, Footprint]
    """The cost of one submodel, for a whole batch."""
    batch_size: int
    momentum: bool
    examples_bytes: int = 0

    @property
    def memory(self) -> int:
        """The memory of training.

        It is that of the whole round, and the larger of two: gradients and activations of the
        largest step, or gradients and the update that is sent back.
        """
        kept = {}
        for width, cost in self.costs.items():
            kept[width] = cost.training_bytes - cost.bytes
        largest_step = self._largest_step(kept)
        update = 2 * total_bytes(self.task.tensors)
        return self._round_bytes + max(update, largest_step)

    @property
    def least(self) -> int:
        """The memory that must be there at once.

        It is that of the whole round, and the update or the activations of the largest step.
        """
        activations = {}
        for width, cost in self.costs.items():
            activations[width] = max(0, cost.training_bytes - 2 * cost.bytes)
        largest_step = self._largest_step(activations)
        update = total_bytes(self.task.tensors)
        return self._round_bytes + max(update, largest_step)

    @property
    def _round_bytes(self) -> int:
        """The memory that is in use all through a round.

        This is the slice as it came and in training, momentum, corrections and examples.
        """
        copies = 2
        if self.momentum:
            copies = 3
        slices = copies * total_bytes(self.task.tensors)
        corrections = total_bytes(self.task.correction)
        return slices + corrections + self.examples_bytes

    def _largest_step(self, values: Mapping[Width, int]) -> int:
        largest = 0
        for submodels in self.passes.values():
            step = sum(values[width] for width in set(submodels))
            largest = max(largest, step)
        return largest

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a step, forward and backward, averaged over sampled widths."""
        forward = {}
        for width, submodels in self.passes.items():
            total = sum(self.costs[submodel].macs for submodel in submodels)
            forward[width] = float(total)
        return round(3 * self.batch_size * self.mean(forward))

    def mean(self, values: Mapping[Width, float]) -> float:
        """Return the mean of a value over the sampled widths."""
        space = self.task.space
        terms = []
        for width, probability in zip(space.widths, space.probabilities, strict=True):
            terms.append(float(probability) * values[width])
        return sum(terms)


Point = tuple[float, float]
MeasuredSteps = Mapping[Width, tuple[WorkloadShape, StepMeasurement]]
"""The ceilings that were measured, with their shapes."""
FootprintCache = dict[tuple[Any, ...], Footprint]
"""Footprints by the shapes of a network: ceilings share submodels."""


def workload_shape(
    federation: Federation,
    ceiling: Width,
    objective: Objective,
    examples: tuple[Tensor, Tensor],
    cache: FootprintCache,
) -> WorkloadShape:
    """Return the shapes of a ceiling for a client with these examples."""
    task = federation.assign_at(ceiling)
    training = federation.training
    model = ClientModel(federation.model, task.units, task.space, task.tensors).eval()
    inputs = federation.data.prepare(examples[0][:2], None)
    nets = {width: model.shared_submodel(width).net for width in task.space.widths}
    costs = {}
    for width, net in nets.items():
        key = _parameter_shapes(net)
        if key not in cache:
            cache[key] = measure_footprint(net, width, (inputs,), training.batch_size)
        costs[width] = cache[key]
    widest = task.space.largest
    passes = {width: objective.widths(width, widest) for width in task.space.widths}
    examples_bytes = total_bytes({"inputs": examples[0], "targets": examples[1]})
    return WorkloadShape(
        task=task,
        passes=passes,
        costs=costs,
        batch_size=training.batch_size,
        momentum=bool(training.momentum),
        examples_bytes=examples_bytes,
    )


def _parameter_shapes(net: nn.Module) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in net.parameters())


def predict_memory(
    shape: WorkloadShape, ceilings: Mapping[Width, tuple[WorkloadShape, int]]
) -> int:
    """Return the memory of a ceiling from its shapes, corrected by measurements of others."""
    points: list[Point] = []
    for other, measured in ceilings.values():
        point = (float(other.memory), float(measured))
        points.append(point)
    points.sort()
    memory = _interpolate(shape.memory, points, default=float(shape.memory))
    return max(1, round(memory))


def predict_steps(shape: WorkloadShape, ceilings: MeasuredSteps) -> dict[Width, float]:
    """Return the step time at each sampled width.

    It is the sum of the times that each submodel that runs took in measured steps. The time of a
    submodel that was never run follows from its multiply-accumulates.
    """
    pass_seconds = _pass_seconds(ceilings)
    points: list[Point] = []
    for width, seconds in pass_seconds.items():
        macs = _submodel_macs(ceilings, width)
        points.append((float(macs), seconds))
    points.sort()
    for width, cost in shape.costs.items():
        if width not in pass_seconds:
            predicted = _interpolate(cost.macs, points, default=0.0)
            pass_seconds[width] = max(0.0, predicted)
    steps = {}
    for width, submodels in shape.passes.items():
        steps[width] = sum(pass_seconds[submodel] for submodel in submodels)
    return steps


def predict_setup(shape: WorkloadShape, ceilings: MeasuredSteps) -> float:
    """Return the seconds before and after the steps.

    They grow with the number of submodels that are built.
    """
    points: list[Point] = []
    for other, measured in ceilings.values():
        num_submodels = len(other.costs)
        points.append((float(num_submodels), measured.setup))
    points.sort()
    setup = _interpolate(len(shape.costs), points, default=0.0)
    return max(0.0, setup)


def _pass_seconds(ceilings: MeasuredSteps) -> dict[Width, float]:
    """Return the seconds of one pass of each submodel: the best fit to all measured steps."""
    passes: list[tuple[Width, ...]] = []
    seconds: list[float] = []
    for shape, measured in ceilings.values():
        for width, step_seconds in measured.steps.items():
            passes.append(shape.passes[width])
            seconds.append(step_seconds)
    widths = sorted(set(chain.from_iterable(passes)))
    counts = np.zeros((len(passes), len(widths)))
    for row, submodels in enumerate(passes):
        for column, width in enumerate(widths):
            counts[row, column] = submodels.count(width)
    solution, *_ = np.linalg.lstsq(counts, np.array(seconds), rcond=None)
    fitted = {}
    for width, value in zip(widths, solution, strict=True):
        fitted[width] = float(max(0.0, value))
    return fitted


def _submodel_macs(ceilings: MeasuredSteps, width: Width) -> int:
    for shape, _ in ceilings.values():
        if width in shape.costs:
            return shape.costs[width].macs
    raise AssertionError(f"width {width} was not measured")


def _interpolate(x: float, points: list[Point], default: float) -> float:
    """Return y at x on the line through the two nearest of some sorted points.

    A single point gives a line through 0.

    >>> _interpolate(2.0, [(1.0, 10.0), (3.0, 30.0)], default=0.0)
    20.0
    >>> _interpolate(2.0, [(1.0, 10.0)], default=0.0)
    20.0
    """
    if not points:
        return default
    first, second = _nearest_points(x, points)
    x0, y0 = first
    x1, y1 = second
    if x0 != x1:
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    if x0:
        return y0 * x / x0
    return y0


def _nearest_points(x: float, points: list[Point]) -> tuple[Point, Point]:
    """Return the points on both sides of x, or the two at the nearer end; one may stand twice."""
    below = [point for point in points if point[0] <= x]
    above = [point for point in points if point[0] > x]
    if below and above:
        return below[-1], above[0]
    if below:
        nearest = below[-2:]
    else:
        nearest = above[:2]
    return nearest[0], nearest[-1]
