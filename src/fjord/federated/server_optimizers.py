"""Server optimizers (Reddi et al., Adaptive Federated Optimization; Hsu et al., FedAvgM) on nested means.

The pseudo-gradient is the mean update. Weights that no client held this round stay, and so does their memory.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fjord.elastic.model import ElasticModel
from fjord.federated.aggregation import CoveredMean, NestedMean, write_where_covered

OptimizerMemory = dict[str, Tensor]
"""What a server remembers from round to round, by a name and a tensor's key; kept in checkpoints."""


class ServerOptimizer(Protocol):
    """How a server moves a tensor."""

    def start(self) -> dict[str, float]:
        """Return what is remembered of each weight, and the value it begins with."""

    def __call__(self, memory: OptimizerMemory, update: Tensor) -> Tensor:
        """Return the step for one tensor from the mean update; change what is remembered of it."""


@dataclass(frozen=True)
class FedAvgM:
    """Momentum at the server: m = momentum * m + update; w += lr * m."""

    lr: float = 1.0
    momentum: float = 0.9

    def start(self) -> dict[str, float]:
        """Begin at rest."""
        return {"momentum": 0.0}

    def __call__(self, memory: OptimizerMemory, update: Tensor) -> Tensor:
        """Return the step for one tensor."""
        memory["momentum"] = self.momentum * memory["momentum"] + update
        return self.lr * memory["momentum"]


@dataclass(frozen=True)
class FedAdam:
    """Adam at the server, as in the paper's Algorithm 2: without bias correction, and v begins at tau squared."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def start(self) -> dict[str, float]:
        """Begin as the paper does."""
        return {"first": 0.0, "second": self.tau**2}

    def __call__(self, memory: OptimizerMemory, update: Tensor) -> Tensor:
        """Return the step for one tensor."""
        memory["first"] = self.beta1 * memory["first"] + (1 - self.beta1) * update
        memory["second"] = self.beta2 * memory["second"] + (1 - self.beta2) * update.square()
        return self.lr * memory["first"] / (memory["second"].sqrt() + self.tau)


@torch.no_grad()
def apply_mean(
    model: ElasticModel, merged: NestedMean, step: ServerOptimizer | None, memory: OptimizerMemory
) -> None:
    """Bring a round's mean into the model: as it is (FedAvg), or through a server optimizer."""
    for key, current in model.tensors.items():
        if step is not None and isinstance(current, nn.Parameter):
            write_where_covered(current, _stepped(key, current, merged.result(key), step, memory))
        else:
            merged.write(key, current)


def _stepped(
    key: str, current: Tensor, found: CoveredMean, step: ServerOptimizer, memory: OptimizerMemory
) -> CoveredMean:
    before = {
        name: memory.get(f"{name}/{key}", torch.full_like(current, x))
        for name, x in step.start().items()
    }
    after = dict(before)
    moved = current + step(after, found.mean - current)
    for name, value in after.items():
        memory[f"{name}/{key}"] = torch.where(found.weight > 0, value, before[name])
    return CoveredMean(moved, found.weight)
