"""What can be said of a ceiling without running it: from shapes alone, and from the ceilings that were measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fjord.core.width import Width
from fjord.elastic.client_model import ClientModel
from fjord.elastic.footprint import Footprint, measure_footprint
from fjord.experiments.profiling.measure import StepMeasurement
from fjord.federated.rounds import Federation
from fjord.training.local import Assignment, total_bytes
from fjord.training.objective import Objective


@dataclass(frozen=True)
class WorkloadShape:
    """A ceiling as its shapes tell it."""

    task: Assignment
    passes: dict[Width, list[Width]]
    """For each width that the client samples, the submodels that such a step runs."""
    costs: dict[Width, Footprint]
    """What one submodel costs, for a whole batch."""
    batch_size: int
    momentum: bool
    examples_bytes: int = 0

    @property
    def memory(self) -> int:
        """What is held, and gradients and activations of the dearest step; or gradients and what is sent back."""
        kept = {width: cost.training_bytes - cost.bytes for width, cost in self.costs.items()}
        return self._held + max(2 * total_bytes(self.task.tensors), self._dearest(kept))

    @property
    def least(self) -> int:
        """What must be there at once: what is held, and what is sent back or the activations of the dearest step."""
        activations = {
            width: max(0, cost.training_bytes - 2 * cost.bytes)
            for width, cost in self.costs.items()
        }
        return self._held + max(total_bytes(self.task.tensors), self._dearest(activations))

    @property
    def _held(self) -> int:
        """All through a round: the slice as it came and in training, momentum, corrections and examples."""
        slices = (3 if self.momentum else 2) * total_bytes(self.task.tensors)
        return slices + total_bytes(self.task.correction) + self.examples_bytes

    def _dearest(self, values: Mapping[Width, int]) -> int:
        return max(sum(values[run] for run in set(runs)) for runs in self.passes.values())

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a step, forward and backward, averaged over the widths sampled."""
        each = {w: sum(self.costs[run].macs for run in runs) for w, runs in self.passes.items()}
        return round(
            3 * self.batch_size * self.mean({width: float(macs) for width, macs in each.items()})
        )

    def mean(self, values: Mapping[Width, float]) -> float:
        """Return the mean of what each sampled width costs."""
        space = self.task.space
        return sum(
            float(p) * values[w] for w, p in zip(space.widths, space.probabilities, strict=True)
        )


Seen = dict[tuple[Any, ...], Footprint]
"""Footprints by the shapes of a network: ceilings share submodels."""


def workload_shape(
    federation: Federation,
    ceiling: Width,
    objective: Objective,
    examples: tuple[Tensor, Tensor],
    seen: Seen,
) -> WorkloadShape:
    """Return the shapes of a ceiling for a client with these examples."""
    task, how = federation.task_at(ceiling), federation.training
    model = ClientModel(federation.model, task.held, task.space, task.tensors).eval()
    inputs, targets = federation.data.prepare(examples[0][:2], None), examples[1][:2]
    nets = {width: model.shared_submodel(width).net for width in task.space.widths}
    for width, net in nets.items():
        if _key(net) not in seen:
            seen[_key(net)] = measure_footprint(net, width, (inputs,), how.batch_size)
    costs = {width: seen[_key(net)] for width, net in nets.items()}
    with torch.no_grad():
        logits = nets[task.space.largest](inputs)
    passes = {
        width: _passes(objective, logits, targets, width, task.space.largest)
        for width in task.space.widths
    }
    held = total_bytes(dict(zip(("inputs", "targets"), examples, strict=True)))
    return WorkloadShape(task, passes, costs, how.batch_size, bool(how.momentum), held)


def _key(net: nn.Module) -> tuple[Any, ...]:
    return tuple(tensor.shape for tensor in net.parameters())


def _passes(
    objective: Objective, logits: Tensor, targets: Tensor, width: Width, widest: Width
) -> list[Width]:
    """Return which submodels a loss runs, by asking it."""
    ran: list[Width] = []

    def watched(width: Width) -> Tensor:
        ran.append(width)
        return logits

    with torch.no_grad():
        objective(watched, targets, width, widest)
    return ran


def predict_memory(shape: WorkloadShape, known: Mapping[Width, tuple[WorkloadShape, int]]) -> int:
    """Return the memory of a ceiling from its shapes, corrected by what was measured of others."""
    points = sorted((float(other.memory), float(measured)) for other, measured in known.values())
    return max(1, round(_on_line(shape.memory, points, default=float(shape.memory))))


def predict_steps(
    shape: WorkloadShape, known: Mapping[Width, tuple[WorkloadShape, StepMeasurement]]
) -> dict[Width, float]:
    """Return the step time at each width sampled: the sum of what each submodel that runs takes in measured steps."""
    alone = _pass_seconds(known)
    points = sorted((float(_macs(known, width)), seconds) for width, seconds in alone.items())
    for width, cost in shape.costs.items():
        if width not in alone:
            alone[width] = max(0.0, _on_line(cost.macs, points, default=0.0))
    return {width: sum(alone[run] for run in runs) for width, runs in shape.passes.items()}


def predict_setup(
    shape: WorkloadShape, known: Mapping[Width, tuple[WorkloadShape, StepMeasurement]]
) -> float:
    """Return the seconds before and after the steps: they grow with the number of submodels that are built."""
    points = sorted((float(len(other.costs)), measured.setup) for other, measured in known.values())
    return max(0.0, _on_line(len(shape.costs), points, default=0.0))


def _pass_seconds(
    known: Mapping[Width, tuple[WorkloadShape, StepMeasurement]],
) -> dict[Width, float]:
    """Return what one pass of each submodel takes: the best fit to all steps that were measured."""
    steps = [(s.passes[w], t) for s, measured in known.values() for w, t in measured.steps.items()]
    widths = sorted({run for runs, _ in steps for run in runs})
    counts = np.array([[runs.count(width) for width in widths] for runs, _ in steps], dtype=float)
    found = np.linalg.lstsq(counts, np.array([seconds for _, seconds in steps]), rcond=None)[0]
    return {width: float(max(0.0, value)) for width, value in zip(widths, found, strict=True)}


def _macs(known: Mapping[Width, tuple[WorkloadShape, StepMeasurement]], width: Width) -> int:
    return next(shape.costs[width].macs for shape, _ in known.values() if width in shape.costs)


def _on_line(x: float, points: list[tuple[float, float]], default: float) -> float:
    """Return y at x on the line through the two nearest points, or through 0 and the only one."""
    if not points:
        return default
    below = [point for point in points if point[0] <= x]
    above = [point for point in points if point[0] > x]
    near = (
        [*below[-1:], *above[:1]]
        if below and above
        else (below or above)[-2:]
        if below
        else above[:2]
    )
    if len(near) == 1 or near[0][0] == near[1][0]:
        return near[0][1] * x / near[0][0] if near[0][0] else near[0][1]
    (x0, y0), (x1, y1) = near
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
